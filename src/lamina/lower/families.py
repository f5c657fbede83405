"""Imports every rule file, so that the table is complete once this module is loaded."""

from __future__ import annotations

from lamina.lower import (
    activations,
    activations_backward,
    batch_norm,
    comparison,
    concat,
    creation,
    foreach,
    indexing,
    losses,
    nll_loss,
    norms,
    padding,
    pointwise,
    pointwise_math,
    pooling,
    random,
    reduction,
    scatter,
    softmax,
    views,
)

__all__ = ["LOADED"]

LOADED = (
    *(activations, activations_backward, comparison, creation, pointwise, pointwise_math, random, reduction, softmax),
    *(batch_norm, foreach, losses, nll_loss, norms),
    *(concat, indexing, padding, pooling, scatter, views),
)
"""The rule files."""
