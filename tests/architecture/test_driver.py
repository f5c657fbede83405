"""The driver calls each stage once and in order, whoever makes the joint graph."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
from torch import Tensor

import lamina
from lamina.aot.captured import read_captured, surrounded
from lamina.aot.graph_compiler import GraphCompiler
from lamina.backends.interp import Interpreter
from lamina.backends.registry import as_backend
from lamina.lower.to_loops import lower
from lamina.record import Record
from lamina.rewrite.rewriting import Rewriting
from lamina.schedule.fuse import fuse
from tests.architecture.source import sources

compile_graph: Callable[..., Any] = import_module("lamina.compile").compile_graph

GRAPH: dict[str, Callable[..., Any]] = {
    "captured rewrites": Rewriting.captured,
    "captured": read_captured,
    "joint rewrites": Rewriting.joint,
    "partition": GraphCompiler.split,
    "surrounded": surrounded,
}
REGION: dict[str, Callable[..., Any]] = {
    "lowering rewrites": Rewriting.lowered,
    "lower": lower,
    "fuse": fuse,
    "plan": Interpreter.plan,
    "codegen": Interpreter.codegen,
    "build": Interpreter.build,
    "load": Interpreter.load,
}
NAMES: dict[CodeType, str] = {function.__code__: name for name, function in (GRAPH | REGION).items()}


def function(x: Tensor, w: Tensor) -> Tensor:
    return ((x * w).softmax(-1) + x.sigmoid()).sum(-1)


class Walk:
    """A backend for torch.compile that notes which stages a graph enters on its way through the driver."""

    def __init__(self, **options: Any) -> None:
        self.options, self.entered = lamina.Options(**options), list[str]()

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        return self.noting(lambda: compile_graph(gm, example_inputs, self.options, Record(), as_backend("interp")))

    def noting(self, work: Callable[[], Any]) -> Any:
        def note(frame: FrameType, event: str, arg: object) -> None:
            if event == "call" and frame.f_code in NAMES:
                self.entered.append(NAMES[frame.f_code])

        before = sys.getprofile()
        sys.setprofile(note)
        try:
            return work()
        finally:
            sys.setprofile(before)


@pytest.mark.parametrize("numerics", ["fast", "eager"], ids=["traced call by call", "by AOTAutograd"])
def test_a_graph_enters_each_stage_once_and_in_order(numerics: str) -> None:
    torch.compiler.reset()
    walk = Walk(numerics=numerics)
    x, w = torch.randn(3, 5, requires_grad=True), torch.randn(5)
    out = torch.compile(function, backend=walk, dynamic=False)(x, w)
    *before, after = GRAPH
    assert walk.entered == [*before, *REGION, after]
    walk.entered.clear()
    walk.noting(out.sum().backward)
    assert walk.entered == [*REGION]


@pytest.mark.parametrize(
    "module",
    ["compile", *(f"backends.{name}" for name in ("cpu", "cuda", "cuda_builder", "cuda_region", "kernels", "run"))],
)
def test_a_reader_who_follows_a_graph_meets_no_lambda(module: str) -> None:
    (file,) = (one for one in sources() if one.module == f"lamina.{module}")
    lambdas = [node.lineno for node in ast.walk(file.tree) if isinstance(node, ast.Lambda)]
    assert not lambdas
