"""One operator of torch's database, compiled against eager: values, gradients, kind of result, exceptions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from benchmarks.compilers import CompileFunction
from lamina.base.reference import copied, in_double
from lamina.testing import judge, mismatch, tensors
from lamina.testing.sample import Sample as Errors
from tests.ops.torch_private import DTYPES, DrawsWatch, filled_memory, graph_breaks, sample_of

__all__ = ["Result", "check", "check_draws", "check_program", "record_counts"]

UNINITIALISED = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
"""Only the kind of their results is compared: the values are whatever the memory held."""

FLOOR = 16.0
LOOSE_FLOOR = 256.0
"""In units of the last place, where an operator has no fp64 run to tell its rounding error from a mistake."""


@dataclass(slots=True)
class Result:
    """What became of one operator. ``status`` is passed, mismatch, strides, exception or skipped.

    ``graphs`` counts what capture made of it: none where Dynamo left all of it to Python, for the reason ``breaks``.
    ``samples`` says how many samples were compared.
    ``undefined`` are results that differ from one run of eager to the next: only their kind is compared.
    """

    name: str
    status: str
    detail: str = ""
    dtype: str = ""
    gradients: bool = False
    random: bool = False
    graphs: int = 0
    breaks: str = ""
    kernels: int = 0
    libraries: int = 0
    fallback: str = ""
    samples: int = 1
    complaints: list[str] = field(default_factory=list)
    undefined: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Run:
    outputs: list[Tensor]
    gradients: list[Tensor | None]
    inputs: list[Tensor]
    plain: str


def check(
    name: str,
    operator: Any,
    compile: CompileFunction,
    *,
    dtypes: Sequence[torch.dtype] = DTYPES,
    largest: bool = False,
    dynamic: bool = False,
    device: str = "cpu",
) -> Result:
    """Run the first sample of ``operator`` eagerly, compiled and in fp64. Never raises.

    ``dtypes`` are tried in order, ``largest`` takes the largest of the first samples, ``dynamic`` is torch.compile's,
    ``device`` where the samples are.
    """
    torch.compiler.reset()
    try:
        sample = sample_of(operator, dtypes, largest, device)
    except Exception as problem:
        return Result(name, "skipped", f"no sample: {_brief(problem)}")

    def program(first: Any, rest: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return operator.op(first, *rest, **named)

    return check_program(name, program, (sample.input, sample.args, sample.kwargs), compile, sample.dtype, dynamic)


def check_program(
    name: str,
    program: Callable[..., Any],
    arguments: tuple[Any, ...],
    compile: CompileFunction,
    dtype: torch.dtype,
    dynamic: bool = False,
) -> Result:
    """Run ``program`` on copies of ``arguments`` eagerly, compiled and in fp64. Never raises."""
    result = Result(name, "passed", dtype=str(dtype).removeprefix("torch."))
    try:
        eager, result.random = _observed(program, arguments)
    except Exception as problem:
        result.status, result.detail = "skipped", f"eager raises: {_brief(problem)}"
        return result
    backward = bool(eager.gradients)  # which may all be missing: of an empty matrix's determinant, for one
    result.gradients = any(g is not None for g in eager.gradients)
    options = {"numerics": "eager"} if result.random else None
    compiled = compile(program, dynamic=dynamic, options=options)
    graph_breaks()
    try:
        ours = _run(compiled, copied(arguments), seed=1, backward=backward)
    except Exception as problem:
        result.status, result.detail = "exception", _brief(problem)
        return result
    finally:
        result.graphs, result.kernels, result.libraries, result.fallback = record_counts(compiled)
        result.breaks = " | ".join(graph_breaks())[:300]
    exact = _exact(program, arguments, eager, backward)
    _judge(result, eager, ours, exact)
    if result.status == "mismatch":
        result.undefined = _undefined(program, arguments, eager, backward)
        if result.undefined:
            result.status, result.detail, result.complaints = "passed", "", []
            _judge(result, eager, ours, exact)
    return result


def check_draws(
    program: Callable[..., Any], draws: Sequence[tuple[Any, ...]], compile: CompileFunction, dynamic: bool = False
) -> str:
    """What is wrong over several draws of a program's arguments, "" if nothing is.

    One draw cannot be judged without a floor, since eager may be near the exact result by luck; over several the mean
    errors are compared, see ``lamina.testing.compare_draws``.
    """
    found: dict[str, Errors] = {}
    compiled = compile(program, dynamic=dynamic)
    for arguments in draws:
        eager, _ = _observed(program, arguments)
        backward = bool(eager.gradients)
        exact = _exact(program, arguments, eager, backward)
        if exact is None:
            return "there is no result in higher precision to tell rounding errors"
        ours = _run(compiled, copied(arguments), seed=1, backward=backward)
        for name, a, b, e in zip(_names(eager), _all(ours), _all(eager), _all(exact), strict=True):
            if a is not None and b is not None and e is not None and (b.is_floating_point() or b.is_complex()):
                a, b, e = (_dense(t) for t in (a, b, e))
                different = mismatch(a, b, e)
                if different:
                    return f"{name}: {different}"
                found.setdefault(name, Errors()).add(b, a, e)
    return next((f"{name}: {errors.complaint}" for name, errors in found.items() if errors.complaint), "")


def _undefined(program: Callable[..., Any], arguments: tuple[Any, ...], eager: _Run, backward: bool) -> list[str]:
    """The results that eager itself gives otherwise with the same seed and other contents of fresh memory.

    Attention without dropout, for instance, returns a seed that nothing has set.
    """
    with filled_memory():
        again = _run(program, copied(arguments), seed=1, backward=backward)
    pairs = zip(_names(eager), _all(eager), _all(again), strict=True)
    return [name for name, a, b in pairs if a is not None and b is not None and _is_fill(_dense(a), _dense(b))]


def _is_fill(value: Tensor, again: Tensor) -> bool:
    """Whether ``again`` is nothing but what ``filled_memory`` fills with, and ``value`` is something else."""
    if value.shape != again.shape or torch.equal(value, again) or again.dtype == torch.bool:
        return False
    if again.is_floating_point() or again.is_complex():
        return bool(again.isnan().all()) and not bool(value.isnan().any())
    return bool((again == torch.iinfo(again.dtype).max).all())


def _observed(program: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[_Run, bool]:
    """Eager's run, without gradients where eager has none, and whether it draws random numbers."""
    with DrawsWatch() as watch:
        _run(program, copied(arguments), seed=1, backward=False)
    try:
        return _run(program, copied(arguments), seed=1), watch.draws
    except RuntimeError:
        return _run(program, copied(arguments), seed=1, backward=False), watch.draws


