"""The record holds each decision once, and no stage reads what another one noted."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

import pytest
import torch

import lamina.backends.cpu as cpu_backend
from benchmarks import corpus
from lamina.base.reasons import registered
from lamina.record import Record
from tests.architecture.source import dotted, sources

READERS = tuple(
    f"lamina.{name}" for name in ("record", "stats", "summary", "blame", "report", "explain", "cli", "testing", "bench")
)
"""What reports, and what looks for faults, reads the log; nothing that compiles does."""

NAMES = ("generated_", "operator_linalg.householder_product.training", "pattern_batch_norm_relu.fp32.training")


def repeated(record: Record) -> list[object]:
    counts = Counter(
        (stage.region, decision.kind, decision.subject, decision.reason)
        for stage in record.stages
        for decision in stage.decisions
    )
    return [decision for decision, count in counts.items() if count > 1]


@pytest.fixture(autouse=True)
def _nothing_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_backend, "build_together", corpus._not_built)


def records(program: corpus.Program) -> Iterator[Record]:
    torch.compiler.reset()
    made: list[Record] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "_sections", lambda record: made.append(record) or ())
        corpus.texts(program)
    yield from made


def uncoded(record: Record) -> list[object]:
    known = {code.number for section in registered() for code in section}
    return [decision for decision in record.decisions() if decision.code not in known or not decision.reason]


def test_each_decision_is_recorded_once_and_has_a_code() -> None:
    programs = [p for p in corpus.programs(4, 1) if p.name.startswith(NAMES)]
    found = {p.name: (*repeated(r), *uncoded(r)) for p in programs for r in records(p) if repeated(r) or uncoded(r)}
    assert len(programs) >= 10
    assert not found


def test_the_log_is_no_data_of_stages() -> None:
    wrong = []
    for file in sources():
        if file.module.startswith(READERS):
            continue
        for node in ast.walk(file.tree):
            log = isinstance(node, ast.Attribute) and dotted(node.value).split(".")[-1] == "record"
            if log and node.attr in ("stages", "decisions", "seconds"):
                wrong.append(file.at(node))
    assert not wrong
