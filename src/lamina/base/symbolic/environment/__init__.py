"""Symbolic sizes and conditions, and the fake tensors that have them."""
