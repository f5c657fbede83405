"""Editing of FX graphs: the passes of every stage copy, replace and erase nodes with these functions."""
