"""Logs: a line for each event on channels of the module logging, nothing unless asked, and errors for other names."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._logging._internal import LazyTraceHandler, trace_log

import lamina
from lamina.base import logs
from lamina.base.decision import Decision
from lamina.base.logs import CHANNELS, enable_logs
from lamina.base.reasons import Reason
from lamina.record import Record


@pytest.fixture(autouse=True)
def _levels() -> Iterator[None]:
    torch.compiler.reset()
    yield
    for name in CHANNELS:
        logging.getLogger(f"lamina.{name}").setLevel(logging.NOTSET)


def function(x: Tensor) -> Tensor:
    y = x.softmax(-1)
    torch._dynamo.graph_break()
    return y.sum(0) + 1


@pytest.mark.by_dynamo("asks for the text of Dynamo's guards")
def test_channels_say_what_happens_in_one_line_each(caplog: pytest.LogCaptureFixture) -> None:
    compiled = lamina.compile(function, options={"logs": "graph_breaks, recompiles,cache"})
    compiled(torch.randn(4, 8))
    compiled(torch.randn(5, 8))
    ours = [r for r in caplog.records if r.name.startswith("lamina")]
    assert {r.name for r in ours} == {"lamina.graph_breaks", "lamina.recompiles", "lamina.cache"}
    assert not any("\n" in r.getMessage() for r in ours)
    texts = [r.getMessage() for r in ours if r.name == "lamina.recompiles"]
    assert any("[LM1101], size 0 of x was 4 and is 5" in text for text in texts)


def test_nothing_is_logged_unless_asked(caplog: pytest.LogCaptureFixture) -> None:
    lamina.compile(function)(torch.randn(4, 8))
    assert not [r for r in caplog.records if r.name.startswith("lamina")]


def test_the_code_is_logged_as_text(caplog: pytest.LogCaptureFixture) -> None:
    lamina.compile(lambda x: x * 2 + 1, options={"debug": 5})(torch.randn(4, 8))
    code = [r.getMessage() for r in caplog.records if r.name == "lamina.output_code"]
    assert any('extern "C"' in text for text in code)
    assert {r.name for r in caplog.records} >= {"lamina.fusion", "lamina.schedule", "lamina.lowering", "lamina.aot"}


def test_what_all_kernels_call_is_not_logged_with_each(caplog: pytest.LogCaptureFixture) -> None:
    compiled = lamina.compile(function, options={"logs": "output_code", "compare_eager": "off"})
    compiled(torch.randn(4, 8))
    told = "\n".join(r.getMessage() for r in caplog.records if r.name == "lamina.output_code")
    kernels = [stage for stage in compiled.record.stages if stage.name == "codegen"]
    assert len(kernels) == 2
    assert told.count('extern "C"') >= 2
    assert "def call(args)" in told
    assert len(told.splitlines()) < 400  # a kernel and what it calls together are thousands
    assert all(len(str(stage).splitlines()) > 1000 for stage in kernels)


def test_unknown_names_are_an_error_with_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(lamina.UnknownOption, match=r"'fusoin'.*\n.*did you mean 'fusion'.*graph_breaks"):
        lamina.compile(function, options={"logs": "fusoin"})
    monkeypatch.setenv("LAMINA_LOGS", "everything")
    with pytest.raises(lamina.UnknownOption, match="no log is called 'everything'"):
        lamina.compile(function)


def test_each_remedy_is_a_hint(caplog: pytest.LogCaptureFixture) -> None:
    enable_logs("perf_hints")
    record = Record("f")
    record.note("", "fuse", Decision("fuse", ("a", "b"), False, Reason("no", "LM9", "write it otherwise")))
    record.note("", "fuse", Decision("fuse", ("a", "b"), True, Reason("yes", "LM8")))
    assert [r.getMessage() for r in caplog.records] == ["f: a, b: no. Do: write it otherwise"]


def test_a_log_that_fails_fails_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug of the log")

    monkeypatch.setattr(logs, "_events", fail)
    torch.testing.assert_close(lamina.compile(lambda x: x + 1)(torch.ones(3)), torch.full((3,), 2.0))


def test_who_asked_torch_for_inductors_logs_is_told_of_ours(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logs, "_told", set())
    monkeypatch.setattr(logs, "enabled_torch_logs", lambda: frozenset({"output_code", "dynamo"}))
    for _ in range(2):
        torch.compiler.reset()
        lamina.compile(lambda x: x * 2 + 1)(torch.randn(4, 8))
    told = [r.getMessage() for r in caplog.records if r.name == "lamina"]
    assert told == ["TORCH_LOGS=output_code is Inductor's; LAMINA_LOGS=output_code shows Lamina's"]


def test_stages_are_in_torchs_structured_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, str] = {}
    monkeypatch.setattr(logs, "tracing", lambda: True)
    monkeypatch.setattr(logs, "traced", lambda name, text: found.update({name: text()}))
    lamina.compile(lambda x: x * 2 + 1)(torch.randn(4, 8))
    assert "def forward" in found["lamina_capture"]
    assert {"lamina_lambda0_inference_fuse", "lamina_lambda0_inference_codegen"} <= found.keys()


def test_nobody_hears_torchs_structured_trace_in_tests() -> None:
    """Its own handler lets go of it with the first line; pytest's would have all graphs written as text."""
    lamina.compile(lambda x: x * 3 + 1)(torch.randn(4, 8))
    assert not logs.tracing()


def test_torchs_handler_without_a_folder_is_no_reader(tmp_path: Path) -> None:
    """It is there until the first text: writing all facts of a stored call for it took longer than loading the call."""
    before = trace_log.handlers[:]
    try:
        trace_log.handlers[:] = [LazyTraceHandler(None)]
        assert not logs.tracing()
        trace_log.handlers[:] = [LazyTraceHandler(str(tmp_path))]
        assert logs.tracing()
    finally:
        trace_log.handlers[:] = before
