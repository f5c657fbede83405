"""The definitions that every generated translation unit starts with."""

from __future__ import annotations

from functools import cache
from math import isfinite
from pathlib import Path

from lamina.base.dtypes import LARGEST_E4M3

__all__ = ["prelude"]

_FOLDER = Path(__file__).parent / "include"
_SIMD = (
    *("simd.h", "accumulate.h", "simd_ops.h", "simd_repeats.h", "simd_masked.h", "simd_steps.h", "simd_math.h"),
    *("simd_functions.h", "simd_scans.h"),
)


@cache  # instruction sets, precise or not
def prelude(isa: str, precise: bool = False) -> str:
    """C++ source of the types and operations that kernels for ``isa`` use, once per translation unit.

    With ``precise`` every elementary function is the one eager calls, bit for bit.
    """
    parts = [f"#define E4M3_BEYOND {0x7E if isfinite(LARGEST_E4M3) else 0x7F:#x}\n"]
    if isa == "avx512":
        parts.append("#define LAMINA_AVX512 1\n")
    if precise:
        parts.append("#define LAMINA_PRECISE 1\n")
    files = ("base.h", "accumulate.h") if isa == "plain" else ("base.h", *_SIMD)
    parts += [(_FOLDER / name).read_text(encoding="utf-8") for name in files]
    return "".join(parts)
