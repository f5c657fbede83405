"""Which captured graphs are compared with eager: those that give the same but for rounding, where estimates are near.

The estimates are in bytes. Eager reads and writes memory at each call, a region at each kernel; the arithmetic is the
same. Kernels that take longer than their bytes and arithmetic say are those of which the estimates know too little.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.nn import Parameter

from lamina.aot.cost import CostModel, bytes_of, class_of
from lamina.aot.draws import draws_numbers
from lamina.aot.torch_private import is_torch_function, switches_state
from lamina.base.aliasing import tensors_written
from lamina.base.captured import argument, example, memory, tensors
from lamina.base.devices import kind_of
from lamina.base.machine_target import target_of
from lamina.base.region_names import is_backward
from lamina.base.source import operation_name, source_of
from lamina.base.symbolic.torch_private import is_fake
from lamina.eager_comparison.turns import Doubt
from lamina.ir.access import reads, writes
from lamina.ir.loops import Nest, storage_bytes
from lamina.ir.plan import KernelCall, Plan, Schedule
from lamina.ops.calls import FUNCTIONS
from lamina.options import Options

__all__ = ["Estimate", "Subject", "estimate_of", "not_comparable", "not_wanted", "returns_views", "subject_of"]

_CALL = 20_000
"""Bytes that memory moves in the time that a call or a launch takes besides its work, about 2 us."""

_FUNCTION = 500_000
"""The same for an autograd function in Python, about 50 us."""

_SURE = 3.0
"""Eager's cost over ours from which nothing is tried where kernels are as fast as expected."""

_SURE_EVEN_SO = 10.0
"""The same where they are not."""

_NO_LESS = 0.75
"""Eager's cost over ours from which kernels that are as fast as expected are not slower than eager."""

_AS_EXPECTED = 1.2
"""How many times as long as estimated kernels may take and still be as fast as expected."""

_CORE, _MOST_CORES, _SHARED = 10e9, 10, 1 << 20
"""Bytes that a core moves in a second, cores that fill the memory's lines, and bytes that are worth several cores."""

_MANY = 4096
"""Points from which a nest without vectors counts."""

_SHARE_OF_MEMORY = 0.25
"""How much of the free memory eager's intermediate results may take."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What eager does in a captured graph: bytes that it moves, its arithmetic in bytes, the bytes of all results."""

    moved: int
    work: float
    made: int
    calls: int
    device: torch.device
    training: bool


def not_wanted(options: Options) -> str:
    """Why these options, or this process, leave no choice between compiled graphs and eager, or ""."""
    if options.numerics != "fast":
        return "numerics are eager's, bit by bit, where kernels have them"
    if (options.strict and options.compare_eager != "always") or options.verify is not False:
        return "compiled code is asked for: strict or verify is set"
    passes = options.passes != type(options.passes)()
    if options.rules or passes:
        return "rules or passes of the user's may compute something else than eager"
    if options.freeze:
        return "freeze asks for compiled code"
    if torch.are_deterministic_algorithms_enabled():
        return "deterministic algorithms are asked for"
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return "the processes of a job would decide each for itself"
    return ""


def not_comparable(gm: GraphModule, example_inputs: Sequence[Any], everywhere: bool) -> str:
    """Why a call may not be made either way, or "": the ways differ in more than rounding, or sizes change.

    ``everywhere``: on a GPU too.
    """
    if not example_inputs or not all(is_fake(x) or type(x) in (Tensor, Parameter) for x in example_inputs):
        return "it has inputs that are no plain tensors of fixed sizes"
    devices = {x.device for x in example_inputs}
    if len(devices) != 1 or not (kind := kind_of(devices.pop())).generated:
        return "it works on several devices, or on none that is known"
    if kind.queued and not everywhere:
        return "it works on a GPU, and the option compare_eager does not ask for that"
    if draws_numbers(gm):
        return "it draws random numbers"
    for node in gm.graph.nodes:
        if why := _special(node):
            return f"{source_of(node)} {why}"
    return _shared_results(gm)


