"""Lowering: an FX graph in normal form becomes a ``LoopProgram``, node by node, through the table of rules."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, cast

import torch
from torch.fx import GraphModule, Node

from lamina.base.dtypes import dtype_of
from lamina.base.symbolic.torch_private import has_symbols
from lamina.base.torch_private import HigherOrderOperator, OpOverload
from lamina.ir.index import Expr, Size, as_expr
from lamina.ir.loops import BufferView, LoopProgram, SizeInput, Source
from lamina.lower import families
from lamina.lower.builder import opmath
from lamina.lower.context import Lowering
from lamina.lower.custom_ops import FUNCTIONALIZED, call_mutating
from lamina.lower.custom_rules import custom_rule
from lamina.lower.half_types import rounded_before_casts
from lamina.lower.library import call_effect, call_library
from lamina.lower.library_decisions import NO_RULE
from lamina.lower.rules import RULES, CannotLower, Decline
from lamina.lower.sizes import SizeFloat, UnknownSize, expr_of, stride_of
from lamina.lower.torch_private import elements_of
from lamina.lower.user_kernels import TRITON_LAUNCH, kernel_name, launch_user_kernel
from lamina.lower.values import TensorValue
from lamina.masked_rows.lowering import IN_PLACE, put_right
from lamina.ops import row_of
from lamina.ops.aliasing import makes_view, viewed

__all__ = ["CannotLower", "is_lowered_wrapper", "is_size_float", "lower"]


MOST_LITERALS = 64
"""Constants of more elements than this are not worth a kernel's text."""

_UNKNOWN_SIZE = "a size that index expressions cannot hold"
_BIT_VIEWS = (torch.ops.aten.view.dtype, torch.ops.aten.view_as_real.default, torch.ops.aten.view_as_complex.default)
_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)


def lower(gm: GraphModule, region: str, numerics: str = "fast") -> LoopProgram:
    """Lower a functional ATen graph (every node with ``meta["val"]``) to a loop program.

    An operation without a rule becomes a library call. Raises ``CannotLower`` for what is neither.
    """
    try:
        program = _lower(gm, region, numerics)
    except UnknownSize as why:
        raise CannotLower(f"{_UNKNOWN_SIZE}: {why}") from why
    _require_known_sizes(program)
    return program


def _require_known_sizes(program: LoopProgram) -> None:
    """Refuse buffers whose size no input tells: the result of an operation whose shape depends on data."""
    buffers = program.buffer_map()
    known: set[object] = set()
    for given in program.inputs:
        sizes = buffers[given].shape if isinstance(given, str) else (given.expr,) if given is not None else ()
        known.update(atom for size in sizes for atom in size.atoms())
    for buffer in program.buffers:
        unknown = {atom for size in buffer.shape for atom in size.atoms() if isinstance(atom, Size)} - known
        if unknown:
            raise CannotLower(f"{buffer.name} has the size {', '.join(map(str, unknown))}, known only at run time")


def _lower(gm: GraphModule, region: str, numerics: str) -> LoopProgram:
    assert families.LOADED
    low = Lowering(region, numerics)
    env: dict[Node, Any] = {}
    inputs: list[str | SizeInput | None] = []
    outputs: tuple[BufferView | Expr | None, ...] = ()
    refused: dict[Node, str] = {}
    without: set[Node] = set()
    for node in gm.graph.nodes:
        if refused and (node.op == "output" or not without.isdisjoint(node.all_input_nodes)):
            without.add(node)
            if node.op == "call_function" and (size := _unknown_size(node.meta.get("val"))):
                refused[node] = size
            continue
        low.sources.append(Source(node.name, _operation(node), str(node.meta.get("source", ""))))
        if node.op in ("placeholder", "get_attr", "call_function"):
            try:
                if node.op == "placeholder":
                    inputs.append(_placeholder(low, env, node))
                elif node.op == "get_attr":
                    env[node] = _constant(low, node, getattr(gm, str(node.target), None))
                else:
                    env[node] = rounded_before_casts(low, node, _call(low, env, node))
            except CannotLower as why:
                refused[node] = str(why)
            except UnknownSize as why:
                refused[node] = f"{_UNKNOWN_SIZE}: {why}"
            if node in refused:
                without.add(node)
        elif node.op == "output":
            values = zip(_flatten(node.args[0]), _flatten(_arguments(env, node.args[0])), strict=True)
            outputs = tuple(_output(low, node, value, result) for result, value in values)
            _require_aliases(env, node, outputs)
        else:
            raise CannotLower(f"{node.op} {node.target}")
    if refused:
        raise CannotLower(next(iter(refused.values())), {node.name: why for node, why in refused.items()})
    used = {o.buffer for o in outputs if isinstance(o, BufferView)}
    buffers = tuple(
        b
        if b.name not in used or b.kind != "temp"
        else type(b)(b.name, b.dtype, b.shape, b.strides, b.device, "output")
        for b in low.buffers.values()
    )
    return LoopProgram(region, tuple(inputs), buffers, tuple(low.steps), outputs, tuple(low.sources))


