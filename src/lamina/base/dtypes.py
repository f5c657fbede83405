"""Element types: names, sizes, categories, and their torch twins."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["DTYPES", "LARGEST_E4M3", "DType", "dtype_of", "torch_dtype"]


@dataclass(frozen=True, slots=True)
class DType:
    """One element type. ``kind`` is one of bool, int, uint, float, complex; ``size`` is in bytes."""

    name: str
    kind: str
    size: int

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")


DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        DType("bool", "bool", 1),
        DType("uint8", "uint", 1),
        DType("uint16", "uint", 2),
        DType("uint32", "uint", 4),
        DType("uint64", "uint", 8),
        DType("int8", "int", 1),
        DType("int16", "int", 2),
        DType("int32", "int", 4),
        DType("int64", "int", 8),
        DType("float16", "float", 2),
        DType("bfloat16", "float", 2),
        DType("float32", "float", 4),
        DType("float64", "float", 8),
        DType("complex32", "complex", 4),
        DType("complex64", "complex", 8),
        DType("complex128", "complex", 16),
        DType("float8_e4m3fn", "float", 1),
        DType("float8_e5m2", "float", 1),
        DType("float8_e4m3fnuz", "float", 1),
        DType("float8_e5m2fnuz", "float", 1),
    )
}

LARGEST_E4M3 = float(torch.tensor(1e6, device="cpu").to(torch.float8_e4m3fn))
"""What eager makes of numbers too large for float8_e4m3fn: the largest there is, in versions before 2.13 NaN."""


def dtype_of(dtype: torch.dtype) -> str:
    """Name of a torch dtype without the ``torch.`` prefix."""
    return str(dtype).removeprefix("torch.")


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of that name."""
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found
