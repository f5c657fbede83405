"""Rows of the GPU benchmarks: how they are divided, merged, judged and printed."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import gpu_timing
from benchmarks.gpu_arguments import arguments, selected
from benchmarks.gpu_driver import _jobs
from benchmarks.gpu_programs import PROGRAMS
from benchmarks.gpu_report import GpuRow, kernels_found, main, merged, print_rows, summary
from benchmarks.gpu_timing import FEWEST_SAMPLES, alternate_wall
from benchmarks.report import machine
from lamina.record import Record
from lamina.runtime.triton_build import Cubin, TritonBuild


def _row(name: str, ours: float, torch: float, **more: Any) -> GpuRow:
    row = GpuRow(name, {"eager": 9.0, "torch": torch, "lamina": ours}, {"torch": 1.0, "lamina": 2.0}, **more)
    row.conclude("lamina", 4000.0, None)
    return row


def _content(rows: list[GpuRow], commit: str, gpu: str = "NVIDIA H200") -> dict[str, Any]:
    card = {"name": gpu, "copy_gbs": 4000.0, "gemm_bf16_tflops": 770.0}
    machine = {"cpu": "a", "python": "3.12", "versions": {}, "commit": commit, "time": "2026-01-01T00:00:00+00:00"}
    return {"machine": machine, "subject": "lamina", "gpu": card, "samples": 100, "rows": [asdict(r) for r in rows]}


def _chosen(*argv: str) -> list[str]:
    args = arguments(None, Path("none.json"), argv)
    return [f"{p.name}.{mode}" for p, mode in selected(PROGRAMS, args, args.json)]


def test_parts_hold_every_row_once_and_weigh_about_the_same() -> None:
    parts = [_chosen("--part", f"{k}/3") for k in (1, 2, 3)]
    assert sorted(name for part in parts for name in part) == sorted(_chosen())
    assert max(map(len, parts)) - min(map(len, parts)) <= 3
    trained = [sum(name.endswith(".training") for name in part) for part in parts]
    assert max(trained) - min(trained) <= 2


def test_parts_follow_what_is_known_of_the_rows(tmp_path: Path) -> None:
    known = tmp_path / "known.json"
    heavy = GpuRow("layer_norm.forward", seconds={"torch": 1000.0})
    light = [GpuRow(name, seconds={"torch": 1.0}) for name in _chosen() if name != heavy.name]
    known.write_text(json.dumps(_content([heavy, *light], "a")))
    args = arguments(None, known, ["--part", "1/2"])
    assert [f"{p.name}.{mode}" for p, mode in selected(PROGRAMS, args, known)] == [heavy.name]


def test_rows_come_from_a_list(tmp_path: Path) -> None:
    listed = tmp_path / "rows.txt"
    listed.write_text("# two\nlayer_norm.training\nsoftmax_1024.forward\n")
    assert _chosen("--row-list", str(listed)) == ["layer_norm.training", "softmax_1024.forward"]
    listed.write_text("layer_norm.backward\n")
    with pytest.raises(SystemExit, match=r"no row is called layer_norm\.backward"):
        _chosen("--row-list", str(listed))


@pytest.mark.parametrize("part", ["0/2", "3/2", "1", "a/b"])
def test_a_part_that_is_none_is_refused(part: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _chosen("--part", part)
    assert "is no part" in capsys.readouterr().err


def test_a_first_call_that_found_its_code_on_disk_is_not_called_cold(capsys: pytest.CaptureFixture[str]) -> None:
    cold, warm = _row("a.forward", 1.0, 2.0), _row("b.forward", 1.0, 2.0, prefilled=["torch"])
    assert summary([cold, warm], "lamina")["first_call_slower_than_torch"] == {"a.forward": [2.0, 1.0]}
    print_rows("rows", [cold, warm], "lamina", ["torch", "lamina"])
    printed = capsys.readouterr().out
    assert "in brackets: code found on disk" in printed
    assert printed.count("(1.0)") == 1


def test_merging_keeps_where_each_row_was_measured(tmp_path: Path) -> None:
    old = tmp_path / "all.json"
    once = merged([_content([_row("a.forward", 1.0, 2.0), _row("b.forward", 1.0, 0.5)], "old", "NVIDIA H100")])
    old.write_text(json.dumps({**once, "remark": "kept"}))
    new = tmp_path / "new.json"
    new.write_text(json.dumps(_content([_row("b.forward", 1.0, 4.0), _row("c.forward", 1.0, 2.0)], "")))
    assert main(["merge", str(new), "--into", str(old), "--commit", "new"]) == 0
    content = json.loads(old.read_text())
    stamps = {row["name"]: (row["measured"]["gpu"], row["measured"]["commit"]) for row in content["rows"]}
    assert stamps == {
        "a.forward": ("NVIDIA H100", "old"),
        "b.forward": ("NVIDIA H200", "new"),
        "c.forward": ("NVIDIA H200", "new"),
    }
    assert content["summary"]["rows"] == 3
    assert content["summary"]["geomean_over_best"] == pytest.approx(16 ** (1 / 3))
    assert not content["summary"]["slower_than_best"]
    assert content["remark"] == "kept"
    assert "eager, torch (3 rows)" in content["note"]


def test_what_a_later_run_did_not_look_for_is_that_of_an_earlier_run() -> None:
    cold = GpuRow("a.forward", {"torch": 2.0, "lamina": 1.0}, {"torch": 9.0, "max-autotune": 80.0, "lamina": 3.0})
    warm = GpuRow("a.forward", {"torch": 2.0, "lamina": 1.0}, {"torch": 0.5, "max-autotune": 0.6, "lamina": 2.5})
    cold.prefilled, warm.prefilled = ["max-autotune"], ["torch", "max-autotune"]
    cold.reference, cold.errors, warm.reference = "fp64", {"lamina": 0.5}, "none"
    (row,) = merged([_content([cold], "a"), _content([warm], "b")])["rows"]
    assert row["seconds"] == {"torch": 9.0, "max-autotune": 0.6, "lamina": 2.5}
    assert row["prefilled"] == ["max-autotune"]
    assert row["measured"]["commit"] == "b"
    assert row["measured"]["cold"] == {"rivals": ["torch"], "commit": "a"}
    assert (row["reference"], row["errors"], row["measured"]["errors"]) == ("fp64", {"lamina": 0.5}, {"commit": "a"})


def test_files_about_different_compilers_are_not_merged() -> None:
    with pytest.raises(ValueError, match="different compilers: lamina, torch"):
        merged([_content([], "a"), {**_content([], "a"), "subject": "torch"}])


def test_long_rows_are_compiled_first_then_mode_by_mode() -> None:
    jobs = _jobs(["a", "b", "c", "d"], ["max-autotune", "torch"], {"a": 1.0, "b": 2.0, "c": 90.0, "d": 1.0})
    order = [(job.row, job.rival) for job in jobs]
    assert order[:3] == [("c", "max-autotune"), ("c", "torch"), ("b", "max-autotune")]
    assert [row for row, rival in order if rival == "torch"] == ["c", "b", "a", "d"]


def test_what_a_caller_waits_is_compared_with_the_rival_that_waits_least(capsys: pytest.CaptureFixture[str]) -> None:
    row = _row("a.forward", 1.0, 2.0, wall_ms={"eager": 6.0, "torch": 8.0, "lamina": 4.0})
    assert (row.best, row.speedup, row.wall_speedup) == ("torch", 2.0, 1.5)
    print_rows("rows", [row, _row("b.forward", 1.0, 2.0)], "lamina", ["torch", "lamina"])
    timed = capsys.readouterr().out.partition("First call")[0]
    with_wall, without = (line.split("│") for line in timed.splitlines() if ".forward" in line)
    assert [cell.strip() for cell in with_wall[4:7]] == ["torch", "2.00", "1.50"]
    assert [cell.strip() for cell in without[4:7]] == ["torch", "2.00", "-"]
    counted = summary([row, _row("b.forward", 1.0, 2.0)], "lamina")
    assert (counted["geomean_wall_over_best"], counted["rows_with_wall"]) == (pytest.approx(1.5), 1)
    assert "geomean_wall_over_best" not in summary([_row("b.forward", 1.0, 2.0)], "lamina")


def test_rows_from_before_the_callers_time_are_read_and_merged() -> None:
    old, new = asdict(_row("a.forward", 1.0, 2.0)), _row("b.forward", 1.0, 2.0, wall_ms={"torch": 3.0, "lamina": 2.0})
    for name in ("wall_ms", "wall_speedup", "kernels"):
        del old[name]
    content = merged([{**_content([], "a"), "rows": [old]}, _content([new], "b")])
    rows = {row["name"]: row for row in content["rows"]}
    assert (rows["a.forward"]["wall_ms"], rows["b.forward"]["wall_ms"]) == ({}, {"torch": 3.0, "lamina": 2.0})
    assert math.isnan(rows["a.forward"]["wall_speedup"])
    assert rows["b.forward"]["wall_speedup"] == 1.5
    # A later run without it, twice, leaves it, and says which run it is of.
    again = merged([content, _content([_row("b.forward", 1.0, 4.0)], "c")])
    again = merged([again, _content([_row("b.forward", 1.0, 5.0)], "d")])
    row = {row["name"]: row for row in again["rows"]}["b.forward"]
    assert (row["wall_ms"], row["wall_speedup"], row["speedup"]) == ({"torch": 3.0, "lamina": 2.0}, 1.5, 5.0)
    assert (row["measured"]["commit"], row["measured"]["wall"]) == ("d", {"commit": "b"})


class _Queue:
    """A fake GPU and its clock: calls queue work, a synchronization waits for it and takes as long."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.queued = self.now = 0

    def call(self, name: str, ms: int) -> None:
        self.log.append(name)
        self.queued += ms * 10**6

    def flush(self) -> None:
        self.log.append("flush")
        self.queued += 2 * 10**6

    def synchronize(self) -> None:
        self.log.append("wait")
        self.now += self.queued
        self.queued = 0


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> _Queue:
    made = _Queue()
    clock = SimpleNamespace(perf_counter=lambda: made.now / 1e9, perf_counter_ns=lambda: made.now)
    monkeypatch.setattr(gpu_timing, "time", clock)
    return made