def _run(function: Callable[..., Any], arguments: tuple[Any, ...], seed: int, backward: bool = True) -> _Run:
    torch.manual_seed(seed)
    value = function(*arguments)
    given, outputs = tensors(arguments), tensors(value)
    differentiable = [t for t in outputs if t.requires_grad and backward]
    leaves = [t for t in given if t.requires_grad]
    gradients: list[Tensor | None] = []
    if differentiable and leaves:
        cotangents = [_cotangent(t, number) for number, t in enumerate(differentiable)]
        gradients = list(torch.autograd.grad(differentiable, leaves, cotangents, allow_unused=True))
    return _Run(outputs, gradients, [t.detach() for t in given], "" if outputs else repr(value))


def _cotangent(output: Tensor, number: int) -> Tensor:
    generator = torch.Generator().manual_seed(number)
    eighths = torch.randint(-8, 9, output.shape, generator=generator)
    dense = (eighths / 8).to(output.dtype)
    there = dense if output.layout == torch.strided else dense.to_sparse(layout=output.layout)
    return there.to(output.device)


def _exact(program: Callable[..., Any], arguments: tuple[Any, ...], eager: _Run, backward: bool) -> _Run | None:
    """The same in double precision, if the operator runs in it and gives results of the same shapes.

    None where eager is in double precision itself, and so nothing tells its rounding errors.
    """
    if any(t is not None and t.dtype in (torch.float64, torch.complex128) for t in _all(eager)):
        return None
    try:
        with in_double():
            exact = _run(program, copied(arguments, wide=True), seed=1, backward=backward)
    except Exception:
        return None
    pairs = zip(_all(exact), _all(eager), strict=False)
    if len(_all(exact)) != len(_all(eager)) or any(a.shape != b.shape for _, (a, b) in enumerate(_tensors(pairs))):
        return None
    return exact


