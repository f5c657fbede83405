"""Fake tensors, made without what symbols need, so that what loads no symbols can make them."""
