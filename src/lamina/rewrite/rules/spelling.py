"""One name for each tensor computation of a captured graph, however the user wrote it.

``x @ y``, ``torch.matmul(x, y)``, ``x.bmm(y)`` and ``x.__matmul__(y)`` are all "matmul" of two operands; arguments
come in one order, with torch's defaults filled in.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Node

from lamina.base.torch_private import OpOverload, schema_of

__all__ = ["Spelled", "fake_of", "number", "spelled", "written"]

_MISSING: Any = object()


@dataclass(frozen=True, slots=True)
class Spelled:
    """A call by its one name, its arguments in the order of ``SIGNATURES``, and whether it writes to the first."""

    name: str
    args: tuple[Any, ...]
    writes: bool = False


SIGNATURES: Mapping[str, tuple[tuple[str, Any], ...]] = MappingProxyType(
    {
        "add": (("input", _MISSING), ("other", _MISSING), ("alpha", 1)),
        "sub": (("input", _MISSING), ("other", _MISSING), ("alpha", 1)),
        "mul": (("input", _MISSING), ("other", _MISSING)),
        "div": (("input", _MISSING), ("other", _MISSING), ("rounding_mode", None)),
        "pow": (("input", _MISSING), ("exponent", _MISSING)),
        "matmul": (("input", _MISSING), ("other", _MISSING)),
        "baddbmm": (("input", _MISSING), ("batch1", _MISSING), ("batch2", _MISSING), ("beta", 1), ("alpha", 1)),
        "transpose": (("input", _MISSING), ("dim0", _MISSING), ("dim1", _MISSING)),
        "softmax": (("input", _MISSING), ("dim", None), ("dtype", None)),
        "log_softmax": (("input", _MISSING), ("dim", None), ("dtype", None)),
        "masked_fill": (("input", _MISSING), ("mask", _MISSING), ("value", _MISSING)),
        "where": (("condition", _MISSING), ("input", _MISSING), ("other", _MISSING)),
        "dropout": (("input", _MISSING), ("p", 0.5), ("training", True)),
        "triu": (("input", _MISSING), ("diagonal", 0)),
        "tril": (("input", _MISSING), ("diagonal", 0)),
        "fill": (("input", _MISSING), ("value", _MISSING)),
        "contiguous": (("input", _MISSING), ("memory_format", torch.contiguous_format)),
        "view_as_complex": (("input", _MISSING),),
        "view_as_real": (("input", _MISSING),),
        "conj": (("input", _MISSING),),
        "polar": (("abs", _MISSING), ("angle", _MISSING)),
        "complex": (("real", _MISSING), ("imag", _MISSING)),
        "linear": (("input", _MISSING), ("weight", _MISSING), ("bias", None)),
        "repeat_interleave": (("input", _MISSING), ("repeats", _MISSING), ("dim", None), ("output_size", None)),
    }
)
"""Operations with a fixed list of arguments, and the defaults; what is not here is read by name below."""

_ALIASES: Mapping[str, str] = MappingProxyType(
    {
        **{name: name for name in SIGNATURES},
        "multiply": "mul",
        "truediv": "div",
        "divide": "div",
        "true_divide": "div",
        "subtract": "sub",
        "bmm": "matmul",
        "mm": "matmul",
        "swapaxes": "transpose",
        "swapdims": "transpose",
        "mat2": "other",
        "axis": "dim",
        "__matmul__": "matmul",
    }
)

_ATEN = {"_to_copy": "to", "_unsafe_view": "reshape", "bmm": "matmul"}
"""Operators whose name is not the one of the function."""

_CASTS: Mapping[str, torch.dtype] = MappingProxyType(
    {
        "float": torch.float32,
        "half": torch.float16,
        "bfloat16": torch.bfloat16,
        "double": torch.float64,
        "bool": torch.bool,
    }
)
_INPLACE = frozenset(
    (
        *(operator.iand, operator.ior, operator.ixor, operator.ifloordiv, operator.imod, operator.ipow),
        *(operator.ilshift, operator.irshift, operator.imatmul, operator.setitem),
    )
)
"""Other operators that write."""
_WRITING = {operator.iadd: "add", operator.isub: "sub", operator.imul: "mul", operator.itruediv: "div"}
_FUNCTIONS: dict[Any, str] = {
    operator.matmul: "matmul",
    operator.add: "add",
    operator.sub: "sub",
    operator.mul: "mul",
    operator.truediv: "div",
    operator.pow: "pow",
    F.softmax: "softmax",
    F.log_softmax: "log_softmax",
    F.dropout: "dropout",
    torch.dropout: "dropout",
    F.linear: "linear",
}
_BY_NAME = (
    *(torch.permute, torch.einsum, torch.reshape, torch.flatten, torch.unflatten),
    *(torch.unsqueeze, torch.squeeze, torch.clone),
)
for _alias, _one in _ALIASES.items():
    _function = getattr(torch, _alias, None)
    if _function is not None:
        _FUNCTIONS.setdefault(_function, _one)


def spelled(node: Node) -> Spelled | None:
    """``node``'s call by its one name; None for what has none."""
    if node.op not in ("call_function", "call_method"):
        return None
    name, writes = _name(node)
    if name == "mT" or (name == "getattr" and len(node.args) == 2 and node.args[1] in ("mT", "mH")):
        return Spelled("transpose", (node.args[0], -2, -1)) if _is_real(node) else None
    if name in ("to", "type", "type_as") or name in _CASTS:
        return _cast(node, name)
    if name in ("flatten", "unflatten"):
        after = fake_of(node)
        return Spelled("reshape", (node.args[0], tuple(after.shape))) if node.args and after is not None else None
    if name in ("permute", "view", "reshape", "expand", "unsqueeze", "squeeze"):
        return _shaped(node, name)
    if name == "einsum":
        return _einsum(node)
    if name == "clone":
        plain = node.kwargs.get("memory_format") in (None, torch.preserve_format, torch.contiguous_format)
        return Spelled("contiguous", (node.args[0], None)) if len(node.args) == 1 and plain else None
    found = _bound(name, node)
    return None if found is None else Spelled(name, found, writes)


