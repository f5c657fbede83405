"""Wrong rewrites, fusions and stages, put into the compiler of this process one at a time, for who looks for them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from lamina.extend import Passes, rule
from lamina.ir.index import as_expr
from lamina.ir.loops import Compute, LoopProgram, Nest, Step
from lamina.ir.plan import Kernel, Plan
from lamina.rewrite import order
from lamina.schedule.group import Group

__all__ = ["PLANTED", "Planted", "arguments", "program"]

aten = torch.ops.aten
ROWS, WIDTH = 64, 24


def program(x: Tensor, w: Tensor, b: Tensor, table: Tensor) -> tuple[Tensor, ...]:
    """Something for every stage: a product, activations, a softmax, parts, writes, sums over rows and columns."""
    h = torch.nn.functional.linear(x, w, b)
    v = b.sin()
    v = v * torch.sigmoid(v)
    h = h * torch.sigmoid(h)
    k = x.cos()
    k = k * torch.sigmoid(k)
    parts = torch.cat([torch.softmax(h, -1), x.sin()], -1)
    scaled = (parts * 2.0 * 0.25).tanh()
    y = k.clone()
    y[:, 1] = 1.5
    rows = scaled.exp().sum(-1) + (y.exp() @ w).sum(-1)
    large = x[:, :, None] * table.exp()[None]
    return rows, scaled.mean(0), large.sum(0), (h.exp() + k * v).abs().amax(-1)


def arguments() -> tuple[Tensor, ...]:
    """Arguments of ``program``, the same at each call."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return (torch.randn(*shape, generator=generator) / 4).requires_grad_()

    return drawn(ROWS, WIDTH), drawn(WIDTH, WIDTH), drawn(WIDTH), drawn(WIDTH, 32)


@dataclass(frozen=True, slots=True)
class Planted:
    """One fault: how it is put in, and the ``stage`` and the beginning of the ``step`` that are to be blamed.

    Of rules, ``application`` is which one is wrong, and 0 means any.
    """

    name: str
    stage: str
    step: str
    plant: Callable[[], AbstractContextManager[Any]]
    application: int = 0
    options: dict[str, Any] = field(default_factory=dict)


@contextmanager
def _with(module: str, name: str, change: Callable[[Any], Any]) -> Iterator[None]:
    """A name of a module, or of a class ("module:Class"), changed inside."""
    place, _, owner = module.partition(":")
    target = importlib.import_module(f"lamina.{place}")
    target = getattr(target, owner) if owner else target
    before = getattr(target, name)
    setattr(target, name, change(before))
    try:
        yield
    finally:
        setattr(target, name, before)


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def _in_graph(old: Any, new: Any) -> Callable[[GraphModule], GraphModule]:
    """Takes one operation of a graph for another, once."""

    def change(gm: GraphModule) -> GraphModule:
        nodes = [n for n in gm.graph.nodes if n.target is old]
        if nodes:
            nodes[0].target = new
            gm.recompile()
        return gm

    return change


