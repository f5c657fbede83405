"""Hooks on the tensors that a computation saves for its backward."""
