"""Lamina's own front end: a concrete interpreter of CPython bytecode whose tensors may be pending."""
