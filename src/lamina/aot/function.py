"""The run-time side of a stitched graph: one autograd function around a compiled forward and backward."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lamina.aot.torch_private import autocast_enabled, without_autocast

__all__ = ["Tangent", "inference_function", "training_function"]

Boxed = Callable[[list[Any]], Any]


@dataclass(frozen=True, slots=True)
class Tangent:
    """How the compiled backward takes the gradient of one output."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


def inference_function(compiled: Boxed, mutated: Sequence[int]) -> Callable[..., Any]:
    """``compiled`` as a function of its inputs, those at ``mutated`` being written to."""

    def run(*inputs: Any) -> Any:
        written = [inputs[i] for i in mutated]
        results = compiled(list(inputs))
        _note_writes(written)
        return tuple(results)

    return run


def training_function(
    forward: Boxed,
    compile_backward: Callable[[], Boxed],
    results: int,
    tangents: Sequence[Tangent | None],
    tangents_of: Sequence[frozenset[int] | None],
    mutated: Sequence[int],
) -> Callable[..., Any]:
    """A differentiable function from a compiled forward and, compiled when first needed, its backward.

    ``forward`` returns ``results`` outputs and then the tensors to save. ``tangents`` has None for an output without
    gradient, ``tangents_of`` for each input the outputs its gradient comes from: where none of those has a gradient,
    neither has the input. Differentiating twice (``create_graph=True``) raises ``RuntimeError`` when it comes to that.
    """
    backward = _Lazy(compile_backward)
    constant = tuple(i for i, t in enumerate(tangents) if t is None)
    taken = tuple((i, t) for i, t in enumerate(tangents) if t is not None)

    def run_backward(ctx: Any, *gradients: Any) -> Any:
        arguments = list(ctx.saved_tensors)
        arguments += [_laid_out(gradients[i], tangent) for i, tangent in taken]
        if autocast_enabled():
            with without_autocast():
                found = backward()(arguments)
        else:
            found = backward()(arguments)
        absent = {i for i, _ in taken if gradients[i] is None}
        if not absent:
            return tuple(found)
        return tuple(None if s and s <= absent else g for g, s in zip(found, tangents_of, strict=True))

    class Compiled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            written = [inputs[i] for i in mutated]
            values = forward(list(inputs))
            _note_writes(written)
            ctx.save_for_backward(*values[results:])
            # Kept as they are, unchecked: only a second differentiation asks for them, and is refused.
            ctx.anchors = tuple(t for t, wanted in zip(inputs, ctx.needs_input_grad, strict=True) if wanted)
            ctx.set_materialize_grads(False)
            outputs = tuple(values[:results])
            if constant:
                ctx.mark_non_differentiable(*(outputs[i] for i in constant))
            return outputs

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            if not torch.is_grad_enabled():
                return run_backward(ctx, *gradients)
            with torch.no_grad():
                found = run_backward(ctx, *gradients)
            return _refusing(ctx.anchors, found)

    apply: Callable[..., Any] = Compiled.apply
    return apply


class _Once(torch.autograd.Function):
    """Gives back its tensors and raises when a gradient would flow through them to one of the anchors."""

    @staticmethod
    def forward(ctx: Any, anchors: int, *tensors: torch.Tensor) -> Any:
        return tuple(t.view_as(t) for t in tensors[anchors:])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(
            "double backward: a compiled region cannot be differentiated twice (create_graph=True); "
            "leave it uncompiled for that"
        )


def _refusing(anchors: Sequence[torch.Tensor], gradients: Sequence[Any]) -> tuple[Any, ...]:
    """``gradients`` as results that look like functions of the ``anchors`` and refuse to be differentiated."""
    places = [i for i, g in enumerate(gradients) if g is not None]
    apply: Callable[..., Any] = _Once.apply
    marked = apply(len(anchors), *anchors, *(gradients[i] for i in places))
    found = list(gradients)
    for place, tensor in zip(places, marked, strict=True):
        found[place] = tensor
    return tuple(found)


def _note_writes(tensors: Sequence[Any]) -> None:
    """Tell autograd that compiled code wrote to ``tensors``."""
    for tensor in tensors:
        if not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)


def _laid_out(gradient: Any, tangent: Tangent) -> torch.Tensor:
    """``gradient``, or zeros where there is none, with the strides that the backward was compiled for."""
    if gradient is None:
        fresh = torch.empty_strided(tangent.shape, tangent.stride, dtype=tangent.dtype, device=tangent.device)
        return fresh.zero_()
    if gradient.stride() != tangent.stride or gradient.is_conj() or gradient.is_neg():
        fresh = torch.empty_strided(tangent.shape, tangent.stride, dtype=tangent.dtype, device=tangent.device)
        return fresh.copy_(gradient)
    found: torch.Tensor = gradient
    return found


class _Lazy:
    """Makes its value at the first call, once, whichever thread comes first."""

    __slots__ = ("_lock", "_make", "_value")

    def __init__(self, make: Callable[[], Boxed]) -> None:
        self._make, self._lock = make, threading.Lock()
        self._value: Boxed | None = None

    def __call__(self) -> Boxed:
        value = self._value
        if value is None:
            with self._lock:
                value = self._value
                if value is None:
                    value = self._value = self._make()
        return value
