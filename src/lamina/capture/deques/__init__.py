"""Deques that drop items beyond a length, as a trace sees them."""
