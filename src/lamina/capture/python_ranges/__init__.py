"""Ranges, slices and texts with Python numbers that vary between calls."""
