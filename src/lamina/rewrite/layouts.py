"""Channels-last memory for the images of a graph whose convolutions a library runs on images laid out so.

cuDNN's tensor-core kernels, and oneDNN's kernels on a CPU, read and write images with the channels innermost. Given
images with the pixels innermost, as PyTorch lays them out by default, they turn each operand and each result around by
themselves, at every convolution. Here a graph is laid out once: convolutions, and whatever takes images from one to the
next, keep them channels-last. What comes in is converted at the first convolution, where that fuses with what made it;
what the caller sees keeps its strides.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from lamina.base.decision import Decision
from lamina.base.devices import Where, kind_of, with_cudnn, with_onednn
from lamina.base.fx.copying import Read, copy_nodes
from lamina.base.fx.torch_private import graph_module
from lamina.base.namespaces import KNOWN
from lamina.base.torch_private import OpOverload
from lamina.ops import overloads
from lamina.ops.aliasing import makes_view
from lamina.ops.row import RESHAPED
from lamina.rewrite.convolution_libraries import BACKWARD, CUDNN, FILTERS, IMAGES, ONEDNN, Library, nbytes
from lamina.rewrite.reasons import CHANNELS_FIRST, CHANNELS_LAST
from lamina.rewrite.torch_private import same_size

__all__ = ["channels_last", "channels_last_on_cpu"]

aten = torch.ops.aten

_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
_BY_STRIDES = overloads(lambda row: row.by_strides)
_RESHAPES = overloads(lambda row: row.elements == RESHAPED)
_OWN_LAYOUT = ("scaled_dot_product", "_fft_", "fft_")
"""Parts of the names of operations whose results are laid out as they like."""


def channels_last(
    gm: GraphModule,
    note: Callable[[Decision], None] = lambda decision: None,
    where: Where = with_cudnn,
    library: Library = CUDNN,
) -> GraphModule:
    """Lay out the images of ``gm`` channels-last where that moves fewer bytes; ``gm`` itself where it does not.

    Only convolutions on devices ``where`` there is the ``library``, and that it runs faster so, ask for it: in half
    precision, or in float32 where torch allows TF32. Shapes, values and the strides of what the graph returns stay the
    same. ``note`` is told the choice, if there was one.
    """
    wishes = [n for target in IMAGES for n in gm.graph.find_nodes(op="call_function", target=target)]
    wishes = [node for node in wishes if _on_device(node, where) and library.wants(node)]
    if not wishes:
        return gm
    layouts = _Layouts(gm, set(wishes), where, library)
    layouts.assign()
    taken = bool(layouts.values) and layouts.cost < layouts.gain
    saved, converted = int(layouts.gain), layouts.cost
    facts = (("convolutions", len(wishes)), ("bytes saved", saved), ("bytes converted", converted))
    if layouts.values:
        reason = CHANNELS_LAST() if taken else CHANNELS_FIRST()
        note(Decision("layout", tuple(n.name for n in wishes), taken, reason, facts))
    return layouts.apply() if taken else gm


def channels_last_on_cpu(gm: GraphModule, note: Callable[[Decision], None] = lambda decision: None) -> GraphModule:
    """The same for the convolutions of a CPU, in float32 and bfloat16."""
    return channels_last(gm, note, with_onednn, ONEDNN)


def _on_device(node: Node, where: Where) -> bool:
    """Whether a convolution of images runs on such a device."""
    image = node.args[IMAGES[node.target][-1]]
    return isinstance(image, Node) and _on(image.meta["val"], where)


def _strides(shape: Sequence[Any]) -> tuple[Any, ...]:
    """Channels-last strides."""
    result: list[Any] = [0] * len(shape)
    step: Any = 1
    for dim in (1, *range(len(shape) - 1, 1, -1), 0):
        result[dim] = step
        step = step * shape[dim]
    return tuple(result)


def _is_last(value: Tensor) -> bool:
    """Whether the channels are innermost, as far as symbols tell and sizes of one matter."""
    triples = zip(value.shape, value.stride(), _strides(value.shape), strict=True)
    return all((isinstance(n, int) and n == 1) or same_size(s, t) for n, s, t in triples)


def _in_channels_last(value: Tensor) -> Tensor:
    """The fake tensor laid out channels-last."""
    mode = getattr(value, "fake_mode", None)
    shape, strides = tuple(value.shape), _strides(value.shape)
    if mode is None:
        return torch.empty_strided(shape, strides, dtype=value.dtype, device="meta")
    with mode:
        return torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device)


def _is_image(value: object) -> bool:
    """Whether the value has channels and more than one pixel, so that the order matters."""
    if not isinstance(value, Tensor) or value.dim() not in _FORMATS or value.layout != torch.strided:
        return False
    return any(not isinstance(n, int) or n > 1 for n in value.shape[2:]) and value.dtype not in (
        torch.complex64,
        torch.complex128,
    )


def _on(value: Tensor, where: Where) -> bool:
    return where(kind_of(value)) and value.dim() in _FORMATS


class _Layouts:
    """Which values of a graph become channels-last, and what that saves and costs (bytes read and written).

    ``values`` has the new fake tensors, ``converted`` the operands of each convolution that need a copy and whether
    it is channels-last, ``reshaped`` the views that the new strides do not allow, and that are copies now.
    """

    def __init__(self, gm: GraphModule, wishes: set[Node], where: Where, library: Library) -> None:
        self.gm, self.wishes, self.where, self.library = gm, wishes, where, library
        self.values: dict[Node, Any] = {}
        self.converted: dict[Node, dict[Node, bool]] = {}
        self.paid: set[tuple[Node, bool]] = set()
        self.reshaped: set[Node] = set()
        self.returned = set(gm.graph.output_node().all_input_nodes)
        self.fixed = _addressed(gm.graph, self.returned)
        self.gain, self.cost = 0.0, 0

    def value(self, node: Node) -> Any:
        """The fake value of a node under the new layouts."""
        return self.values.get(node, node.meta.get("val"))

    # ---- the choice -------------------------------------------------------------------------------------------

    def assign(self) -> None:
        """Go through the graph once; nothing is changed in it."""
        for node in self.gm.graph.nodes:
            if node.op != "call_function":
                continue
            if node.target is operator.getitem:
                source = node.args[0]
                if source in self.values and self.values[source][node.args[1]] is not source.meta["val"][node.args[1]]:
                    self.values[node] = self.values[source][node.args[1]]
            elif node.target in IMAGES and _on_device(node, self.where):
                self.convolution(node, node in self.wishes)
            elif makes_view(node.target):
                self.view(node)
            elif self.follows(node):
                self.turn(node)
        for node in self.returned & self.values.keys():
            made_by = node.all_input_nodes[0].target if node.target is operator.getitem else None
            if self.library.turns_weights and made_by is BACKWARD and node.args[1] == 1:
                continue
            self.cost += nbytes(node.meta["val"]) * (2 if self.from_library(node) else 1)

    def convolution(self, node: Node, wish: bool) -> None:
        """Its images are converted where they are laid out otherwise; results are made as the images are.

        A convolution without a wish takes its images as they are laid out, gradients as the image.
        """
        places = IMAGES[node.target]
        images = [n for p in places if isinstance(n := node.args[p], Node)]
        last = wish or (_is_last(self.value(images[-1])) and not self.library.shuns(node))
        for image in images:
            now = self.value(image)
            if wish and not _is_last(image.meta["val"]):
                self.gain += self.library.relayout(node) * nbytes(now)
            if _is_last(now) != last and (last or image in self.values):
                self.converted.setdefault(node, {})[image] = last
                if self.from_library(image) and (image, last) not in self.paid:
                    self.cost += 2 * nbytes(now)
                    self.paid.add((image, last))
        if not last:
            return
        weight = node.args[FILTERS[node.target]]
        if isinstance(weight, Node) and not _is_last(self.value(weight)):
            self.converted.setdefault(node, {})[weight] = True
        results = node.meta["val"]
        made = results if isinstance(results, Tensor) else results[0]
        if wish and _is_image(made) and not _is_last(made):
            self.gain += self.library.relayout(node) * nbytes(made)
        self.gain += self.library.taps(node) * nbytes(self.value(images[-1])) // images[-1].meta["val"].element_size()
        self.turn(node)

    def from_library(self, node: Node) -> bool:
        """Whether a copy of the value is a pass of its own: nothing that makes it could make the copy instead."""
        while node.op == "call_function" and (makes_view(node.target) or node.target is operator.getitem):
            node = node.all_input_nodes[0]
        return node.op != "call_function" or node.target in IMAGES

    def view(self, node: Node) -> None:
        """A view of something whose strides have changed."""
        source = node.all_input_nodes[0] if node.all_input_nodes else None
        if source not in self.values or not isinstance(node.meta.get("val"), Tensor):
            return
        found = None
        mode = getattr(self.values[source], "fake_mode", None)
        if mode is not None and all(isinstance(n, int) for n in self.values[source].shape):
            arguments = torch.fx.node.map_arg((node.args, node.kwargs), self.value)
            try:
                with mode:
                    found = node.target(*arguments[0], **arguments[1])  # type: ignore[operator]
            except (RuntimeError, ValueError):
                found = None
        if found is not None:
            self.values[node] = found
        elif node.target in _RESHAPES:
            self.reshaped.add(node)

    def follows(self, node: Node) -> bool:
        """Whether most of what the operation reads of images is channels-last now, some of it newly."""
        if not isinstance(node.target, OpOverload) or node.target.namespace not in KNOWN:
            return False
        if any(part in str(node.target) for part in _OWN_LAYOUT):
            return False
        images = [n for n in node.all_input_nodes if _is_image(self.value(n))]
        if not any(n in self.values for n in images):
            return False
        last = sum(nbytes(v) for v in map(self.value, images) if _is_last(v))
        return 2 * last > sum(nbytes(self.value(n)) for n in images)

    def turn(self, node: Node) -> None:
        """Make the node's images channels-last, but for those that something addresses by eager's strides."""
        value = node.meta.get("val")
        if isinstance(value, Tensor):
            if node not in self.fixed and _is_image(value) and not _is_last(value):
                self.values[node] = _in_channels_last(value)
        elif isinstance(value, (tuple, list)):
            kept = {user.args[1] for user in node.users if user in self.fixed and user.target is operator.getitem}
            relaid = [
                _in_channels_last(v) if k not in kept and _is_image(v) and not _is_last(v) else v
                for k, v in enumerate(value)
            ]
            if any(a is not b for a, b in zip(relaid, value, strict=True)):
                self.values[node] = tuple(relaid)

    # ---- the new graph ----------------------------------------------------------------------------------------

    def apply(self) -> GraphModule:
        """The graph with the new layouts."""
        graph = Graph()
        made: dict[Node, Node] = {}
        copies: dict[tuple[Node, torch.memory_format], Node] = {}

        def copied(source: Node, user: Node, value: Any, kind: torch.memory_format) -> Node:
            found = copies.get((source, kind))
            if found is None:
                found = graph.call_function(aten.clone.default, (made[source],), {"memory_format": kind})
                found.meta = {**user.meta, "val": value}
                copies[source, kind] = found
            return found

        def converted(user: Node, n: Node) -> Node:
            """An operand of a convolution, converted if need be."""
            changes = self.converted[user]
            if n not in changes:
                return made[n]
            value = n.meta["val"]
            if changes[n]:
                return copied(n, user, _in_channels_last(value), _FORMATS[value.dim()])
            return copied(n, user, value, torch.contiguous_format)

        def returned(n: Node) -> Node:
            return copied(n, n, n.meta["val"], torch.contiguous_format) if n in restored else made[n]

        restored = self.returned & self.values.keys()
        reading: dict[Node, Read] = {user: partial(converted, user) for user in self.converted}
        reading[self.gm.graph.output_node()] = returned
        copy_nodes(graph, self.gm.graph.nodes, made, reading=reading)
        for node, value in self.values.items():
            made[node].meta = {**made[node].meta, "val": value}
        for node in self.reshaped:
            made[node].target = aten.reshape.default
        return graph_module(self.gm, graph)


def _addressed(graph: Graph, returned: Iterable[Node]) -> set[Node]:
    """What is seen through views whose strides must stay eager's: those returned, and those given by raw strides."""
    found: set[Node] = set()
    pending = [n for n in returned if n.op == "call_function" and _is_view(n)]
    for target in _BY_STRIDES:
        for node in graph.find_nodes(op="call_function", target=target):
            pending += node.all_input_nodes
    while pending:
        node = pending.pop()
        if node in found:
            continue
        found.add(node)
        if node.op == "call_function" and _is_view(node):
            pending += node.all_input_nodes
    return found


def _is_view(node: Node) -> bool:
    return node.target is not operator.getitem and makes_view(node.target)
