"""How each reduction accumulates: its start, one step, joining two accumulators, and folding lanes into one value."""

from __future__ import annotations

from lamina.base.dtypes import DTYPES
from lamina.codegen.cpp.expressions import element, splat, vector_type

__all__ = ["Accumulator", "accumulator"]

_INT_RANGE = {
    "int8": ("-128", "127"),
    "uint8": ("0", "255"),
    "int16": ("-32768", "32767"),
    "int32": ("INT32_MIN", "INT32_MAX"),
    "int64": ("INT64_MIN", "INT64_MAX"),
    "uint16": ("0", "65535"),
    "uint32": ("0", "UINT32_MAX"),
    "uint64": ("0", "UINT64_MAX"),
}


class Accumulator:
    """Text for one reduction ``op`` on values of ``dtype``."""

    def __init__(self, op: str, dtype: str) -> None:
        self.op, self.dtype = op, dtype
        self.floating = DTYPES[dtype].is_float
        self.scalar = "bool" if dtype == "bool" else element(dtype)
        self.vector = vector_type(dtype) or ""
        self.exact = op == "sum" and self.floating and dtype != "float64"

    def start(self, vector: bool) -> str:
        """The value of an empty reduction."""
        text = self.start_scalar()
        return splat(self.dtype, text) if vector else text

    def start_scalar(self) -> str:
        single = "" if self.dtype == "float64" else "f"
        if self.op in ("sum", "any"):
            return "false" if self.dtype == "bool" else "0"
        if self.op in ("prod", "all"):
            return "true" if self.dtype == "bool" else "1"
        low = self.op == "max"
        if self.floating:
            return f"{'-' if low else ''}__builtin_inf{single}()"
        if self.dtype == "bool":
            return "false" if low else "true"
        return _INT_RANGE[self.dtype][0 if low else 1]

    def join(self, total: str, value: str, vector: bool) -> str:
        """``total`` combined with ``value``."""
        if self.dtype == "bool":
            sign = "&" if self.op in ("all", "min", "prod") else "|"
            return f"{total} {sign} {value}" if vector else f"(bool)({total} {sign} {value})"
        if self.op in ("sum", "prod"):
            return self.arithmetic("+" if self.op == "sum" else "*", total, value, vector)
        if self.op in ("max", "min"):
            name = "maximum" if self.op == "max" else "minimum"
            if self.floating:
                return f"{name}({value}, {total})"
            return f"{name}_int({value}, {total})" if vector else f"{name}<{self.scalar}>({value}, {total})"
        raise NotImplementedError(f"reduction {self.op} of {self.dtype}")

    def arithmetic(self, sign: str, total: str, value: str, vector: bool) -> str:
        if self.floating or (vector and self.dtype in ("int32", "int64")):
            return f"{total} {sign} {value}"
        if vector:
            return f"wrap_{element(self.dtype)}({total} {sign} {value})"
        return f"wrap_{'add' if sign == '+' else 'mul'}<{self.scalar}>({total}, {value})"

    def fold(self, text: str) -> str:
        """All lanes of a vector joined into one scalar."""
        if self.dtype == "bool":
            return f"every_lane({text})" if self.op in ("all", "min", "prod") else f"any_lane({text})"
        name = {"sum": "sum", "prod": "prod", "max": "max", "min": "min"}[self.op]
        narrow = self.dtype in ("int8", "uint8", "int16")
        return f"({self.scalar})fold_{name}({text})" if narrow else f"fold_{name}({text})"


_made: dict[tuple[str, str], Accumulator] = {}
"""By reduction and dtype."""


def accumulator(op: str, dtype: str) -> Accumulator:
    """The accumulator of a reduction, made once."""
    key = (op, dtype)
    if key not in _made:
        _made[key] = Accumulator(op, dtype)
    return _made[key]
