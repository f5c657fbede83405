"""Parts of the writers of host programs, each without the others that it does not ask."""

from __future__ import annotations

from lamina.base.text import Writer
from lamina.codegen.host_cuda_arguments import Arguments
from lamina.codegen.host_cuda_launches import CheckFlags
from lamina.codegen.host_cuda_memory import CudaMemory
from lamina.codegen.host_globals import Globals
from lamina.codegen.host_inputs import Inputs
from lamina.codegen.host_library import AtenFunctions, LibraryCalls
from lamina.codegen.host_steps import Steps
from lamina.codegen.host_uses import Uses, uses_of
from lamina.codegen.host_values import Names, Values
from lamina.ir.index import Size, as_expr
from lamina.ir.loops import LibraryCall, LoopProgram
from lamina.ir.plan import KernelCall, Plan
from tests.codegen.test_host_cuda import on_gpu
from tests.ir.examples import EXAMPLES, buffer, simple_plan, view

N = as_expr(Size("n"))


def values_of(plan: Plan) -> tuple[Values, Names]:
    names = Names(())
    return Values(plan, names), names


def copied(where: str = "cpu") -> Plan:
    """A call of ATen that copies an input of ``n`` elements, beside an input that nobody uses."""
    x, other = buffer("x", N, kind="input"), buffer("other", 4, kind="input")
    y = buffer("y", N, kind="output")
    steps = (LibraryCall("y", "aten.clone.default", (view(x),), (), ("y",)),)
    program = LoopProgram("copied", ("x", "other"), (x, other, y), steps, (view(y),))
    return simple_plan(on_gpu(program) if where == "gpu" else program)


def test_inputs_give_the_sizes_that_are_used_and_the_unused_ones_go() -> None:
    plan = copied()
    values, _ = values_of(plan)
    inputs, out = Inputs(plan, values, {}), Writer()
    values.size(N * 2)
    inputs.unpack(out)
    inputs.release(out)
    assert out.text().splitlines() == ["x, other = args", "args.clear()", "n = x.size(0)", "del other"]


def test_library_calls_ask_for_their_function() -> None:
    class Named:
        def called(self, step: LibraryCall) -> str:
            return "torch.ops.some.function.default"

        def writing(self, step: LibraryCall) -> str:
            raise AssertionError

    plan = copied()
    values, names = values_of(plan)
    body, imports = Writer(), set[str]()
    (step,) = plan.steps
    assert isinstance(step, LibraryCall)
    calls = LibraryCalls(values, Globals(names), Named(), Uses({}, frozenset({"y"})), body, imports)
    calls.write(step, ())
    assert body.text().splitlines()[0] == "y = some_function(x)"
    assert body.text().splitlines()[1:] == ["if y.stride() != (1,):", "    y = restride(y, (n,), (1,))"]
    assert imports == {"restride"}


def test_steps_allocate_outputs_and_release_what_is_used_up() -> None:
    class Noted:
        def write(self, step: KernelCall, origin: tuple[str, ...]) -> None:
            body.line("launch()")

    plan = simple_plan(EXAMPLES["chain"])
    values, names = values_of(plan)
    body, uses = Writer(), uses_of(plan, values)
    library = LibraryCalls(values, Globals(names), AtenFunctions(values), uses, body, set())
    Steps(plan, values, uses, Noted(), library, lambda b: f"memory_of_{b.name}()", ("input",), body).write()
    lines = body.text().splitlines()
    outputs = [p.buffer for p in plan.places if p.where == "output"]
    assert lines.count("launch()") == plan.kernel_count
    assert [f"{name} = memory_of_{name}()" for name in outputs if f"{name} = memory_of_{name}()" not in lines] == []


def test_an_address_is_checked_only_where_that_helps() -> None:
    plan = copied("gpu")
    values, names = values_of(plan)
    body, out = Writer(), Writer()
    arguments = Arguments(plan, values, names, 0, True, body)
    assert arguments.address("other", wanted=False) == "other.data_ptr()"
    assert arguments.address("x", wanted=True) == "x_ptr"
    arguments.check(out)
    assert out.text().splitlines() == ["x_ptr = x.data_ptr()", "if (x_ptr) & 15:", "    return unaligned(args)"]
    assert not Arguments(plan, values, names, 0, False, body).is_aligned("x")


def test_what_is_taken_over_is_asked_for_first() -> None:
    plan = copied("gpu")
    values, names = values_of(plan)
    imports = set[str]()
    taken = CudaMemory(values, Globals(names), {"y": "x"}, {"x"}, imports).empty(values.buffers["y"])
    assert taken.startswith("x if only_owner(references(x), x) else empty((n,), (1,), float32)")
    assert imports == {"empty", "only_owner", "references"}
    fresh = CudaMemory(values, Globals(names), {}, (), imports).empty(values.buffers["y"])
    assert fresh == "empty((n,), (1,), float32_1)"


def test_flags_are_written_only_where_something_is_checked() -> None:
    flags, out = CheckFlags(), Writer()
    flags.define(out)
    flags.report(out)
    assert out.text() == ""
    plan = simple_plan(EXAMPLES["gather"])
    checked = next(s for s in plan.steps if isinstance(s, KernelCall))
    assert [flags.address(checked), flags.address(checked)] == ["failed_address", "failed_address + 4"]
    flags.report(out)
    assert out.text().splitlines() == ["if failed_0.value or failed_1.value:", "    failed.report()"]
