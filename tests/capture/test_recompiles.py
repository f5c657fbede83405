"""What is said of functions that are compiled again can be done where it says, and helps."""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lamina
from lamina.base.decision import Decision
from lamina.errors import RecompileRefused
from lamina.summary import advice

SCALE = 3
TABLE = torch.ones(3)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def compiled_again(compiled: Any) -> list[Decision]:
    return list(compiled.record.decisions("recompile"))


def scaled(x: Tensor, n: float) -> Tensor:
    return x * n


def line_at(place: str) -> str:
    file, _, line = place.rpartition(":")
    assert Path(file).name == Path(__file__).name
    return linecache.getline(file, int(line))


@pytest.mark.by_dynamo("asks for Dynamo's words of a recompile")
def test_what_is_to_be_marked_is_written_as_the_caller_writes_it() -> None:
    compiled = lamina.compile(scaled, backend="eager")
    first, batch = torch.ones(3), torch.ones(5)
    compiled(first, 2)
    compiled(batch, n=2)  # the line
    [found] = compiled_again(compiled)
    [one] = [a for a in advice(compiled.record) if a.code == "LM1101"]
    assert "# the line" in line_at(one.places[0])
    [typed] = re.findall(r"torch\._dynamo\.mark_dynamic\([^()]*\)", found.remedy)
    assert typed == "torch._dynamo.mark_dynamic(batch, 0)"
    torch.compiler.reset()
    again = lamina.compile(scaled, backend="eager")
    exec(typed, {"torch": torch}, {"batch": batch})
    again(batch, 2)
    again(torch.ones(7), 2)
    assert not compiled_again(again)


@pytest.mark.by_dynamo("asks for Dynamo's words of a recompile")
def test_what_is_within_a_dictionary_is_marked_there() -> None:
    compiled = lamina.compile(lambda inputs: inputs["ids"] + 1, backend="eager")
    for n in (3, 5):
        batch = {"ids": torch.ones(n)}
        compiled(
            batch,
        )
    assert "torch._dynamo.mark_dynamic(batch['ids'], 0)" in compiled_again(compiled)[0].remedy


@pytest.mark.by_dynamo("asks for Dynamo's words of a recompile")
def test_what_has_no_name_at_the_call_is_spoken_of() -> None:
    compiled = lamina.compile(scaled, backend="eager")
    for n in (3, 5):
        compiled(torch.ones(n), 2)
    [found] = compiled_again(compiled)
    assert "mark_dynamic(tensor, 0) before such a call, where tensor is what the caller gives as x" in str(found.remedy)


def broken(x: Tensor) -> Tensor:
    y = x.relu() + 1
    torch._dynamo.graph_break()
    return y * 2


def held_on_the_stack(x: Tensor) -> Tensor:
    return (x.relu() + 1) + broken(x)


@pytest.mark.by_dynamo("asks for Dynamo's words of a recompile", "broken", "held_on_the_stack")
@pytest.mark.parametrize("function", [broken, held_on_the_stack])
def test_values_made_before_a_break_are_never_to_be_marked(function: Callable[[Tensor], Tensor]) -> None:
    compiled = lamina.compile(function, backend="eager")
    for n in (3, 5):
        compiled(torch.ones(n))
    held = [d for d in compiled_again(compiled) if d.code == "LM1116"]
    assert held
    for decision in held:
        assert "___stack" not in decision.reason
        assert "mark_dynamic" not in decision.remedy
        assert "broken(x)" in (line := line_at(str(dict(decision.facts)["line"]))) or "graph_break" in line
        assert "dynamic=True" in decision.remedy
    torch.compiler.reset()
    again = lamina.compile(function, backend="eager", dynamic=True)
    for n in (3, 5):
        again(torch.ones(n))
    assert not compiled_again(again)


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.ones(3))
        self.times = 2

    def forward(self, x: Tensor) -> Tensor:
        return x * self.table.sum() * self.times


@pytest.mark.by_dynamo("asks for Dynamo's words of a recompile")
def test_sizes_of_buffers_follow_their_advice() -> None:
    def run(**options: Any) -> list[Decision]:
        torch.compiler.reset()
        model = Holder()
        compiled = lamina.compile(model, backend="eager", **options)
        for n in (3, 5, 6):
            model.table = torch.ones(n)
            compiled(torch.ones(4))
        return compiled_again(compiled)

    first, second = run(dynamic=True)
    assert (first.code, second.code) == ("LM1117", "LM1117")
    assert first.reason == "size 0 of self.table was 3 and is 5"
    assert "torch._dynamo.config.force_parameter_static_shapes = False" in first.remedy
    with torch._dynamo.config.patch(force_parameter_static_shapes=False):
        assert not run(dynamic=True)


