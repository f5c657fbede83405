"""Comparisons that Python makes of tensors, in containers and to find the greatest."""
