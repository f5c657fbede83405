"""Captured graph to functional forward and backward graphs."""