@pytest.mark.by_dynamo("asks for Dynamo's words of a recompile")
def test_integers_of_modules_follow_their_advice() -> None:
    def run(**options: Any) -> list[Decision]:
        torch.compiler.reset()
        model = Holder()
        compiled = lamina.compile(model, backend="eager", **options)
        for times in (2, 3, 4):
            model.times = times
            compiled(torch.ones(4))
        return compiled_again(compiled)

    assert [d.code for d in run(dynamic=True)] == ["LM1122", "LM1122"]
    with torch._dynamo.config.patch(allow_unspec_int_on_nn_module=True):
        assert not run(dynamic=True)


@pytest.mark.by_dynamo("asks for Dynamo's words of a recompile")
def test_what_is_read_from_outside_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    table = torch.ones(3)

    def around(x: Tensor) -> Tensor:
        return x * table.sum()

    def world(x: Tensor) -> Tensor:
        return x * TABLE.sum() * SCALE

    compiled, other = lamina.compile(around, backend="eager"), lamina.compile(world, backend="eager")
    compiled(torch.ones(4))
    other(torch.ones(4))
    table = torch.ones(5)
    compiled(torch.ones(4))
    [found] = compiled_again(compiled)
    assert found.code == "LM1118"
    assert "mark_dynamic(table, 0) where table is set" in found.remedy
    monkeypatch.setitem(globals(), "TABLE", torch.ones(6))
    other(torch.ones(4))
    monkeypatch.setitem(globals(), "SCALE", 4)
    other(torch.ones(4))
    size, number = compiled_again(other)
    assert (size.code, size.reason) == ("LM1118", "size 0 of TABLE was 3 and is 6")
    assert (number.code, number.reason) == ("LM1123", "SCALE was 3 and is 4")


@pytest.mark.by_dynamo("asks for Dynamo's words of a recompile")
def test_sizes_that_happened_to_be_equal_follow_their_advice() -> None:
    def run() -> list[Decision]:
        torch.compiler.reset()
        compiled = lamina.compile(lambda x, y: (x * 2, y * 3), backend="eager", dynamic=True)
        compiled(torch.ones(3), torch.ones(3))
        compiled(torch.ones(4), torch.ones(5))
        return compiled_again(compiled)

    [found] = run()
    assert found.code == "LM1124"
    assert "x.size()[0] is 4" in found.reason
    assert "y.size()[0] is 5" in found.reason
    with torch.fx.experimental._config.patch(use_duck_shape=False):
        assert not run()


def fixing(x: Tensor) -> Tensor:
    return x + 1 if x.shape[0] == 5 else x * 2


def counting(x: Tensor, n: int) -> Tensor:
    for _ in range(n):
        x = x + 1
    return x


def flagged(x: Tensor, b: Tensor | None) -> Tensor:
    return x if b is None else x * b


def summed(parts: dict[str, Tensor]) -> Tensor:
    return sum(parts.values(), torch.zeros(3))


def inference(n: int) -> Tensor:
    with torch.inference_mode():
        return torch.ones(n)


CASES: dict[str, tuple[Callable[..., Any], list[tuple[Any, ...]], str, str]] = {
    "one": (scaled, [(torch.ones(3), 2), (torch.ones(1), 2)], "LM1119", "size 0 of x was 3 and is 1"),
    "one of any": (
        scaled,
        [(torch.ones(4), 2), (torch.ones(5), 2), (torch.ones(1), 2)],
        "LM1119",
        "2 or more and is 1",
    ),
    "fixed number": (counting, [(torch.ones(3), n) for n in (2, 3, 4)], "LM1121", "n was 3 and is 4"),
    "none": (flagged, [(torch.ones(3), torch.ones(3)), (torch.ones(3), None)], "LM1110", "NoneType now"),
    "keys": (
        summed,
        [({"a": torch.ones(3)},), ({"b": torch.ones(3)},)],
        "LM1127",
        "'a' was expected, and",
    ),
    "inference": (
        scaled,
        [(torch.ones(3), 2), (inference(3), 2)],
        "LM1125",
        "is one made under torch",
    ),
    "lazy": (
        scaled,
        [(torch.ones(3) * 1j, 2), ((torch.ones(3) * 1j).conj(), 2)],
        "LM1126",
        "x was an ordinary tensor and is a lazy view",
    ),
}


