"""Functions of numbers that kernels do not compute: ATen is called."""

from __future__ import annotations

from lamina.ops.row import POINTWISE, Row, rows

__all__ = ["ROWS"]

_SPECIAL = "a special function too rare and too long for kernels; ATen has the series"

ROWS: tuple[Row, ...] = (
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
