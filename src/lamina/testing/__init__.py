"""Comparison of a compiled callable with eager and with a reference in double precision."""

from lamina.base.accuracy import FLOOR_ULPS, RATIO, Error, error, judge, mismatch, tensors
from lamina.base.reference import doubled
from lamina.testing.backends import BackendCheck, BackendReport, check_backend
from lamina.testing.compare import DRAWS, Comparison, TensorComparison, compare, compare_draws
from lamina.testing.rules import RuleCase, RuleCheck, check_rule
from lamina.testing.verify import Verification, VerifiedValue, verify

__all__ = [
    "DRAWS",
    "FLOOR_ULPS",
    "RATIO",
    "BackendCheck",
    "BackendReport",
    "Comparison",
    "Error",
    "RuleCase",
    "RuleCheck",
    "TensorComparison",
    "Verification",
    "VerifiedValue",
    "check_backend",
    "check_rule",
    "compare",
    "compare_draws",
    "doubled",
    "error",
    "judge",
    "mismatch",
    "tensors",
    "verify",
]