def test_a_caller_waits_for_the_gpu_but_not_for_the_flush(gpu: _Queue) -> None:
    calls = {"a": lambda: gpu.call("a", 1), "b": lambda: gpu.call("b", 20)}
    found = alternate_wall(calls, 3, 60.0, gpu.flush, gpu.synchronize)
    assert found == {"a": 1.0, "b": 20.0}
    assert [name for name in gpu.log if name in "ab"] == ["a", "b", "b", "a", "a", "b"]
    assert gpu.log[:4] == ["flush", "wait", "a", "wait"]
    assert len(gpu.log) == 4 * 6


def test_a_callers_time_has_at_least_ten_samples_where_time_is_short(gpu: _Queue) -> None:
    alternate_wall({"a": lambda: gpu.call("a", 1)}, 100, 0.0, gpu.flush, gpu.synchronize)
    assert gpu.log.count("a") == FEWEST_SAMPLES


def _build(keys: str, compiled: str) -> TritonBuild:
    cubins = {f"unit {key}": Cubin(key, "f", b"", (), 0, 128, 0, fresh=key in compiled) for key in keys}
    return TritonBuild(cubins, {}, len(keys) - len(compiled), len(compiled), 0.0)


def _record(*builds: TritonBuild) -> Record:
    record = Record()
    for build in builds:
        record.add("region", "build", build.seconds, build)
    return record


