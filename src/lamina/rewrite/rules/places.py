"""Where Lamina's own rules run."""

from __future__ import annotations

__all__ = ["CAPTURED"]

CAPTURED = ("captured",)
"""Before differentiation, so that backward passes are those of the whole function. Inference graphs begin there too."""