def _unknown_size(val: Any) -> str:
    """Why a tensor's sizes or steps cannot be held; "" if they can."""
    try:
        if isinstance(val, torch.Tensor) and val.layout is torch.strided:
            _ = [expr_of(n) for n in val.shape], [stride_of(s) for s in val.stride()]
    except UnknownSize as why:
        return f"{_UNKNOWN_SIZE}: {why}"
    return ""


def _placeholder(low: Lowering, env: dict[Node, Any], node: Node) -> str | SizeInput | None:
    val = node.meta.get("val")
    if node.users and all(_is_effect(user) and user.args[0] is node for user in node.users):
        val = None
    if isinstance(val, torch.Tensor):
        if type(val).__name__ not in ("FakeTensor", "Tensor", "Parameter") or val.layout is not torch.strided:
            raise CannotLower(f"input {node.name} is a {type(val).__name__} of layout {val.layout}")
        shape, strides = [expr_of(n) for n in val.shape], [stride_of(s) for s in val.stride()]
        made = low.buffer(node.name, dtype_of(val.dtype), shape, strides, str(val.device), "input")
        env[node] = _resolved(low, node, made) if val.is_conj() or val.is_neg() else made
        return made.buffer
    if isinstance(val, int | torch.SymInt) and not isinstance(val, bool):
        env[node] = expr_of(val)
        return SizeInput(node.name, env[node])
    if isinstance(val, torch.SymFloat):
        made = low.buffer(node.name, "float64", (), device="cpu", kind="input")
        env[node] = SizeFloat("value", (made,))
        return made.buffer
    if val is None:
        env[node] = None
        return None
    raise CannotLower(f"input {node.name} is a {type(val).__name__}")


def _resolved(low: Lowering, node: Node, given: TensorValue) -> TensorValue:
    """A copy of an input that is conjugated or negated lazily: its memory does not hold its values.

    Whether it is lazy is known again only at run time: AOTAutograd takes a gradient to be of the kind of the result.
    """
    if any(user.target is torch.ops.aten.copy_.default and user.args[0] is node for user in node.users):
        raise CannotLower(f"input {node.name}, which is written to, is conjugated or negated lazily")
    out = low.buffer(f"{node.name}_values", given.dtype, given.shape, device=low.buffers[given.buffer].device)
    kind = {"memory_format": torch.contiguous_format}
    low.library(node, "aten.clone.default", (given,), kind, (out,), "an input that is conjugated or negated lazily")
    return out


def _operation(node: Node) -> str:
    """What the node calls, for the reader: under a wrapper that makes it functional, what the user wrote."""
    if str(node.target) == TRITON_LAUNCH:
        return kernel_name(node)
    return str(node.args[0] if str(node.target) == FUNCTIONALIZED else node.target)


def is_lowered_wrapper(node: Node) -> bool:
    """Whether the higher-order operation that ``node`` calls has a lowering."""
    return _is_effect(node) or str(node.target) in (TRITON_LAUNCH, FUNCTIONALIZED)


def is_size_float(node: Node) -> bool:
    """Whether ``node`` is an operation on numbers that kernels can do on floats computed from sizes."""
    return node.target is torch.sym_float or node.target in _FLOAT_OPS


def _is_effect(node: Node) -> bool:
    """Whether the node is ``with_effects(token, operation, ...)``. Tokens order calls in the graph; none exists."""
    return isinstance(node.target, HigherOrderOperator) and str(node.target) == "with_effects"


