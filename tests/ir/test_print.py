"""Printed programs, nests and plans evaluate to equal values and stay readable."""

from __future__ import annotations

import math
import subprocess
from pathlib import Path

import pytest
import torch

from lamina.base.text import Writer, literal
from lamina.ir.index import Axis, Div, Expr, Loaded, Mod, Size, as_expr
from lamina.ir.loops import Compute, Constant, Index, LibraryCall, Load, LoopProgram, Nest, Random, Source, Store
from lamina.ir.loops_print import print_nest, print_program, read_nest, read_program
from lamina.ir.plan_print import print_plan, read_plan
from tests.effort import executed
from tests.ir.examples import EXAMPLES, buffer, pointwise_chain, simple_plan, view
from tests.processes import python

SIZE = as_expr(Size("s0"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_program_text_evaluates_to_an_equal_program(name: str) -> None:
    program = EXAMPLES[name]
    text = print_program(program)
    assert read_program(text) == program
    assert print_program(read_program(text)) == text


@pytest.mark.parametrize("name", EXAMPLES)
def test_plan_text_evaluates_to_an_equal_plan(name: str) -> None:
    plan = simple_plan(EXAMPLES[name])
    made = read_plan(print_plan(plan))
    assert made == plan
    assert [(d.code, d.remedy) for d in made.decisions] == [(d.code, d.remedy) for d in plan.decisions] != []


def test_every_single_field_makes_a_difference_to_the_text() -> None:
    """Equality of the round trip would be hollow if two programs printed alike."""
    texts = {print_program(p) for p in EXAMPLES.values()}
    assert len(texts) == len(EXAMPLES)
    one = Nest("n", (), (Load("a", "x", (), "float32", None, 0.0), Store("y", (), "a")))
    other = Nest("n", (), (Load("a", "x", (), "float32", None, False), Store("y", (), "a")))
    assert print_nest(one) != print_nest(other)
    assert isinstance(read_nest(print_nest(other)).body[0].fill, bool)  # type: ignore[union-attr]


def test_one_equation_a_line_with_the_users_place() -> None:
    lines = print_program(EXAMPLES["softmax"]).splitlines()
    (line,) = (line for line in lines if "'exp'" in line)
    assert line == ("    Compute('e', 'exp', ('d',), 'float32', origin=('softmax',)),  # model.py:12 _softmax")


def test_text_runs_as_a_python_file(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(print_program(EXAMPLES["everything"]) + "print(program.name)\n")
    ran = subprocess.run([*python(), str(path)], capture_output=True, text=True, check=True)
    assert ran.stdout == "everything\n"


def test_expressions_come_back_without_simplification() -> None:
    i, n = Axis("i", as_expr(12)), as_expr(Size("n"))
    unsimplified = Expr((((Mod(as_expr(i), as_expr(100)),), 1), ((Div(as_expr(i), as_expr(100)),), 100)), 0)
    dense = as_expr(i) * n * 2 - 3
    nest = Nest("n", (i,), (Index("a", unsimplified, "int64"), Index("b", dense, "int64")))
    back = read_nest(print_nest(nest))
    assert back == nest
    assert back.body[0].expr is unsimplified  # type: ignore[union-attr]


def test_names_that_are_no_variables_or_taken() -> None:
    axis, size, index = Axis("Load", as_expr(4)), Size("lambda"), Loaded("a.b", as_expr(3))
    where = as_expr(axis) * as_expr(size) + as_expr(index)
    body = (Load("a.b", "x", (as_expr(axis),), "int64"), Load("c", "class", (where,), "float32"))
    nest = Nest("print", (axis, Axis("lambda", as_expr(2))), body)
    assert read_nest(print_nest(nest)) == nest
    program = LoopProgram("q\"u'\n", (), (), (nest,), (), (Source("n", "o", 'pl"ace'),))
    assert read_program(print_program(program)) == program


def test_infinities_and_nan() -> None:
    body = tuple(Constant(f"c{k}", v, "float32") for k, v in enumerate((math.inf, -math.inf, -0.0, 1e-45)))
    nest = Nest("n", (), body)
    back = read_nest(print_nest(nest))
    assert back == nest
    assert math.copysign(1, back.body[2].value) == -1  # type: ignore[union-attr]
    nan = read_nest(print_nest(Nest("n", (), (Constant("c", math.nan, "float32"),)))).body[0]
    assert isinstance(nan, Constant)
    assert math.isnan(nan.value)


def test_random_streams_of_both_kinds() -> None:
    streams = (3, SIZE, as_expr(3))
    body = tuple(Random(f"u{k}", "seed", stream, as_expr(4), "float32") for k, stream in enumerate(streams))
    back = read_nest(print_nest(Nest("n", (), body)))
    assert back == Nest("n", (), body)
    assert [type(e.stream) for e in back.body if isinstance(e, Random)] == [int, Expr, Expr]


def test_library_arguments() -> None:
    x, y = buffer("x", 4, kind="input"), buffer("y", 4, kind="output")
    arguments = (view(x), (1, 2), as_expr(3), 3, None, True, 2.5, "none", (view(x), None), -math.inf)
    keywords = (
        ("dtype", torch.bfloat16),
        ("device", torch.device("cpu")),
        ("layout", torch.strided),
        ("memory_format", torch.channels_last),
        ("value", 1 + 2j),
    )
    call = LibraryCall("c", "aten.f.default", arguments, keywords, ("y", None), ("x",), "why", ("n",), True)
    program = LoopProgram("p", ("x",), (x, y), (call,), (view(y),))
    back = read_program(print_program(program))
    assert back == program
    (step,) = back.steps
    assert isinstance(step, LibraryCall)
    assert [type(a) for a in step.args] == [type(a) for a in arguments]


def test_the_work_is_linear() -> None:
    def work(length: int) -> int:
        program = pointwise_chain(length)
        print_program(program)  # what is kept between calls is there
        return executed(lambda: print_program(program))

    assert work(400) < 10 * work(50)


def test_writer_maps_lines_both_ways() -> None:
    out = Writer()
    with out.indent("def f():"):
        out.line("a\nb", ("n1",))
        inner = Writer()
        inner.line("c", ("n2",))
        inner.line()
        out.extend(inner)
    assert out.text() == "def f():\n    a\n    b\n    c\n\n"
    found = out.source_map()
    assert found.lines("n1") == (2, 3)
    assert found.origin(4) == ("n2",)
    assert found.origin(99) == ()
    with pytest.raises(TypeError, match="object"):
        literal(object())


def test_deep_reuse_of_values_prints_once() -> None:
    """A-normal form: a chain where each value is used twice doubles nothing."""
    body: list[Load | Compute | Store] = [Load("v0", "x", (), "float32")]
    body += [Compute(f"v{k + 1}", "add", (f"v{k}", f"v{k}"), "float32") for k in range(200)]
    nest = Nest("n", (), (*body, Store("y", (), "v200")))
    assert len(print_nest(nest).splitlines()) < 210
