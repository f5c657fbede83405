"""Host programs for GPUs, run on CPU memory with stand-ins for the driver: they agree with the interpreter, and keep
their promises about alignment, memory, checks and kernels without machine code.
"""

from __future__ import annotations

import ctypes
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from lamina.base.target import nvidia
from lamina.codegen import host_reuse
from lamina.codegen.host_cuda import CudaHost, emit_cuda_host
from lamina.codegen.reuse import taken_over
from lamina.codegen.triton.source import TritonSource
from lamina.ir.access import reads, writes
from lamina.ir.index import Expr, Size, as_expr
from lamina.ir.loops import Check, LoopProgram
from lamina.ir.loops_interp import run_nest, run_program
from lamina.ir.plan import Kernel, Plan
from lamina.lower.to_loops import lower
from lamina.runtime import cuda_host
from lamina.runtime.cuda_driver import pack_format
from lamina.runtime.cuda_host import Flags
from lamina.runtime.host import load_program
from lamina.schedule.fuse import fuse
from lamina.schedule.memory import plan_memory
from lamina.schedule.plan import make_plan
from tests.ir.examples import EXAMPLES, example_inputs, interpreted_kernels, pointwise_chain, simple_plan

STREAM = 77
TYPES = {"float32": "*fp32", "int64": "*i64", "bool": "*i1", "float64": "*fp64"}


def on_gpu(program: LoopProgram, device: str = "cuda:0") -> LoopProgram:
    return replace(program, buffers=tuple(replace(b, device=device) for b in program.buffers))


def sources_of(plan: Plan, **more: Any) -> dict[str, TritonSource]:
    """A source for each kernel whose text nobody compiles; pointers and sizes would like to be aligned."""
    found = {}
    for kernel in plan.kernels:
        checks = any(isinstance(e, Check) for nest in kernel.nests for e in nest.body)
        buffers = [f"b{k}" for k in range(len(kernel.dtypes))]
        words = [f"w{k}" for k in range(len(more.get("workspace", ())))]
        parameters = (*buffers, *kernel.sizes, *words, *(("failed",) if checks else ()))
        types = (
            *(TYPES[d] for d in kernel.dtypes),
            *("i64" for _ in kernel.sizes),
            *("*i8" for _ in words),
            *(("*i32",) if checks else ()),
        )
        grid = (as_expr(Size("s0")) if kernel.sizes else as_expr(3), as_expr(2), as_expr(1))
        aligned = (*buffers, *kernel.sizes)
        source = TritonSource(f"t_{kernel.name}", "", parameters, types, aligned, 4, 3, grid, checks=checks, **more)
        found[kernel.name] = source
    return found


@dataclass
class FakeKernel:
    """A launch that runs the kernel's nests by the interpreter on raw addresses, and notes what it was given."""

    kernel: Any
    types: tuple[str, ...]
    calls: list[tuple[Any, ...]]
    scratch: bool = False

    def __post_init__(self) -> None:
        self.struct = struct.Struct(pack_format(self.types, 2, self.scratch))

    def launch(self, *given: int) -> int:
        stream, *words = self.struct.unpack(self.struct.pack(*given))
        self.calls.append((stream, *words))
        count = len(self.kernel.kernel.dtypes) + len(self.kernel.kernel.sizes)
        code = self.kernel.launch(self.kernel.pack(*words[3 : 3 + count]))
        if code:
            torch.frombuffer(_bytes_at(words[-1], 4), dtype=torch.int32)[0] = code
        return 0


def _bytes_at(address: int, count: int) -> Any:
    return (ctypes.c_char * count).from_address(address)


