"""Element types in Triton: signature names, the dtypes values have in registers, literals and neutral elements."""

from __future__ import annotations

import math

import torch

from lamina.base.dtypes import DTYPES, torch_dtype
from lamina.codegen.triton.source import UnsupportedKernel

__all__ = ["HALVES", "TYPES", "kind", "lifted", "literal", "lowest", "neutral", "signature", "typed"]

TYPES = {
    "bool": ("i1", "tl.int1"),
    "uint8": ("u8", "tl.uint8"),
    "uint16": ("u16", "tl.uint16"),
    "uint32": ("u32", "tl.uint32"),
    "uint64": ("u64", "tl.uint64"),
    "int8": ("i8", "tl.int8"),
    "int16": ("i16", "tl.int16"),
    "int32": ("i32", "tl.int32"),
    "int64": ("i64", "tl.int64"),
    "float16": ("fp16", "tl.float16"),
    "bfloat16": ("bf16", "tl.bfloat16"),
    "float32": ("fp32", "tl.float32"),
    "float64": ("fp64", "tl.float64"),
    "float8_e4m3fn": ("fp8e4nv", "tl.float8e4nv"),
    "float8_e5m2": ("fp8e5", "tl.float8e5"),
}
"""Name in a signature and in the language, by dtype."""

HALVES = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
"""Types computed in float32: each operation rounds its result."""


def _row(dtype: str) -> tuple[str, str]:
    found = TYPES.get(dtype)
    if found is None:
        raise UnsupportedKernel(f"Triton has no element type {dtype}")
    return found


def signature(dtype: str) -> str:
    """The type of a pointer to ``dtype`` in a kernel's signature."""
    return f"*{_row(dtype)[0]}"


def typed(dtype: str) -> str:
    """The dtype in Triton's language."""
    return _row(dtype)[1]


def lifted(dtype: str) -> str:
    """The dtype in which values of ``dtype`` are computed."""
    return "float32" if dtype in HALVES else dtype


def kind(dtype: str) -> str:
    """One of bool, int, uint, float, complex."""
    return DTYPES[dtype].kind


def literal(value: float, dtype: str) -> str:
    """A number of ``dtype`` as source text, rounded to it."""
    if dtype == "bool":
        return str(bool(value))
    if kind(dtype) != "float":
        return str(int(value))
    if dtype not in ("float64", "float32"):
        value = torch.tensor(value, dtype=torch.float64).to(torch_dtype(dtype)).double().item()
    if math.isnan(value):
        return 'float("nan")'
    if math.isinf(value):
        return 'float("inf")' if value > 0 else 'float("-inf")'
    return repr(float(value))


def lowest(dtype: str) -> str:
    """A literal no value is below."""
    if kind(dtype) == "float":
        return 'float("-inf")'
    return str(torch.iinfo(torch_dtype(dtype)).min)


def _highest(dtype: str) -> str:
    return 'float("inf")' if kind(dtype) == "float" else str(torch.iinfo(torch_dtype(dtype)).max)


def neutral(op: str, dtype: str) -> str:
    """The literal that changes nothing in a reduction or scan."""
    if op in ("max", "argmax"):
        return lowest(dtype)
    if op in ("min", "argmin", "sort"):
        return _highest(dtype)
    if op == "logaddexp":
        return lowest(dtype)
    if op in ("any", "all"):
        return str(op == "all")
    number = 1 if op == "prod" else 0
    return f"{number}.0" if kind(dtype) == "float" else str(number)