def _name(node: Node) -> tuple[str, bool]:
    target = node.target
    if isinstance(target, OpOverload):
        name = str(schema_of(target).name).removeprefix("aten::")
        return _ATEN.get(name, _ALIASES.get(name, name)), schema_of(target).is_mutable
    if isinstance(target, str):
        writes = target.endswith("_") and not target.endswith("__")
        name = target[:-1] if writes else target
        return _ALIASES.get(name, name), writes
    if target in _WRITING:
        return _WRITING[target], True
    if target is getattr:
        return "getattr", False
    if target in _FUNCTIONS:
        return _FUNCTIONS[target], node.target is F.dropout and bool(node.kwargs.get("inplace") or node.args[3:4])
    if target in _BY_NAME:
        return str(target.__name__), False
    return "", False


def _bound(name: str, node: Node) -> tuple[Any, ...] | None:
    """The arguments in order, defaults filled in; None when the call has others or lacks some."""
    signature = SIGNATURES.get(name)
    if signature is None:
        return None
    given = list(node.args)
    if name == "dropout":
        given = given[:3]
    if name == "softmax" and len(given) == 3 and node.target is F.softmax:  # the third is _stacklevel
        given = given[:2]
    if len(given) > len(signature):
        return None
    named = {_ALIASES.get(k, k): v for k, v in node.kwargs.items() if k not in ("_stacklevel", "inplace")}
    found = [*given]
    for parameter, default in signature[len(given) :]:
        value = named.pop(parameter, default)
        if value is _MISSING:
            return None
        found.append(value)
    return None if named else tuple(found)


def _cast(node: Node, name: str) -> Spelled | None:
    """A change of dtype only; one that also moves to another device or changes the layout is not one."""
    operand = node.args[0] if node.args else None
    before, after = fake_of(operand), fake_of(node)
    if before is None or after is None or before.device != after.device or "memory_format" in node.kwargs:
        return None
    if name == "type" and len(node.args) < 2:
        return None
    return Spelled("cast", (operand, after.dtype))


def _shaped(node: Node, name: str) -> Spelled | None:
    if node.kwargs or not node.args:
        return None
    operand, *rest = node.args
    if isinstance(node.target, OpOverload) and name == "reshape":
        rest = list(node.meta["example_value"].shape)
    if len(rest) == 1 and isinstance(rest[0], (tuple, list)):
        rest = list(rest[0])
    return Spelled("reshape" if name == "view" else name, (operand, tuple(rest)))


def _einsum(node: Node) -> Spelled | None:
    if len(node.args) == 2 and isinstance(node.args[1], (tuple, list)):
        operands = tuple(node.args[1])
    else:
        operands = tuple(node.args[1:])
    equation = node.args[0] if node.args else None
    if node.kwargs or not isinstance(equation, str) or not all(isinstance(o, Node) for o in operands):
        return None
    return Spelled("einsum", (equation.replace(" ", ""), *operands))


def _is_real(node: Node) -> bool:
    value = fake_of(node)
    return value is not None and not value.is_complex()


def fake_of(node: object) -> Tensor | None:
    """The tensor a node of a captured graph stands for; None for numbers and nodes without one."""
    value = node.meta.get("example_value") if isinstance(node, Node) else None
    return value if isinstance(value, Tensor) else None


def number(value: object) -> float | None:
    """``value`` as a plain number; None for tensors, symbols and booleans."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def written(node: Node) -> bool:
    """Whether the call, by its name, writes to one of its operands."""
    if node.op == "call_method":
        name = str(node.target)
        return (name.endswith("_") and not name.endswith("__")) or name == "__setitem__"
    if node.target in _WRITING or node.target in _INPLACE or _inplace(node):
        return True
    if isinstance(node.target, OpOverload):
        return bool(schema_of(node.target).is_mutable)
    if node.target in (operator.and_, operator.or_, operator.not_):  # so named because the plain word is taken
        return False
    name = getattr(node.target, "__name__", "")
    return "out" in node.kwargs or (name.endswith("_") and not name.endswith("__"))


def _inplace(node: Node) -> bool:
    """Whether a function with an argument ``inplace`` is given it, by name or by place."""
    place = _inplace_at(node.target)
    given = node.args[place : place + 1] if place else ()
    return bool(node.kwargs.get("inplace", given[0] if given else False))


@functools.lru_cache(maxsize=1024)
def _inplace_at(function: Any) -> int:
    """The place of the argument ``inplace`` of a function of ``torch.nn.functional``; 0 if it has none."""
    if getattr(function, "__module__", None) != F.__name__:
        return 0
    try:
        return list(inspect.signature(function).parameters).index("inplace")
    except ValueError:  # there is none, or it is built in
        return 0
