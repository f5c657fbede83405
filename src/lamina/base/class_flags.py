"""Flags of classes, as CPython's object.h has them."""

from __future__ import annotations

__all__ = ["MADE_BY_PYTHON"]

MADE_BY_PYTHON = 1 << 9
"""Py_TPFLAGS_HEAPTYPE: a class that Python code made, whose attributes can be set, and whose objects' class can."""
