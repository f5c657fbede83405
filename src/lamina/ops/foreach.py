"""Operations on lists of tensors."""

from __future__ import annotations

from lamina.ops.row import POINTWISE, REDUCTION, Row, rows

__all__ = ["ROWS"]

ROWS: tuple[Row, ...] = (
    *rows(
        POINTWISE,
        """
        _foreach_abs _foreach_acos _foreach_asin _foreach_atan _foreach_ceil _foreach_cos _foreach_cosh
        _foreach_erf _foreach_erfc _foreach_exp _foreach_expm1 _foreach_floor _foreach_frac _foreach_lgamma
        _foreach_log _foreach_log10 _foreach_log1p _foreach_log2 _foreach_neg _foreach_reciprocal
        _foreach_round _foreach_rsqrt _foreach_sigmoid _foreach_sign _foreach_sin _foreach_sinh
        _foreach_sqrt _foreach_tan _foreach_tanh _foreach_trunc _foreach_mul.Scalar|List|ScalarList|Tensor
        _foreach_maximum.Scalar|List|ScalarList _foreach_minimum.Scalar|List|ScalarList
        _foreach_clamp_min.Scalar|List|ScalarList _foreach_clamp_max.Scalar|List|ScalarList
        _foreach_div.Scalar|List|ScalarList|Tensor _foreach_add.Scalar|List|ScalarList|Tensor
        _foreach_sub.Scalar|List|ScalarList _foreach_pow.Scalar|List|ScalarList|ScalarAndTensor
        _foreach_addcmul.Scalar|ScalarList _foreach_addcdiv.Scalar|ScalarList
        _foreach_lerp.List|Scalar|ScalarList _foreach_copy _foreach_clone _foreach_zero
        """,
    ),
    *rows(REDUCTION, "_foreach_norm.Scalar _foreach_max"),
)
