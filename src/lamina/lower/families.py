"""Imports every rule file, so that the table is complete once this module is loaded."""

from __future__ import annotations

from lamina.lower import (
    activations,
    activations_backward,
    arrangement,
    asserts,
    batch_norm,
    comparison,
    concat,
    convolution,
    creation,
    cross,
    foreach,
    indexing,
    losses,
    matrix_vector,
    nll_loss,
    norms,
    padding,
    pointwise,
    pointwise_math,
    pooling,
    random,
    reduction,
    row_digest,
    scan,
    scatter,
    softmax,
    strided,
    topk,
    upsample,
    views,
)

__all__ = ["LOADED"]

LOADED = (
    *(activations, activations_backward, comparison, creation, pointwise, pointwise_math, random, reduction, softmax),
    *(batch_norm, foreach, losses, matrix_vector, nll_loss, norms, row_digest),
    *(arrangement, asserts, concat, convolution, cross, indexing, padding, pooling, scan, scatter, strided, topk),
    *(upsample, views),
)
"""The rule files."""