class Machine:
    """Stand-ins for the GPU: what is allocated, launched, and on which device."""

    def __init__(self) -> None:
        self.device, self.allocated, self.visited = 0, [], []
        self.calls: dict[str, list[tuple[Any, ...]]] = {}
        self.zeros = torch.zeros(1 << 16, dtype=torch.uint8)

    def empty(self, shape: Any, strides: Any, dtype: torch.dtype) -> torch.Tensor:
        self.allocated.append((tuple(shape), dtype))
        made = torch.empty_strided(shape, strides, dtype=dtype)
        made.untyped_storage().fill_(0xFF)
        return made

    def exchange(self, device: int) -> int:
        before, self.device = self.device, device
        self.visited.append(device)
        return before

    def load(self, host: CudaHost, unaligned: Any = None, failed: Flags | None = None) -> Any:
        kernels = interpreted_kernels(host.plan)
        fakes = {}
        for launch in host.launches:
            calls = self.calls.setdefault(launch.key, [])
            fakes[launch.key] = FakeKernel(
                kernels[launch.kernel], launch.source.types, calls, launch.source.scratch > 0
            )
        interpreted = {k.name: _evaluate(k) for k in host.plan.kernels}
        flags = failed or Flags(host.messages)
        namespace = {"kernels": fakes, "interpreted": interpreted, "failed": flags, "unaligned": unaligned}
        return load_program(host.text, "call", namespace)


def _evaluate(kernel: Kernel) -> Callable[..., None]:
    def run(flats: Any, sizes: Any) -> None:
        for nest in kernel.nests:
            run_nest(nest, {f"b{k}": t for k, t in enumerate(flats)}, dict(zip(kernel.sizes, sizes, strict=True)))

    return run


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    made = Machine()
    monkeypatch.setattr(cuda_host, "current_device", lambda: made.device)
    monkeypatch.setattr(cuda_host, "exchange_device", made.exchange)
    monkeypatch.setattr(cuda_host, "current_stream", lambda device: STREAM + device)
    monkeypatch.setattr(cuda_host, "empty", made.empty)
    monkeypatch.setattr(cuda_host, "enter_context", lambda: None)
    monkeypatch.setattr(cuda_host, "zeroed", lambda device, stream, nbytes: made.zeros.data_ptr())
    return made


def plan_for(name: str) -> tuple[LoopProgram, Plan]:
    program = EXAMPLES[name]
    return program, simple_plan(on_gpu(program))


def copies(inputs: list[Any]) -> list[Any]:
    return [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs]


def check_same(got: Any, want: Any) -> None:
    for a, b in zip(got, want, strict=True):
        if isinstance(b, torch.Tensor):
            torch.testing.assert_close(a, b)
            assert a.stride() == b.stride()
        else:
            assert a == b


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("interpreted", [False, True])
@pytest.mark.parametrize("own_memory", [False, True])
def test_program_agrees_with_the_interpreter(name: str, interpreted: bool, own_memory: bool, machine: Machine) -> None:
    program, plan = plan_for(name)
    if own_memory:
        places, arena = plan_memory(plan.steps, plan.buffers, plan.inputs, plan.outputs, lambda buffer: True)
        assert arena == 0
        plan = replace(plan, places=places, arena_bytes=arena)
    left_out = frozenset(k.name for k in plan.kernels) if interpreted else frozenset()
    sources = {} if interpreted else sources_of(plan)
    call = machine.load(emit_cuda_host(plan, sources, 0, left_out))
    inputs = example_inputs(program)
    want_inputs = copies(inputs)
    want = run_program(program, want_inputs)
    for _ in range(2):
        given = copies(inputs)
        boxed = list(given)
        check_same(call(boxed), want)
        assert boxed == []
        check_same(given, want_inputs)
    assert any(machine.calls.values()) != interpreted


def test_launches_get_stream_and_grid(machine: Machine) -> None:
    _, plan = plan_for("dynamic")
    call = machine.load(emit_cuda_host(plan, sources_of(plan), 0))
    call(example_inputs(EXAMPLES["dynamic"], 7))
    (launched,) = next(iter(machine.calls.values()))
    assert launched[:4] == (STREAM, 7, 2, 1)


def test_inputs_at_odd_addresses_take_the_other_program(machine: Machine) -> None:
    program, plan = plan_for("softmax")
    general = emit_cuda_host(plan, sources_of(plan), 0, aligned=False)
    (launch,) = general.launches
    assert not {launch.source.parameters[k] for k in launch.aligned} & {
        f"b{k}"
        for k, b in enumerate(plan.steps[0].buffers)
        if b in plan.inputs  # type: ignore[union-attr]
    }
    taken = []

    def unaligned(args: list[Any]) -> Any:
        taken.append(len(args))
        return machine.load(general)(args)

    host = emit_cuda_host(plan, sources_of(plan), 0)
    call = machine.load(host, unaligned)
    (x,) = example_inputs(program)
    want = run_program(program, [x.clone()])
    check_same(call([x.clone()]), want)
    assert not taken
    shifted = torch.empty(x.numel() + 1)[1:].view(x.shape).copy_(x)
    check_same(call([shifted]), want)
    assert taken == [1]


