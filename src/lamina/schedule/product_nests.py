"""Library products as nests: what one multiplies, and what reads its result joined to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lamina.ir.index import Axis, Expr, as_expr
from lamina.ir.library import first_factor
from lamina.ir.loops import (
    Buffer,
    BufferView,
    Check,
    Compute,
    Equation,
    LibraryCall,
    Load,
    Nest,
    Reduce,
    Store,
)
from lamina.ir.product import HALVES
from lamina.schedule.align import align
from lamina.schedule.group import StepFacts, join

__all__ = ["product_nest", "with_epilogue"]


def with_epilogue(nest: Nest, reader: Nest, out: str) -> Nest | None:
    """A product and the nest that reads its result, as one nest: elementwise, or with sums over all rows."""
    first, second = StepFacts.of(nest), StepFacts.of(reader)
    if second.scans or second.scatters or any(isinstance(e, Check) for e in reader.body):
        return None
    if any(isinstance(e, Reduce) and (e.op, e.dtype) != ("sum", "float32") for e in reader.body):
        return None
    places = second.loads.get(out, [])
    if len(places) != 1 or out in second.masked or set(second.stores) & (set(first.loads) | set(second.loads)):
        return None
    found = align(nest.axes, reader.axes, [(first.stores[out][0], places[0])], [], by_position=True)
    if found is None:
        return None
    made = join(nest, reader, found, "fast")
    return None if any(isinstance(e, Load) and e.buffer == out for e in made.body) else made


def product_nest(call: LibraryCall, buffers: Mapping[str, Buffer]) -> Nest | None:
    """The nest that does what a library product of half precision does, or ``None`` for what is not expressed here."""
    first, out = first_factor(call.op), call.outs[0]
    if first is None or out is None or call.kwargs or len(call.args) != first + 2 or call.mutates:
        return None
    views = list(call.args)
    if not all(isinstance(v, BufferView) for v in views):
        return None
    result = buffers[out]
    dtypes = {buffers[v.buffer].dtype for v in views} | {result.dtype}
    if len(dtypes) != 1 or result.dtype not in HALVES or not result.on_gpu:
        return None
    left, right = views[first : first + 2]
    axes = [Axis(f"i{k}", n) for k, n in enumerate((*result.shape, left.shape[-1]))]
    *batch, row, column, inner = (as_expr(a) for a in axes)
    places = [(*batch, row, inner), (*batch, inner, column), *([(*batch, row, column)] * first)]
    body: list[Equation] = []
    for name, view, place in zip("abc", [left, right, *views[:first]], places, strict=False):
        index = _element(view, place, buffers[view.buffer])
        if index is None:
            return None
        body.append(Load(name, view.buffer, index, result.dtype, origin=call.origin))
        body.append(Compute(f"{name}_wide", "cast", (name,), "float32", call.origin))
    body.append(Compute("term", "mul", ("a_wide", "b_wide"), "float32", call.origin))
    body.append(Reduce(("sum",), "sum", "term", (axes[-1].name,), "float32", call.origin))
    value = "sum"
    if first:
        value = "shifted"
        body.append(Compute(value, "add", ("sum", "c_wide"), "float32", call.origin))
    body.append(Compute("rounded", "cast", (value,), result.dtype, call.origin))
    body.append(Store(out, (*batch, row, column), "rounded", origin=call.origin))
    return Nest(f"n_{call.name}", tuple(axes), tuple(body))


def _element(view: BufferView, place: Sequence[Expr], buffer: Buffer) -> tuple[Expr, ...] | None:
    """The index in ``buffer`` of an element of a window onto it, broadcast to ``place``; None for one with gaps."""
    place = place[len(place) - len(view.shape) :]
    at = [as_expr(0) if n == 1 else p for p, n in zip(place, view.shape, strict=True)]
    if view.offset == 0 and view.shape == buffer.shape and view.strides == buffer.strides:
        return tuple(at)
    flat = view.offset
    for p, stride in zip(at, view.strides, strict=True):
        flat = flat + p * stride
    left = [d for d, n in enumerate(buffer.shape) if n != 1]
    index = [as_expr(0)] * len(buffer.shape)
    expected = as_expr(1)
    while left:
        found = next((d for d in left if buffer.strides[d] == expected), None)
        if found is None:
            return None
        left.remove(found)
        step = flat // expected
        index[found] = step % buffer.shape[found] if left else step
        expected = expected * buffer.shape[found]
    return tuple(index)
