"""Compiled graphs as they run under autograd."""