def test_a_subject_that_found_kernels_on_disk_made_no_cold_call() -> None:
    earlier: set[str] = set()
    # Candidates are compiled, and the winner found again: cold. The next row shares a kernel with this one: still cold.
    cold = kernels_found(_record(_build("abc", "abc"), _build("a", "a")), earlier)
    shared = kernels_found(_record(_build("ad", "ad")), earlier)
    warm = kernels_found(_record(_build("aefg", "ae")), earlier)
    assert cold == {"compiled": 3, "on_disk": 0, "earlier": 0}
    assert shared == {"compiled": 1, "on_disk": 0, "earlier": 1}
    assert warm == {"compiled": 1, "on_disk": 2, "earlier": 1}
    assert earlier == set("abcdefg")
    rows = [_row(name, 1.0, 2.0) for name in ("cold", "shared", "warm")]
    for row, kernels in zip(rows, (cold, shared, warm), strict=True):
        row.note(_record(), "lamina", kernels)
    assert [row.prefilled for row in rows] == [[], [], ["lamina"]]
    assert list(summary(rows, "lamina")["first_call_slower_than_torch"]) == ["cold", "shared"]


def test_results_say_which_variables_were_set_but_no_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMINA_NUMERICS", "eager")
    monkeypatch.setenv("LAMINA_CACHE_DIR", "somewhere")
    environment = machine()["environment"]
    assert environment["LAMINA_NUMERICS"] == "eager"
    assert "LAMINA_CACHE_DIR" not in environment
    content = _content([_row("a.forward", 1.0, 2.0)], "a")
    content["machine"]["environment"] = {"LAMINA_NUMERICS": "eager"}
    (row, plain) = merged([content, _content([_row("b.forward", 1.0, 2.0)], "a")])["rows"]
    assert row["measured"]["environment"] == {"LAMINA_NUMERICS": "eager"}
    assert "environment" not in plain["measured"]