def _after(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function whose result is changed."""
    return lambda function: lambda *args, **kwargs: change(function(*args, **kwargs))


def _in_pass(name: str, change: Callable[[GraphModule], GraphModule]) -> Callable[[], Any]:
    """A pass of Lamina's with a fault behind it."""
    return lambda: _with("rewrite.order", "PASSES", lambda _: order.changed(name, _after(change)))


def _swapped(nest: Nest, old: str, new: str) -> Nest:
    body = tuple(replace(e, op=new) if isinstance(e, Compute) and e.op == old else e for e in nest.body)
    return replace(nest, body=body)


def _in_steps(steps: Sequence[Step], old: str, new: str) -> list[Step]:
    """Takes one operation for another in the first nest that has it."""
    changed, found = [], False
    for step in steps:
        if isinstance(step, Nest) and not found:
            made = _swapped(step, old, new)
            found = made != step
            step = made
        changed.append(step)
    return changed


def _in_program(made: LoopProgram) -> LoopProgram:
    return replace(made, steps=tuple(_in_steps(made.steps, "exp", "sin")))


def _first_of(made: Any) -> Any:
    """Of a program or steps with more, those with a fault."""
    first, *rest = made
    wrong = _in_program(first) if isinstance(first, LoopProgram) else _in_steps(first, "exp", "sin")
    return wrong, *rest


def _in_step(name: str, change: Callable[[Any], Any] = _first_of) -> Callable[[], Any]:
    """A sub-pass of fusion with a fault behind it."""
    return lambda: _with("schedule.fuse", name, _after(change))


def _joined_wrong() -> Any:
    """The first two groups that are joined with an exponential in them compute something else together."""
    wrong_pairs: list[tuple[str, str]] = []

    def change(joined: Any) -> Any:
        def wrong(self: Any, first: Group, second: Group) -> Any:
            result = joined(self, first, second)
            pair = (first.name, second.name)
            if isinstance(result, Group) and result.nest != _swapped(result.nest, "exp", "sin"):
                if not wrong_pairs:
                    wrong_pairs.append(pair)
                if pair in wrong_pairs:
                    result = replace(result, nest=_swapped(result.nest, "exp", "sin"))
            return result

        return wrong

    return _with("schedule.fuse:Joiner", "joined", change)


def _wrong_saved(halves: Any) -> Any:
    """The forward saves one value in the place of another of the same shape."""
    output = halves.forward.graph.output_node()
    results = list(output.args[0])
    names = set(halves.saved)
    saved = [n for n in results if isinstance(n, Node) and n.name in names and n.op == "call_function"]
    for one in saved:
        for other in saved:
            if one is not other and one.meta["val"].shape == other.meta["val"].shape:
                output.args = (tuple(other if n is one else n for n in results),)
                halves.forward.recompile()
                return halves
    raise AssertionError("no two values of one shape are saved")


def _wrong_backward(halves: Any) -> Any:
    """The backward computes something else again."""
    _in_graph(aten.mul.Tensor, aten.sub.Tensor)(halves.backward)
    return halves


def _in_plan(old: str, new: str) -> Callable[[Plan], Plan]:
    """The first kernel with an operation does another, and its calls do not."""

    def change(plan: Plan) -> Plan:
        kernels, found = [], False
        for kernel in plan.kernels:
            nests = tuple(_swapped(nest, old, new) for nest in kernel.nests)
            kernels.append(replace(kernel, nests=nests) if not found else kernel)
            found = found or nests != kernel.nests
        return replace(plan, kernels=tuple(kernels))

    return change


def _all_in_one_place(made: Any) -> Any:
    places, arena = made
    return tuple(replace(p, offset=as_expr(0)) if p.where == "arena" else p for p in places), arena


def _emitted_wrong(emit: Any) -> Any:
    def wrong(kernel: Kernel, *rest: Any) -> Any:
        nests = tuple(_swapped(nest, "exp", "sin") for nest in kernel.nests)
        return emit(replace(kernel, nests=nests), *rest)

    return wrong


def _returned_wrong(host: Any) -> Any:
    """The host program gives its last result in the place of the first of that shape."""
    lines = host.text.splitlines()
    at = max(i for i, line in enumerate(lines) if line.strip().startswith("return ("))
    names = lines[at].strip().removeprefix("return (").rstrip("),").split(", ")
    lines[at] = f"    return ({', '.join(['torch.zeros_like(' + names[0] + ')', *names[1:]])},)"
    return replace(host, text="\n".join(lines) + "\n")


def _prepared_wrong(prepare: Any) -> Any:
    """The joint graph comes out of differentiation with another operation."""

    def wrong(gm: GraphModule) -> None:
        prepare(gm)
        _in_graph(aten.exp.default, aten.expm1.default)(gm)

    return wrong


def _negated(run: Any) -> Any:
    def wrong(*args: Any) -> Any:
        first, *rest = run(*args)
        return (-first, *rest)

    return wrong


_SWISH = rule(lambda x: x * torch.sigmoid(x), lambda x: torch.nn.functional.silu(x) * 1.01, name="wrong swish")
_TANH = rule(lambda x: torch.tanh(x), lambda x: torch.sin(x * 1.02), name="wrong tanh", at=("joint",))
_NARROW = rule(
    lambda x: x * torch.sigmoid(x),
    lambda x: torch.nn.functional.silu(x) * (1.0 if x.shape[0] == ROWS else 1.01),
    name="sometimes wrong swish",
)


def _doubled_sines(gm: GraphModule) -> GraphModule:
    return _in_graph(aten.sin.default, aten.cos.default)(gm)


def _rules(*rules: Any) -> dict[str, Any]:
    return {"rules": rules}


PLANTED: tuple[Planted, ...] = (
    Planted("user's rule", "captured rewrite", "wrong swish", _nothing, 1, _rules(_SWISH)),
    Planted("n-th application", "captured rewrite", "sometimes wrong swish", _nothing, 3, _rules(_NARROW)),
    Planted("rule on the joint graph", "joint rewrite", "wrong tanh", _nothing, 1, _rules(_TANH)),
    Planted(
        "captured pass",
        "captured rewrite",
        "turn_in_real_numbers",
        _in_pass("turn_in_real_numbers", _in_graph(torch.sigmoid, torch.tanh)),
    ),
    Planted(
        "views of windows",
        "captured rewrite",
        "strided_windows",
        _in_pass("strided_windows", _in_graph("tanh", "sin")),
    ),
    Planted(
        "differentiation",
        "differentiation",
        "",
        lambda: _with("aot.graph_compiler", "prepare", _prepared_wrong),
    ),
    Planted("folded factors", "joint rewrite", "fold_factors", _in_pass("fold_factors", _doubled_sines)),
    Planted(
        "joined views",
        "joint rewrite",
        "join_views",
        _in_pass("join_views", _in_graph(aten.exp.default, aten.expm1.default)),
    ),
    Planted(
        "common subexpressions",
        "joint rewrite",
        "merge_common",
        _in_pass("merge_common", _in_graph(aten.tanh.default, aten.sin.default)),
    ),
    Planted(
        "shared means",
        "joint rewrite",
        "share_means",
        _in_pass("share_means", _in_graph(aten.abs.default, aten.neg.default)),
    ),
    Planted(
        "epilogues",
        "joint rewrite",
        "cpu_epilogues",
        _in_pass("cpu_epilogues", _in_graph(aten.tanh.default, aten.sin.default)),
    ),
    Planted("value saved", "partition", "", lambda: _with("aot.graph_compiler", "partition", _after(_wrong_saved))),
    Planted(
        "value computed again",
        "partition",
        "computed again",
        lambda: _with("aot.graph_compiler", "partition", _after(_wrong_backward)),
    ),
    Planted(
        "user's late pass",
        "late rewrite",
        "_doubled_sines",
        _nothing,
        0,
        {"passes": Passes(lowered=(_doubled_sines,))},
    ),
    Planted(
        "lowering",
        "lowering",
        "aten.",
        lambda: _with("compile", "lower", _after(_in_program)),
    ),
    Planted("update in place", "fusion", "update in place", _in_step("update_in_place")),
    Planted("masked update", "fusion", "masked update", _in_step("overwrite_results")),
    Planted("split concatenation", "fusion", "split concatenations", _in_step("split_concats", _in_program)),
    Planted("inlined producer", "fusion", "inline", _in_step("inline_producers")),
    Planted(
        "windows",
        "fusion",
        "windows",
        _in_step("undivided", lambda nest: _swapped(nest, "exp", "sin")),
    ),
    Planted("joined nests", "fusion", "group", _joined_wrong),
    Planted("hoisted value", "fusion", "hoist", _in_step("hoist_values")),
    Planted("functions of rows", "fusion", "distribute", _in_step("distribute")),
    Planted("short columns", "fusion", "short columns", _in_step("short_columns")),
    Planted(
        "checks",
        "fusion",
        "checks first",
        _in_step("checked_first", lambda steps: _in_steps(steps, "exp", "sin")),
    ),
    Planted(
        "kernel's loops",
        "scheduling",
        "loops of the kernel",
        lambda: _with("backends.cpu", "make_plan", _after(_in_plan("exp", "sin"))),
    ),
    Planted(
        "memory",
        "memory planning",
        "buffer reuse",
        lambda: _with("schedule.plan", "plan_memory", _after(_all_in_one_place)),
    ),
    Planted("kernel's code", "code generation", "", lambda: _with("backends.cpu", "emit", _emitted_wrong)),
    Planted("host program", "host program", "", lambda: _with("backends.cpu", "emit_host", _after(_returned_wrong))),
    Planted(
        "run time",
        "run time",
        "",
        lambda: _with("compile", "surrounded", _after(lambda made: replace(made, run=_negated(made.run)))),
    ),
)
"""Faults that change what ``program`` gives."""
