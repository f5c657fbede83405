"""The sweep: generated programs run and are the same each time, findings are kept, slow ones are named with a cause.

No time is measured here: the clock is made up.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks import sweep
from benchmarks.sweeping import measure as measuring
from benchmarks.sweeping import neighbours, written
from benchmarks.sweeping.case import Case, Problem, Row, Skipped, Variant, shuffled, variants
from benchmarks.sweeping.grammar import ALL, cases, generated
from benchmarks.sweeping.harvest import harvested
from benchmarks.sweeping.journal import Journal
from benchmarks.sweeping.measure import Finding, measure
from benchmarks.sweeping.summary import cause, print_summary, suspects
from benchmarks.torch_private import kernels_of_inductor
from lamina.testing import tensors
from tests.ops.torch_private import operators, sample_of

SMALL = 1 / 256
RIVALS = ("eager", "aot_eager", "lamina")


def clock(**milliseconds: float) -> measuring.Timer:
    """A timer by which each rival takes the time given, whatever it does; every rival is called once."""

    def timer(calls: Mapping[str, Callable[[], Any]], variant: Variant, seconds: float) -> dict[str, Sequence[float]]:
        for call in calls.values():
            call()
        return {name: [milliseconds[name]] for name in calls}

    return timer


def row(function: Callable[..., Any], *shapes: tuple[int, ...], dtype: str = "fp32", mode: str = "forward") -> Row:
    def make(variant: Variant) -> Problem:
        torch.manual_seed(0)
        args = tuple(torch.randn(s).to(variant.torch_dtype).requires_grad_(variant.training) for s in shapes)
        return Problem(_own(function), args, args if variant.training else ())

    return Row(Case("test/function", ("view",), make), Variant(dtype, mode))


def _own(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: function(*args)


@pytest.mark.parametrize(("number", "dtype", "mode"), [(3, "bf16", "forward"), (8, "fp32", "training")])
def test_a_generated_program_is_measured_from_end_to_end(number: int, dtype: str, mode: str) -> None:
    case = generated(number, SMALL)
    timer = clock(eager=2.0, aot_eager=3.0, lamina=1.0)
    found = measure(Row(case, Variant(dtype, mode)), "lamina", RIVALS, 0.1, timer)
    assert (found.status, found.detail) == ("timed", "")
    assert found.speedups == {"eager": 2.0, "aot_eager": 3.0}
    assert found.best == 2.0
    assert not found.slower
    assert found.graphs >= 1
    assert found.kernels + found.libraries >= 1
    assert found.first_seconds.keys() == {"aot_eager", "lamina"}
    assert found.kinds == case.kinds
    assert set(found.kinds) <= set(ALL)


def test_numbers_give_the_same_programs_of_all_kinds() -> None:
    first, again = cases(150, scale=SMALL), cases(150, scale=SMALL)
    assert [c.text for c in first] == [c.text for c in again]
    assert len({c.text for c in first}) == 150
    assert {kind for c in first for kind in c.kinds} == set(ALL)
    text = "\n".join(c.text for c in first)
    assert all(f" {layout}\n" in text for layout in ("contiguous", "strided", "transposed", "channels_last"))


def test_generated_programs_run_in_eager_and_are_finite() -> None:
    for case in cases(40, seed=500, scale=SMALL):
        problem = case.make(Variant("fp32", "training"))
        value = problem.function(*problem.args)
        assert isinstance(value, Tensor)
        assert value.isfinite().all(), case.text
        assert all(leaf.is_leaf and leaf.requires_grad for leaf in problem.leaves)


def test_slower_than_the_better_rival_is_timed_again_and_the_median_counts() -> None:
    taken = iter([3.0, 1.0, 4.0])

    def timer(calls: Mapping[str, Any], variant: Variant, seconds: float) -> dict[str, Sequence[float]]:
        return {"eager": [2.0], "lamina": [next(taken)]}

    found = measure(row(torch.sin, (5, 5)), "lamina", ("eager", "lamina"), 0.1, timer)
    assert found.milliseconds == {"eager": 2.0, "lamina": 3.0}
    assert found.slower


def test_a_wrong_result_is_not_timed() -> None:
    found = measure(row(torch.sin, (64, 64)), "wrong", ("eager", "wrong"), 0.1, clock(eager=1.0, wrong=1.0))
    assert found.status == "differs"
    assert found.speedups == {}
    beside = measure(
        row(torch.sin, (64, 64)), "lamina", ("eager", "wrong", "lamina"), 0.1, clock(eager=1.0, lamina=1.0)
    )
    assert beside.status == "timed"
    assert "wrong" in beside.detail
    assert beside.speedups.keys() == {"eager"}


def test_what_has_no_gradient_and_what_eager_refuses_is_skipped() -> None:
    def refused(x: Tensor) -> Tensor:
        return x.view(7)

    for function, mode, reason in (
        (torch.argsort, "training", "no result has a gradient"),
        (refused, "forward", "eager raises RuntimeError"),
    ):
        found = measure(
            row(function, (4, 4), mode=mode), "lamina", ("eager", "lamina"), 0.1, clock(eager=1.0, lamina=1.0)
        )
        assert found.status == "skipped"
        assert found.detail.startswith(reason)


def test_every_program_has_its_first_turn_before_any_has_its_second() -> None:
    kinds = variants(("fp32", "bf16"), ("forward", "training"), "cpu", 1.0)
    rows = [Row(case, kind) for case in cases(20, scale=SMALL) for kind in kinds]
    ordered = shuffled(rows)
    assert sorted(r.name for r in ordered) == sorted(r.name for r in rows)
    assert len({r.case.name for r in ordered[:20]}) == 20
    assert len({(r.variant.dtype, r.variant.mode) for r in ordered[:20]}) == 4
    assert ordered == shuffled(rows[::-1])


def test_a_journal_remembers_by_versions_and_buries_the_dead(tmp_path: Path) -> None:
    path, now = tmp_path / "findings.jsonl", {"torch": "1", "lamina": "a"}
    journal = Journal(path, now)
    for name, rival in (("done", "lamina"), ("died", "lamina"), ("refused", "eager"), ("left", "torch")):
        journal.begin(name, rival)
    journal.note(Finding("done", "timed", speedups={"eager": 0.5}, text="program"))
    journal.stop("left")
    with path.open("a") as file:
        file.write('{"key": "cut o')
    again = Journal(path, now)
    assert again.has("done", "program")
    assert not again.has("done", "another program")
    assert {f.name: f.status for f in again.bury()} == {"died": "crash", "refused": "skipped"}
    assert again.findings["done"] == Finding("done", "timed", speedups={"eager": 0.5}, text="program")
    later = Journal(path, {**now, "lamina": "b"})
    assert later.findings == {}
    assert later.earlier["done"].slower


@pytest.mark.filterwarnings("ignore:lamina leaves")
def test_a_graph_left_to_eager_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    program = row(lambda x: torch.unsafe_chunk(x * 2, 2)[0].exp(), (64, 64))
    found = measure(program, "lamina", RIVALS, 0.1, clock(eager=0.8, aot_eager=3.0, lamina=1.0))
    assert found.slower
    assert "eager" in cause(found)
    assert "unsafe_chunk" in found.fallback
    print_summary([found], ["eager"])
    assert found.fallback in capsys.readouterr().out


def test_causes_come_from_the_record_and_from_who_is_faster() -> None:
    slow = Finding(
        "generated/1.fp32.forward",
        "timed",
        kinds=("scan", "view"),
        milliseconds={"eager": 1.0, "torch": 1.0, "lamina": 2.0},
        speedups={"eager": 0.5, "torch": 0.4},
        kernels=2,
        rival_kernels=2,
        graphs=1,
    )
    assert cause(slow) == "as many kernels, slower ones"
    assert cause(replace(slow, kernels=3)) == "more kernels than torch.compile's"
    assert cause(replace(slow, kernels=0, libraries=1)) == "library calls only"
    assert cause(replace(slow, fallback="region 12: no form | other")) == "left to eager: region N: no form"
    assert cause(replace(slow, graphs=0)) == "nothing was captured"
    eager_best = replace(slow, milliseconds={"eager": 1.0, "torch": 3.0}, speedups={"eager": 0.5, "torch": 1.5})
    assert cause(eager_best) == "eager's own kernels are faster than both"


def test_the_summary_names_the_slower_ones_by_cause(capsys: pytest.CaptureFixture[str]) -> None:
    common: dict[str, Any] = {
        "status": "timed",
        "kernels": 1,
        "graphs": 1,
        "milliseconds": {"eager": 1.0, "lamina": 1.0},
    }
    findings = [
        Finding("generated/1.fp32.forward", kinds=("scan",), speedups={"eager": 0.5}, text="def slow(): ...", **common),
        Finding("generated/2.bf16.training", kinds=("view", "scan"), speedups={"eager": 2.0}, **common),
        Finding("operators/sort.fp32.forward", "skipped", "because"),
    ]
    told = print_summary(findings, ["eager"], sources=1)
    assert told["by_status"] == {"timed": 2, "skipped": 1}
    assert told["slower"] == {"as many kernels, slower ones": ["generated/1.fp32.forward"]}
    assert told["means"]["all"]["best"] == pytest.approx(1.0)
    assert suspects(findings) == pytest.approx({"scan": 1.0, "view": 2.0})
    printed = capsys.readouterr().out
    assert "def slow()" in printed
    assert "skipped 1: because" in printed


def test_operators_stand_between_arithmetic_at_a_size_worth_timing() -> None:
    name = "special.entr"
    problem = next(c for c in neighbours.cases() if c.name == f"operators/{name}").make(Variant("fp32", "training"))
    first, rest, named = problem.args
    assert first.numel() >= 1 << 12
    assert problem.leaves
    expected = torch.special.entr(first * 0.875) * 0.5 + 0.25
    assert torch.equal(problem.function(first, rest, named), expected)
    with pytest.raises(Skipped, match="does not take this type"):
        neighbours._plan("bitwise_and", torch.float32, "cpu", 1.0)


def test_a_repeated_sample_keeps_what_is_no_tensor() -> None:
    sample = sample_of(operators()["cumsum"], (torch.float32,), largest=True)
    first, rest, named = neighbours.repeated(sample, neighbours._first, 5)
    assert first.shape == (5 * sample.input.shape[0], *sample.input.shape[1:])
    assert (rest, named) == (sample.args, sample.kwargs)


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    def forward(self, x: Tensor, *, gain: float) -> Tensor:
        out: Tensor = self.inner(x) * gain
        return out


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([_Block(), _Block()])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, gain=0.5)
        return x


@pytest.mark.parametrize("case", [pytest.param(c, id=c.name.partition("/")[2]) for c in written.cases()])
def test_a_program_written_by_hand_is_the_same_each_time_and_has_gradients(case: Case) -> None:
    problem, again = case.make(Variant("fp32", "training")), case.make(Variant("fp32", "training"))
    assert problem.function.__code__ is not again.function.__code__
    results, others = tensors(problem.function(*problem.args)), tensors(again.function(*again.args))
    assert all(torch.equal(a, b) for a, b in zip(results, others, strict=True))
    found = torch.autograd.grad(results, problem.leaves, results, allow_unused=True)
    assert all(t.isfinite().all() for t in [*results, *(g for g in found if g is not None)])
    assert any(g is not None for g in found)
    assert case.text.count("def ") >= 1


def test_submodules_are_harvested_once_of_each_class_with_their_arguments() -> None:
    parts = harvested(_Model(), {"x": torch.randn(4, 8)})
    assert [type(p.module) for p in parts] == [_Block, nn.Sequential]
    assert parts[0].kwargs == {"gain": 0.5}
    assert parts[0].args[0].shape == (4, 8)


@pytest.mark.parametrize("mode", ["forward", "training"])
def test_a_submodules_reference_has_its_parameters_in_double_precision(mode: str) -> None:
    torch.manual_seed(0)
    block = _Block().to(torch.bfloat16)

    def make(variant: Variant) -> Problem:
        x = torch.linspace(-1, 1, 32).reshape(4, 8).to(variant.torch_dtype).requires_grad_(variant.training)
        leaves = (*block.parameters(), x) if variant.training else ()
        return Problem(lambda args, kwargs: block(*args, **kwargs), ((x,), {"gain": 0.5}), leaves, module=block)

    found = measuring._exact(Row(Case("test/block", (), make), Variant("bf16", mode)))
    assert found is not None
    assert [t.dtype for t in found] == [torch.float64] * (4 if mode == "training" else 1)
    assert not torch.equal(found[0], block(make(Variant("bf16", mode)).args[0][0], gain=0.5).double())


def test_the_command_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sweep, "measure", partial(measure, timer=clock(eager=1.0, lamina=2.0)))
    journal, told = tmp_path / "j.jsonl", tmp_path / "told.json"
    common = ["--origins", "generated", "--scale", str(SMALL), "--rivals", "--dtypes", "fp32", "--modes", "forward"]
    common += ["--journal", str(journal), "--json", str(told), "--programs", "2", "--threads", "1"]
    assert sweep.main([*common, "--until", "1e11"]) == 0
    assert capsys.readouterr().out.count("SLOWER") == 2
    assert sweep.main([*common, "--until", "1e11"]) == 0
    assert capsys.readouterr().out == ""
    assert sweep.main([*common, "--report"]) == 0
    content = json.loads(told.read_text())
    assert content["measured"] == content["rows"] == 2
    assert content["slower"].keys() == {"generated/0.fp32.forward", "generated/1.fp32.forward"}


def test_workers_share_the_rows_and_one_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "j.jsonl"
    shares = []

    def supervise(argv: list[str], journal: Journal, *rest: object) -> None:
        share = argv[argv.index("--share") + 1]
        shares.append(share)
        journal.note(Finding(share, "timed", speedups={"eager": 2.0}))

    monkeypatch.setattr(sweep, "_supervise", supervise)
    args = sweep._arguments(["--device", "cuda", "--workers", "3", "--share", "1/2", "--journal", str(path)])
    journal = Journal(path, {"threads": args.threads})
    cut_short = Journal(path.with_suffix(".2.jsonl"), journal.versions)
    cut_short.note(Finding("of the run before", "timed"))
    sweep._side_by_side([], args, journal, 1e11)
    assert sorted(shares) == ["1/6", "3/6", "5/6"]
    assert Journal(path, journal.versions).findings.keys() == {*shares, "of the run before"}
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    with pytest.raises(SystemExit):
        sweep._arguments(["--workers", "3"])


def test_what_is_timed_is_timed_alone() -> None:
    held: list[str] = []

    class Alone:
        def __enter__(self) -> None:
            held.append("timed")

        def __exit__(self, *error: object) -> None:
            held.append("over")

    def timer(calls: Mapping[str, Callable[[], Any]], variant: Variant, seconds: float) -> dict[str, list[float]]:
        assert held == ["timed"]
        return {name: [1.0] for name in calls}

    row = Row(generated(0, SMALL), Variant("fp32", "forward"))
    found = measure(row, "lamina", ["eager", "lamina"], 0.1, timer, alone=Alone())
    assert found.status == "timed", found
    assert held == ["timed", "over"]


@pytest.mark.slow
def test_inductors_kernels_are_counted() -> None:
    compiled = torch.compile(lambda x: x.sin() + 1, dynamic=False)
    with kernels_of_inductor() as counted:
        assert counted() == 0
        compiled(torch.randn(31))
        assert counted() == 1


def test_on_a_gpu_its_own_clock_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def events(calls: Mapping[str, Any], samples: int, seconds: float, host_us: float) -> dict[str, float]:
        asked.append(list(calls))
        return dict.fromkeys(calls, 0.5)

    monkeypatch.setattr(measuring, "alternate_events", events)
    calls = {"eager": lambda: 1, "lamina": lambda: 2}
    assert measuring.timed_by_turns(calls, Variant("bf16", "forward", "cuda"), 0.1) == {"eager": [0.5], "lamina": [0.5]}
    assert asked == [["eager", "lamina"]]