def _shared_results(gm: GraphModule) -> str:
    """Why views among the results do not let it be made either way, or "".

    A result that is a view of something inside is a tensor of its own to who writes to it, unless it is one of several
    views: eager refuses writes to those, or they show in the others.
    """
    given = {memory(example(node)) for node in gm.graph.find_nodes(op="placeholder")}
    results = [n for n in gm.graph.output_node().all_input_nodes if memory(example(n)) not in given]
    memories = [memory(example(node)) for node in results]
    if len(set(memories)) < len(memories):
        return "its results share memory"
    if any(_is_one_of_several(node) for node in results):
        return "it returns one of several views of what it computes"
    return ""


def returns_views(gm: GraphModule) -> bool:
    """Whether a result is a view of something inside the graph."""
    given = {memory(example(node)) for node in gm.graph.find_nodes(op="placeholder")}
    return any(
        memory(example(node)) not in given
        and any(memory(t) == memory(example(node)) for n in node.all_input_nodes for t in tensors(n))
        for node in gm.graph.output_node().all_input_nodes
    )


def _is_one_of_several(node: Node) -> bool:
    while True:
        viewed = [n for n in node.all_input_nodes if tensors(n) and memory(tensors(n)[0]) == memory(example(node))]
        if not viewed:
            return False
        if len(tensors(viewed[0])) > 1:
            return True
        node = viewed[0]


def _special(node: Node) -> str:
    """Why a call is not the same both ways but for rounding, or ""."""
    if node.op not in ("placeholder", "output", "call_function", "call_method"):
        return "is not a call of torch's"
    if node.target is getattr and node.args[1] in _ATTRIBUTES:
        return ""
    if node.op == "call_function" and (not is_torch_function(node.target) or switches_state(node.target)):
        return "is not a call that only computes"
    if tensors_written(node) or _keeps_statistics(node):
        return "writes to a tensor"
    several = tensors(node)
    if any(isinstance(n, torch.SymInt) for t in several for n in (*t.shape, *t.stride())):
        return "has sizes that change"
    if node.op != "output" and not several and isinstance(node.meta.get("example_value"), torch.SymInt):
        return "gives a number that only a run tells"
    return ""


_ATTRIBUTES = ("T", "mT", "H", "mH", "real", "imag")
"""Attributes of tensors that are views."""


def _keeps_statistics(node: Node) -> bool:
    """Whether a call is a norm that may update running statistics."""
    name = operation_name(node.target) if node.op == "call_function" else str(node.target)
    if "batch_norm" not in name and "instance_norm" not in name:
        return False
    return any(x is True for x in (*node.args, *node.kwargs.values()))


def subject_of(gm: GraphModule, example_inputs: Sequence[Any]) -> Subject:
    """What eager does in a graph that is comparable; a backward moves about twice what its forward does."""
    training = torch.is_grad_enabled() and any(x.requires_grad for x in example_inputs)
    device = example_inputs[0].device
    arithmetic = CostModel.of(device.type).arithmetic
    moved = made = calls = 0
    work = 0.0
    for node in gm.graph.nodes:
        if node.op not in ("call_function", "call_method") or node.target is operator.getitem:
            continue
        results = tensors(node)
        operands = [t for x in node.all_input_nodes if isinstance(t := argument(x), Tensor)]
        held = {memory(t) for t in operands}
        fresh = [t for t in results if memory(t) is None or memory(t) not in held]
        if not fresh:
            continue
        calls += 1
        made += sum(map(bytes_of, fresh))
        moved += sum(map(bytes_of, (*operands, *fresh)))
        work += arithmetic * _work(node) * max(t.numel() for t in (*operands, *fresh))
    times = 3 if training else 1
    return Subject(times * moved, times * work, made, times * calls, device, training)


