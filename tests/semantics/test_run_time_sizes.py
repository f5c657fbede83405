"""Sizes and numbers that come from data: compiled where Dynamo captures them, right where it breaks the graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lamina
from benchmarks.compilers import CompileFunction
from lamina.record import Record
from lamina.testing.fuzz import unbacked
from tests.semantics.program import cotangent
from tests.semantics.run_time_sizes import ASSERTIONS, PROGRAMS, Program
from tests.semantics.torch_private import check, mark_unbacked, sizes_from_data_captured, tree_leaves

SAMPLE = (
    *("slice_by_item", "arithmetic_of_items", "float_arithmetic", "tolist_split", "item_after_item", "boolean_mask"),
    *("write_by_places", "unique_with_inverse", "bincount", "repeat_interleave_of_rows", "mask_beside_cond"),
    *("own_operation_with_two_sizes", "gradient_of_a_masked_result", "gradient_of_a_norm", "item_returned"),
)
"""Programs of every class, run in each test run; the others are slow together."""


@pytest.fixture
def captured() -> Iterator[None]:
    """Dynamo captures numbers and sizes that come from data."""
    with sizes_from_data_captured():
        yield


def _run(function: Any, args: tuple[Any, ...]) -> tuple[list[Any], list[Any], list[Any]]:
    """Results, gradients, and the arguments afterwards."""
    results = tree_leaves(function(*args))
    trained = [(i, t) for i, t in enumerate(results) if isinstance(t, Tensor) and t.requires_grad]
    if trained:
        torch.autograd.backward([t for _, t in trained], [cotangent(t, i) for i, t in trained])
    plain = [t.detach() if isinstance(t, Tensor) else t for t in results]
    return plain, [a.grad for a in args if a.grad is not None], [a.detach() for a in args]


def _agree(program: Program, compiled: Any) -> None:
    for mine, theirs in zip(program.calls(), program.calls(), strict=True):
        found, wanted = _run(compiled, mine), _run(program.function, theirs)
        assert [type(v) for v in found[0]] == [type(v) for v in wanted[0]]
        torch.testing.assert_close(found, wanted, equal_nan=True)


_SAMPLED = [pytest.param(n, marks=() if n in SAMPLE else pytest.mark.slow) for n in PROGRAMS]


@pytest.mark.by_dynamo(
    "numbers and sizes from data end a graph of the own front end", "gradient_of_a_norm-sizes_as_found"
)
@pytest.mark.sampled(one_in=20)
@pytest.mark.parametrize("dynamic", [None, True], ids=["sizes_as_found", "dynamic"])
@pytest.mark.parametrize("name", _SAMPLED)
def test_whole_graphs(compile: CompileFunction, captured: None, name: str, dynamic: bool | None) -> None:
    whole = name not in ("branch_in_python", "loop_in_python")
    _agree(PROGRAMS[name], compile(PROGRAMS[name].function, fullgraph=whole, dynamic=dynamic))


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize(
    "dynamic", [None, pytest.param(True, marks=pytest.mark.slow)], ids=["sizes_as_found", "dynamic"]
)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in SAMPLE[::3] else pytest.mark.slow) for n in PROGRAMS]
)
def test_broken_graphs(compile: CompileFunction, name: str, dynamic: bool | None) -> None:
    _agree(PROGRAMS[name], compile(PROGRAMS[name].function, dynamic=dynamic))


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("dynamic", [None, True], ids=["sizes_as_found", "dynamic"])
@pytest.mark.parametrize("name", list(ASSERTIONS))
def test_assertions_fail_when_the_graph_runs(
    compile: CompileFunction, captured: None, name: str, dynamic: bool | None
) -> None:
    program = ASSERTIONS[name]
    compiled = compile(program.function, dynamic=dynamic)
    failed = 0
    for mine, theirs in zip(program.calls(), program.calls(), strict=True):
        try:
            wanted = _run(program.function, theirs)
        except Exception as error:
            failed += 1
            with pytest.raises(type(error)):
                _run(compiled, mine)
            torch.testing.assert_close([a.detach() for a in mine], [a.detach() for a in theirs])
        else:
            torch.testing.assert_close(_run(compiled, mine), wanted)
    assert failed


def _record(function: Any, *args: Any) -> Record:
    compiled = lamina.compile(function, fullgraph=True, options={"strict": True})
    compiled(*args)
    return compiled.record  # type: ignore[no-any-return]


@pytest.mark.by_dynamo("numbers and sizes from data end a graph of the own front end")
def test_what_runs_between_segments_is_in_the_record(captured: None, compile: CompileFunction) -> None:
    def program(x: Tensor) -> Tensor:
        return (x.exp() * 2)[x > 0].sin() + 1

    record = _record(program, torch.randn(5, 4))
    decisions = record.decisions("segments")
    cutting = [d for d in decisions if not d.taken]
    assert any(d.subject[0].startswith("aten.") and "known only at run time" in d.reason for d in cutting)
    assert [d.reason for d in decisions if d.taken] == ["compiled in 2 segments"]
    assert not [stage for stage in record.stages if stage.name == "aten"]
    assert len([stage for stage in record.stages if stage.name == "lower"]) == 2


@pytest.mark.by_dynamo("numbers and sizes from data end a graph of the own front end")
def test_control_flow_left_to_torch_is_in_the_record(captured: None, compile: CompileFunction) -> None:
    def program(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (x * 2,)) + 1  # type: ignore[no-any-return]

    decisions = _record(program, torch.randn(5, 4)).decisions("segments")
    assert [d.subject[0] for d in decisions if not d.taken] == ["cond"]


@pytest.mark.by_dynamo("numbers and sizes from data end a graph of the own front end")
def test_segments_do_not_wait_for_what_they_do_not_need(captured: None, compile: CompileFunction) -> None:
    def program(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        k = n.sum().item()
        return x.exp() * 2 + 1, (x + 1).sum(0) * k

    record = _record(program, torch.randn(5, 4), torch.tensor([2, 1]))
    assert [d.reason for d in record.decisions("segments") if d.taken] == ["compiled in 2 segments"]


def test_a_size_that_is_computed_is_not_asked_of_what_comes_later() -> None:
    def program(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        part = x[: min(abs(k), x.shape[0])].transpose(0, -1) + 1
        return part * (k > 0), part + k * 2

    compiled = lamina.compile(program, backend="interp", options={"strict": True})
    for k in (1, 2, -3):
        x = torch.arange(16.0).reshape(4, 4).requires_grad_()
        torch.testing.assert_close(compiled(x, k), program(x, k))


@pytest.mark.by_dynamo("numbers and sizes from data end a graph of the own front end")
def test_failed_traces_leave_no_symbols(captured: None, compile: CompileFunction) -> None:
    def program(x: Tensor) -> Tensor:
        return x.nonzero().float().softmax(0)

    record = _record(program, torch.tensor([1.0, 0.0, 2.0]))
    (traced_per_call,) = record.decisions("joint tracing")
    assert not traced_per_call.taken


def test_private_names_mean_what_we_take_them_to_mean() -> None:
    with pytest.raises(RuntimeError, match="because"):
        check(False, lambda: "because")
    assert tree_leaves([1, {"a": (2, 3)}]) == [1, 2, 3]


def test_sizes_marked_as_unbacked(compile: CompileFunction) -> None:
    def program(x: Tensor) -> Tensor:
        return (x.sin() * 2).sum(0) + x.size(0)

    compiled = compile(program, fullgraph=True)
    for count in (5, 1, 0, 9):
        x = torch.randn(count, 4)
        mark_unbacked(x, 0)
        torch.testing.assert_close(compiled(x), program(x))


@pytest.mark.by_dynamo("numbers and sizes from data end a graph of the own front end")
def test_assertions_keep_their_message(captured: None, compile: CompileFunction) -> None:
    def program(x: Tensor, n: Tensor) -> Tensor:
        k = n.sum().item()
        check(k < 10, lambda: "more than ten of them")
        return x * k

    compiled = compile(program, fullgraph=True)
    x = torch.randn(4)
    torch.testing.assert_close(compiled(x, torch.tensor([2, 3])), x * 5)
    with pytest.raises(RuntimeError):
        compiled(x, torch.tensor([20, 3]))
    torch.testing.assert_close(compiled(x, torch.tensor([0, -3])), x * -3)


@pytest.mark.by_dynamo("numbers and sizes from data end a graph of the own front end")
def test_what_torch_cannot_trace_runs_as_it_is(captured: None) -> None:
    def program(x: Tensor) -> Tensor:
        y = x[x > 0]
        return (y - y.mean()) / (y.std() + 1)  # the deviation's gradient asks how many elements there are

    compiled = lamina.compile(program, fullgraph=True)
    mine, theirs = torch.linspace(-1, 2, 12).requires_grad_(), torch.linspace(-1, 2, 12).requires_grad_()
    torch.testing.assert_close(_run(compiled, (mine,)), _run(program, (theirs,)))
    (decision,) = compiled.record.decisions("eager")
    assert "only a run tells" in decision.reason


def test_a_number_of_the_data_where_a_lowering_computes_with_it() -> None:
    """A threshold is rounded while compiling, which a number that only a run tells cannot be."""

    def function(x: Tensor, t: Tensor) -> tuple[Tensor, ...]:
        limit = t.item()
        return F.threshold(x, limit, 0.0), F.threshold(x, 0.0, limit), x.clamp(max=limit) * 2

    torch.compiler.reset()
    compiled = lamina.compile(function, options={"strict": True})
    with unbacked():
        for number in (2.0, 0.5, -1.0):
            x = torch.linspace(-3, 3, 12).reshape(4, 3)
            torch.testing.assert_close(compiled(x, torch.tensor(number)), function(x, torch.tensor(number)))
