from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule

import lamina
from lamina.backends.code_identity import code_identity
from lamina.errors import LaminaWarning
from lamina.extend import Backend

FACTOR = {"by": 2.0}
Run = Callable[[Tensor], list[Tensor]]


class Times:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, x: Tensor) -> list[Tensor]:
        return [x * self.factor]


def load(data: bytes, gm: GraphModule, inputs: list[Any]) -> Times:
    return Times(float(data))


def save(run: Times) -> bytes:
    return str(run.factor).encode()


def keeping(compile: Callable[..., Times], **facts: Any) -> Backend:
    return Backend("mine", compile, **{"save": save, "load": load, **facts})


def value(backend: Backend, folder: Path, **options: Any) -> float:
    """What a graph of one call gives, compiled anew."""
    torch.compiler.reset()
    compiled = lamina.compile(lambda x: x.sin(), backend=backend, options={"cache_dir": str(folder), **options})
    with torch.no_grad():
        return float(compiled(torch.ones(1)))


def constant(factor: float) -> Callable[..., Times]:
    return lambda gm, inputs: Times(factor)


def by_tensor(factor: float) -> Callable[..., Times]:
    held = torch.tensor([factor])
    return lambda gm, inputs: Times(held.item())


def by_default(factor: float) -> Callable[..., Times]:
    def compile(gm: GraphModule, inputs: list[Any], by: float = factor) -> Times:
        return Times(by)

    return compile


class ByField:
    def __init__(self, factor: float) -> None:
        self.factors = [factor]

    def __call__(self, gm: GraphModule, inputs: list[Any]) -> Times:
        return Times(self.factors[0])


def by_text(factor: float) -> Callable[..., Times]:
    """As one who edits a file and starts again: the code is other, nothing else is."""
    space: dict[str, Any] = {"Times": Times, "__name__": "edited"}
    exec(f"def helper():\n    return {factor}\ndef compile(gm, inputs):\n    return Times(helper())", space)
    made: Callable[..., Times] = space["compile"]
    return made


@pytest.mark.parametrize("make", [constant, by_tensor, by_default, ByField, by_text], ids=lambda f: f.__name__)
def test_another_code_is_not_given_what_the_first_saved(make: Callable[[float], Any], tmp_path: Path) -> None:
    assert value(keeping(make(2.0)), tmp_path) == 2.0
    assert value(keeping(make(3.0)), tmp_path) == 3.0
    assert value(keeping(make(2.0)), tmp_path) == 2.0


def test_a_global_that_changes_is_another_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = keeping(lambda gm, inputs: Times(FACTOR["by"]))
    assert value(backend, tmp_path) == 2.0
    monkeypatch.setitem(FACTOR, "by", 3.0)
    assert value(backend, tmp_path) == 3.0


def test_a_log_of_its_own_does_not_make_it_another_code(tmp_path: Path) -> None:
    made: list[str] = []

    def compile(gm: GraphModule, inputs: list[Any]) -> Times:
        made.append("compiled")
        return Times(2.0)

    backend = keeping(compile)
    assert [value(backend, tmp_path) for _ in range(3)] == [2.0] * 3
    assert made == ["compiled"]


@pytest.mark.parametrize("option", ["assume_finite", "mode"])
def test_options_that_a_backend_is_told_are_part_of_the_key(option: str, tmp_path: Path) -> None:
    def compile(gm: GraphModule, inputs: list[Any], options: Any) -> Times:
        return Times(3.0 if options.assume_finite or options.mode != "default" else 2.0)

    backend = keeping(compile, takes=("mode", "assume_finite"))
    assert value(backend, tmp_path) == 2.0
    assert value(backend, tmp_path, **{option: {"assume_finite": True, "mode": "max-autotune"}[option]}) == 3.0
    assert value(backend, tmp_path) == 2.0


def test_constants_of_the_graph_are_part_of_the_key(tmp_path: Path) -> None:
    def compile(gm: GraphModule, inputs: list[Any]) -> Times:
        found = [getattr(gm, str(node.target)) for node in gm.graph.nodes if node.op == "get_attr"]
        found += list(gm.buffers())
        return Times(float(found[0][0]))

    def run(constant: float) -> float:
        torch.compiler.reset()

        def function(x: Tensor) -> Tensor:
            return x * torch.tensor([constant, constant + 1.0])[:1]

        options = {"cache_dir": str(tmp_path)}
        with torch.no_grad():
            return float(lamina.compile(function, backend=keeping(compile), options=options)(torch.ones(1)))

    assert [run(c) for c in (2.0, 3.0, 2.0)] == [2.0, 3.0, 2.0]


def test_what_cannot_be_loaded_is_removed_and_compiled_anew(tmp_path: Path) -> None:
    calls: list[str] = []

    def failing(data: bytes, gm: GraphModule, inputs: list[Any]) -> Times:
        calls.append("load")
        if len(calls) == 1:
            raise ValueError("no such format")
        return Times(float(data))

    backend = keeping(constant(2.0), load=failing)
    assert value(backend, tmp_path) == 2.0
    with pytest.warns(LaminaWarning, match="'mine' cannot load what it saved"):
        assert value(backend, tmp_path) == 2.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert value(backend, tmp_path) == 2.0
    assert calls == ["load", "load"]


def test_an_identity_is_equal_for_equal_code() -> None:
    assert code_identity(by_text(2.0)) == code_identity(by_text(2.0))
    assert code_identity(by_tensor(2.0)) == code_identity(by_tensor(2.0))
    assert code_identity(by_tensor(2.0)) != code_identity(by_tensor(-2.0))
    assert code_identity([1], (1,)) != code_identity((1,), [1])
    assert code_identity(0.0) != code_identity(-0.0)
    endless: list[Any] = []
    endless.append(endless)
    assert code_identity(endless) == code_identity(endless)
