"""Every verifier rule has an example that breaks it and nothing else; the examples themselves pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from lamina.errors import InvalidIR
from lamina.ir.index import Axis, Expr, Loaded, Mod, Size, as_expr
from lamina.ir.loops import (
    Buffer,
    BufferView,
    Check,
    Compute,
    Constant,
    Equation,
    Index,
    LibraryCall,
    Load,
    LoopProgram,
    Nest,
    Random,
    Reduce,
    Scan,
    SizeInput,
    Source,
    Store,
)
from lamina.ir.loops_verify import verify_program
from lamina.ir.plan import KernelCall, Place, Plan, Schedule
from lamina.ir.plan_verify import verify_plan
from tests.ir.examples import EXAMPLES, buffer, exprs, simple_plan, view

ROW, J = Axis("i", as_expr(4)), Axis("j", as_expr(6))
AT = (as_expr(ROW), as_expr(J))
BASE: tuple[Equation, ...] = (
    Load("a", "x", AT, "float32"),
    Load("k", "index", (as_expr(ROW),), "int64"),
    Load("m", "flag", (as_expr(ROW),), "bool"),
    Compute("b", "exp", ("a",), "float32"),
    Store("y", AT, "b"),
)
X, INDEX = buffer("x", 4, 6, kind="input"), buffer("index", 4, dtype="int64", kind="input")
FLAG = buffer("flag", 4, dtype="bool", kind="input")
Y = buffer("y", 4, 6, kind="output")


def program(
    *more: Equation, first: tuple[Equation, ...] = BASE, buffers: tuple[Buffer, ...] = (), **change: Any
) -> LoopProgram:
    """The base program with equations added at the end of its nest."""
    nest = Nest("n", (ROW, J), (*first, *more))
    made = LoopProgram("p", ("x", "index", "flag"), (X, INDEX, FLAG, Y, *buffers), (nest,), (view(Y),))
    return dataclasses.replace(made, **change)


def nest_with(axes: tuple[Axis, ...], *body: Equation) -> LoopProgram:
    return program(steps=(Nest("n", axes, body),))


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_valid(name: str) -> None:
    verify_program(EXAMPLES[name])
    verify_plan(simple_plan(EXAMPLES[name]))


def test_base_is_valid() -> None:
    verify_program(program())


I9, K = Axis("i", as_expr(9)), Loaded("k", as_expr(4))
Q = Size("q", 1)
ONE = buffer("one", dtype="int64")

NEST_RULES: dict[str, tuple[str, LoopProgram]] = {
    "axis names are unique": ("two axes", nest_with((ROW, ROW), *BASE)),
    "extents are sizes": ("extent of axis r depends on i", nest_with((ROW, J, Axis("r", as_expr(ROW))), *BASE)),
    "extents use known sizes": ("no input gives the size q", nest_with((ROW, J, Axis("r", as_expr(Q))), *BASE)),
    "defined before use": ("zz is used before", program(Compute("c", "exp", ("zz",), "float32"))),
    "defined once": ("b is defined twice", program(Compute("b", "exp", ("a",), "float32"))),
    "values are not called like axes": ("name of an axis", program(Compute("j", "exp", ("a",), "float32"))),
    "dtypes exist": ("unknown dtype 'real'", program(Compute("c", "cast", ("a",), "real"))),
    "operations exist": ("no operation is called cube", program(Compute("c", "cube", ("a",), "float32"))),
    "arity": ("add takes 2 operands, not 1", program(Compute("c", "add", ("a",), "float32"))),
    "operands agree": ("dtypes float32, int64", program(Compute("c", "add", ("a", "k"), "float32"))),
    "same: result dtype": ("gives float32, not float64", program(Compute("c", "exp", ("a",), "float64"))),
    "bool: result dtype": ("lt on float32 gives bool", program(Compute("c", "lt", ("a", "b"), "float32"))),
    "where: condition": ("condition a is float32", program(Compute("c", "where", ("a", "a", "b"), "float32"))),
    "where: operands": ("dtypes float32, int64", program(Compute("c", "where", ("m", "a", "k"), "float32"))),
    "load dtype": ("x holds float32, not int64", program(Load("c", "x", AT, "int64"))),
    "load buffer exists": ("unknown buffer nix", program(Load("c", "nix", AT, "float32"))),
    "index rank": ("2 dimensions, the index 1", program(Load("c", "x", AT[:1], "float32"))),
    "index too high": ("reaches 6, past its extent 6", program(Load("c", "x", (AT[0], AT[1] + 1), "float32"))),
    "index too low": ("reaches -1", program(Load("c", "x", (AT[0] - 1, AT[1]), "float32"))),
    "index of a reversed axis": ("reaches -1", program(Load("c", "x", (2 - AT[0], AT[1]), "float32"))),
    "index far out": ("at least 40", program(Load("c", "x", (AT[0], AT[1] // 4 + 40), "float32"))),
    "load mask is bool": ("mask a is float32", program(Load("c", "x", AT, "float32", "a"))),
    "index axes exist": ("no axis r", program(Load("c", "x", (as_expr(Axis("r", as_expr(4))), AT[1]), "float32"))),
    "axis extents agree": ("has extent 4 and here 9", program(Index("c", as_expr(I9), "int64"))),
    "index sizes exist": ("no input gives the size q", program(Index("c", as_expr(Q), "int64"))),
    "loaded index is defined": (
        "zz is used before",
        program(Load("c", "x", (as_expr(Loaded("zz", as_expr(4))), AT[1]), "float32")),
    ),
    "loaded index is an integer": (
        "a is float32, not an integer",
        program(Load("c", "x", (as_expr(Loaded("a", as_expr(4))), AT[1]), "float32")),
    ),
    "division by a positive number": (
        "division by -3",
        program(Index("c", Expr((((Mod(AT[0], as_expr(-3)),), 1),), 0), "int64")),
    ),
    "constants of integers": ("1.5 is no int64", program(Constant("c", 1.5, "int64"))),
    "constants of bools": ("2 is no bool", program(Constant("c", 2, "bool"))),
    "seed is one int64": ("seed k is not one int64", program(Random("c", "k", 0, AT[0], "float32"))),
    "random numbers are floats": (
        "floating point",
        program(Load("seed", "one", (), "int64"), Random("c", "seed", 0, AT[0], "int64"), buffers=(ONE,)),
    ),
    "random streams are one number": (
        "stream i is not one number",
        program(Load("seed", "one", (), "int64"), Random("c", "seed", AT[0], AT[0], "float32"), buffers=(ONE,)),
    ),
    "sizes of random streams exist": (
        "no input gives the size q",
        program(Load("seed", "one", (), "int64"), Random("c", "seed", as_expr(Q), AT[0], "float32"), buffers=(ONE,)),
    ),
    "reductions exist": ("no reduction is called mean", program(Reduce(("c",), "mean", "a", ("j",), "float32"))),
    "reduction results": ("welford gives 2 results", program(Reduce(("c",), "welford", "a", ("j",), "float32"))),
    "reduction axes exist": ("no axis r", program(Reduce(("c",), "sum", "a", ("r",), "float32"))),
    "reduction has axes": ("at least one", program(Reduce(("c",), "sum", "a", (), "float32"))),
    "reduction axes are unique": ("each of its axes once", program(Reduce(("c",), "sum", "a", ("j", "j"), "float32"))),
    "reduction dtype": ("sum of float32 values gives float32", program(Reduce(("c",), "sum", "a", ("j",), "float64"))),
    "argmax dtype": ("gives int64", program(Reduce(("c",), "argmax", "a", ("j",), "float32"))),
    "any of bools": ("any of float32 values", program(Reduce(("c",), "any", "a", ("j",), "float32"))),
    "scans exist": ("no scan is called mean", program(Scan("c", "mean", "a", "j", "float32"))),
    "scan axis exists": ("no axis r", program(Scan("c", "sum", "a", "r", "float32"))),
    "scan dtype": ("scan of float32 values gives int64", program(Scan("c", "sum", "a", "j", "int64"))),
    "store buffer exists": ("unknown buffer nix", program(Store("nix", AT, "b"))),
    "store mode": ("unknown mode 'mul'", program(Store("y", AT, "b", "mul"))),
    "store dtype": ("int64 value is stored in y, which holds float32", program(Store("y", AT, "k"))),
    "store rank": ("2 dimensions, the index 0", program(Store("y", (), "b"))),
    "store in bounds": ("reaches 6, past its extent 6", program(Store("y", (AT[0], AT[1] + 1), "b"))),
    "store mask is bool": ("mask a is float32", program(Store("y", AT, "b", mask="a"))),
    "store covers its axes": ("varies over j", program(Store("y", (AT[0], as_expr(0)), "b"))),
    "store mask is covered": (
        "varies over i",
        program(Constant("one", 1.0, "float32"), Store("y", (as_expr(0), AT[1]), "one", mask="m")),
    ),
    "check is bool": ("condition a is float32", program(Check("a", "message"))),
    "check raises a known error": ("no check raises OSError", program(Check("m", "message", "OSError"))),
    "no race": ("y is loaded here and stored", program(Load("c", "y", (AT[0], 5 - AT[1]), "float32"))),
    "no race with accumulation": (
        "accumulated into",
        program(
            Load("c", "z", (as_expr(K),), "float32"),
            Store("z", (as_expr(K),), "c", "add"),
            buffers=(buffer("z", 4, kind="input"),),
            inputs=("x", "index", "flag", "z"),
        ),
    ),
    "equations have an origin": ("has no origin", program(sources=(Source("exp", "aten.exp.default"),))),
    "origins are known": (
        "comes from sin",
        program(
            first=(
                *(dataclasses.replace(e, origin=("exp",)) for e in BASE[:-1]),
                dataclasses.replace(BASE[-1], origin=("sin",)),
            ),
            sources=(Source("exp", "aten.exp.default"),),
        ),
    ),
}


@pytest.mark.parametrize("rule", NEST_RULES)
def test_nest_rule(rule: str) -> None:
    message, broken = NEST_RULES[rule]
    with pytest.raises(InvalidIR) as found:
        verify_program(broken)
    assert message in str(found.value)
    assert "nest n" in str(found.value)


def test_message_shows_the_lines_around_and_the_users_place() -> None:
    broken = program(
        first=tuple(dataclasses.replace(e, origin=("exp",)) for e in BASE),
        sources=(Source("exp", "aten.exp.default", "model.py:3"),),
    )
    (nest,) = broken.steps
    assert isinstance(nest, Nest)
    bad = Compute("c", "add", ("a", "k"), "float32", ("exp",))
    tail = tuple(Compute(f"t{k}", "exp", ("a",), "float32", ("exp",)) for k in range(9))
    with pytest.raises(InvalidIR) as found:
        verify_program(dataclasses.replace(broken, steps=(dataclasses.replace(nest, body=(*nest.body, bad, *tail)),)))
    lines = str(found.value).splitlines()
    (marked,) = (line for line in lines if line.startswith("  >"))
    assert marked.split(maxsplit=2)[1:] == ["5", "Compute('c', 'add', ('a', 'k'), 'float32', origin=('exp',))"]
    assert sum(line.startswith("    ") for line in lines) == 10
    assert "at model.py:3" in lines[-1]


CALL = LibraryCall("call", "aten.neg.default", (view(X),), (), ("t",))
T, W = buffer("t", 4, 6), buffer("w", 4, 6)
READ_T = Nest("read", (ROW, J), (Load("a", "t", AT, "float32"), Store("y", AT, "a")))


def with_call(**change: Any) -> LoopProgram:
    return program(buffers=(T,), steps=(dataclasses.replace(CALL, **change), READ_T))


PROGRAM_RULES: dict[str, tuple[str, LoopProgram]] = {
    "step names are unique": ("two steps", program(steps=(Nest("n", (), ()), Nest("n", (), ())))),
    "buffer names are unique": ("two buffers are called y", program(buffers=(Y,))),
    "buffer dtypes exist": ("unknown dtype 'real'", program(buffers=(buffer("t", 4, dtype="real"),))),
    "buffer kinds exist": ("unknown kind 'heap'", program(buffers=(buffer("t", 4, kind="heap"),))),
    "a stride for each size": ("2 sizes and 1 strides", program(buffers=(Buffer("t", "bool", exprs(2, 2), exprs(1)),))),
    "layouts are sizes": ("depends on i", program(buffers=(buffer("t", as_expr(ROW)),))),
    "inputs are buffers": ("input nix", program(inputs=("x", "index", "flag", "nix"))),
    "inputs are listed once": ("listed twice", program(inputs=("x", "index", "flag", "x"))),
    "input buffers are inputs": ("but no input", program(inputs=("x", "index"))),
    "outputs exist": ("unknown buffer nix", program(outputs=(BufferView("nix", (), (), as_expr(0)),))),
    "outputs lie inside": (
        "ends at element 24, the buffer at 23",
        program(outputs=(BufferView("y", exprs(4, 6), exprs(6, 1), as_expr(1)),)),
    ),
    "outputs begin inside": (
        "onto y ends",
        program(outputs=(BufferView("y", exprs(4), exprs(6), as_expr(-1)),)),
    ),
    "windows have strides": ("1 sizes, 0 strides", program(outputs=(BufferView("y", exprs(4), (), as_expr(0)),))),
    "output sizes are known": ("uses the size q", program(outputs=(as_expr(Q),))),
    "outputs are written": ("nothing is written to the output buffer y", program(steps=())),
    "read after written": ("reads buffer t before", program(buffers=(T,), steps=(READ_T, CALL))),
    "accumulated after written": (
        "reads buffer y before",
        program(steps=(Nest("n", (ROW, J), (BASE[0], Store("y", AT, "a", "add"))),)),
    ),
    "library operations exist": ("torch has no operation aten.nix.default", with_call(op="aten.nix.default")),
    "library arguments exist": ("unknown buffer w", with_call(args=(view(W),))),
    "library sizes are known": ("uses the size q", with_call(args=(view(X), as_expr(Q)))),
    "library results exist": ("unknown buffer w", with_call(outs=("w",))),
    "library results differ": ("two results the same buffer", with_call(outs=("t", "t"))),
    "library results are no inputs": ("result in the input x", with_call(outs=("x",))),
    "library results are made once": (
        "exists already",
        program(buffers=(T,), steps=(CALL, dataclasses.replace(CALL, name="again"), READ_T)),
    ),
    "library mutates what it takes": ("mutates flag, which it does not take", with_call(mutates=("flag",))),
    "library calls have an origin": (
        "library call call has no origin",
        program(
            buffers=(T,),
            steps=(CALL, dataclasses.replace(READ_T, body=())),
            sources=(Source("exp", "aten.exp.default"),),
        ),
    ),
    "library origins are known": (
        "comes from sin",
        program(
            buffers=(T,),
            steps=(dataclasses.replace(CALL, origin=("sin",)),),
            sources=(Source("exp", "aten.exp.default"),),
        ),
    ),
}


@pytest.mark.parametrize("rule", PROGRAM_RULES)
def test_program_rule(rule: str) -> None:
    message, broken = PROGRAM_RULES[rule]
    with pytest.raises(InvalidIR) as found:
        verify_program(broken)
    assert message in str(found.value)


def test_legal_neighbours_of_the_rules_pass() -> None:
    """What a too eager rule would refuse: masked reads outside, in place at one index, scatters, empty nests."""
    verify_program(program(Load("c", "x", (AT[0] - 1, AT[1]), "float32", "m")))
    verify_program(program(Load("c", "y", AT, "float32")))
    verify_program(program(Store("y", (as_expr(K), AT[1]), "b")))
    verify_program(program(Store("y", (as_expr(0), AT[1]), "b", "add")))
    none = Axis("i", as_expr(0))
    nowhere = Nest("e", (none,), (Load("a", "x", (as_expr(none), as_expr(9)), "float32"),))
    verify_program(program(steps=(program().steps[0], nowhere)))
    verify_program(program(inputs=("x", "index", "flag", SizeInput("q", as_expr(Q))), outputs=(as_expr(Q),)))


def plan_with(name: str = "gelu_mm", **change: Any) -> Plan:
    return dataclasses.replace(simple_plan(EXAMPLES[name]), **change)


def call_with(**change: Any) -> Plan:
    plan = simple_plan(EXAMPLES["gelu_mm"])
    first = plan.steps[0]
    assert isinstance(first, KernelCall)
    return dataclasses.replace(plan, steps=(dataclasses.replace(first, **change), *plan.steps[1:]))


def kernel_with(**change: Any) -> Plan:
    plan = simple_plan(EXAMPLES["gelu_mm"])
    return dataclasses.replace(plan, kernels=(dataclasses.replace(plan.kernels[0], **change), *plan.kernels[1:]))


def placed(change: Callable[[Place], Place | None]) -> Plan:
    plan = simple_plan(EXAMPLES["gelu_mm"])
    return dataclasses.replace(plan, places=tuple(p for p in map(change, plan.places) if p is not None))


def schedule(**change: Any) -> Plan:
    kernel = simple_plan(EXAMPLES["gelu_mm"]).kernels[0]
    return kernel_with(schedules=(dataclasses.replace(kernel.schedules[0], **change),))


def moved(name: str, where: str, offset: int | None = None) -> Plan:
    made = Place(name, where, None if offset is None else as_expr(offset))
    return placed(lambda p: made if p.buffer == name else p)


GOOD = simple_plan(EXAMPLES["gelu_mm"])
(FIRST,) = GOOD.kernels[0].nests
CUBE = dataclasses.replace(
    FIRST, body=tuple(dataclasses.replace(e, op="cube") if isinstance(e, Compute) else e for e in FIRST.body)
)
FLAT = Axis("i0", as_expr(32))
BOOL = Nest(
    "nest",
    (FLAT,),
    (
        Load("v0", "b0", (as_expr(FLAT),), "bool"),
        Compute("v1", "cast", ("v0",), "float32"),
        Store("b1", (as_expr(FLAT),), "v1"),
    ),
)
PLAN_RULES: dict[str, tuple[str, Plan]] = {
    "kernel names are unique": ("two kernels", plan_with(kernels=(GOOD.kernels[0], GOOD.kernels[0]))),
    "a schedule for each nest": ("1 nests and 0 schedules", kernel_with(schedules=())),
    "schedule kinds exist": ("no schedule is of kind 'spiral'", schedule(kind="spiral")),
    "schedules cover the axes": ("the schedule iterates over nothing", schedule(outer=())),
    "schedules vectorise an axis": ("no axis of it", schedule(vector="z")),
    "schedules tile an axis": ("no axis of it", schedule(tile=(("z", 4),))),
    "tiles have points": ("the schedule's tiles are", schedule(tile=(("i0", 0),))),
    "loops are unrolled by powers of two": ("unrolls 3 times, not one of 0, 1, 2, 4, 8", schedule(unroll=3)),
    "vectors have an axis": ("vectors have 32 bytes along None", schedule(vector=None, width=32)),
    "only vectors go past the caches": (
        "stores past the caches, and has no vectors",
        schedule(vector=None, width=0, nontemporal=True),
    ),
    "schedules keep values": ("keeps zz, no value of it", schedule(kept=("zz",))),
    "kernel nests are valid": ("no operation is called cube", kernel_with(nests=(CUBE,))),
    "kernels use their buffers": ("never touches b2", kernel_with(dtypes=("float32", "float32", "bool"))),
    "kernels exist": ("no kernel is called nix", call_with(kernel="nix")),
    "calls match in number": ("gives 1 buffers", call_with(buffers=("x",))),
    "called buffers exist": ("unknown buffer nix", call_with(buffers=("nix", "h"))),
    "called dtypes match": ("takes bool", kernel_with(dtypes=("bool", "float32"), nests=(BOOL,))),
    "calls say what they write": ("says it writes x; k_first stores to h", call_with(writes=("x",), nests=())),
    "order of steps": ("reads buffer h before", plan_with(steps=(*GOOD.steps[1:], GOOD.steps[0]))),
    "one call makes a buffer": ("make one buffer", plan_with(steps=(*GOOD.steps, GOOD.steps[-1]))),
    "outputs are written": ("nothing is written to the output buffer y", plan_with(steps=GOOD.steps[:-1])),
    "one place": ("has two places", plan_with(places=(*GOOD.places, GOOD.places[0]))),
    "places of buffers": ("does not exist", plan_with(places=(*GOOD.places, Place("nix", "output")))),
    "known places": ("unknown place, 'heap'", moved("h", "heap")),
    "inputs live with the inputs": ("lives with the inputs", moved("h", "input")),
    "library results are made there": ("made by a library call", moved("h", "library")),
    "offsets only in the arena": ("has an offset only if", moved("h", "output", 64)),
    "aligned offsets": ("no multiple of 64", moved("h", "arena", 4)),
    "every buffer has a place": ("used by first, has no place", placed(lambda p: p if p.buffer != "h" else None)),
    "outputs are not in the arena": ("where it is overwritten", moved("y", "arena", 1024)),
    "inside the arena": ("of the arena", plan_with(arena_bytes=as_expr(64))),
    "live buffers are apart": ("live at once in the same bytes", moved("p", "arena", 64)),
    "offsets use known sizes": (
        "uses the size q",
        placed(lambda p: Place("h", "arena", as_expr(Q) * 64) if p.buffer == "h" else p),
    ),
    "sizes of calls are known": (
        "uses the size q",
        plan_with(
            "dynamic",
            steps=tuple(
                dataclasses.replace(s, sizes=(as_expr(Q),))
                for s in simple_plan(EXAMPLES["dynamic"]).steps
                if isinstance(s, KernelCall)
            ),
        ),
    ),
}


@pytest.mark.parametrize("rule", PLAN_RULES)
def test_plan_rule(rule: str) -> None:
    message, broken = PLAN_RULES[rule]
    with pytest.raises(InvalidIR) as found:
        verify_plan(broken)
    assert message in str(found.value)


def test_schedule_kinds_of_the_design_pass() -> None:
    for kind in ("pointwise", "rows", "columns", "mixed", "scan", "serial"):
        verify_plan(schedule(kind=kind))
    assert Schedule("rows", (), ()).width == 0
