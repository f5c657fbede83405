"""Python around tensors: graph breaks, side effects, control flow, entry points."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.compilers import CompileFunction
from tests.semantics.program import agree


def test_printing_breaks_the_graph_and_prints(compile: CompileFunction, capsys: pytest.CaptureFixture[str]) -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 2
        print("sum is positive", bool(y.sum() > 0))
        return y.relu()

    agree(compile, lambda: (program, (torch.ones(4, requires_grad=True),)), calls=2)
    assert capsys.readouterr().out == "sum is positive True\n" * 6


def test_branch_on_a_value(compile: CompileFunction) -> None:
    def program(x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x - 1

    compiled = compile(program, dynamic=False)
    for x in (torch.ones(3), -torch.ones(3), torch.ones(3)):
        torch.testing.assert_close(compiled(x), program(x))


def test_item_and_its_use_as_a_number(compile: CompileFunction) -> None:
    def program(x: Tensor) -> tuple[Tensor, float]:
        largest = x.max().item()
        return x / largest, largest

    compiled = compile(program, dynamic=False)
    for scale in (1.0, 2.0, 5.0):
        x = torch.arange(1.0, 5.0) * scale
        mine, theirs = compiled(x), program(x)
        torch.testing.assert_close(mine[0], theirs[0])
        assert mine[1] == theirs[1]


def test_sizes_that_depend_on_values(compile: CompileFunction) -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        return x[x > 0].sum(), x.nonzero(), torch.unique(x.round()), x.masked_select(x < 0) * 2

    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(20)
        compiled = compile(program, dynamic=False)
        for mine, theirs in zip(compiled(x), program(x), strict=True):
            torch.testing.assert_close(mine, theirs)


def test_loop_with_a_break_in_it(compile: CompileFunction) -> None:
    def program(x: Tensor) -> Tensor:
        for step in range(5):
            x = x * 1.5 + step
            if x.max() > 10:
                break
        return x

    agree(compile, lambda: (program, (torch.randn(6),)))
    agree(compile, lambda: (program, (torch.randn(6) + 9,)))


def test_side_effects_on_python_objects(compile: CompileFunction) -> None:
    log: list[int] = []
    counts: dict[str, int] = {}

    def program(x: Tensor, seen: list[Tensor]) -> Tensor:
        log.append(len(log))
        counts["calls"] = counts.get("calls", 0) + 1
        y = x + len(log)
        seen.append(y)
        return y * 2

    compiled = compile(program)
    seen: list[Tensor] = []
    for call in range(1, 4):
        torch.testing.assert_close(compiled(torch.ones(2), seen), torch.full((2,), 2.0 * (1 + call)))
    assert log == [0, 1, 2]
    assert counts == {"calls": 3}
    assert [float(t[0]) for t in seen] == [2, 3, 4]


def test_exceptions_caught_inside(compile: CompileFunction, compiler_name: str) -> None:
    if not compiler_name.startswith(("eager", "lamina")):
        pytest.skip("Dynamo sets no guard on a key that was missing, and reuses the graph when it is there")

    def program(x: Tensor, table: dict[str, float]) -> Tensor:
        try:
            scale = table["scale"]
        except KeyError:
            scale = 3.0
        return x * scale

    compiled = compile(program, dynamic=False)
    x = torch.randn(3)
    torch.testing.assert_close(compiled(x, {}), x * 3)
    torch.testing.assert_close(compiled(x, {"scale": 2.0}), x * 2)


def test_generators_comprehensions_and_closures(compile: CompileFunction) -> None:
    factor = 2.0

    def pieces(x: Tensor) -> Iterator[Tensor]:
        for row in x:
            yield row * factor

    def program(x: Tensor) -> tuple[Tensor, ...]:
        parts = [p + i for i, p in enumerate(pieces(x))]
        return torch.stack(parts), sum(parts), *parts[1:]

    agree(compile, lambda: (program, (torch.randn(3, 4, requires_grad=True),)))


def test_numpy_inside(compile: CompileFunction) -> None:
    def program(x: Tensor) -> Tensor:
        array = x.numpy()
        return torch.from_numpy(array * 2 + 1) + x

    agree(compile, lambda: (program, (torch.randn(3, 4),)), exact=False)


GLOBAL_SCALE = 2.0


def test_globals_and_attributes_that_change(compile: CompileFunction, monkeypatch: pytest.MonkeyPatch) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.power = 1

        def forward(self, x: Tensor) -> Tensor:
            return x**self.power * GLOBAL_SCALE

    model = Scaled()
    compiled = compile(model, dynamic=False)
    x = torch.tensor([2.0, 3.0])
    torch.testing.assert_close(compiled(x), x * 2)
    model.power = 3
    torch.testing.assert_close(compiled(x), x**3 * 2)
    monkeypatch.setattr(f"{__name__}.GLOBAL_SCALE", 5.0)
    torch.testing.assert_close(compiled(x), x**3 * 5)


@pytest.mark.by_dynamo("asks for an error at print, which ends no graph of the own front end")
def test_whole_graph_or_an_error(compile: CompileFunction, compiler_name: str) -> None:
    if compiler_name == "eager":
        pytest.skip("eager has no graph")

    def broken(x: Tensor) -> Tensor:
        print("break")
        return x + 1

    assert compile(lambda x: x + 1, fullgraph=True)(torch.ones(2)).tolist() == [2, 2]
    with pytest.raises(Exception, match=r"(?i)graph break|unsupported|builtin"):
        compile(broken, fullgraph=True)(torch.ones(2))


def test_recursion_and_nested_compiled_functions(compile: CompileFunction) -> None:
    inner = compile(lambda x: x.sin() * 2, dynamic=False)

    def program(x: Tensor, depth: int = 3) -> Tensor:
        return inner(x) if depth == 0 else program(x + depth, depth - 1) * 0.5

    agree(compile, lambda: (program, (torch.randn(5, requires_grad=True),)), exact=False)


@pytest.mark.parametrize("form", ["plain", "with_options"])
def test_decorator(compiler_name: str, form: str) -> None:
    if compiler_name != "lamina":
        pytest.skip("the decorator is lamina's")
    import lamina  # noqa: PLC0415 - only this test needs the package's own name

    decorate = lamina.compile if form == "plain" else lamina.compile(dynamic=False, fullgraph=True)

    @decorate
    def program(x: Tensor, *, scale: float = 2.0) -> Tensor:
        """Documentation."""
        return x.sin() * scale

    x = torch.randn(5)
    torch.testing.assert_close(program(x, scale=3.0), x.sin() * 3)
    assert program.__name__ == "program"
    assert program.__doc__ == "Documentation."


@pytest.mark.parametrize("mode", [None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_modes_of_torch_compile(compiler_name: str, mode: str | None) -> None:
    if compiler_name != "lamina":
        pytest.skip("checks lamina's modes")
    import lamina  # noqa: PLC0415

    x = torch.randn(7, 5)
    compiled: Any = lamina.compile(lambda t: t.softmax(-1) * 2, mode=mode)
    torch.testing.assert_close(compiled(x), x.softmax(-1) * 2)


def test_behind_torch_compile(compiler_name: str) -> None:
    if compiler_name != "lamina":
        pytest.skip("checks lamina's entry in torch's list of backends")
    torch.compiler.reset()
    assert "lamina" in torch.compiler.list_backends(exclude_tags=())
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8))
    x = torch.randn(3, 4, requires_grad=True)
    compiled = torch.compile(model, backend="lamina")
    torch.testing.assert_close(compiled(x), model(x))
    (mine,), (theirs,) = (torch.autograd.grad(f(x).square().sum(), x) for f in (compiled, model))
    torch.testing.assert_close(mine, theirs)
