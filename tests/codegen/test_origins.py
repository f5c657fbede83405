"""Kernels say which of the user's lines each group of their statements comes from, and are built once all the same."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import lamina
from benchmarks.gpu_idle import H100
from lamina.codegen.origins import triton_with_origins
from lamina.codegen.triton.emit import emit
from lamina.ir.loops import LoopProgram
from lamina.record import Record
from lamina.runtime.kernel import KernelUnit, kernel_hash
from lamina.schedule.fuse import fuse
from lamina.schedule.plan import make_plan


def attention_like(x: Tensor, w: Tensor) -> Tensor:
    scores = F.gelu(x * w)
    return (scores.softmax(-1) * x).sum(-1)


def two_sums(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x.sin().sum(-1), y.cos().sum(-1)


@functools.cache
def record_of(function: Callable[..., object]) -> Record:
    torch.compiler.reset()
    inputs = (torch.randn(64, 128), torch.randn(128)) if function is attention_like else (torch.randn(40, 64),) * 2
    compiled = lamina.compile(function, options={"strict": True})
    compiled(*inputs)
    return compiled.record  # type: ignore[no-any-return]


def stage(record: Record, name: str) -> object:
    return next(s.value for s in record.stages if s.name == name and s.value is not None)


def units(record: Record) -> list[KernelUnit]:
    return stage(record, "codegen")  # type: ignore[return-value]


def above(text: str, part: str) -> str:
    """The last comment that stands alone above the first line with ``part``."""
    head = text[: text.index(part)]
    return re.findall(r"^\s*(?://|#) (.*)$", head, re.MULTILINE)[-1]


def test_groups_of_statements_carry_the_users_lines() -> None:
    first = attention_like.__code__.co_firstlineno
    (unit,) = units(record_of(attention_like))
    assert re.fullmatch(rf"test_origins\.py:{first + 1} gelu", above(unit.source, "erf_("))
    assert re.fullmatch(rf"test_origins\.py:{first + 2} softmax", above(unit.source, "exp_("))


def test_nests_of_one_kernel_carry_their_own_lines() -> None:
    (unit,) = units(record_of(two_sums))
    assert above(unit.source, "sin_(").endswith("sin")
    assert above(unit.source, "cos_(").endswith("cos")


def test_lines_are_no_part_of_a_kernels_identity() -> None:
    (unit,) = units(record_of(attention_like))
    bare = replace(unit, source=re.sub(r"^\s*// test_origins.*\n", "", unit.source, flags=re.MULTILINE))
    assert bare.source != unit.source
    assert kernel_hash(bare, (), "") == kernel_hash(unit, (), "")


@pytest.mark.parametrize("function", [attention_like, two_sums])
def test_triton_kernels_carry_them_too(function: Callable[..., object]) -> None:
    program = stage(record_of(function), "lower")
    assert isinstance(program, LoopProgram)
    on_gpu = replace(program, buffers=tuple(replace(b, device="cuda:0") for b in program.buffers))
    plan = make_plan(fuse(on_gpu), H100)
    texts = triton_with_origins({kernel.name: emit(kernel, H100) for kernel in plan.kernels}, plan)
    text = "\n".join(source.text for source in texts.values())
    if function is attention_like:
        assert above(text, "exp").endswith("softmax")
    else:
        assert re.search(r"# (nest \d: )?test_origins\.py:\d+ sin", text)
        assert re.search(r"# (nest \d: )?test_origins\.py:\d+ cos", text)
    for source in texts.values():
        compile(source.text, "kernel", "exec")
