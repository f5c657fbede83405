"""What a backend's compiled graph gives back, held against what the graph says it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from lamina.backends.api import Compiled
from lamina.backends.regions import Boxed
from lamina.backends.torch_private import takes_one_list
from lamina.base.identity import place_of
from lamina.base.retryable import set_retryable_unless_told, writes_to_inputs
from lamina.base.torch_private import OpOverload, boxed, memory_of, without_bases
from lamina.errors import BackendFailed

__all__ = ["check_callable", "checked", "checked_once"]

Strides = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Expected:
    """One output of a graph: the fake value it stands for, its strides where known, and whether it may be an input.

    ``memory`` names the operation or input whose memory it may lie in, and ``first`` the place of the first output that
    is the same value: autograd takes two tensor objects for two gradients, to be accumulated into on their own.
    """

    value: Any
    strides: Strides | None
    aliases: bool
    memory: str
    first: int


def checked_once(compiled: Compiled, gm: GraphModule, backend: str, graph: str) -> Callable[..., Any]:
    """A compiled graph of torch calls as a function of its inputs: what it returns is checked at the first call.

    Such a graph differentiates, writes and shares memory by itself, so that nothing is corrected.
    """
    in_list = takes_one_list(compiled)
    expected: list[_Expected] | None = _expected(gm)

    def call(*inputs: Any) -> Any:
        nonlocal expected
        outputs = compiled(list(inputs)) if in_list else compiled(*inputs)
        if expected is not None:
            _check(expected, _as_list(outputs), backend, graph, place_of(compiled))
            expected = None
        return outputs

    return call


def checked(compiled: Compiled, gm: GraphModule, backend: str, graph: str) -> Boxed:
    """``compiled`` as a function of one list, whose outputs are checked at the first call.

    Number, type, shape, dtype and device must be the graph's, else ``BackendFailed``. Strides are made the graph's,
    which the rest of the program was compiled for, and an output that shares memory with an input or another output
    without being a view of it in the graph is copied.
    """
    in_list, writes = takes_one_list(compiled), writes_to_inputs(gm)
    expected = _expected(gm)
    finish: Callable[[list[Any]], list[Any]] | None = None

    def computed(inputs: list[Any]) -> list[Any]:
        try:
            return _as_list(compiled(inputs) if in_list else compiled(*inputs))
        except Exception as error:
            if not writes:
                set_retryable_unless_told(error)
            raise

    def call(args: list[Any]) -> list[Any]:
        nonlocal finish
        inputs = list(args)
        args.clear()
        if finish is not None:
            known = memory_of(inputs)
            return without_bases(finish(computed(inputs)), known)
        outputs = computed(list(inputs))
        _check(expected, outputs, backend, graph, place_of(compiled))
        finish = _finisher(expected, _shared(expected, inputs, outputs))
        return without_bases(finish(outputs), memory_of(inputs))

    return boxed(call)


def check_callable(compiled: Any, maker: Callable[..., Any], backend: str, graph: str) -> None:
    """Raise ``BackendFailed`` where ``maker``, a function of the backend, gave something else than a compiled graph."""
    if callable(compiled):
        return
    name = str(getattr(maker, "__name__", "compile"))
    kind = "nothing (None)" if compiled is None else f"a {type(compiled).__name__}, which cannot be called"
    raise BackendFailed(
        f"backend {backend!r} has no compiled {graph}: its {name} returned {kind}",
        where=place_of(maker),
        remedy="return a function of the graph's inputs, such as gm.forward; NotImplementedError declines a graph",
    )


def _check(expected: Sequence[_Expected], outputs: Sequence[Any], backend: str, graph: str, place: str) -> None:
    for fault in _faults(expected, outputs):
        raise BackendFailed(
            f"backend {backend!r} ran {graph}: {fault}",
            where=place,
            remedy="correct the backend; lamina.testing.check_backend tries it on small programs",
        )


def _as_list(outputs: Any) -> list[Any]:
    return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]


def _expected(gm: GraphModule) -> list[_Expected]:
    (output,) = gm.graph.find_nodes(op="output")
    found: list[_Expected] = []
    places: dict[Any, int] = {}
    for place, node in enumerate(output.args[0]):
        value = node.meta.get("val", node.meta.get("example_value")) if isinstance(node, Node) else node
        strides = None
        if isinstance(value, torch.Tensor) and value.layout == torch.strided:
            known = value.stride()
            strides = None if any(isinstance(s, torch.SymInt) for s in (*known, *value.shape)) else tuple(known)
        owner = _memory_of(node) if isinstance(node, Node) else None
        aliases = owner is not None and owner.op == "placeholder"
        name = "" if owner is None else owner.name
        found.append(_Expected(value, strides, aliases, name, places.setdefault(node, place)))
    return found


def _memory_of(node: Node) -> Node:
    """The input or operation in whose memory the value may lie, through operations that can give back a view."""
    while node.op == "call_function":
        operands = node.all_input_nodes
        tensors = [n for n in operands if isinstance(n.meta.get("val"), (torch.Tensor, tuple, list))]
        may = not isinstance(node.target, OpOverload) or node.target.is_view or "view" in str(node.target)
        if not may or len(tensors) != 1:
            return node
        node = tensors[0]
    return node


def _faults(expected: Sequence[_Expected], outputs: Sequence[Any]) -> list[str]:
    """What is wrong with the outputs of the first call, in words."""
    if len(outputs) != len(expected):
        return [f"it returned {len(outputs)} outputs, the graph has {len(expected)}"]
    return [
        f"output {number} is {fault}"
        for number, (want, got) in enumerate(zip(expected, outputs, strict=True))
        if (fault := _fault(want.value, got))
    ]


def _fault(want: Any, got: Any) -> str:
    if not isinstance(want, torch.Tensor):
        same = isinstance(got, type(want)) or _name(want).startswith("Sym")
        return "" if same and (got is None) == (want is None) else f"a {_name(got)}, expected a {_name(want)}"
    if not isinstance(got, torch.Tensor):
        return f"a {_name(got)}, expected a tensor"
    if got.dtype != want.dtype:
        return f"of {got.dtype}, expected {want.dtype}"
    sizes_wanted: list[Any] = list(want.shape)
    known = [None if isinstance(size, torch.SymInt) else size for size in sizes_wanted]
    fits = len(known) == got.dim() and all(k is None or k == s for k, s in zip(known, got.shape, strict=True))
    if not fits:
        sizes = ", ".join("any" if k is None else str(k) for k in known)
        return f"of shape ({', '.join(map(str, got.shape))}), expected ({sizes})"
    if got.device.type != want.device.type:
        return f"on {got.device}, expected {want.device}"
    return ""


def _name(value: Any) -> str:
    return "None" if value is None else type(value).__name__


def _shared(expected: Sequence[_Expected], inputs: Sequence[Any], outputs: Sequence[Any]) -> frozenset[int]:
    """Outputs in the memory of an input, or of an output before them, that are no view of it in the graph."""
    there = {_memory(value) for value in inputs if isinstance(value, torch.Tensor)} - {0}
    owners: dict[int, str] = {}
    found = []
    for place, (want, got) in enumerate(zip(expected, outputs, strict=True)):
        if not isinstance(got, torch.Tensor) or want.first != place or not _memory(got):
            continue
        taken = _memory(got) in there and not want.aliases
        if taken or owners.setdefault(_memory(got), want.memory) != want.memory:
            found.append(place)
    return frozenset(found)


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else 0


def _finisher(expected: Sequence[_Expected], shared: frozenset[int]) -> Callable[[list[Any]], list[Any]]:
    """What every call does with the outputs."""
    planned = [(i, e.strides) for i, e in enumerate(expected) if e.strides is not None and e.first == i]
    again = [(i, e.first) for i, e in enumerate(expected) if e.first != i and isinstance(e.value, torch.Tensor)]

    def finish(outputs: list[Any]) -> list[Any]:
        for i in shared:
            outputs[i] = outputs[i].clone()
        for i, strides in planned:
            if outputs[i].stride() != strides:
                outputs[i] = _laid_out(outputs[i], strides)
        for i, first in again:
            outputs[i] = outputs[first]
        return outputs

    return finish


def _laid_out(tensor: torch.Tensor, strides: Strides) -> torch.Tensor:
    """``tensor``, or a copy of it with these strides where they make a difference."""
    differs = any(size > 1 and a != b for size, a, b in zip(tensor.shape, tensor.stride(), strides, strict=True))
    if tensor.numel() == 0 or not differs:
        return tensor.as_strided(tensor.shape, strides)
    part = tensor[tuple(slice(0, 1) if step == 0 else slice(None) for step in strides)]  # one of what is repeated
    fresh = torch.empty_strided(part.shape, strides, dtype=tensor.dtype, device=tensor.device)
    return fresh.copy_(part).as_strided(tensor.shape, strides)
