"""Copies of objects whose class has its own idea of what a copy is, which a trace does not ask."""
