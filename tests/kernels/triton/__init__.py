"""Triton kernels of the user's own."""
