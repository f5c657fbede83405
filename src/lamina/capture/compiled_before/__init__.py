"""Callables that were compiled before they are given to be compiled."""