def _constant(low: Lowering, node: Node, value: Any) -> TensorValue:
    """A small tensor that the user's code holds as a literal, written out element by element."""
    if type(value) is not torch.Tensor or value.layout is not torch.strided or value.is_complex():
        raise CannotLower(f"the graph holds a subgraph or a {type(value).__name__}, {node.target}")
    if value.numel() > MOST_LITERALS:
        raise CannotLower(f"the graph holds a constant of {value.numel()} elements, {node.target}")
    out = low.buffer(node.name, dtype_of(value.dtype), value.shape, device=str(value.device))
    low.plain(out.dtype)
    b = low.nest(node, ())
    literals = _leaves(elements_of(value))
    for place, literal in zip(product(*(range(n) for n in value.shape)), literals, strict=True):
        b.store(out, b.constant(literal, opmath(out.dtype)), [as_expr(p) for p in place])
    low.finish(b)
    return out


def _leaves(nested: Any) -> Iterable[int | float | bool]:
    if isinstance(nested, list):
        for part in nested:
            yield from _leaves(part)
    else:
        yield nested


def _arguments(env: dict[Node, Any], value: Any) -> Any:
    if isinstance(value, Node):
        return env[value]
    if isinstance(value, list | tuple):
        return [_arguments(env, v) for v in value]
    if isinstance(value, dict):
        return {k: _arguments(env, v) for k, v in value.items()}
    if isinstance(value, torch.SymInt):
        return expr_of(value)
    if isinstance(value, slice):
        raise CannotLower("a slice object among a call's arguments")
    return value


_FLOAT_OPS = {
    operator.add: "add",
    operator.sub: "sub",
    operator.mul: "mul",
    operator.truediv: "div",
    operator.neg: "neg",
}


def _symbolic_float(env: dict[Node, Any], node: Node) -> Expr | SizeFloat:
    """A float computed from sizes: what ``n - 1`` or ``2 / (n - 1)`` is in the gradient of a variance."""
    values = tuple(_arguments(env, a) for a in node.args)
    if not all(isinstance(v, Expr | SizeFloat | int | float) for v in values):
        raise CannotLower(f"{node.target} gives a SymFloat")
    if node.target is torch.sym_float:
        (value,) = values
        return value if isinstance(value, Expr | SizeFloat) else as_expr(int(value))
    if node.target not in _FLOAT_OPS:
        raise CannotLower(f"{node.target} gives a SymFloat")
    return SizeFloat(_FLOAT_OPS[node.target], values)


def _call(low: Lowering, env: dict[Node, Any], node: Node) -> Any:
    val = node.meta.get("val")
    if isinstance(val, torch.SymInt) or (isinstance(val, int) and not isinstance(val, bool)):
        return expr_of(val)
    if isinstance(val, torch.SymFloat):
        return _symbolic_float(env, node)
    if isinstance(val, torch.SymBool | bool | float):
        raise CannotLower(f"{node.target} gives a {type(val).__name__}")
    if node.target is operator.getitem:
        return _arguments(env, node.args[0])[node.args[1]]
    target = node.target
    if _is_effect(node):
        return call_effect(low, node, _arguments(env, node.args), _arguments(env, node.kwargs))
    if str(target) == TRITON_LAUNCH:
        return launch_user_kernel(low, env, node, _arguments(env, node.kwargs))
    if str(target) == FUNCTIONALIZED:
        return call_mutating(low, env, node, _arguments(env, node.kwargs))
    if not isinstance(target, OpOverload):
        raise CannotLower(f"{target} is not an ATen operation")
    args, kwargs = _arguments(env, node.args), _arguments(env, node.kwargs)
    if str(target) in IN_PLACE:
        return put_right(low, env, node, args)
    mark = len(low.steps)
    known = len(low.buffers)
    found = RULES.get(str(target)) or custom_rule(target)
    row = row_of(target)
    reason = (row.reason if row is not None else "") or NO_RULE
    if found is not None and _is_eagers_alone(node, target):
        found, reason = None, "eager has this operation for few unsigned dtypes, and says which"
    if found is not None:
        try:
            return found(low, node, *args, **kwargs)
        except (Decline, UnknownSize) as why:
            del low.steps[mark:]
            for name in list(low.buffers)[known:]:
                del low.buffers[name]
            reason = str(why)
    return call_library(low, node, target, args, kwargs, reason)