def _work(node: Node) -> float:
    """Arithmetic at each element of a captured call, in bytes; 0 for a call of a library, of which nothing is known."""
    name = operation_name(node.target) if node.op == "call_function" else str(node.target)
    known = FUNCTIONS.get(name)
    return class_of((known and known.operation) or name).work


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a graph costs either way, in bytes, where ``refused`` is ""; ``speed`` in bytes a second."""

    refused: str = ""
    ours: float = 1.0
    theirs: float = 1.0
    speed: float = 1.0
    facts: tuple[tuple[str, int | float | str], ...] = ()
    scalar: tuple[str, ...] = ()

    def doubt(self, seconds: float) -> Doubt:
        """Whether eager may be faster than compiled calls, which take ``seconds``."""
        if self.refused:
            return Doubt(False, self.refused)
        ratio, times = self.theirs / self.ours, seconds * self.speed / self.ours
        expected = 1e6 * self.ours / self.speed
        facts = (*self.facts, ("expected_us", round(expected, 1)), ("compiled_us", round(1e6 * seconds, 1)))
        said = f"by estimates eager costs {ratio:.1f} times as much"
        if ratio >= (_SURE if times <= _AS_EXPECTED else _SURE_EVEN_SO):
            return Doubt(False, f"estimates are sure: {said}", facts)
        if times <= _AS_EXPECTED:
            if ratio >= _NO_LESS:
                return Doubt(False, f"{said}, and kernels take no longer than expected", facts)
        else:
            said += f", and kernels take {times:.1f} times as long as expected"
        if self.scalar:
            said += f", {len(self.scalar)} of them without vectors ({self.scalar[0]})"
        return Doubt(True, said, facts, self.theirs / self.speed)


def estimate_of(subject: Subject, plans: Iterable[Plan]) -> Estimate:
    """What a graph with these plans costs, its backward's included."""
    plans = list(plans)
    if not plans:
        return Estimate("none of it was compiled to kernels")
    if any(_writes_to_inputs(plan) for plan in plans):
        return Estimate("it writes to its inputs")
    free = _free_bytes(subject.device)
    if subject.made > _SHARE_OF_MEMORY * free:
        return Estimate(f"eager makes {subject.made} bytes of results, and {free} are free")
    moved = sum(map(_moved, plans))
    launches = sum(len(plan.steps) for plan in plans)
    facts = (
        ("eager_bytes", subject.moved),
        ("our_bytes", moved),
        ("work", round(subject.work)),
        ("eager_calls", subject.calls),
        ("launches", launches),
    )
    return Estimate(
        ours=moved + _CALL * launches + _FUNCTION * subject.training + subject.work + 1,
        theirs=subject.moved + _CALL * subject.calls + subject.work,
        speed=_speed(subject.device, moved),
        facts=facts,
        scalar=tuple(sorted({name for plan in plans for name in _without_vectors(plan)})),
    )


def _speed(device: torch.device, moved: int) -> float:
    """Bytes that a kernel is expected to move in a second."""
    if kind_of(device).queued:
        return 1e9 * target_of(device).copy_gbs
    return _CORE * (min(torch.get_num_threads(), _MOST_CORES) if moved >= _SHARED else 1)


def _moved(plan: Plan) -> int:
    """Bytes that the steps of a plan read and write; what has no known size does not count."""
    buffers = plan.buffer_map()
    sizes = [storage_bytes(buffers[b]) for step in plan.steps for b in reads(step) | writes(step)]
    return sum(n.const for n in sizes if n.is_int)


def _writes_to_inputs(plan: Plan) -> bool:
    """Whether a plan writes to inputs; a backward's may do so to what was saved for it alone."""
    if is_backward(plan.name):
        return False
    inputs = {name for name in plan.inputs if isinstance(name, str)}
    return any(writes(step) & inputs for step in plan.steps)


def _without_vectors(plan: Plan) -> list[str]:
    """Kernels for a CPU with a nest of many points that are computed one by one."""
    launched = {step.kernel for step in plan.steps if isinstance(step, KernelCall)}
    return [
        kernel.name
        for kernel in plan.kernels
        if kernel.name in launched
        and any(
            isinstance(schedule, Schedule) and not schedule.width and _points(nest) >= _MANY
            for nest, schedule in zip(kernel.nests, kernel.schedules, strict=True)
        )
    ]


def _points(nest: Nest) -> int:
    count = 1
    for axis in nest.axes:
        count *= axis.extent.const if axis.extent.is_int else 1
    return count


def _free_bytes(device: torch.device) -> int:
    if kind_of(device).queued:
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
