"""Assertions on values: checks inside kernels, of each element where all of a tensor is asserted."""

from __future__ import annotations

from torch.fx import Node

from lamina.ir.loops import Check, Nest, Reduce, Store
from lamina.lower.context import Lowering
from lamina.lower.rules import Decline, rule
from lamina.lower.values import TensorValue

__all__: list[str] = []


@rule("aten._assert_async.msg")
def assert_async(low: Lowering, node: Node, condition: TensorValue, message: str) -> None:
    """On a GPU the check is made where the values are at hand; as a call it is two launches and a sum.

    On a CPU eager raises at once, before the next call; there the call stays.
    """
    if low.buffers[condition.buffer].on_cpu:
        raise Decline("raises at once")
    summed = _summed(low, condition.buffer)
    if summed is not None:
        nest, value = summed
        tests = tuple(e for e in nest.body if not isinstance(e, Reduce | Store))
        check = Check(value, message, "RuntimeError", (node.name,))
        low.steps.append(Nest(low.unique(f"n_{node.name}"), nest.axes, (*tests, check)))
        return
    b = low.nest(node, condition.shape)
    b.check(b.load(condition).to("bool"), message, "RuntimeError")
    low.finish(b)


def _summed(low: Lowering, name: str) -> tuple[Nest, str] | None:
    """The nest that makes a buffer as "all of these are true", and the value that says so of one point."""
    for step in low.steps:
        if not isinstance(step, Nest):
            continue
        stores = [e for e in step.body if isinstance(e, Store)]
        if not any(e.buffer == name for e in stores):
            continue
        reduces = [e for e in step.body if isinstance(e, Reduce)]
        if len(stores) == 1 and len(reduces) == 1 and reduces[0].op == "all" and stores[0].value == reduces[0].outs[0]:
            return step, reduces[0].value
    return None
