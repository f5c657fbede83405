"""Operations on lists of tensors."""

from __future__ import annotations

from lamina.ops import functions
from lamina.ops.row import POINTWISE, REDUCTION, Row, rows

__all__ = ["ROWS"]

_UNARY = """
abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg reciprocal round rsqrt
sigmoid sign sin sinh sqrt tan tanh trunc
"""
_ONE = {row.name: row for row in functions.ROWS if row.formula is not None}
"""The same on one tensor."""

ROWS: tuple[Row, ...] = (
    *(
        row
        for one in map(_ONE.__getitem__, _UNARY.split())
        for row in rows(POINTWISE, f"_foreach_{one.name}", work=one.work, formula=one.formula)
    ),
    *rows(POINTWISE, "_foreach_copy _foreach_clone _foreach_zero", work=0.2),
    *rows(POINTWISE, "_foreach_mul.Scalar|List|ScalarList|Tensor _foreach_addcmul.Scalar|ScalarList", work=0.2),
    *rows(POINTWISE, "_foreach_maximum.Scalar|List|ScalarList _foreach_minimum.Scalar|List|ScalarList", work=0.2),
    *rows(POINTWISE, "_foreach_clamp_min.Scalar|List|ScalarList _foreach_clamp_max.Scalar|List|ScalarList", work=0.2),
    *rows(POINTWISE, "_foreach_add.Scalar|List|ScalarList|Tensor _foreach_sub.Scalar|List|ScalarList", work=0.2),
    *rows(POINTWISE, "_foreach_lerp.List|Scalar|ScalarList", work=0.2),
    *rows(POINTWISE, "_foreach_div.Scalar|List|ScalarList|Tensor _foreach_addcdiv.Scalar|ScalarList", work=1.0),
    *rows(POINTWISE, "_foreach_pow.Scalar|List|ScalarList|ScalarAndTensor", work=12.0),
    *rows(REDUCTION, "_foreach_max", work=0.3),
    *rows(REDUCTION, "_foreach_norm.Scalar", work=0.8),
)
