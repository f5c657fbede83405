"""Lamina's own rules, by subject."""
