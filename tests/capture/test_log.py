"""What capture leaves to Python, compiles again or fixes is a decision with a code, the user's line and a remedy."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lamina
from lamina.base.decision import Decision
from lamina.errors import LaminaWarning, RecompileRefused

HERE = Path(__file__).name


@pytest.fixture(autouse=True)
def _afresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def decided(compiled: Any, kind: str) -> list[Decision]:
    found: list[Decision] = compiled.record.decisions(kind)
    return found


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.within = nn.Linear(8, 8), nn.LSTM(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.within(self.before(x).relu())[0]
        return result


def asks_in_a_loop(x: Tensor) -> Tensor:
    for _ in range(2):
        if x.sum().item() > 0:
            x = x.relu() + 1
    return x


def of_sparse(a: Tensor, b: Tensor) -> Tensor:
    return torch.sparse.mm(a, b).relu()


NOTHING: dict[str, tuple[Callable[[], Any], Callable[[], tuple[Tensor, ...]], str]] = {
    "an LSTM": (lambda: nn.LSTM(8, 8), lambda: (torch.randn(3, 2, 8),), "LM1005"),
    "a module with an LSTM": (Recurrent, lambda: (torch.randn(3, 2, 8),), "LM1005"),
    "a sparse argument": (lambda: of_sparse, lambda: (torch.eye(4).to_sparse(), torch.randn(4, 8)), "LM1006"),
    "a number in a loop": (lambda: asks_in_a_loop, lambda: (torch.ones(4),), "LM1004"),
}


@pytest.mark.by_dynamo(
    "asks for Dynamo's words",
    "a module with an LSTM-default",
    "a module with an LSTM-strict",
    "a number in a loop-default",
    "a number in a loop-strict",
    "a sparse argument-default",
    "a sparse argument-strict",
    "an LSTM-default",
    "an LSTM-strict",
)
@pytest.mark.parametrize("options", [{}, {"strict": True}], ids=["default", "strict"])
@pytest.mark.parametrize("case", NOTHING.values(), ids=NOTHING)
def test_a_callable_of_which_nothing_is_compiled_says_so_once(case: Any, options: dict[str, Any]) -> None:
    make, inputs, code = case
    compiled = lamina.compile(make(), options=options)
    with pytest.warns(LaminaWarning, match="lamina compiled nothing of") as told:
        compiled(*inputs())
    assert [Path(w.filename).name for w in told if issubclass(w.category, LaminaWarning)] == [HERE]
    with warnings.catch_warnings():
        warnings.simplefilter("error", LaminaWarning)
        compiled(*inputs())
    broken = decided(compiled, "break")
    assert [d.code for d in broken] == [code]
    assert broken[0].remedy
    last = decided(compiled, "capture")[-1]
    assert (last.code, last.taken, last.remedy) == ("LM1202", False, broken[0].remedy)


def test_instances_that_share_graphs_are_compiled() -> None:
    class Layer(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.relu() + 1

    with warnings.catch_warnings():
        warnings.simplefilter("error", LaminaWarning)
        for _ in range(2):
            lamina.compile(Layer())(torch.randn(4))


@pytest.mark.by_dynamo("asks for Dynamo's words")
def test_a_graph_break_names_the_line_and_what_to_do() -> None:
    def function(x: Tensor) -> Tensor:
        y = x.relu() + 1
        if y.sum() > 0:  # the line
            y = y * 2
        return y

    compiled = lamina.compile(function)
    compiled(torch.randn(8))
    [found] = decided(compiled, "break")
    facts = dict(found.facts)
    assert found.code == "LM1002"
    assert "torch.where" in found.remedy
    assert facts["line"] == "if y.sum() > 0:  # the line"
    file, _, line = found.subject[0].rpartition(":")
    assert Path(file).name == HERE
    assert Path(file).read_text().splitlines()[int(line) - 1].strip() == facts["line"]


def scaled(x: Tensor, n: float) -> Tensor:
    return x * n


RECOMPILES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...], str, str]] = {
    "size": (scaled, (torch.ones(4), 2), (torch.ones(5), 2), "LM1101", "size 0 of x was 4 and is 5"),
    "dtype": (
        scaled,
        (torch.ones(4), 2),
        (torch.ones(4).double(), 2),
        "LM1103",
        "dtype of x was float32 and is float64",
    ),
    "number": (scaled, (torch.ones(4), 2.5), (torch.ones(4), 3.5), "LM1106", "n was 2.5 and is 3.5"),
    "gradient": (
        scaled,
        (torch.ones(4), 2),
        (torch.ones(4, requires_grad=True), 2),
        "LM1104",
        "requires_grad of x was False and is True",
    ),
    "rank": (scaled, (torch.ones(4), 2), (torch.ones(4, 4), 2), "LM1114", "x had 1 dimensions and has 2"),
    "length": (
        lambda xs: xs[0] + 1,
        ([torch.ones(4)],),
        ([torch.ones(4), torch.ones(4)],),
        "LM1109",
        "the length of xs was 1 and is 2",
    ),
    "text": (lambda x, n: x * len(n), (torch.ones(4), "a"), (torch.ones(4), "bc"), "LM1107", "n was 'a' and is 'bc'"),
    "function": (
        lambda x, f: f(x),
        (torch.ones(4), lambda x: x + 1),
        (torch.ones(4), lambda x: x * 2),
        "LM1108",
        "f.__code__ is another object",
    ),
}


@pytest.mark.by_dynamo("asks for Dynamo's words", "length", "size")
@pytest.mark.parametrize("case", RECOMPILES.values(), ids=RECOMPILES)
def test_a_recompile_says_which_guard_failed_and_both_values(case: Any) -> None:
    function, first, second, code, reason = case
    compiled = lamina.compile(function, backend="eager")
    compiled(*first)
    assert not decided(compiled, "recompile")
    compiled(*second)
    [found] = decided(compiled, "recompile")
    assert (found.code, found.reason) == (code, reason)
    assert found.remedy
    compiled(*first)
    assert len(decided(compiled, "recompile")) == 1


def test_a_module_that_changes_its_mode_says_so() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout())
    compiled = lamina.compile(model, backend="eager")
    compiled(torch.ones(4))
    compiled.eval()
    compiled(torch.ones(4))
    [found] = decided(compiled, "recompile")
    assert found.code == "LM1112"


def test_what_another_call_had_compiled_is_no_version_of_this_one() -> None:
    def function(x: Tensor) -> Tensor:
        return x.sin() + 1

    for numerics in ("fast", "eager"):
        compiled = lamina.compile(function, options={"numerics": numerics})
        compiled(torch.ones(3))
        assert not compiled.record.decisions("recompile")


@pytest.mark.by_dynamo("asks for Dynamo's words")
def test_the_limit_of_recompiles_is_a_decision_with_a_code() -> None:
    compiled = lamina.compile(scaled, backend="eager", dynamic=False)
    with torch._dynamo.config.patch(recompile_limit=2):
        compiled(torch.ones(3), 2)
        compiled(torch.ones(4), 2)
        with pytest.warns(LaminaWarning, match="recompile_limit"):
            compiled(torch.ones(5), 2)
    last = decided(compiled, "capture")[-1]
    assert last.code == "LM1150"
    assert "dynamic=True" in last.remedy


@pytest.mark.by_dynamo("asks for Dynamo's words")
def test_a_size_that_the_program_fixes_is_a_decision() -> None:
    def function(x: Tensor) -> Tensor:
        if x.shape[0] == 6:
            return x + 1
        return x * 2

    compiled = lamina.compile(function, backend="eager", dynamic=True)
    compiled(torch.ones(6))
    [found] = decided(compiled, "specialise")
    assert found.code == "LM1203"
    assert HERE in found.subject[1]
    assert "6" in found.reason


def test_the_stance_against_recompiles_gives_our_reason() -> None:
    compiled = lamina.compile(scaled, backend="eager")
    compiled(torch.ones(4), 2)
    with torch.compiler.set_stance("fail_on_recompile"):
        compiled(torch.ones(4), 2)
        with pytest.raises(RecompileRefused, match=r"size 0 of x was 4 and is 7") as raised:
            compiled(torch.ones(7), 2)
    assert isinstance(raised.value, RuntimeError)
    assert "dynamic=True" in str(raised.value)


def test_the_stance_is_heard_by_the_own_front_end(tmp_path: Path) -> None:
    options = {"capture": "own", "cache_dir": str(tmp_path)}
    compiled = lamina.compile(scaled, backend="eager", options=options)
    with torch.compiler.set_stance("fail_on_recompile"), pytest.raises(RecompileRefused, match="not compiled before"):
        compiled(torch.ones(4), 2)
    compiled(torch.ones(4), 2)
    compiled(torch.ones(4), 2)
    with torch.compiler.set_stance("fail_on_recompile"):
        compiled(torch.ones(4), 2)
        with pytest.raises(RecompileRefused, match="dtype of x was float32 and is float64") as raised:
            compiled(torch.ones(4, dtype=torch.double), 2)
        assert HERE in str(raised.value)
    torch.testing.assert_close(compiled(torch.ones(7), 2), scaled(torch.ones(7), 2))


@pytest.mark.by_dynamo("asks for Dynamo's words")
def test_guards_are_a_stage_that_prints() -> None:
    compiled = lamina.compile(scaled, backend="eager")
    compiled(torch.ones(4), 2)
    [stage] = [s for s in compiled.record.stages if s.name == "guards"]
    assert "n is 2  # " in str(stage)
    assert HERE in str(stage)
    assert " guards of " in stage.value.summary
    assert stage.seconds > 0


@pytest.mark.by_dynamo("asks for Dynamo's words")
def test_what_was_none_is_no_alias() -> None:
    def function(x: Tensor, more: Tensor | None = None) -> Tensor:
        return x * 2 if more is None else x + more

    compiled = lamina.compile(function, backend="eager")
    compiled(torch.ones(4))
    compiled(torch.ones(4), torch.ones(4))
    [found] = decided(compiled, "recompile")
    assert (found.code, found.reason) == ("LM1107", "more was None and is a Tensor")


def test_records_are_found_behind_torch_compile_too() -> None:
    def function(x: Tensor) -> Tensor:
        y = x.relu() + 1
        torch._dynamo.graph_break()
        return y * 2

    behind = torch.compile(function, backend="lamina")
    behind(torch.randn(8))
    record = lamina.records()[-1]
    assert record.name.endswith("function")
    assert [d.code for d in record.decisions("break")] == ["LM1010"]
    names = [stage.region for stage in record.stages]
    assert any(name.startswith("function0") for name in names)
    assert any(name.startswith("function1") for name in names)
    torch.compiler.reset()


def test_the_record_of_a_compiled_callable_is_found() -> None:
    compiled = lamina.compile(lambda x: x + 1)
    assert lamina.records()[-1] is compiled.record


def test_a_failure_in_what_is_told_fails_no_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(log: object) -> None:
        raise AttributeError("a name of another version of torch")

    monkeypatch.setattr("lamina.capture.dynamo.note_fixed_sizes", failing)
    compiled = lamina.compile(lambda x: x + 1, options={"strict": True})
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))


@pytest.mark.by_dynamo("asks for Dynamo's words")
def test_a_callable_that_runs_the_graphs_of_another_says_so() -> None:
    torch.compiler.reset()
    first, second = (lamina.compile(torch.nn.Linear(3, 3)) for _ in range(2))
    for _ in range(2):
        first(torch.randn(2, 3))
        second(torch.randn(2, 3))
    assert first.record.decisions("capture") == []
    (found,) = second.record.decisions("capture")
    assert found.code == "LM1211"
    assert "met before, in another compiled callable" in str(found.reason)