def _tensors(pairs: Any) -> list[tuple[Tensor, Tensor]]:
    return [(a, b) for a, b in pairs if a is not None and b is not None]


def _all(run: _Run) -> list[Tensor | None]:
    return [*run.outputs, *run.gradients, *run.inputs]


def _count(run: _Run) -> str:
    return f"{len(run.outputs)} outputs, {len(run.gradients)} gradients, {len(run.inputs)} inputs"


def _names(run: _Run) -> list[str]:
    groups = (("output", run.outputs), ("gradient", run.gradients), ("input afterwards", run.inputs))
    return [f"{name} {number}" for name, group in groups for number in range(len(group))]


def _judge(result: Result, eager: _Run, ours: _Run, exact: _Run | None) -> None:
    if ours.plain != eager.plain:
        result.complaints.append(f"value is {ours.plain}, eager's is {eager.plain}")
    if len(_all(ours)) != len(_all(eager)):
        result.complaints.append(f"{_count(ours)}, eager has {_count(eager)}")
    reference = _all(exact) if exact else _all(eager)
    layout = []
    values_known = result.name.split(".")[0] not in UNINITIALISED
    floor = FLOOR if exact else LOOSE_FLOOR
    if not result.complaints:
        for name, a, b, e in zip(_names(eager), _all(ours), _all(eager), reference, strict=True):
            complaint = _one(a, b, e, values_known and name not in result.undefined, floor)
            if complaint:
                result.complaints.append(f"{name}: {complaint}")
            elif a is not None and b is not None and name.startswith("output") and b.layout == torch.strided:
                known = values_known and name not in result.undefined
                complaint = mismatch(a.detach(), b.detach(), strides=True) if known else ""
                if "strides" in complaint:
                    layout.append(f"{name}: {complaint}")
    if result.complaints:
        result.status, result.detail = "mismatch", result.complaints[0]
    elif layout:
        result.status, result.detail, result.complaints = "strides", layout[0], layout


def _one(ours: Tensor | None, eager: Tensor | None, exact: Tensor | None, values_known: bool, floor: float) -> str:
    if ours is None or eager is None or exact is None:
        return "" if ours is None and eager is None else f"is {_kind(ours)}, eager's is {_kind(eager)}"
    if ours.layout != eager.layout or ours.shape != eager.shape or ours.dtype != eager.dtype:
        return f"is {_kind(ours)}, eager's is {_kind(eager)}"
    if ours.requires_grad != eager.requires_grad:
        return f"requires_grad is {ours.requires_grad}, eager's is {eager.requires_grad}"
    if not values_known:
        return ""
    ours, eager, exact = (_dense(t) for t in (ours, eager, exact))
    if torch.equal(ours, eager):
        return ""
    return judge(ours, eager, exact, floor=floor)


def _dense(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    tensor = tensor if tensor.layout == torch.strided else tensor.to_dense()
    tensor = tensor.resolve_conj().resolve_neg()
    return tensor.to(torch.complex64) if tensor.dtype == torch.complex32 else tensor  # which compares nothing


def _kind(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else f"{tensor.dtype} {tuple(tensor.shape)} {tensor.layout}"


def record_counts(compiled: Any) -> tuple[int, int, int, str]:
    """Captured graphs, kernels and library calls of everything compiled, and why regions ran as ATen calls, or kernels
    without machine code.
    """
    record = getattr(compiled, "record", None)
    stages = record.stages if record is not None else []
    plans = [s.value for s in stages if hasattr(s.value, "kernel_count")]
    why = [str(s.value) for s in stages if s.name == "aten"]
    why += [f"{d.subject[0]}: {d.reason}" for s in stages if s.name == "fallback" for d in s.decisions]
    reasons = " | ".join(text[:200] for text in why)
    graphs = sum(s.name == "capture" for s in stages)
    return graphs, sum(p.kernel_count for p in plans), sum(p.library_count for p in plans), reasons


def _brief(problem: BaseException) -> str:
    lines = [line for line in str(problem).splitlines() if line.strip()]
    return f"{type(problem).__name__}: {' | '.join(lines[:3])}"[:500]
