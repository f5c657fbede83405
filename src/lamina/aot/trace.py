"""One torch call, forward and backward, as the ATen operations it comes down to.

A call that only computes, or writes element by element to an operand, or updates running statistics, is recorded by a
dispatch mode straight below autograd, at a third of what ``make_fx`` with functionalization costs. One that writes in
another way is traced with both, which turn writes into new values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from lamina.aot.torch_private import (
    from_functional,
    functional_trace,
    has_changed_metadata,
    is_written_to,
    to_functional,
    traced_nodes,
)
from lamina.base.fakes.torch_private import empty_strided
from lamina.base.fx.recording import Recorder
from lamina.base.fx.torch_private import flatten, unflatten

__all__ = ["CallTrace", "trace_call"]

Function = Callable[[list[Any]], Any]
Rules = dict[Any, Callable[..., Any]]


@dataclass(frozen=True, slots=True)
class CallTrace:
    """One torch call as ATen operations.

    ``primals`` are the placeholders of its tensors; ``calls`` its calls in order: those of the forward, then one
    ``empty_strided`` for each tangent, then the backward's, ``forward_calls`` and ``tangents`` counting the first
    two. ``results`` are the call's tensors and then the tensors it wrote to, each once, as nodes,
    ``requires_grad`` whether each does, and ``structure`` the call's value with integers for tensors: i for
    result i, -1-i for primal i itself, None for None. ``updates`` maps a primal to the result that is its new value.
    ``gradients`` has a node or None for each primal that requires one.
    """

    calls: tuple[Node, ...]
    primals: tuple[Node, ...]
    forward_calls: int
    tangents: int
    results: tuple[Any, ...]
    requires_grad: tuple[bool, ...]
    structure: Any
    updates: tuple[tuple[int, int], ...]
    gradients: tuple[Any, ...]


def trace_call(
    call: Function,
    primals: Sequence[torch.Tensor],
    written: Sequence[int],
    tangents: Sequence[Any] | None,
    decompositions: Rules,
    plain_writes: bool = False,
) -> CallTrace | None:
    """Trace ``call`` on fake ``primals`` and its gradient, within ``tracing_state``; None when that cannot be plain.

    ``written`` are primals that the call is known to write to: where they require a gradient it gets a copy.
    ``plain_writes``: it changes nothing of them but their elements.
    ``tangents`` has for each result None or (size, stride, dtype); by default every result that requires a gradient
    has a tangent laid out as the result is.
    """
    if plain_writes or not written:
        recorder = Recorder(primals, decompositions, differentiated=True)

        def tangent(layout: Any, result: torch.Tensor) -> torch.Tensor:
            made = torch.ops.aten.empty_strided.default
            return recorder.as_one(made, layout[:2], lambda: _tangent(layout, result))

        found = _Found(call, tangents, lambda: len(recorder.calls), tangent, recorder.is_written_to)
        with recorder:
            flat = found.run(list(primals), _copied(primals, written))
        if found.irregular and not (written and recorder.fault):
            return None
        nodes = [None if t is None else recorder.node(t) for t in flat]
        if not recorder.fault:
            return found.as_trace(recorder.inputs, recorder.calls, [_undetached(n, nodes) for n in nodes])
    return _functionalized(call, primals, written, tangents, decompositions)


def _functionalized(
    call: Function,
    primals: Sequence[torch.Tensor],
    written: Sequence[int],
    tangents: Sequence[Any] | None,
    rules: Rules,
) -> CallTrace | None:
    found = _Found(call, tangents, lambda: traced_nodes() - len(primals), _tangent, is_written_to)

    def run(*primals: torch.Tensor) -> list[Any]:
        leaves = [to_functional(p) for p in primals]
        flat = found.run(leaves, _copied(leaves, written), primals)
        return [None if t is None else from_functional(t) for t in flat]

    nodes = list(functional_trace(run, primals, rules).nodes)
    calls = [n for n in nodes if n.op == "call_function"]
    if found.irregular or len(calls) + len(primals) + 1 != len(nodes):
        return None
    return found.as_trace(nodes[: len(primals)], calls, list(nodes[-1].args[0]))


def _copied(primals: Sequence[Any], written: Sequence[int]) -> list[Any]:
    """What a call is given: copies of ``primals`` that it is known to write to and that require a gradient."""
    return [p.clone() if i in written and p.requires_grad else p for i, p in enumerate(primals)]


def _undetached(node: Any, results: Sequence[Any]) -> Any:
    """``node`` without the ``detach`` by which autograd takes up a tensor made below it: no view of anything else."""
    while node is not None and node.target is torch.ops.aten.detach.default:
        source = node.args[0]
        if source.op == "placeholder" or source in results:
            break
        node = source
    return node


def _tangent(layout: Any, result: torch.Tensor) -> torch.Tensor:
    """A gradient of ``result`` with the size, stride and dtype of ``layout``."""
    size, stride, dtype = layout
    return empty_strided(size, stride, dtype, result.device, like=result)


class _Found:
    """What a trace learns while the call runs.

    ``count`` tells how many operations it has by now, ``tangent`` makes an incoming gradient, which is one of them,
    ``is_written`` tells whether the call wrote to a tensor.
    """

    def __init__(
        self,
        call: Function,
        tangents: Sequence[Any] | None,
        count: Callable[[], int],
        tangent: Callable[[Any, torch.Tensor], torch.Tensor],
        is_written: Callable[[Any], bool],
    ) -> None:
        self.call, self.tangents, self.count, self.tangent, self.is_written = call, tangents, count, tangent, is_written
        self.irregular = False
        self.forward_end = self.tangents_end = 0
        self.requires: list[bool] = []
        self.updates: list[tuple[int, int]] = []
        self.structure: Any = None

    def run(self, leaves: list[Any], given: list[Any], originals: Sequence[Any] = ()) -> list[Any]:
        """Results and gradients of the call with ``given``, which stand for ``leaves``.

        ``originals`` are what functionalized ``leaves`` were made from.
        """
        trained = [p for p in leaves if p.requires_grad]
        results = self._results(leaves, given, self.call(list(given)))
        # A gradient is one with respect to a tensor as it was before the call.
        self.irregular = self.irregular or any(p is q and self.is_written(p) for p in trained for q in given)
        changed = [has_changed_metadata(f, p) for f, p in zip(leaves, originals, strict=False)]
        self.irregular = self.irregular or any(changed)
        return [*results, *self._gradients(trained, results)]

    def as_trace(self, primals: Sequence[Node], calls: Sequence[Node], flat: Sequence[Any]) -> CallTrace:
        """The trace whose results and gradients are the nodes ``flat``."""
        count = len(self.requires)
        return CallTrace(
            tuple(calls),
            tuple(primals),
            self.forward_end,
            self.tangents_end - self.forward_end,
            tuple(flat[:count]),
            tuple(self.requires),
            self.structure,
            tuple(self.updates),
            tuple(flat[count:]),
        )

    def _results(self, leaves: list[Any], given: list[Any], value: Any) -> list[Any]:
        """The tensors of ``value`` and the tensors written to, each once."""
        flat, spec = flatten(value)
        results: list[Any] = []
        for i, (leaf, used) in enumerate(zip(leaves, given, strict=True)):
            if used is not leaf or self.is_written(leaf):
                self.updates.append((i, len(results)))
                results.append(used)
        places = {id(t): i for i, t in enumerate(results)}
        inputs = {id(t): -1 - i for i, t in enumerate(leaves)}
        indices: list[Any] = []
        for item in flat if value is not None else ():
            if item is None:
                indices.append(None)
                continue
            if not isinstance(item, torch.Tensor):
                self.irregular = True
                break
            if id(item) not in places and id(item) not in inputs:
                places[id(item)] = len(results)
                results.append(item)
            indices.append(places[id(item)] if id(item) in places else inputs[id(item)])
        if value is not None and not self.irregular:
            self.structure = unflatten(indices, spec)
        depends = any(type(n) is not int for t in results for n in (*t.shape, *t.stride()))  # a size, on data
        self.irregular = self.irregular or depends or not (indices or self.updates)
        self.requires = [bool(t.requires_grad) for t in results]
        return results

    def _gradients(self, wanted: list[Any], results: list[Any]) -> list[Any]:
        self.forward_end = self.tangents_end = self.count()
        if self.irregular or not wanted or not any(self.requires):
            return [None] * len(wanted)
        default = [(t.shape, t.stride(), t.dtype) if t.requires_grad else None for t in results]
        shapes = default if self.tangents is None else self.tangents
        outputs = [t for t, shape in zip(results, shapes, strict=True) if shape is not None]
        tangents = [self.tangent(shape, t) for t, shape in zip(results, shapes, strict=True) if shape is not None]
        self.tangents_end = self.count()
        return list(torch.autograd.grad(outputs, wanted, tangents, allow_unused=True))