@pytest.mark.parametrize(("size", "known"), [(32, True), (33, False)])
def test_sizes_known_to_be_multiples_of_16_are_told_to_the_compiler(size: int, known: bool) -> None:
    _, plan = plan_for("dynamic")
    (step,) = plan.steps
    plan = replace(plan, steps=(replace(step, sizes=tuple(as_expr(size) for _ in step.sizes)),))
    (launch,) = emit_cuda_host(plan, sources_of(plan), 0).launches
    names = {launch.source.parameters[k] for k in launch.aligned}
    assert {"b0", "b1"} <= names
    assert ("s0" in names) == known


def test_another_device_is_made_current_and_left_again(machine: Machine) -> None:
    program, _ = plan_for("softmax")
    plan = simple_plan(on_gpu(program, "cuda:1"))
    call = machine.load(emit_cuda_host(plan, sources_of(plan), 1))
    inputs = example_inputs(program)
    check_same(call(copies(inputs)), run_program(program, copies(inputs)))
    assert machine.visited == [1, 0]
    assert next(iter(machine.calls.values()))[0][0] == STREAM + 1


def test_device_is_left_after_an_error(machine: Machine) -> None:
    program, _ = plan_for("softmax")
    plan = simple_plan(on_gpu(program, "cuda:1"))
    call = machine.load(emit_cuda_host(plan, sources_of(plan), 1))
    with pytest.raises(ValueError, match="unpack"):
        call([])
    assert machine.device == 0


def test_failed_check_is_raised_by_the_next_call(machine: Machine) -> None:
    program, plan = plan_for("gather")
    host = emit_cuda_host(plan, sources_of(plan), 0)
    assert ("IndexError", "index out of range in embedding") in host.messages[0]
    call = machine.load(host)
    table, index, grad = example_inputs(program)
    call([table, index + 100, grad])
    with pytest.raises(IndexError, match="index out of range in embedding"):
        call([table, index, grad])
    call([table, index, grad])


def test_a_number_on_the_cpu_is_copied_for_kernels(machine: Machine) -> None:
    _, plan = plan_for("softmax")
    name = next(i for i in plan.inputs if isinstance(i, str))
    plan = replace(plan, buffers=tuple(replace(b, device="cpu") if b.name == name else b for b in plan.buffers))
    text = emit_cuda_host(plan, sources_of(plan), 0).text
    assert f'{name}_gpu = {name}.to(torch.device("cuda", 0), non_blocking=True)' in text
    assert f"{name}_gpu.data_ptr()" in text


def test_work_on_the_cpu_is_evaluated_there(machine: Machine) -> None:
    program = EXAMPLES["softmax"]
    plan = simple_plan(program)
    call = machine.load(emit_cuda_host(plan, sources_of(plan), 0))
    inputs = example_inputs(program)
    check_same(call(copies(inputs)), run_program(program, copies(inputs)))
    assert not any(machine.calls.values())


@pytest.mark.parametrize("nbytes", [100, 3 << 20])
def test_scratch_memory_and_memory_that_stays_zero(nbytes: int, machine: Machine) -> None:
    program, plan = plan_for("softmax")
    scratch: tuple[tuple[Expr, bool], ...] = ((as_expr(nbytes), False), (as_expr(8), True), (as_expr(70), True))
    host = emit_cuda_host(plan, sources_of(plan, workspace=scratch), 0)
    call = machine.load(host)
    inputs = example_inputs(program)
    check_same(call(copies(inputs)), run_program(program, copies(inputs)))
    (launched,) = next(iter(machine.calls.values()))
    first, second, third = launched[-3:]
    assert (second, third) == (machine.zeros.data_ptr(), machine.zeros.data_ptr() + 64)
    assert ("scratch" in host.text) == (nbytes > 1 << 20)
    assert max(n for (n, *_), dtype in machine.allocated if dtype == torch.uint8) >= nbytes
    assert first not in (second, third)


