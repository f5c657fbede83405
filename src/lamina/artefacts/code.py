"""Digests of code: what it computes, whatever file and line it stands in."""

from __future__ import annotations

import functools
from types import CodeType
from typing import Any

from lamina.runtime.cache import digest

__all__ = ["code_digest"]


@functools.lru_cache(maxsize=4096)
def code_digest(code: CodeType) -> str:
    """SHA-256 of the instructions of ``code`` with all that they name, and of the code within it."""
    told = (
        code.co_name, code.co_qualname, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount,
        code.co_flags, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars,
    )  # fmt: skip
    return digest(repr(told), code.co_code, code.co_exceptiontable, *map(_constant, code.co_consts))


def _constant(value: Any) -> str:
    kind = type(value)
    if kind is CodeType:
        return f"code {code_digest(value)}"
    if kind is frozenset:
        return f"frozenset {sorted(map(_constant, value))}"
    if kind is tuple:
        return f"tuple {[*map(_constant, value)]}"
    return f"{kind.__name__} {value!r}"
