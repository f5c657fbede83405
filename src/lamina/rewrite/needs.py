"""What a rule's left side cannot do without, told without tracing it.

The function runs on tensors that compute nothing and remember which functions they came from. Of functions that are
one operation by one name, such as ``exp``, a graph must have that operation; arithmetic has many spellings, and nothing
is said of it. Of a function that asks its tensors for more, nothing is known.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from lamina.base.bounded import remember
from lamina.base.rule import DimensionWildcard, Rule, ScalarWildcard, TensorWildcard, Wildcard
from lamina.base.torch_private import OpOverload
from lamina.ops.calls import names
from lamina.rewrite.canonical import key_of

__all__ = ["kinds_in", "needs_of"]

_ONE_OPERATION = names(lambda function: function.one_operation)
_ARITHMETIC = frozenset(
    (
        *("__radd__", "__rdiv__", "__rmul__", "__rpow__", "__rsub__", "__rtruediv__", "add", "div", "matmul", "mul"),
        *("neg", "pow", "reciprocal", "rsqrt", "rsub", "sqrt", "square", "sub", "true_divide"),
        *("clamp", "masked_fill", "permute", "squeeze", "transpose", "unsqueeze", "where"),
    )
)
"""Functions that give one tensor and have several spellings, or are found as something else."""


class _Unknown(Exception):
    """A function asks for more than operations."""


class _Recorder(Tensor):
    """Stands for a tensor; ``kinds`` are the operations that it came from."""

    kinds: frozenset[str]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name not in _ONE_OPERATION and name not in _ARITHMETIC:
            raise _Unknown(name)
        found = set(_kinds((*args, *(kwargs or {}).values())))
        if name in _ONE_OPERATION:
            found.add(name)
        return _recorder(frozenset(found))


def _recorder(kinds: frozenset[str]) -> Tensor:
    made: Any = torch.empty(0).as_subclass(_Recorder)
    made.kinds = kinds
    return made  # type: ignore[no-any-return]


def _kinds(values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, _Recorder):
            yield from value.kinds
        elif isinstance(value, (tuple, list)):
            yield from _kinds(value)


_known: dict[tuple[Rule, str], frozenset[str]] = {}
"""By rule and what it reads from outside."""
_MOST = 4096
"""A program may make rules anew for each model that it compiles."""


def needs_of(rule: Rule) -> frozenset[str]:
    """Operations, by name, without which a captured graph has nothing that ``rule`` fits. Found once in a process."""
    key = (rule, rule.reads())
    if key not in _known:
        return remember(_known, key, _needs(rule), _MOST)
    return _known[key]


def _needs(rule: Rule) -> frozenset[str]:
    given = {name: _example(wildcard) for name, wildcard in rule.parameters}
    try:
        result = rule.before(**given)
    except Exception:  # what is wrong with the function is found where it is traced
        return frozenset()
    return frozenset(_kinds(result if isinstance(result, (tuple, list)) else (result,)))


def _example(wildcard: Wildcard) -> Any:
    match wildcard:
        case TensorWildcard():
            return _recorder(frozenset())
        case ScalarWildcard(example):
            return 0.5 if example is None else example
        case DimensionWildcard():
            return -1


def kinds_in(nodes: Graph | Iterable[Node]) -> frozenset[str]:
    """The operations, by name, of calls in a graph or of some nodes."""
    every = nodes.nodes if isinstance(nodes, Graph) else nodes
    return frozenset(_kind(key_of(node)) for node in every if node.op == "call_function")


def _kind(key: Hashable) -> str:
    return str(key.overloadpacket.__name__) if isinstance(key, OpOverload) else str(key)
