"""The engine's work in compiling a small GPT, rules firing in every layer, is small and grows with the layers."""

from __future__ import annotations

from collections import Counter
from typing import Any
from unittest import mock

import torch

import lamina
from benchmarks.gpt import batch
from benchmarks.rule_time import HandWrittenGPT, engine_time, measured
from lamina.rewrite.rewriting import Rewriting
from tests.effort import executed

LARGEST = 5_000_000
"""Instructions for two layers; a tenth of the time that this model takes to compile is about 6 million."""


def engine_work(layers: int) -> tuple[int, Counter[str]]:
    """Instructions that the engine executes while a model is compiled, and the rewrites that it makes."""
    torch.compiler.reset()
    torch.manual_seed(0)
    counts: list[int] = []

    def counted(method: Any) -> Any:
        def run(*args: Any) -> Any:
            results: list[Any] = []
            counts.append(executed(lambda: results.append(method(*args))))
            return results[0]

        return run

    model = lamina.compile(HandWrittenGPT(layers), dynamic=False)
    with (
        mock.patch.object(Rewriting, "captured", counted(Rewriting.captured)),
        mock.patch.object(Rewriting, "joint", counted(Rewriting.joint)),
    ):
        model(*batch()).backward()
    assert len(counts) == 2
    return sum(counts), Counter(str(d.subject[0]) for d in model.record.decisions("rewrite") if d.taken)


def test_rules_are_a_small_part_of_a_compilation_and_grow_with_the_layers() -> None:
    few, made = engine_work(2)
    assert made["layer norm by square, affine"] == 5
    assert made["softmax, shifted"] == 2
    assert few < LARGEST
    many, made = engine_work(4)
    assert made["softmax, shifted"] == 4
    assert many < 2 * few


def test_the_benchmark_times_the_engine() -> None:
    torch.compiler.reset()
    with engine_time() as seconds:
        sample = measured("by hand", layers=1)
    assert len(seconds) == 2
    assert sample.rewrites["softmax, shifted"] == 1
    assert 0 < sample.share < 1
