"""How many elements of a vector prices and thresholds of scheduling are given for."""

from __future__ import annotations

__all__ = ["LANES"]

LANES = 16
"""Elements of float32 in a register of AVX-512."""
