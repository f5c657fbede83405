"""Compiling ahead: jobs, processes that fail or die, and that nothing they timed is kept."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch._dynamo.utils import counters
from torch._inductor.codecache import CacheBase, FxGraphCache, LocalCache
from torch._inductor.runtime import benchmarking

from benchmarks import gpu_machine
from benchmarks.prefill import crew, torch_private
from benchmarks.prefill.crew import Deadline, Job, prefill
from tests.runtime.conftest import await_that

CHILD = f"""
import json, os, sys, time
from pathlib import Path
cache = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
for line in sys.stdin:
    job = json.loads(line)
    if job["row"] == "dies":
        print("out of luck", file=sys.stderr, flush=True)
        os._exit(1)
    if job["row"] == "hangs":
        (cache / f"hanging_{{os.getpid()}}").touch()
        while True:
            time.sleep(1)
    problem = "ValueError: no" if job["row"] == "fails" else ""
    (cache / f"{{job['row']}}.best_config").write_text("fast")
    (cache / f"{{job['row']}}.cubin").write_text(os.environ["TORCHINDUCTOR_COMPILE_THREADS"])
    print("noise", flush=True)
    print({crew.ANSWER!r} + json.dumps({{**job, "seconds": 1.0, "timed": 2, "problem": problem}}), flush=True)
"""


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    return tmp_path


class Told(Deadline):
    """A deadline that comes when the test says so."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self.come, self.actions = threading.Event(), list[Callable[[], None]]()

    def passed(self) -> bool:
        return self.come.is_set()

    def then(self, action: Callable[[], None]) -> Callable[[], None]:
        self.actions.append(action)
        return lambda: self.actions.remove(action)

    def comes(self) -> None:
        self.come.set()
        for action in list(self.actions):
            action()


def _prefill(rows: list[str], end: Deadline | None = None) -> dict[str, str]:
    command = [sys.executable, "-u", "-c", CHILD]
    outcomes = prefill(command, [Job(row, "torch") for row in rows], 2, 3, end or Told())
    return {outcome.row: outcome.problem for outcome in outcomes}


def test_a_process_that_dies_costs_its_own_job_only(cache: Path) -> None:
    found = _prefill(["a", "dies", "fails", "b", "c"])
    assert found == {"a": "", "dies": "the process died: out of luck", "fails": "ValueError: no", "b": "", "c": ""}


def test_compiled_code_stays_and_schedules_chosen_go(cache: Path) -> None:
    earlier = cache / "earlier.best_config"
    earlier.write_text("measured well")
    os.utime(earlier, (time.time() - 100,) * 2)
    _prefill(["a"])
    assert {path.name for path in cache.iterdir()} == {"earlier.best_config", "a.cubin"}
    assert (cache / "a.cubin").read_text() == "3"


def test_time_is_limited(cache: Path) -> None:
    end = Told()
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(_prefill, ["hangs", "hangs", "a"], end)
        await_that(lambda: len(list(cache.glob("hanging_*"))) == 2)
        end.comes()
        assert found.result() == {"hangs": "out of time"}


def test_a_deadline_comes_by_the_clock() -> None:
    assert Deadline(0.0).passed()
    assert not Deadline(1e6).passed()
    happened = threading.Event()
    Deadline(0.0).then(happened.set)
    assert happened.wait(300)
    Deadline(1e6).then(happened.clear)()


def test_what_was_chosen_by_timing_is_not_cached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    saved: list[str] = []
    monkeypatch.setattr(FxGraphCache, "_save_graph", staticmethod(saved.append))
    monkeypatch.setattr(CacheBase, "get_local_cache_path", CacheBase.get_local_cache_path)
    monkeypatch.setattr(benchmarking, "benchmarker", SimpleNamespace(benchmark_gpu=None))
    monkeypatch.setitem(counters, "inductor", counters["inductor"].copy())
    begin = torch_private.keep_no_timings(tmp_path)
    save = FxGraphCache._save_graph
    save("nothing timed")  # type: ignore[call-arg, arg-type]
    counters["inductor"]["pad_mm_bench"] += 1
    save("a product timed")  # type: ignore[call-arg, arg-type]
    LocalCache().set_value("product", value={"seconds": 1})
    assert LocalCache().lookup("product") == {"seconds": 1}
    begin()
    save("the next, nothing timed")  # type: ignore[call-arg, arg-type]
    assert LocalCache().lookup("product") is None
    assert saved == ["nothing timed", "the next, nothing timed"]
    assert torch_private.timed_choices() >= 1
    assert {path.parent for path in tmp_path.rglob("*") if path.is_file()} == {tmp_path}


@pytest.mark.parametrize("chosen", ["", "/a/user's/ptxas"])
def test_the_assembler_is_torchs_unless_the_user_names_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, chosen: str
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ptxas").touch()
    monkeypatch.setattr(gpu_machine.torch, "__file__", str(tmp_path / "__init__.py"))
    monkeypatch.setenv("TRITON_PTXAS_PATH", chosen)
    if not chosen:
        monkeypatch.delenv("TRITON_PTXAS_PATH")
    gpu_machine.one_assembler()
    assert os.environ["TRITON_PTXAS_PATH"] == (chosen or str(tmp_path / "bin" / "ptxas"))
