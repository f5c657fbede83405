"""Programs written by hand, each of a kind that neither the grammar nor named patterns have."""

from benchmarks.sweeping.written import layers, learning, signals
from benchmarks.sweeping.written.noting import cases

__all__ = ["cases", "layers", "learning", "signals"]
