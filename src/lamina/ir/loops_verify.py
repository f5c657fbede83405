"""What makes a loop program valid. Each rule raises ``InvalidIR`` that names the nest and equation and shows the
lines around it; the rules on nests are in ``nest_verify.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lamina.base.dtypes import DTYPES
from lamina.errors import InvalidIR
from lamina.ir.access import arguments, origins, reads, views, writes
from lamina.ir.index import Axis, Expr, Loaded, Size
from lamina.ir.library import overload
from lamina.ir.loops import Buffer, BufferView, LibraryCall, LoopProgram, Nest, SizeInput, Step
from lamina.ir.nest_verify import verify_nest

__all__ = ["known_sizes", "verify_call", "verify_declarations", "verify_program", "verify_sizes", "verify_view"]


def verify_program(program: LoopProgram) -> None:
    """Raise ``InvalidIR`` unless the program obeys every rule. Linear in its size."""
    buffers = verify_declarations(program.name, program.buffers, program.inputs, program.outputs)
    sizes = known_sizes(program.inputs, buffers)
    sources = {s.node for s in program.sources}
    names: set[str] = set()
    for step in program.steps:
        if step.name in names:
            raise InvalidIR(f"{program.name}: two steps are called {step.name}")
        names.add(step.name)
        if isinstance(step, Nest):
            verify_nest(step, buffers, sizes, program.sources)
        else:
            verify_call(step, buffers, sizes)
            _origins(step, sources)
    _order(program.name, program.steps, buffers, program.inputs, program.outputs)


def verify_declarations(
    region: str,
    declared: Iterable[Buffer],
    inputs: Iterable[str | SizeInput | None],
    outputs: Iterable[BufferView | Expr | None],
) -> dict[str, Buffer]:
    """Rules on buffers, inputs and outputs; returns the buffers by name."""
    buffers: dict[str, Buffer] = {}
    for buffer in declared:
        if buffer.name in buffers:
            raise InvalidIR(f"{region}: two buffers are called {buffer.name}")
        buffers[buffer.name] = buffer
        _verify_buffer(region, buffer)
    given: set[str] = set()
    for item in inputs:
        if not isinstance(item, str):
            continue
        if item not in buffers or buffers[item].kind != "input":
            raise InvalidIR(f"{region}: input {item} is not a buffer of kind 'input'")
        if item in given:
            raise InvalidIR(f"{region}: input {item} is listed twice")
        given.add(item)
    for buffer in buffers.values():
        if buffer.kind == "input" and buffer.name not in given:
            raise InvalidIR(f"{region}: buffer {buffer.name} is of kind 'input' but no input")
    sizes = known_sizes(inputs, buffers)
    for out in outputs:
        if isinstance(out, BufferView):
            verify_view(f"{region}: an output", out, buffers, sizes)
        elif isinstance(out, Expr):
            verify_sizes(f"{region}: an output", out, sizes)
    return buffers


def _verify_buffer(region: str, buffer: Buffer) -> None:
    """Rules on one buffer by itself."""
    if buffer.dtype not in DTYPES:
        raise InvalidIR(f"{region}: buffer {buffer.name} has the unknown dtype {buffer.dtype!r}")
    if buffer.kind not in ("input", "output", "temp"):
        raise InvalidIR(f"{region}: buffer {buffer.name} is of the unknown kind {buffer.kind!r}")
    if len(buffer.shape) != len(buffer.strides):
        raise InvalidIR(
            f"{region}: buffer {buffer.name} has {len(buffer.shape)} sizes and {len(buffer.strides)} strides"
        )
    for expr in (*buffer.shape, *buffer.strides):
        _no_axes(f"{region}: the layout of buffer {buffer.name}", expr)


def known_sizes(inputs: Iterable[str | SizeInput | None], buffers: Mapping[str, Buffer]) -> set[str]:
    """Names of the sizes that integer inputs, or shapes and strides of tensor inputs, give."""
    found: set[str] = set()
    for item in inputs:
        if isinstance(item, SizeInput):
            exprs: tuple[Expr, ...] = (item.expr,)
        elif item is not None and item in buffers:
            exprs = (*buffers[item].shape, *buffers[item].strides)
        else:
            continue
        found |= {a.name for e in exprs if e.terms for a in e.atoms() if isinstance(a, Size)}
    return found


def verify_sizes(what: str, expr: Expr, sizes: set[str]) -> None:
    """An expression outside nests: nothing but sizes that the inputs give."""
    _no_axes(what, expr)
    for atom in expr.atoms() if expr.terms else ():
        if isinstance(atom, Size) and atom.name not in sizes:
            raise InvalidIR(f"{what} uses the size {atom.name}, which no input gives")


def _no_axes(what: str, expr: Expr) -> None:
    for atom in expr.atoms() if expr.terms else ():
        if isinstance(atom, Axis | Loaded):
            raise InvalidIR(f"{what} depends on {atom.name}, which exists only inside a nest")


def verify_view(what: str, view: BufferView, buffers: Mapping[str, Buffer], sizes: set[str]) -> None:
    """A window lies inside its buffer (as far as plain integers tell)."""
    buffer = buffers.get(view.buffer)
    if buffer is None:
        raise InvalidIR(f"{what} refers to the unknown buffer {view.buffer}")
    if len(view.shape) != len(view.strides):
        raise InvalidIR(f"{what}: a window onto {view.buffer} has {len(view.shape)} sizes, {len(view.strides)} strides")
    for expr in (*view.shape, *view.strides, view.offset):
        verify_sizes(f"{what}: a window onto {view.buffer}", expr, sizes)
    last, end = _last(view.offset, view.shape, view.strides), _last(None, buffer.shape, buffer.strides)
    if last is not None and end is not None and (last > end or int(view.offset) < 0):
        raise InvalidIR(f"{what}: a window onto {view.buffer} ends at element {last}, the buffer at {end}")


def _last(offset: Expr | None, shape: tuple[Expr, ...], strides: tuple[Expr, ...]) -> int | None:
    """Number of the last element; ``None`` when unknown or when there is no element."""
    exprs = (*shape, *strides, *((offset,) if offset is not None else ()))
    if not all(e.is_int for e in exprs) or any(n == 0 for n in shape):
        return None
    start = offset.const if offset is not None else 0
    return start + sum((n.const - 1) * s.const for n, s in zip(shape, strides, strict=True))


def verify_call(call: LibraryCall, buffers: Mapping[str, Buffer], sizes: set[str]) -> None:
    """Rules on one library call."""
    what = f"library call {call.name}"
    try:
        overload(call.op)
    except (AttributeError, ValueError):
        raise InvalidIR(f"{what}: torch has no operation {call.op}") from None
    for view in views(call):
        verify_view(what, view, buffers, sizes)
    for value in arguments(call):
        if isinstance(value, Expr):
            verify_sizes(what, value, sizes)
    made = [out for out in call.outs if out is not None]
    for name in (*made, *call.mutates):
        if name not in buffers:
            raise InvalidIR(f"{what} writes to the unknown buffer {name}")
    if len(set(made)) != len(made):
        raise InvalidIR(f"{what} gives two results the same buffer")
    for name in made:
        if buffers[name].kind == "input":
            raise InvalidIR(f"{what} puts a result in the input {name}")
    missing = set(call.mutates) - {v.buffer for v in views(call)}
    if missing:
        raise InvalidIR(f"{what} mutates {', '.join(sorted(missing))}, which it does not take")


def _order(
    region: str,
    steps: Iterable[Step],
    buffers: Mapping[str, Buffer],
    inputs: Iterable[str | SizeInput | None],
    outputs: Iterable[BufferView | Expr | None],
) -> None:
    """Every buffer is written before it is read, and no result of a library call twice."""
    written = {item for item in inputs if isinstance(item, str)}
    empty = {name for name, buffer in buffers.items() if any(n == 0 for n in buffer.shape)}
    for step in steps:
        defined = _self_defined(step)
        for name in sorted(reads(step) - written - defined - empty):
            raise InvalidIR(f"{step.name} reads buffer {name} before anything is written to it")
        for out in step.outs if isinstance(step, LibraryCall) else ():
            if out in written:
                raise InvalidIR(f"library call {step.name} makes buffer {out}, which exists already")
        written |= writes(step)
    for item in outputs:
        if isinstance(item, BufferView) and item.buffer not in written | empty:
            raise InvalidIR(f"{region}: nothing is written to the output buffer {item.buffer}")
    for name in sorted(written - buffers.keys()):
        raise InvalidIR(f"{region}: the unknown buffer {name} is written")


def _self_defined(step: Step) -> set[str]:
    """Buffers whose first access in a nest is an unmasked overwriting store; those that a library call fills."""
    if not isinstance(step, Nest):
        return set(step.mutates)
    loaded: set[str] = set()
    stored: set[str] = set()
    for eqn in step.body:
        buffer = getattr(eqn, "buffer", None)
        if buffer is None or buffer in loaded or buffer in stored:
            continue
        plain = getattr(eqn, "mode", "") == "set" and getattr(eqn, "mask", None) is None
        (stored if plain else loaded).add(buffer)
    return stored


def _origins(step: LibraryCall, sources: set[str]) -> None:
    if sources and not step.origin:
        raise InvalidIR(f"library call {step.name} has no origin")
    for name in origins(step):
        if sources and name not in sources:
            raise InvalidIR(f"library call {step.name} comes from {name}, which is not among the program's sources")
