"""Comparison of a compiled callable with eager and with a reference in double precision."""

from lamina.testing.accuracy import FLOOR_ULPS, RATIO, Error, error, judge, mismatch, tensors
from lamina.testing.compare import Comparison, TensorComparison, compare
from lamina.testing.reference import doubled

__all__ = [
    "FLOOR_ULPS",
    "RATIO",
    "Comparison",
    "Error",
    "TensorComparison",
    "compare",
    "doubled",
    "error",
    "judge",
    "mismatch",
    "tensors",
]
