"""The class that ``nll_loss`` is told to ignore where it stands for a ``gather``, which ignores none."""

from __future__ import annotations

__all__ = ["IGNORE_NONE"]

IGNORE_NONE = -(1 << 62)
"""No target is this. What is out of range is then the error of a ``gather``: a ``RuntimeError``."""
