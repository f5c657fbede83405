"""Host programs run, agree with the reference interpreters, and keep their promises about memory and order."""

from __future__ import annotations

import dataclasses
import gc
import subprocess
import sys
import weakref
from typing import Any

import pytest
import torch

from lamina.codegen.host import emit_host
from lamina.errors import InvalidIR
from lamina.ir.index import Size, as_expr
from lamina.ir.loops import BufferView, LibraryCall, LoopProgram
from lamina.ir.loops_interp import run_program
from lamina.ir.plan import Plan
from lamina.ir.plan_interp import run_plan
from lamina.runtime.host import load_program
from tests.ir.examples import (
    EXAMPLES,
    buffer,
    example_inputs,
    exprs,
    interpreted_kernels,
    pointwise_chain,
    simple_plan,
    view,
)


def load(plan: Plan) -> Any:
    return load_program(emit_host(plan).text, "call", {"kernels": interpreted_kernels(plan)})


def copies(inputs: list[Any]) -> list[Any]:
    return [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs]


def check_same(got: Any, want: Any) -> None:
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        if isinstance(b, torch.Tensor):
            torch.testing.assert_close(a, b)
            assert a.stride() == b.stride()
        else:
            assert a == b


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("n", [2, 5])
def test_host_program_agrees_with_both_interpreters(name: str, n: int) -> None:
    program = EXAMPLES[name]
    plan = simple_plan(program)
    inputs = example_inputs(program, n)
    want_inputs, plan_inputs = copies(inputs), copies(inputs)
    want = run_program(program, want_inputs)
    check_same(run_plan(plan, plan_inputs), want)
    check_same(plan_inputs, want_inputs)
    call = load(plan)
    for _ in range(2):
        given = copies(inputs)
        boxed = list(given)
        check_same(call(boxed), want)
        assert boxed == []
        check_same(given, want_inputs)


def test_text_is_flat_and_says_where_each_line_comes_from() -> None:
    plan = simple_plan(EXAMPLES["gelu_mm"])
    host = emit_host(plan)
    assert "    # model.py:41 tanh\n" in host.text
    lines = host.text.splitlines()
    (mm,) = (n for n, line in enumerate(lines, 1) if "out=" in line and host.source_map.origin(n) == ("mm",))
    assert host.source_map.lines("mm") == (mm - 1, mm)
    assert sum(line.startswith("def ") for line in lines) == 2
    assert not any(line.strip().startswith(("for ", "while ")) for line in lines)


def test_equal_layers_share_one_kernel() -> None:
    plan = simple_plan(pointwise_chain(6))
    assert len(plan.kernels) == 1
    kernels = interpreted_kernels(plan)
    call = load_program(emit_host(plan).text, "call", {"kernels": kernels})
    x = torch.randn(8, 8)
    want = x.clone()
    for _ in range(6):
        want = want.tanh()
    torch.testing.assert_close(call([x])[0], want)
    assert kernels[plan.kernels[0].name].calls == 6


def test_failed_check_raises_its_error_with_its_message() -> None:
    program = EXAMPLES["gather"]
    table, index, grad = example_inputs(program)
    call = load(simple_plan(program))
    with pytest.raises(IndexError, match="index out of range in embedding"):
        call([table, index + 100, grad])
    with pytest.raises(RuntimeError, match="indices are not negative"):
        call([table, index - 100, grad])
    call([table, index, grad])


def test_input_is_freed_after_its_last_use() -> None:
    x, y = buffer("x", 4, kind="input"), buffer("y", 4, kind="output")
    z = buffer("z", 4)
    steps = (
        LibraryCall("neg", "aten.neg.default", (view(x),), (), ("z",)),
        LibraryCall("probe", "aten.abs.default", (view(z),), (), ("y",)),
    )
    plan = simple_plan(LoopProgram("free", ("x",), (x, y, z), steps, (view(y),)))
    text = emit_host(plan).text
    alive: list[bool] = []
    tensor = torch.randn(4)
    watch = weakref.ref(tensor)
    namespace = {"probe": lambda: alive.append(watch() is not None)}
    probed = text.replace("    y = aten_abs", "    probe()\n    y = aten_abs")
    assert probed != text
    args = [tensor]
    del tensor
    call = load_program(probed, "call", namespace)
    call(args)
    gc.collect()
    assert alive == [False]


def test_output_that_is_an_input_or_a_window_of_it() -> None:
    x = buffer("x", 4, 6, kind="input")
    window = BufferView("x", exprs(6, 2), exprs(1, 6), as_expr(6))
    call = load(simple_plan(LoopProgram("alias", ("x",), (x,), (), (view(x), window, None, as_expr(3)))))
    base = torch.randn(5, 6)[1:]
    whole, part, nothing, three = call([base])
    assert whole is base
    assert nothing is None
    assert three == 3
    torch.testing.assert_close(part, base[1:3].t())
    assert part.data_ptr() == base[1:].data_ptr()