@pytest.mark.by_dynamo(
    "asks for Dynamo's words of a recompile", "fixed number", "inference", "keys", "none", "one", "one of any"
)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_each_cause_has_a_code_of_its_own(case: Any) -> None:
    function, calls, code, words = case
    compiled = lamina.compile(function, backend="eager")
    for given in calls:
        compiled(*given)
    found = compiled_again(compiled)[-1]
    assert found.code == code
    assert words in found.reason
    assert found.remedy


@pytest.mark.by_dynamo("asks for Dynamo's words of a recompile")
def test_a_size_that_the_program_fixes_is_no_matter_of_dynamic() -> None:
    compiled = lamina.compile(fixing, backend="eager", dynamic=True)
    for n in (5, 8):
        compiled(torch.ones(n))
    [found] = compiled_again(compiled)
    assert found.code == "LM1120"
    assert "do not help" in found.remedy


@pytest.mark.parametrize(
    ("context", "code"),
    [(torch.no_grad(), "LM1111"), (torch.autocast("cpu"), "LM1128")],
    ids=["grad mode", "autocast"],
)
def test_states_of_torch_are_told_apart(context: Any, code: str) -> None:
    compiled = lamina.compile(scaled, backend="eager")
    compiled(torch.ones(3), 2)
    with context:
        compiled(torch.ones(3), 2)
    assert [d.code for d in compiled_again(compiled)] == [code]


def test_requires_grad_of_parameters_is_told_the_right_way_round() -> None:
    model = nn.Linear(3, 3)
    compiled = lamina.compile(model, backend="eager")
    compiled(torch.ones(3))
    model.requires_grad_(False)
    compiled(torch.ones(3))
    [found] = compiled_again(compiled)
    assert found.reason.endswith("was True and is False")
    assert "_parameters" not in found.reason


STANCES: dict[str, tuple[Callable[..., Any], list[tuple[Any, ...]], str]] = {
    "int": (scaled, [(torch.ones(3), 2), (torch.ones(3), 7)], r"n was 2 and is 7 \[LM1106\]"),
    "float": (scaled, [(torch.ones(3), 2.5), (torch.ones(3), 3.5)], r"n was 2.5 and is 3.5 \[LM1106\]"),
    "symbol": (counting, [(torch.ones(3), 2), (torch.ones(3), 3), (torch.ones(3), 4)], r"n was 3 and is 4, and a line"),
    "bool": (scaled, [(torch.ones(3), True), (torch.ones(3), False)], r"n was True and is False \[LM1107\]"),
    "type": (scaled, [(torch.ones(3), True), (torch.ones(3), 5)], r"n was True and is 5 \[LM1107\]"),
    "after a break": (broken, [(torch.ones(3),), (torch.ones(4),)], r"size 0 of x was 3 and is 4 \[LM1101\]"),
}


COMPILED: dict[str, Callable[[Any], Any]] = {
    "by lamina": lambda function: lamina.compile(function, backend="eager"),
    "behind torch": lambda function: torch.compile(function, backend="lamina"),
}


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("how", COMPILED)
@pytest.mark.parametrize("case", STANCES.values(), ids=STANCES)
def test_the_stance_says_the_fact_and_both_values(case: Any, how: str) -> None:
    function, calls, words = case
    torch.compiler.reset()
    compiled = COMPILED[how](function)
    for given in calls[:-1]:
        compiled(*given)
    with torch.compiler.set_stance("fail_on_recompile"), pytest.raises(RecompileRefused, match=words) as raised:
        compiled(*calls[-1])
    assert Path(__file__).name in str(raised.value)
    compiled(*calls[-1])


def test_symbols_pass_the_stance() -> None:
    compiled = lamina.compile(scaled, backend="eager")
    for n in (2, 3, 2.5, 3.5):
        compiled(torch.ones(3), n)
    with torch.compiler.set_stance("fail_on_recompile"):
        assert torch.equal(compiled(torch.ones(3), 9), torch.full((3,), 9.0))
        assert torch.equal(compiled(torch.ones(3), 9.5), torch.full((3,), 9.5))


def test_what_was_never_compiled_is_said_by_the_stance() -> None:
    compiled = lamina.compile(scaled, backend="eager")
    with torch.compiler.set_stance("fail_on_recompile"), pytest.raises(RecompileRefused, match="not compiled before"):
        compiled(torch.ones(3), 2)
