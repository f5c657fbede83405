"""An ``ignore_index`` for ``nll_loss`` that no target equals: the loss then ignores nothing, as a ``gather`` does."""

from __future__ import annotations

__all__ = ["IGNORE_NONE"]

IGNORE_NONE = -(1 << 62)
"""No target is this. What is out of range is then the error of a ``gather``: a ``RuntimeError``."""