@pytest.mark.parametrize("nbytes", [128, 1 << 20])
def test_memory_for_descriptors(nbytes: int, machine: Machine) -> None:
    """It follows the arguments, at a multiple of 128 bytes, as much for each of the three programs."""
    program, plan = plan_for("softmax")
    plan = replace(plan, arena_bytes=plan.arena_bytes + 64)
    sources = {name: replace(s, scratch=nbytes) for name, s in sources_of(plan).items()}
    inputs = example_inputs(program)
    check_same(machine.load(emit_cuda_host(plan, sources, 0))(copies(inputs)), run_program(program, copies(inputs)))
    (launched,) = next(iter(machine.calls.values()))
    assert launched[-1] % 64 == 0
    assert launched[-1] not in launched[4:-1]
    assert any(n >= 3 * nbytes for (n, *_), dtype in machine.allocated if dtype == torch.uint8)


def test_descriptors_are_for_aligned_addresses_only(machine: Machine) -> None:
    program, plan = plan_for("softmax")
    plain = {name: replace(s, name=f"{s.name}_anywhere") for name, s in sources_of(plan).items()}
    sources = {
        name: replace(s, scratch=128, must_align=("b0",), plain=plain[name]) for name, s in sources_of(plan).items()
    }
    assert "anywhere" not in emit_cuda_host(plan, sources, 0).text
    host = emit_cuda_host(plan, sources, 0, aligned=False)
    assert all(launch.source.scratch == 0 for launch in host.launches)
    inputs = example_inputs(program)
    check_same(machine.load(host)(copies(inputs)), run_program(program, copies(inputs)))


def test_second_launch_takes_the_same_arguments(machine: Machine) -> None:
    program, plan = plan_for("softmax")
    sources = sources_of(plan)
    (name,) = sources
    then = replace(sources[name], name="t_second", grid=(as_expr(9), as_expr(1), as_expr(1)))
    host = emit_cuda_host(plan, {name: replace(sources[name], then=then)}, 0)
    assert [launch.key for launch in host.launches] == [sources[name].name, "t_second"]
    machine.load(host)(example_inputs(program))
    first, second = machine.calls[sources[name].name][0], machine.calls["t_second"][0]
    assert (first[1:4], second[1:4]) == ((3, 2, 1), (9, 1, 1))
    assert first[4:] == second[4:]


def test_large_temporaries_are_freed_after_their_last_use() -> None:
    plan = simple_plan(on_gpu(pointwise_chain(4)))
    places, arena = plan_memory(plan.steps, plan.buffers, plan.inputs, plan.outputs, lambda buffer: True)
    text = emit_cuda_host(replace(plan, places=places, arena_bytes=arena), sources_of(plan), 0).text
    returned = {o.buffer for o in plan.outputs if o is not None}  # type: ignore[union-attr]
    temporaries = [p.buffer for p in places if p.where == "output" and p.buffer not in returned]
    assert temporaries
    for name in temporaries:
        assert any(line.strip().startswith("del ") and name in line for line in text.splitlines()), name
    assert "workspace" not in text


def test_text_is_flat() -> None:
    _, plan = plan_for("everything")
    host = emit_cuda_host(plan, sources_of(plan), 0)
    lines = host.text.splitlines()
    assert sum(line.startswith("def ") for line in lines) == 1
    assert not any(line.strip().startswith(("for ", "while ")) for line in lines)
    assert any(line.strip().startswith("# ") for line in lines)


def _in_place_plan() -> Plan:
    plan = simple_plan(on_gpu(pointwise_chain(3, products=True)))
    places, arena = plan_memory(plan.steps, plan.buffers, plan.inputs, plan.outputs, lambda buffer: True)
    return replace(plan, places=places, arena_bytes=arena)


