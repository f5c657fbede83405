"""Imports every rule file, so that the table is complete once this module is loaded."""

from __future__ import annotations

from lamina.lower import (
    activations,
    arrangement,
    asserts,
    batch_norm,
    comparison,
    concat,
    convolution,
    creation,
    cross,
    distances,
    embedding_bags,
    foreach,
    formulas,
    group_norm,
    indexing,
    losses,
    matrix_vector,
    max_pooling,
    mean_pooling,
    moments,
    nll_loss,
    norms,
    padding,
    pointwise,
    pointwise_math,
    random,
    reduction,
    row_digest,
    scan,
    scatter,
    selections,
    softmax,
    sorting,
    strided,
    topk,
    upsample,
    upsample_gradients,
    vector_norms,
    views,
)

__all__ = ["DERIVED", "LOADED"]

DERIVED = formulas.rules_of_rows()
"""The operations whose rules follow from their rows, once those written by hand are there."""

LOADED = (
    *(activations, comparison, creation, pointwise, pointwise_math, random, reduction, softmax),
    *(moments, vector_norms),
    *(batch_norm, foreach, group_norm, losses, matrix_vector, max_pooling, mean_pooling, nll_loss, norms, row_digest),
    *(arrangement, asserts, concat, convolution, cross, distances, embedding_bags, indexing, padding, scan, scatter),
    *(selections, sorting),
    *(strided, topk),
    *(upsample, upsample_gradients, views),
)
"""The rule files."""
