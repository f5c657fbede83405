"""A function of the program's as a graph of its own, which a call of the graph around it is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from lamina.base.torch_private import storage_of
from lamina.capture.own.fakes import Fakes, look
from lamina.capture.own.pending import Pending, pending
from lamina.capture.own.reuse.facts import constant_key
from lamina.capture.own.segment import Segment, inputs_first

__all__ = ["TOLD_ALIKE", "Body", "Look", "finished", "look_within", "rebuilt", "taken_apart"]

Look = tuple[torch.dtype, torch.device, tuple[int, ...], tuple[int, ...], bool]
"""Type, device, sizes and strides of a tensor, and whether it requires a gradient."""

TOLD_ALIKE = frozenset(
    (
        "shape", "dtype", "device", "layout", "ndim", "is_cuda", "is_cpu", "is_sparse", "is_quantized", "is_meta",
        "is_nested", "itemsize", "size", "dim", "numel", "nelement", "element_size", "is_floating_point", "is_complex",
        "is_signed", "get_device", "ndimension", "__len__", "is_same_size",
    )
)  # fmt: skip
"""Questions to which what a transform gives a function answers as an ordinary tensor of these sizes."""


class Body(Segment):
    """The graph of a function that is given tensors which look so; what it reads of outside are inputs, too.

    ``given`` are the tensors that the function is given; the other inputs are those from outside, as the graph
    ``around`` knows them.
    """

    def __init__(self, around: Segment, looks: Sequence[Look], recorder: Any) -> None:
        super().__init__(Fakes(around.mode))
        self.around = around
        self.given = [_given(self, one, recorder) for one in looks]

    def fake_of(self, tensor: torch.Tensor) -> Any:
        known = id(tensor._fake) in self.nodes if type(tensor) is Pending else id(tensor) in self.input_nodes
        if not known:
            _add_input(self, tensor, self.around.fake_of(tensor))
        return super().fake_of(tensor)

    def owns(self, targets: Sequence[torch.Tensor]) -> bool:
        fakes = [self.fake_of(one) for one in targets]
        given = {storage_of(one) for one in self.fakes}
        return all(one.layout is torch.strided and storage_of(one) not in given for one in fakes)

    def raises_nothing(self) -> bool:
        return not self.watched  # its operands have no values


def _given(body: Body, seen: Look, recorder: Any) -> Pending:
    """A tensor that the function of ``body`` is given."""
    dtype, device, shape, stride, requires_grad = seen
    with body.mode, torch.no_grad():
        fake = torch.empty_strided(shape, stride, dtype=dtype, device=device).requires_grad_(requires_grad)
    made = pending(recorder, fake)
    _add_input(body, made, fake)
    return made


def _add_input(body: Body, tensor: torch.Tensor, fake: Any) -> None:
    body.looks.append(look(fake))
    node = body.graph.placeholder(f"l_{len(body.inputs)}")
    node.meta["example_value"] = fake
    body.input_nodes[id(tensor)] = body.nodes[id(fake)] = node
    body.numbers[node] = len(body.numbers)
    body.inputs.append(tensor)
    body.fakes.append(fake)


def finished(body: Body, results: Sequence[torch.Tensor]) -> tuple[Callable[..., Any], Any, list[torch.Tensor]]:
    """The graph that gives ``results``, as a function of its inputs, what tells it from all others, and its inputs
    from outside.
    """
    nodes: list[Node] = [body.nodes[id(body.fake_of(one))] for one in results]
    key = (*body.key,), (*body.looks,), body.state, tuple(body.numbers[node] for node in nodes), len(body.given)
    body.graph.output(tuple(nodes))
    made = GraphModule(torch.nn.Module(), inputs_first(body.graph)).forward
    return made, key, body.inputs[len(body.given) :]


def look_within(tensor: torch.Tensor) -> Look:
    """What a tensor tells within a transform."""
    return tensor.dtype, tensor.device, tuple(tensor.shape), tensor.stride(), tensor.requires_grad


class _Tensor:
    """The place of a tensor in what was taken apart."""

    def __repr__(self) -> str:
        return "tensor"


_PLACE = _Tensor()


def taken_apart(value: Any, is_constant: Callable[[Any], bool]) -> tuple[Any, list[torch.Tensor]] | None:
    """The structure of tuples, lists and dictionaries, and the tensors in them, in order; None if there is more."""
    tensors: list[torch.Tensor] = []

    def apart(value: Any) -> Any:
        kind = type(value)
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            return _PLACE
        if kind is tuple or kind is list:
            return kind, tuple(map(apart, value))
        if kind is dict:
            return kind, tuple(value), tuple(map(apart, value.values()))
        if not is_constant(value):
            raise TypeError
        return "constant", constant_key(value), value

    try:
        return apart(value), tensors
    except TypeError:
        return None


def rebuilt(structure: Any, tensors: Sequence[Any]) -> Any:
    """The value of a structure with other ``tensors``."""
    waiting = iter(tensors)

    def again(part: Any) -> Any:
        if part is _PLACE:
            return next(waiting)
        if part[0] == "constant":
            return part[2]
        kind, *names, parts = part
        values = [again(one) for one in parts]
        return dict(zip(names[0], values, strict=True)) if kind is dict else kind(values)

    return again(structure)
