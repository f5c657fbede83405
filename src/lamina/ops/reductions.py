"""Reductions, softmaxes, scans and selection."""

from __future__ import annotations

import math

from lamina.ops.row import REDUCTION, SCAN, SORT, Row, rows

__all__ = ["ROWS"]

_BY_LOGARITHMS = math.inf
"""No kernel is known in which such a scan, a chain of exponentials and logarithms, costs less than a saved result."""

ROWS: tuple[Row, ...] = (
    *rows(
        REDUCTION,
        """
        sum.default|dim_IntList prims.sum prims.prod prims.amax prims.amin nansum mean.default|dim
        prod.default|dim_int amax max.default|dim amin min.default|dim aminmax argmax argmin
        any.default|dim|dims all.default|dim|dims count_nonzero.default|dim_IntList
        _log_softmax_backward_data
        """,
        work=0.3,
    ),
    *rows(
        REDUCTION,
        """
        var.correction|default|dim std.correction|default|dim prims.var var_mean.correction|default|dim
        std_mean.correction|default|dim linalg_vector_norm
        norm.Scalar|ScalarOpt_dim|ScalarOpt_dim_dtype|ScalarOpt_dtype
        """,
        work=0.8,
    ),
    *rows(REDUCTION, "_softmax _safe_softmax _log_softmax _softmax_backward_data logsumexp", work=5.0),
    *rows(REDUCTION, "trace", work=0.3),
    *rows(REDUCTION, "dist", work=0.8),
    *rows(
        REDUCTION,
        "linalg__powsum",
        reason="part of a sharded vector norm; nothing but distributed tensors calls it",
    ),
    *rows(SCAN, "cumsum cumprod", work=5.0),
    *rows(SCAN, "cummax cummin", work=5.0),
    *rows(SCAN, "logcumsumexp", work=_BY_LOGARITHMS),
    *rows(SORT, "sort.default|stable", any_dtype=True),
    *rows(SORT, "topk kthvalue median.dim nanmedian.dim"),
    *rows(
        SORT,
        """
        mode median.default nanmedian.default searchsorted.Tensor bucketize.Tensor
        """,
        reason="sorting and selection are not loops over independent elements",
    ),
)
