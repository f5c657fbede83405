"""Kernels, operations and lowerings of the user's own."""
