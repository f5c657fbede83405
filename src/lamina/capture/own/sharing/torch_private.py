"""Symbols for integers of graphs, and what was found out about them, under torch's private names (2.11 to 2.13)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental import _config
from torch.fx.experimental.symbolic_shapes import DimDynamic
from torch.utils._sympy.printers import PythonPrinter

from lamina.base.symbolic.environment.torch_private import OpenShapes

__all__ = ["Symbols", "assuming_no_size", "by_functions", "evaluated", "expression", "like", "text"]


def assuming_no_size() -> contextlib.AbstractContextManager[Any]:
    """Within, no symbolic size is taken for 0 or 1 because it was that once, and none is guarded not to be."""
    found: contextlib.AbstractContextManager[Any] = _config.patch(backed_size_oblivious=True)  # type: ignore[attr-defined]
    return found


def by_functions() -> contextlib.AbstractContextManager[Any]:
    """Within, torch's functions in Python say what operations give, where there are such."""
    found: contextlib.AbstractContextManager[Any] = enable_python_dispatcher()
    return found


class Symbols:
    """A mode of fake tensors whose sizes may be symbols, each of them a number of its own."""

    def __init__(self) -> None:
        self.mode = FakeTensorMode(
            allow_non_fake_inputs=False, shape_env=OpenShapes(specialize_zero_one=False, duck_shape=False)
        )
        self.env: Any = self.mode.shape_env
        self.names: list[sympy.Symbol] = []
        self._sizes: set[sympy.Symbol] = set()

    def new(self, value: int, is_size: bool) -> torch.SymInt:
        """An integer that is ``value`` now; one ``is_size`` is at least one whenever it is used."""
        env, source = self.env, ConstantSource(f"number{len(self.names)}")
        made: Callable[..., Any] = env.create_symbol if is_size else env.create_unspecified_symbol
        symbol = made(value, source, DimDynamic.DYNAMIC, **({"do_not_specialize_zero_one": True} if is_size else {}))
        self.names.append(symbol)
        if is_size:
            self._sizes.add(symbol)
        found: torch.SymInt = env.create_symintnode(symbol, hint=value, source=source)
        return found

    def hold(self, values: tuple[int, ...]) -> bool:
        """Whether all that was found out about the symbols is true of these values of them."""
        known = dict(zip(self.names, values, strict=True))
        if any(known[symbol] < 1 for symbol in self._sizes):
            return False
        ranges = self.env.var_to_range
        if any(symbol in ranges and value not in ranges[symbol] for symbol, value in known.items()):
            return False
        return all(guard.expr.xreplace(known) is sympy.true for guard in self.env.guards)

    def texts(self) -> list[str]:
        """What ``hold`` asks, as expressions of Python's."""
        found = [f"{text(symbol)} >= 1" for symbol in self.names if symbol in self._sizes]
        for symbol in self.names:
            if symbol in self.env.var_to_range:
                bounds = self.env.var_to_range[symbol]
                found += [f"{text(symbol)} >= {int(bounds.lower)}"] if bounds.lower.is_Integer else []
                found += [f"{text(symbol)} <= {int(bounds.upper)}"] if bounds.upper.is_Integer else []
        return found + [text(guard.expr) for guard in self.env.guards]

    def settle(self) -> None:
        """Nothing more may be found out about the symbols: from now on ``hold`` decides which calls there are."""
        self.env.freeze()

    def fixed(self) -> list[int]:
        """The positions of symbols that are found to be one number."""
        return [at for at, symbol in enumerate(self.names) if not self.env.replace(symbol).free_symbols]


def expression(number: Any) -> Any:
    """An integer of tracing as a number, or as an expression of symbols."""
    return number.node.expr if isinstance(number, torch.SymInt) else number


def text(number: Any) -> str:
    """An ``expression`` as one of Python's."""
    return str(number) if isinstance(number, int) else str(PythonPrinter().doprint(number))


def evaluated(number: Any, values: Mapping[Any, int]) -> int:
    """What an ``expression`` is for these values of symbols; raises where that is not told."""
    return number if isinstance(number, int) else int(number.xreplace(values))


def like(look: tuple[Any, ...], sizes: Sequence[Any], strides: Sequence[Any]) -> torch.Tensor:
    """A tensor that looks as ``look`` says but for its sizes and strides, which are these."""
    _, dtype, device, _, _, offset, requires_grad, _, conj, neg, _ = look
    made = torch.empty_strided(sizes, strides, dtype=dtype, device=device)
    if offset:
        extent: Any = 1
        for size, stride in zip(sizes, strides, strict=True):
            extent = extent + (size - 1) * stride
        memory = torch.empty(offset + extent, dtype=dtype, device=device)
        made = memory.as_strided(sizes, strides, offset).detach()
    made = torch._conj(made) if conj else made
    made = torch._neg_view(made) if neg else made
    return made.requires_grad_(requires_grad)
