"""Floats that are computed from integers of a call; names as read in torch 2.11 to 2.13.

AOTAutograd turns arithmetic of floats that may vary into operations on tensors without dimensions, and the integers in
it into tensors of float32: ``x * float(k)`` then has 24 bits of ``k``, and ``x / float(-k)`` divides by -0.0 where
``k`` is 0.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch._functorch._aot_autograd import graph_compile
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils._sympy.symbol import SymT, symbol_is_type

__all__ = ["exact_integers"]

_ITEM = torch.ops.aten._local_scalar_dense.default
"""The call that a float argument comes from, of which torch asks the value whether or not it varies."""


class _Asked(threading.local):
    """Whether this thread is within ``exact_integers``."""

    now = False


_asked = _Asked()


@contextlib.contextmanager
def exact_integers() -> Iterator[None]:
    """In this context AOTAutograd leaves floats that only integers make, and takes integers in others whole.

    That is so in the thread that enters it: another one may trace for another compiler meanwhile.
    """
    before, _asked.now = _asked.now, True
    try:
        yield
    finally:
        _asked.now = before


def _install() -> None:
    module: Any = graph_compile
    usual = module.tensorify_python_scalars

    @functools.wraps(usual)
    def tensorify(gm: GraphModule, shape_env: Any, fake_mode: Any) -> None:
        if not _asked.now:
            usual(gm, shape_env, fake_mode)
            return
        before = set(gm.graph.nodes)
        hidden = {
            node: node.meta.pop("val")
            for node in before
            if node.target is not _ITEM and _is_of_integers(node.meta.get("val"))
        }
        try:
            usual(gm, shape_env, fake_mode)
        finally:
            for node, value in hidden.items():
                node.meta["val"] = value
        _widen([node for node in gm.graph.nodes if node not in before], fake_mode)

    module.tensorify_python_scalars = tensorify


def _is_of_integers(value: object) -> bool:
    """Whether ``value`` is a float in which there are symbols, and none but integers."""
    if not isinstance(value, torch.SymFloat):
        return False
    symbols = value.node.expr.free_symbols
    return bool(symbols) and not any(symbol_is_type(s, (SymT.FLOAT, SymT.UNBACKED_FLOAT)) for s in symbols)


def _widen(made: list[Node], fake_mode: Any) -> None:
    """Give tensors that ``made`` nodes make of integers 64 bits, and what is computed from them its dtype."""
    changed = False
    for node in made:
        if node.target is torch.ops.aten.scalar_tensor.default and "dtype" not in node.kwargs:
            node.kwargs = {**node.kwargs, "dtype": torch.int64}
            changed = True
        if changed and isinstance(node.target, torch._ops.OpOverload):
            args, kwargs = map_arg((node.args, node.kwargs), lambda one: one.meta["val"])
            with fake_mode:
                node.meta["val"] = node.target(*args, **kwargs)


_install()
