"""Elementary functions of one or two tensors."""

from __future__ import annotations

from lamina.ops.row import POINTWISE, Row, rows

__all__ = ["ROWS"]

_SPECIAL = "a special function too rare and too long for kernels; ATen has the series"

_NAMES = {
    "arctan2": "atan2",
    "fix": "trunc",
    "special_digamma": "digamma",
    "special_erf": "erf",
    "special_erfc": "erfc",
    "special_erfinv": "erfinv",
    "special_expit": "sigmoid",
    "special_gammaln": "lgamma",
}

ROWS: tuple[Row, ...] = (
    *(row for name, one in _NAMES.items() for row in rows(POINTWISE, name, same_as=f"aten.{one}.default")),
    *rows(
        POINTWISE,
        """
        floor ceil trunc round.default|decimals sign sgn positive square frac deg2rad rad2deg
        prims.abs prims.ceil prims.floor prims.neg prims.round prims.sign prims.trunc copysign.Tensor|Scalar
        fmin fmax prims.fmin prims.fmax heaviside nan_to_num
        """,
        work=0.2,
    ),
    *rows(POINTWISE, "neg abs", work=0.2, exact=True),
    *rows(POINTWISE, "reciprocal rsqrt sqrt prims.reciprocal prims.rsqrt prims.sqrt", work=1.0),
    *rows(
        POINTWISE,
        "sigmoid exp exp2 prims.exp prims.exp2 hypot prims.hypot logit_backward",
        work=4.0,
    ),
    *rows(
        POINTWISE,
        """
        expm1 log log2 log10 log1p sin cos sinc special_entr prims.cos prims.expm1 prims.log prims.log10
        prims.log1p prims.log2 prims.sin xlogy.Tensor|Scalar_Other|Scalar_Self
        special_xlog1py.default|other_scalar|self_scalar logaddexp logaddexp2 logit
        """,
        work=6.0,
    ),
    *rows(
        POINTWISE,
        """
        erf erfc erfinv tan asin acos atan sinh cosh tanh asinh acosh atanh prims.acos prims.acosh
        prims.asin prims.asinh prims.atan prims.atanh prims.cosh prims.erf prims.erfc prims.sinh prims.tan
        prims.tanh atan2 prims.atan2
        """,
        work=12.0,
    ),
    *rows(
        POINTWISE,
        """
        lgamma digamma angle special_round prims.digamma prims.lgamma prims.erf_inv nextafter
        prims.nextafter ldexp.Tensor
        """,
    ),
    *rows(POINTWISE, "gcd lcm", reason="the algorithm is a loop of data-dependent length on integers"),
    *rows(
        POINTWISE,
        "_conj_physical conj_physical",
        reason="complex numbers are left to the library, and on real ones this is a copy",
    ),
    *rows(POINTWISE, "mvlgamma", reason=_SPECIAL, becomes="a sum of logarithms of gamma functions"),
    *rows(POINTWISE, "frexp.Tensor", reason="two results of different types from the bits of a number"),
    *rows(
        POINTWISE,
        """
        i0 igamma igammac polygamma special_airy_ai special_erfcx special_bessel_j0
        special_bessel_j1 special_bessel_y0 special_bessel_y1 special_modified_bessel_i0
        special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1
        special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 special_i0e special_i1
        special_i1e special_ndtri special_log_ndtr special_spherical_bessel_j0
        special_zeta.default|other_scalar|self_scalar
        special_chebyshev_polynomial_t.default|x_scalar|n_scalar
        special_chebyshev_polynomial_u.default|x_scalar|n_scalar
        special_chebyshev_polynomial_v.default|x_scalar|n_scalar
        special_chebyshev_polynomial_w.default|x_scalar|n_scalar
        special_shifted_chebyshev_polynomial_t.default|x_scalar|n_scalar
        special_shifted_chebyshev_polynomial_u.default|x_scalar|n_scalar
        special_shifted_chebyshev_polynomial_v.default|x_scalar|n_scalar
        special_shifted_chebyshev_polynomial_w.default|x_scalar|n_scalar
        special_hermite_polynomial_h.default|x_scalar|n_scalar
        special_hermite_polynomial_he.default|x_scalar|n_scalar
        special_laguerre_polynomial_l.default|x_scalar|n_scalar
        special_legendre_polynomial_p.default|x_scalar|n_scalar
        """,
        reason=_SPECIAL,
    ),
)