def test_elementwise_results_take_over_memory_that_nobody_reads_any_more(machine: Machine) -> None:
    plan, program = _in_place_plan(), EXAMPLES["chain"]
    host = emit_cuda_host(plan, sources_of(plan), 0)
    assert "its last reader writes it over" in host.text
    inputs = example_inputs(program)
    want_inputs = copies(inputs)
    want = run_program(program, want_inputs)
    given = copies(inputs)
    check_same(machine.load(host)(list(given)), want)
    check_same(given, want_inputs)
    whole = len(machine.allocated)
    machine.allocated.clear()
    evaluated = machine.load(emit_cuda_host(plan, {}, 0, frozenset(k.name for k in plan.kernels)))
    check_same(evaluated(copies(inputs)), want)
    assert whole == len(machine.allocated)


def test_a_donated_input_that_nobody_else_holds_is_taken_over(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_reuse, "_WORTH_ASKING", 0)
    program = fuse(lower(make_fx(lambda x: (x.exp() + 1,))(torch.randn(16, 64)), "test")).program
    plan = simple_plan(on_gpu(program))
    given = frozenset(name for name in plan.inputs if isinstance(name, str))
    call = machine.load(emit_cuda_host(plan, sources_of(plan), 0, donated=given))

    def drawn() -> torch.Tensor:
        return torch.arange(1024.0).view(16, 64) / 1024

    want = drawn().exp() + 1
    for keep in (False, True):
        args = [drawn()]  # the list is the one that holds it: the caller of a Python function may hold its arguments
        before, kept = args[0].data_ptr(), list(args) if keep else []
        (result,) = call(args)
        assert (before == result.data_ptr()) != keep
        torch.testing.assert_close(result, want)
        for tensor in kept:
            torch.testing.assert_close(tensor, drawn())


def test_memory_that_is_needed_is_not_taken_over() -> None:
    plan = _in_place_plan()
    last: dict[str, int] = {}
    for at, step in enumerate(plan.steps):
        last.update(dict.fromkeys(reads(step) | writes(step), at))
    everything = {b.name for b in plan.buffers if b.kind != "input"}
    found = taken_over(plan, everything, last)
    assert found
    for new, old in found.items():
        later = {n: at + (n == old) for n, at in last.items()}
        assert new not in taken_over(plan, everything, later)
        assert new not in taken_over(plan, everything - {old}, last)
        other = replace(plan, buffers=tuple(replace(b, dtype="int64") if b.name == new else b for b in plan.buffers))
        assert new not in taken_over(other, everything, last)


def test_reductions_take_over_nothing() -> None:
    plan = simple_plan(on_gpu(EXAMPLES["softmax"]))
    everything = {b.name for b in plan.buffers}
    assert not taken_over(plan, everything, dict.fromkeys(everything, 0))


BESIDE_SUMS: dict[str, tuple[Callable[..., Any], bool]] = {
    "columns": (lambda y: (y * 2, y.sum(0)), True),
    "columns, twice": (lambda y: (y * 2, y.sum(0), (y * y).sum(0) + 1), True),
    "rows in it": (lambda y: ((y + 1) * y.sum(1, keepdim=True), y.sum(0)), False),
    "rows in another": (lambda y: (y * 2, y.exp() * y.sum(1, keepdim=True)), False),
    "rows and columns": (lambda y: (y * 2, y.sum(0), y.sum(1)), False),
    "variance": (lambda y: (y * 2, y.var(1)), False),
}


@pytest.mark.parametrize("name", BESIDE_SUMS)
def test_memory_is_taken_over_beside_sums_that_nothing_reads_again_for(name: str) -> None:
    function, allowed = BESIDE_SUMS[name]
    gm = make_fx(lambda x: function((x @ x).relu()), tracing_mode="fake")(torch.randn(32, 32))
    plan = simple_plan(on_gpu(fuse(lower(gm, "sums")).program))
    assert plan.kernel_count == 1
    last: dict[str, int] = {}
    for at, step in enumerate(plan.steps):
        last.update(dict.fromkeys(reads(step) | writes(step), at))
    assert bool(taken_over(plan, {b.name for b in plan.buffers if b.kind != "input"}, last)) == allowed


