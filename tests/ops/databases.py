"""All samples, wrong inputs and modules of torch's test databases, compiled against eager.

Samples of one operator are compiled together, a batch at a time, as one program: that is many times faster, and asks
how they fuse. A batch with something to complain about is taken apart, and each of its samples is compiled by itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.compilers import CompileFunction
from lamina.base.reference import copied, mapped
from lamina.testing import DRAWS
from tests.ops.check import Result, check_draws, check_program
from tests.ops.torch_private import ModuleSample, Sample, error_samples, module_samples, samples_of

__all__ = ["BATCH", "check_errors", "check_module", "check_samples"]

BATCH = 16
"""Samples of one program. Of more the C++ compiler takes longer than of as many by halves."""


def check_samples(
    name: str,
    operator: Any,
    compile: CompileFunction,
    dtype: torch.dtype,
    *,
    most: int = 0,
    dynamic: bool = False,
    device: str = "cpu",
) -> Result:
    """All samples of ``operator`` in ``dtype``, or ``most`` of them, evenly spread. Never raises.

    The result counts the samples that were compared, and says what was wrong with the first that differs.
    """
    try:
        found = samples_of(operator, dtype, device)
    except Exception as problem:
        return Result(name, "skipped", f"no sample: {type(problem).__name__}: {problem}"[:500])
    chosen = found[:: -(-len(found) // most)] if most else found
    total = Result(name, "passed", dtype=str(dtype).removeprefix("torch."))
    for start in range(0, len(chosen), BATCH):
        batch = chosen[start : start + BATCH]
        for place, result in enumerate(_batch(name, operator.op, batch, compile, dtype, dynamic)):
            if result.status == "mismatch" and " error " in result.detail:
                why = _over_draws(operator.op, batch[place], compile, dynamic)
                status = "mismatch" if why else "passed"
                result = replace(result, status=status, detail=f"sample {start + place}: {why}" if why else "")
            _add(total, result)
    if not total.samples:
        return replace(total, status="skipped", detail=total.detail or "no sample")
    return total


def _over_draws(operator: Callable[..., Any], sample: Sample, compile: CompileFunction, dynamic: bool) -> str:
    """What is wrong with a sample over several draws: in one eager may be exact by luck.

    The first draw is the sample itself, in the others every number is up to 1/64 nearer to zero.
    """

    def alone(first: Any, rest: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return operator(first, *rest, **named)

    generator = torch.Generator().manual_seed(0)

    def drawn(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or leaf.layout != torch.strided or not leaf.is_floating_point():
            return leaf
        factors = 1 - torch.rand(leaf.shape, generator=generator) / 64
        return (leaf.detach() * factors.to(leaf)).to(leaf.dtype).requires_grad_(leaf.requires_grad)

    arguments = (sample.input, sample.args, sample.kwargs)
    torch.compiler.reset()
    try:
        return check_draws(alone, [arguments, *(mapped(arguments, drawn) for _ in range(DRAWS - 1))], compile, dynamic)
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"[:500]


def _add(total: Result, one: Result) -> None:
    total.gradients |= one.gradients
    total.random |= one.random
    total.graphs, total.kernels = total.graphs + one.graphs, total.kernels + one.kernels
    total.libraries += one.libraries
    total.fallback, total.breaks = total.fallback or one.fallback, total.breaks or one.breaks
    if one.status == "skipped":
        total.detail = total.detail or one.detail
        return
    total.samples += one.samples
    if one.status != "passed":
        total.complaints.append(f"{one.status}: {one.detail}")
        if total.status == "passed":
            total.status, total.detail = one.status, one.detail


def _batch(
    name: str,
    operator: Callable[..., Any],
    samples: Sequence[Sample],
    compile: CompileFunction,
    dtype: torch.dtype,
    dynamic: bool,
) -> list[Result]:
    def together(cases: list[Any]) -> list[Any]:
        return [operator(first, *rest, **named) for first, rest, named in cases]

    def alone(first: Any, rest: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return operator(first, *rest, **named)

    torch.compiler.reset()
    if len(samples) > 1:
        cases = [(s.input, s.args, s.kwargs) for s in samples]
        result = check_program(name, together, (cases,), compile, dtype, dynamic)
        if result.status == "passed" and not result.undefined and result.graphs == 1:
            return [replace(result, samples=len(samples))]
    results = []
    for number, sample in enumerate(samples):
        torch.compiler.reset()
        arguments = (sample.input, sample.args, sample.kwargs)
        result = check_program(name, alone, arguments, compile, dtype, dynamic)
        detail = f"sample {number}: {result.detail}" if result.status != "passed" else ""
        results.append(replace(result, detail=detail, samples=int(result.status != "skipped")))
    return results


def check_errors(name: str, operator: Any, compile: CompileFunction, *, device: str = "cpu") -> Result:
    """Inputs that ``operator`` refuses: the compiled program raises an exception of the same class. Never raises."""
    try:
        found = error_samples(operator, device)
    except Exception as problem:
        return Result(name, "skipped", f"no wrong inputs: {type(problem).__name__}: {problem}"[:500])
    total = Result(name, "passed")
    for number, sample in enumerate(found):

        def program(first: Any, rest: tuple[Any, ...], named: dict[str, Any]) -> Any:
            return operator.op(first, *rest, **named)

        arguments = (sample.input, sample.args, sample.kwargs)
        eager = _raised(program, arguments)
        if eager is None:
            continue  # not on this device, or only in a mode of torch's tests
        torch.compiler.reset()
        ours = _raised(compile(program), arguments)
        total.samples += 1
        if type(ours) is not type(eager):
            said = f"sample {number}: eager raises {_brief(eager)}, compiled {_brief(ours)}"
            total.complaints.append(said)
            if total.status == "passed":
                total.status, total.detail = "mismatch", said[:600]
    return total if total.samples else replace(total, status="skipped", detail="no wrong inputs")


def _raised(program: Callable[..., Any], arguments: tuple[Any, ...]) -> BaseException | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program(*copied(arguments))
        except Exception as problem:
            return problem
    return None


def _brief(problem: BaseException | None) -> str:
    return "nothing" if problem is None else f"{type(problem).__name__}: {str(problem).strip()[:120]}"


def check_module(
    name: str, info: Any, compile: CompileFunction, dtype: torch.dtype, *, dynamic: bool = False, device: str = "cpu"
) -> Result:
    """Every sample of a class of modules, in training and in evaluation. Never raises."""
    total = Result(name, "passed", dtype=str(dtype).removeprefix("torch."))
    for training in (True, False):
        try:
            found = module_samples(info, dtype, training, device)
        except Exception as problem:
            return replace(total, status="skipped", detail=f"no sample: {type(problem).__name__}: {problem}"[:500])
        for sample in found:
            torch.compiler.reset()
            _add(total, _module(name, sample, compile, dtype, training, dynamic))
    return total if total.samples else replace(total, status="skipped", detail=total.detail or "no sample")


def _module(
    name: str, sample: ModuleSample, compile: CompileFunction, dtype: torch.dtype, training: bool, dynamic: bool
) -> Result:
    module: nn.Module = sample.make()
    module.train(training)
    state = dict(module.named_parameters()), dict(module.named_buffers())

    def program(tensors: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """The module as a function of its parameters and buffers, so that their gradients and writes are compared."""
        parameters, buffers = tensors
        return torch.func.functional_call(module, {**parameters, **buffers}, args, named)

    result = check_program(name, program, (state, sample.args, sample.kwargs), compile, dtype, dynamic)
    if result.status in ("passed", "skipped"):
        return replace(result, samples=int(result.status == "passed"))
    mode = "training" if training else "evaluation"
    return replace(result, detail=f"{sample.described}, {mode}: {result.detail}", samples=1)
