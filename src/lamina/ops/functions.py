"""Elementary functions of one or two tensors."""

from __future__ import annotations

import math

from lamina.base.dtypes import DTYPES
from lamina.ops.element import Element, Formula, where
from lamina.ops.row import POINTWISE, Row, rows

__all__ = ["ROWS"]


def _op(name: str) -> Formula:
    return lambda v: v.op(name)


def _same(names: str, work: float, exact: bool = False) -> tuple[Row, ...]:
    """Rows of what ATen and torch's primitives call by the name of the scalar operation that they are."""
    return tuple(
        row
        for name in names.split()
        for row in rows(POINTWISE, f"{name} prims.{name}", work=work, exact=exact, formula=_op(name))
    )


def _on_floats(name: str) -> Formula:
    return lambda v: v.op(name) if DTYPES[v.dtype].is_float else v


def _on_signed(name: str) -> Formula:
    return lambda v: v if DTYPES[v.dtype].kind in ("uint", "bool") else v.op(name)


def _sign(v: Element) -> Element:
    if DTYPES[v.dtype].kind == "bool":
        return v
    if DTYPES[v.dtype].kind == "uint":
        return (v > 0).to(v.dtype)
    return v.op("sign")


def _sinc(v: Element) -> Element:
    scaled = v * math.pi
    return where(v.equals(0), v.builder.constant(1, v.dtype), scaled.op("sin") / scaled)


def _entr(v: Element) -> Element:
    inside = where(v.equals(0), v.builder.constant(0, v.dtype), where(v < 0, -math.inf, -v * v.op("log")))
    return where(v.op("isnan"), v, inside)


def _angle(v: Element) -> Element:
    return where(v.op("isnan"), v, where(v < 0, v.builder.constant(math.pi, v.dtype), 0))


def _log_add(exp: str, scale: float | None) -> Formula:
    def formula(a: Element, b: Element) -> Element:
        high = a.op("maximum", b)
        infinite = a.op("isinf") & a.equals(b)
        added = (-((a - b).op("abs"))).op(exp).op("log1p")
        return where(infinite, a, high + (added if scale is None else added * scale))

    return formula


def _heaviside(a: Element, b: Element) -> Element:
    return a | b if a.dtype == "bool" else where(a.equals(0), b, (a > 0).to(a.dtype))


def _logit(v: Element, eps: float | None = None) -> Element:
    if eps is not None:
        v = v.op("maximum", eps).op("minimum", 1.0 - eps)
    return (v / (1.0 - v)).op("log")


def _logit_backward(g: Element, v: Element, eps: float | None = None) -> Element:
    low, high = (0.0, 1.0) if eps is None else (eps, 1.0 - eps)
    slope = g / (v * (1.0 - v))
    if eps is None:  # at 0.0 and -0.0 the same infinity
        slope = where(v.equals(0), g * math.inf, slope)
    return where((v < low) | (v > high), math.nan if eps is None else 0.0, slope)


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
    *_same("neg", 0.2, exact=True),
    *_same("sqrt rsqrt", 1.0),
    *_same("exp exp2", 4.0),
    *_same("expm1 log log2 log10 log1p sin cos", 6.0),
    *_same("erf erfc tan asin acos atan sinh cosh tanh asinh acosh atanh", 12.0),
    *rows(POINTWISE, "floor prims.floor", work=0.2, formula=_on_floats("floor")),
    *rows(POINTWISE, "ceil prims.ceil", work=0.2, formula=_on_floats("ceil")),
    *rows(POINTWISE, "trunc prims.trunc", work=0.2, formula=_on_floats("trunc")),
    *rows(POINTWISE, "round prims.round", work=0.2, formula=_on_floats("round")),
    *rows(POINTWISE, "special_round", work=0.2, formula=_on_floats("round")),
    *rows(POINTWISE, "reciprocal prims.reciprocal", work=1.0, formula=lambda v: 1.0 / v),
    *rows(POINTWISE, "sigmoid", work=4.0, formula=_op("sigmoid")),
    *rows(POINTWISE, "erfinv", work=12.0, formula=_op("erfinv")),
    *rows(POINTWISE, "prims.erf_inv", work=12.0, formula=_op("erfinv")),
    *rows(POINTWISE, "lgamma prims.lgamma", work=24.0, formula=_op("lgamma")),
    *rows(POINTWISE, "digamma prims.digamma", work=24.0, formula=_op("digamma")),
    *rows(POINTWISE, "abs prims.abs", work=0.2, exact=True, formula=_on_signed("abs")),
    *rows(POINTWISE, "sign sgn prims.sign", work=0.2, formula=_sign),
    *rows(POINTWISE, "positive", work=0.2, formula=lambda v: v),
    *rows(POINTWISE, "square", work=0.2, formula=lambda v: v & v if v.dtype == "bool" else v * v),
    *rows(POINTWISE, "frac", work=0.2, formula=lambda v: v - v.op("trunc")),
    *rows(POINTWISE, "deg2rad", work=0.2, formula=lambda v: v * (math.pi / 180)),
    *rows(POINTWISE, "rad2deg", work=0.2, formula=lambda v: v * (180 / math.pi)),
    *rows(POINTWISE, "sinc", work=6.0, formula=_sinc),
    *rows(POINTWISE, "special_entr", work=6.0, formula=_entr),
    *rows(POINTWISE, "angle", work=0.5, formula=_angle),
    *rows(POINTWISE, "heaviside", work=0.2, formula=_heaviside),
    *rows(POINTWISE, "logaddexp", work=6.0, formula=_log_add("exp", None)),
    *rows(POINTWISE, "logaddexp2", work=6.0, formula=_log_add("exp2", 1 / math.log(2))),
    *rows(POINTWISE, "logit", work=6.0, formula=_logit),
    *rows(POINTWISE, "logit_backward", work=4.0, formula=_logit_backward),
    *rows(POINTWISE, "round.decimals copysign.Tensor|Scalar fmin fmax prims.fmin prims.fmax nan_to_num", work=0.2),
    *rows(POINTWISE, "hypot prims.hypot", work=4.0),
    *rows(
        POINTWISE, "xlogy.Tensor|Scalar_Other|Scalar_Self special_xlog1py.default|other_scalar|self_scalar", work=6.0
    ),
    *rows(POINTWISE, "atan2 prims.atan2", work=12.0),
    *rows(POINTWISE, "nextafter prims.nextafter", work=0.5),
    *rows(POINTWISE, "ldexp.Tensor", work=4.0),
)