@pytest.mark.parametrize("fed", [False, True])
def test_memory_is_taken_over_where_no_reduction_needs_it(fed: bool) -> None:
    def function(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        y = x @ x
        return (y + 1) * (z.exp() + y if fed else z.exp()).sum(1, keepdim=True)

    gm = make_fx(function, tracing_mode="fake")(torch.randn(32, 32), torch.randn(32, 32))
    plan = simple_plan(on_gpu(fuse(lower(gm, "sums")).program))
    assert plan.kernel_count == 1
    last = {name: at for at, step in enumerate(plan.steps) for name in reads(step) | writes(step)}
    assert bool(taken_over(plan, {b.name for b in plan.buffers if b.kind != "input"}, last)) != fed


@pytest.mark.parametrize(("columns", "held"), [(512, True), (1 << 17, False)])
def test_rows_that_a_program_holds_are_written_where_they_were(columns: int, held: bool) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x @ w
        return y - y.sum(1, keepdim=True)

    gm = make_fx(function, tracing_mode="fake")(torch.randn(256, 16), torch.randn(16, columns))
    plan = make_plan(fuse(on_gpu(lower(gm, "rows"))), nvidia("a GPU", 132, 90, 3000.0, 50 << 20))
    last = {name: at for at, step in enumerate(plan.steps) for name in reads(step) | writes(step)}
    (kernel,) = plan.kernels
    assert (kernel.schedules[0].kind == "rows") == held  # type: ignore[union-attr]
    assert bool(taken_over(plan, {b.name for b in plan.buffers if b.kind != "input"}, last)) == held


@pytest.mark.parametrize("seed", range(24))
def test_random_results_that_take_over_memory(machine: Machine, seed: int) -> None:
    """Results of one kernel, each made of some of the values that it is the last to read."""
    r = random.Random(seed)
    unary = (torch.sin, torch.exp, torch.neg, torch.relu, lambda t: t * 2)
    binary = (torch.add, torch.mul, torch.maximum, lambda a, b: torch.where(a > 0, b, a))
    reads, kept = r.randint(2, 4), r.random() < 0.5
    choices = [
        (r.choice(unary), r.choice(binary), r.randrange(reads + i), r.randrange(reads + i), r.random() < 0.6)
        for i in range(r.randint(3, 8))
    ]
    sums = [r.choice((None, None, 0, 1)) for _ in choices]

    def function(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        values = [x @ (w + k) / 32 for k in range(reads)]
        results = values[:1] if kept else []
        for (one, two, a, b, returned), dim in zip(choices, sums, strict=True):
            values.append(two(one(values[a]), values[b]).clamp(-2, 2))
            results += [values[-1]] if returned else []
            results += [] if dim is None else [values[-1].sum(dim)]
        return [*results, values[-1]]

    _check_in_place(machine, function)


def _check_in_place(machine: Machine, function: Callable[..., list[torch.Tensor]]) -> None:
    torch.manual_seed(0)
    given = [torch.randn(64, 64), torch.randn(64, 64)]
    program = on_gpu(fuse(lower(make_fx(function, tracing_mode="fake")(*given), "in_place")).program)
    plan = simple_plan(program)
    places, arena = plan_memory(plan.steps, plan.buffers, plan.inputs, plan.outputs, lambda buffer: True)
    plan = replace(plan, places=places, arena_bytes=arena)
    check_same(machine.load(emit_cuda_host(plan, sources_of(plan), 0))(copies(given)), function(*given))


def test_memory_is_taken_over_in_another_shape(machine: Machine) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return ((x @ x).view(16, 64) * 2 + 1) @ w

    given = [torch.randn(32, 32), torch.randn(64, 8)]
    program = on_gpu(fuse(lower(make_fx(function, tracing_mode="fake")(*given), "shapes")).program)
    plan = simple_plan(program)
    places, arena = plan_memory(plan.steps, plan.buffers, plan.inputs, plan.outputs, lambda buffer: True)
    plan = replace(plan, places=places, arena_bytes=arena)
    host = emit_cuda_host(plan, sources_of(plan), 0)
    assert ".as_strided((16, 64), (64, 1))  # its last reader writes it over" in host.text
    check_same(machine.load(host)(copies(given)), [function(*given)])