def test_library_result_with_other_strides_is_laid_out_as_planned() -> None:
    x, t = buffer("x", 4, 6, kind="input"), buffer("t", 6, 4)
    steps = (LibraryCall("t", "aten.t.default", (view(x),), (), ("t",)),)
    call = load(simple_plan(LoopProgram("restride", ("x",), (x, t), steps, (view(t),))))
    value = torch.randn(4, 6)
    (result,) = call([value])
    assert result.stride() == (4, 1)
    torch.testing.assert_close(result, value.t())


def test_mutating_library_call_and_several_results() -> None:
    x = buffer("x", 6, kind="input")
    a, b = buffer("a", 2, kind="output"), buffer("b", 4, kind="output")
    steps = (
        LibraryCall("add", "aten.add_.Scalar", (view(x), 1.5), (), (), ("x",)),
        LibraryCall("split", "aten.split_with_sizes.default", (view(x), (2, 4)), (), ("a", "b"), list_result=True),
    )
    program = LoopProgram("split", ("x",), (x, a, b), steps, (view(b), view(a)))
    value = torch.zeros(6)
    second, first = load(simple_plan(program))([value])
    assert value.tolist() == [1.5] * 6
    assert first.tolist() == [1.5] * 2
    assert second.tolist() == [1.5] * 4


def test_special_literals() -> None:
    x = buffer("x", 3, kind="input")
    y = buffer("y", 3, kind="output")
    nan = LibraryCall(
        "nan", "aten.nan_to_num.default", (view(x), float("-inf")), (("posinf", 2.0), ("neginf", None)), ("y",)
    )
    call = load(simple_plan(LoopProgram("literals", ("x",), (x, y), (nan,), (view(y),))))
    assert call([torch.tensor([float("nan"), float("inf"), 1.0])])[0].tolist() == [float("-inf"), 2.0, 1.0]
    full = LibraryCall(
        "full",
        "aten.full.default",
        ((3,), 1),
        (("dtype", torch.float64), ("device", torch.device("cpu")), ("layout", torch.strided)),
        ("y",),
    )
    y = buffer("y", 3, dtype="float64", kind="output")
    call = load(simple_plan(LoopProgram("literals", (), (y,), (full,), (view(y),))))
    assert call([])[0].dtype is torch.float64
    assert list(emit_host(simple_plan(LoopProgram("none", (), (), (), ()))).kernels) == []


def test_size_comes_from_a_shape_when_it_is_no_input() -> None:
    program = EXAMPLES["dynamic"]
    bare = dataclasses.replace(program, inputs=("x",))
    x = torch.randn(3, 8)
    torch.testing.assert_close(load(simple_plan(bare))([x])[0], x.softmax(1))


def test_unknown_size_is_an_error() -> None:
    program = LoopProgram("size", (), (), (), (as_expr(Size("m")),))
    with pytest.raises(InvalidIR, match="size m"):
        emit_host(simple_plan(program))


def test_runs_in_inference_mode_and_outside_with_one_workspace() -> None:
    program = EXAMPLES["gelu_mm"]
    call = load(simple_plan(program))
    inputs = example_inputs(program)
    with torch.inference_mode():
        first = call(list(inputs))[0].clone()
    second = call(list(inputs))[0]
    torch.testing.assert_close(first, second)
    assert not second.is_inference()


def test_dynamic_temporaries_in_and_out_of_inference_mode() -> None:
    """The tensor over a temporary whose size is known only at run time is made anew in each call."""
    n = as_expr(Size("n", 1))
    x, t, y = buffer("x", n, 4, kind="input"), buffer("t", n, 4), buffer("y", n, 4, kind="output")
    w = buffer("w", 4, 4, kind="input")
    steps = (
        LibraryCall("mm", "aten.mm.default", (view(x), view(w)), (), ("t",)),
        LibraryCall("mm_1", "aten.mm.default", (view(t), view(w)), (), ("y",)),
    )
    call = load(simple_plan(LoopProgram("dynamic", ("x", "w"), (x, w, t, y), steps, (view(y),))))
    weight = torch.randn(4, 4)
    for rows, inference in ((3, True), (300, False), (7, True), (7, False)):
        value = torch.randn(rows, 4)
        with torch.inference_mode(inference):
            torch.testing.assert_close(call([value, weight])[0], value @ weight @ weight)


def test_names_that_are_no_identifiers_or_taken() -> None:
    x, y = buffer("class", 4, kind="input"), buffer("args", 4, kind="output")
    odd = buffer("L['self'].weight", 4, kind="input")
    steps = (LibraryCall("add", "aten.add.Tensor", (view(x), view(odd)), (), ("args",)),)
    program = LoopProgram("names", ("class", "L['self'].weight"), (x, y, odd), steps, (view(y),))
    assert load(simple_plan(program))([torch.ones(4), torch.ones(4)])[0].tolist() == [2.0] * 4


def test_standalone_program_runs_by_itself(tmp_path: Any) -> None:
    program = pointwise_chain(0)
    x, y = buffer("x", 4, 4, kind="input"), buffer("y", 4, 4, kind="output")
    steps = (LibraryCall("mm", "aten.mm.default", (view(x), view(x)), (), ("y",)),)
    program = LoopProgram("alone", ("x",), (x, y), steps, (view(y),))
    path = tmp_path / "program.py"
    path.write_text(emit_host(simple_plan(program)).standalone("{}"))
    ran = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("tensor([[")
