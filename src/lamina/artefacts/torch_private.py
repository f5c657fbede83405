"""Private torch names of stored calls, as read in torch 2.11 to 2.13."""

from __future__ import annotations

__all__ = ["HIDDEN"]

HIDDEN = "torch._C"
"""The module in which classes of torch's stand that say otherwise of themselves."""
