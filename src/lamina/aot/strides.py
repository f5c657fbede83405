"""Captured calls whose results tracing lays out in another way than eager does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from lamina.aot import eager_reasons
from lamina.aot.gaps import LAID_OUT_AS_FIRST, has_gaps
from lamina.aot.layouts import same_strides
from lamina.aot.torch_private import suggested_format
from lamina.base.captured import argument, example, memory
from lamina.base.devices import kind_of
from lamina.base.reasons import Reason
from lamina.base.source import operation_name, source_of
from lamina.base.symbolic.torch_private import DataDependentGuard, contiguous, is_fake, is_sure
from lamina.ops.calls import names

__all__ = ["format_of_result", "made_contiguous", "misplaced_result"]

_AS_A_SUM = names(lambda function: function.laid_out_as_sum)
_DIVISIONS = frozenset(("div", "divide", "true_divide"))
_LAID_OUT_APART = _AS_A_SUM | _DIVISIONS | {"log_sigmoid", "ldexp", "pow"}


def misplaced_result(gm: GraphModule) -> Reason | None:
    """Why the captured graph is eager's to run: a result whose strides tracing or kernels get wrong, or None.

    Kernels make no memory with gaps; ``empty_strided`` does, and ``slice_scatter`` and its like of such a tensor. On a
    CPU a batch norm's result is contiguous, or has channels last where its operand has; traced it has whatever strides
    the operand has. Where the operands of a pointwise call are laid out differently, tracing follows another one for
    some calls; random numbers are drawn in the order of memory by some calls only.
    """
    returned = {memory(example(one)) for one in gm.graph.output_node().all_input_nodes} - {None}
    for node in gm.graph.nodes:
        if operation_name(node.target) in ("empty_strided", "new_empty_strided") and not _dense(node):
            return eager_reasons.MEMORY_WITH_GAPS(place=source_of(node))
        copies = operation_name(node.target) in LAID_OUT_AS_FIRST
        if copies and memory(example(node)) in returned and has_gaps(example(node)):
            return eager_reasons.MEMORY_WITH_GAPS(place=source_of(node))
        if _is_of_another_layout(node):
            return eager_reasons.MISPLACED_RESULT(place=source_of(node))
        if node.op in ("call_function", "call_method") and _misplaced(node):
            return eager_reasons.MISPLACED_RESULT(place=source_of(node))
    return None


def _misplaced(node: Node) -> bool:
    """Whether a pointwise call's result has other strides in eager than in tracing; so if only data tells."""
    name = operation_name(node.target).strip("_").removeprefix("r")
    operands = [argument(one) for one in node.args]
    in_rows = _in_rows(node, operands)
    if (name not in _LAID_OUT_APART and not in_rows) or not is_fake(example(node)):
        return False
    tensors = [one for one in operands if is_fake(one)]
    if not tensors or all(contiguous(one) for one in tensors):
        return False
    if in_rows:
        return True
    try:
        return _differs(example(node), _in_eager(name, operands, bool(node.kwargs.get("rounding_mode"))))
    except DataDependentGuard:
        return True


def format_of_result(node: Node) -> tuple[Node, torch.memory_format] | None:
    """The operand of a batch norm on a CPU and the format of the result, where tracing gives it the operand's strides,
    which are others, if only along an axis of one element; ``None`` where tracing is right, and where only sizes known
    at run time tell.
    """
    operand = _image(node)
    if operand is None:
        return None
    image = example(operand)
    if any(isinstance(n, torch.SymInt) for n in (*image.shape, *image.stride())) or image.numel() == 0:
        return None
    others = [example(one) for one in node.all_input_nodes if one is not operand]
    formats = _formats(image) if all(contiguous(one) for one in others if isinstance(one, torch.Tensor)) else []
    found = next((one for one in formats if contiguous(image, one)), None) or suggested_format(image)
    return None if contiguous(image, found) and _same_throughout(image, found) else (operand, found)


def _is_of_another_layout(node: Node) -> bool:
    operand = _image(node)
    return operand is not None and not _plain(example(operand))


def _image(node: Node) -> Node | None:
    """What a batch norm on a CPU normalizes; ``None`` of other calls."""
    if node.op != "call_function" or operation_name(node.target) != "batch_norm":
        return None
    operand = node.args[0] if node.args else node.kwargs.get("input")
    image = example(operand) if isinstance(operand, Node) else None
    on_cpu = isinstance(image, torch.Tensor) and kind_of(image).host
    return operand if on_cpu and isinstance(operand, Node) else None


def made_contiguous(name: str, operands: Sequence[Any]) -> int | None:
    """The operand, one of fake tensors and numbers, of which eager computes with a contiguous copy; ``None`` of none.

    It is so of ``log_sigmoid``, of an exponent whose base is a number, of which eager makes a tensor, and of the power
    of two that ``ldexp`` multiplies with.
    """
    place = {"log_sigmoid": 0, "pow": 1, "ldexp": 1}.get(name)
    if place is None or len(operands) <= place or not is_fake(operands[place]):
        return None
    return None if name == "pow" and is_fake(operands[0]) else place


def _in_eager(name: str, operands: list[Any], rounded: bool) -> Any:
    """A fake tensor with the strides that a pointwise call's result has in eager, None where tracing tells them."""
    place = made_contiguous(name, operands)
    if place is not None:
        made = torch.empty_like(operands[place], memory_format=torch.contiguous_format)
        return torch.add(operands[0], made) if name == "ldexp" else made
    if len(operands) != 2:
        return None
    first, second = operands
    if name in _AS_A_SUM or (name in _DIVISIONS and rounded):
        return torch.add(first, second)
    return None


def _in_rows(node: Node, operands: Sequence[Any]) -> bool:
    """Whether either eager or the traced call draws its numbers in the order of a contiguous tensor, and not both."""
    name = operation_name(node.target)
    if name == "bernoulli_":  # the functional form with one probability does
        return not any(isinstance(argument(one), torch.Tensor) for one in (*operands[1:], *node.kwargs.values()))
    if name == "alpha_dropout":
        given = dict(zip(("input", "p", "training"), operands, strict=False)) | dict(node.kwargs)
        return bool(given.get("training")) and given.get("p", 0.5) != 0
    if name == "rrelu":
        given = dict(zip(("input", "lower", "upper", "training", "inplace"), operands, strict=False)) | node.kwargs
        return not given.get("inplace")
    return name == "normal"


def _differs(traced: Any, eager: Any) -> bool:
    """Whether two fake tensors of one shape are laid out differently."""
    if eager is None or not is_fake(traced) or traced.dim() != eager.dim():
        return False
    return not same_strides(traced, eager)


def _dense(node: Node) -> bool:
    value: Any = node.meta.get("example_value")
    return isinstance(value, torch.Tensor) and contiguous(value)


def _plain(image: Any) -> bool:
    """Whether tracing gives a batch norm's result of this operand the strides that eager does.

    Along an axis of one element too, where it has the operand's: later calls look at these as well.
    """
    return any(contiguous(image, one) and _same_throughout(image, one) for one in _formats(image))


def _formats(image: Any) -> list[torch.memory_format]:
    """The formats that eager knows for a tensor of as many dimensions, those it prefers first."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(image.dim())
    return [torch.contiguous_format, *([] if last is None else [last])]


def _same_throughout(image: Any, memory_format: torch.memory_format) -> bool:
    other = torch.empty_like(image, memory_format=memory_format)
    sizes = zip(image.shape, image.stride(), other.stride(), strict=True)
    return all(is_sure(n != 1) or is_sure(a == b) for n, a, b in sizes)
