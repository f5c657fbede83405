"""Traces that are known not to compute what the program does."""