def _is_eagers_alone(node: Node, target: OpOverload) -> bool:
    """Whether an operation computes with unsigned integers of 16 bits and more, which eager refuses to do for most."""
    row = row_of(target)
    if (row is not None and row.any_dtype) or makes_view(target):
        return False
    values = [operand.meta.get("val") for operand in node.all_input_nodes]
    return any(isinstance(value, torch.Tensor) and value.dtype in _UNSIGNED for value in values)


def _flatten(value: Any) -> Iterable[Any]:
    if isinstance(value, list | tuple):
        for v in value:
            yield from _flatten(v)
    else:
        yield value


def _require_aliases(env: dict[Node, Any], node: Node, outputs: Sequence[BufferView | Expr | None]) -> None:
    """Refuse an output that should be a view of an input, or lie in one memory with another, and became its own; and
    those that eager conjugates or negates lazily.

    Where sizes or numbers of the views are symbols, even such as a guard makes constants, the caller makes the alias
    from what it is given: its sizes, strides and offset.
    """
    pairs = zip(_flatten(node.args[0]), outputs, strict=True)
    views = [(result, made) for result, made in pairs if isinstance(result, Node) and isinstance(made, BufferView)]
    bases = {result: viewed(result) for result, _ in views}
    shared = Counter(bases.values())
    refused: dict[str, str] = {}
    for result, made in views:
        base = bases[result]
        lazy = base.op != "placeholder" and _is_lazy(result)
        if not lazy and (not isinstance(env[base], TensorValue) or env[base].buffer == made.buffer):
            continue
        if lazy:
            alone, why = False, f"{result.target} is an output that is conjugated or negated lazily"
        elif base.op == "placeholder":
            alone = not any(has_symbols(node.meta["val"]) for node in (result, base))
            alone = alone and not any(_by_numbers(node) for node in _between(result, base))
            why = f"{result.target} of {base.name} is an output, and its strides are known only at run time"
        else:
            alone = shared[base] == 1
            how = "read as another type" if _reads_bits(result, base) else "with strides known only at run time"
            why = f"{result.target} is an output in the memory of another, {how}"
        if not alone:  # with all that lie in its memory: between segments they are views of one tensor
            family = [one for one, other in bases.items() if other is base]
            refused |= {node.name: why for one in family for node in _between(one, base)}
    if refused:
        raise CannotLower(next(iter(refused.values())), refused)


def _is_lazy(node: Node) -> bool:
    """Whether a tensor's memory does not hold its values, but their conjugates or negatives."""
    val = node.meta.get("val")
    return isinstance(val, torch.Tensor) and (val.is_conj() or val.is_neg())


def _by_numbers(node: Node) -> bool:
    """Whether a view has numbers of the graph among its arguments: none is made again, even if guards fix them all."""
    numbers = (given.meta.get("val") for given in node.all_input_nodes)
    return any(isinstance(number, torch.SymInt) for number in (*numbers, *_flatten(node.args)))


def _between(node: Node, base: Node) -> list[Node]:
    """The views that lead from ``base`` to ``node``, the last first."""
    found = []
    while node is not base:
        found.append(node)
        node = cast("Node", node.args[0])
    return found


def _reads_bits(node: Node, base: Node) -> bool:
    """Whether ``node``, a view of ``base``, reads its memory as another type, which a kernel does by a copy."""
    return any(one.target in _BIT_VIEWS for one in _between(node, base))


def _output(low: Lowering, node: Node, value: Any, result: Any) -> BufferView | Expr | None:
    if value is None or isinstance(value, bool | float):  # numbers come back as they are in the graph
        return None
    if isinstance(value, TensorValue):
        meta = result.meta.get("val") if isinstance(result, Node) else None
        return _as_eager_steps(low.strided(node, value, meta), result)
    if isinstance(value, int | Expr):
        return as_expr(value)
    raise CannotLower(f"output of type {type(value).__name__}")


def _as_eager_steps(view: BufferView, result: Any) -> BufferView:
    """``view`` with eager's steps along dimensions of one element too, where any step would do."""
    meta = result.meta.get("val") if isinstance(result, Node) else None
    if not isinstance(meta, torch.Tensor) or len(view.shape) != meta.dim():
        return view
    steps = zip(view.shape, view.strides, meta.stride(), strict=True)
    return replace(view, strides=tuple(_eagers(new, old) if size == as_expr(1) else old for size, old, new in steps))


def _eagers(step: int | torch.SymInt, otherwise: Expr) -> Expr:
    try:
        return stride_of(step)
    except UnknownSize:
        return otherwise
