"""Runs of a program from one state: eager, compiled and in double precision, each with all that it leaves behind."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lamina.base.accuracy import tensors
from lamina.base.reference import apart, copied, mapped
from lamina.errors import BadArgument
from lamina.testing.fuzz.differ import Difference, differences
from lamina.testing.fuzz.observe import Raised, Trace, traced
from lamina.testing.state import State, reachable
from lamina.testing.torch_private import original

__all__ = ["Runs", "differing", "link_of", "options_given", "uncompiled"]

_SEED = 0
"""Seed of the random generators before each run, so that all runs draw the same."""


def differing(eager: Trace, ours: Trace, exact: Trace | None) -> list[Difference]:
    """What differs from eager; values may be twice as far from the run in double precision as eager's are."""
    return [d for d in differences(eager, ours, exact, random=True) if not _uncounted(d, eager)]


def _uncounted(found: Difference, eager: Trace) -> bool:
    """Whether eager wrote to a tensor without raising its version, as batch norm does to its running statistics."""
    path = found.where
    if found.kind != "version" or eager.written[path]:
        return False
    return not torch.equal(eager.late[path].value, eager.leaves[path].value)


def link_of(compiled: Any) -> Any:
    """What ties a compiled module to its original; None for anything else."""
    return getattr(compiled, "_lamina_link", None)


def uncompiled(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function or module that ``fn`` was compiled from; ``fn`` itself if it is not compiled.

    Raises ``BadArgument`` for what cannot be called.
    """
    if not callable(fn):
        raise BadArgument(
            f"what is to be compared with eager is a {type(fn).__name__}",
            remedy="pass a function, a method or a torch.nn.Module first, and its arguments after it",
        )
    link = link_of(fn)
    found: Callable[..., Any] = original(fn) if link is None else link.original
    return found


def options_given(options: Any) -> dict[str, Any]:
    """The options of a comparison. Raises ``BadArgument`` for what is no mapping."""
    if options is not None and not isinstance(options, Mapping):
        raise BadArgument(
            f"the options are a {type(options).__name__}: {options!r}", remedy='pass a mapping such as {"strict": True}'
        )
    return dict(options or {})


class Runs:
    """The program, and what it works with."""

    def __init__(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: dict[str, Any]
    ) -> None:
        self.fn, self.args, self.kwargs, self.options = fn, args, kwargs, options
        self.state: State = reachable(fn, [*args, *kwargs.values()])
        self.names = _names(fn, args, kwargs)
        self.grads = torch.is_grad_enabled()
        self.cotangents: list[Tensor] = []

    def run(self, function: Callable[..., Any], wide: bool = False) -> Trace:
        """What one run shows, from the state that there is now, which it leaves as it was."""
        with self.state.kept():
            if wide:
                self.state.widen()
            return traced(lambda: self._shown(function, wide), wide=wide, seed=_SEED)

    def exact(self, function: Callable[..., Any]) -> Trace | None:
        """The run in double precision; None for a program that cannot be run so."""
        try:
            trace = self.run(function, wide=True)
        except Exception:
            return None
        return None if isinstance(trace.leaves.get("end"), Raised) else trace

    def _shown(self, function: Callable[..., Any], wide: bool) -> Iterator[tuple[str, Any]]:
        arguments = _copies((self.args, self.kwargs), wide)
        flat = tensors(arguments)
        named = dict(zip(self.names, flat, strict=True))
        for name, tensor in (*named.items(), *self.state.tensors.items()):
            yield name, tensor
        args, kwargs = arguments
        output = function(*args, **kwargs)
        yield "output", output
        if self.grads:
            self._backward(tensors(output))
        for name, tensor in (*named.items(), *self.state.tensors.items()):
            if tensor.is_leaf and tensor.requires_grad:
                yield f"gradient of {name}", tensor.grad

    def _backward(self, outputs: list[Tensor]) -> None:
        """Differentiate the outputs; the first run draws the cotangents, the later ones use the same."""
        differentiable = list({id(t): t for t in outputs if t.requires_grad and t.grad_fn is not None}.values())
        if not self.cotangents:
            generator = torch.Generator().manual_seed(_SEED)
            for t in differentiable:
                kind = torch.complex128 if t.is_complex() else torch.float64
                drawn = torch.randn(t.shape, dtype=kind, generator=generator) if t.dim() else torch.ones((), dtype=kind)
                self.cotangents.append(drawn.to(t.dtype))
        pairs = [(t, c.to(t)) for t, c in zip(differentiable, self.cotangents, strict=False) if t.shape == c.shape]
        if pairs:
            torch.autograd.backward([t for t, _ in pairs], [c for _, c in pairs])


def _copies(value: Any, wide: bool) -> Any:
    """Copies of the arguments: tensors with their aliasing, other objects one by one. Modules are the state's."""
    return copied(mapped(value, apart), wide=wide)


def _names(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """A name for each tensor of the arguments."""
    try:
        bound: Mapping[str, Any] = inspect.signature(_called(fn)).bind(*args, **kwargs).arguments
        known = [n for n, v in bound.items() if any(v is a for a in args)]
    except (TypeError, ValueError):
        known = []
    labels = known if len(known) == len(args) else [str(i) for i in range(len(args))]
    return [
        f"argument {label}{f'[{place}]' if len(inside) > 1 else ''}"
        for label, value in (*zip(labels, args, strict=True), *kwargs.items())
        for inside in (tensors(value),)
        for place in range(len(inside))
    ]


def _called(fn: Callable[..., Any]) -> Callable[..., Any]:
    return fn.forward if isinstance(fn, nn.Module) else fn
