"""The tables of the README are what the committed measurements hold."""

from __future__ import annotations

import json
import re
from math import exp, log
from typing import Any

import pytest

from tests.architecture.source import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")

PATTERNS = str.split(
    "layer_norm rms_norm_residual group_norm_silu batch_norm_relu softmax log_softmax_odd cross_entropy smooth_l1"
    " bias_gelu swiglu rotary attention row_moments column_sum middle_mean full_variance transposed_add cumulative_sum"
    " adamw embedding"
)
MODELS = ["resnet50", "vit_base", "convnext_tiny", "bert_base", "gpt2", "llama_1b"]


def measured(name: str) -> dict[str, dict[str, Any]]:
    rows = json.loads((ROOT / f"benchmarks/results/{name}.json").read_text(encoding="utf-8"))["rows"]
    return {row["name"]: row for row in rows}


def table(head: str) -> list[list[str]]:
    """The cells of the table of the README whose first line begins so."""
    text = README[README.index(f"| {head} |") :].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("| ").split("|")] for line in text.splitlines()[2:]]


def mean(values: list[float]) -> float:
    return exp(sum(map(log, values)) / len(values))


def is_rounded(said: str, value: float) -> bool:
    return abs(float(said) - value) <= 0.5 * 10.0 ** -len(said.partition(".")[2]) + 1e-3


def test_the_models_on_a_gpu() -> None:
    rows, said = measured("gpu_models"), table("model")
    assert len(said) == len(MODELS)
    for name, (_, forward, training) in zip(MODELS, said, strict=True):
        assert is_rounded(forward, rows[f"{name}.forward"]["speedup"]), name
        assert is_rounded(training, rows[f"{name}.training"]["speedup"]), name


def test_the_blocks_on_a_gpu() -> None:
    rows = measured("gpu_blocks")
    said = [figure for cells in table("block") for figure in cells[1].split(", ")]
    assert len(said) == len(rows)
    assert all(map(is_rounded, said, [row["speedup"] for row in rows.values()]))
    ((device, caller),) = re.findall(r"blocks are at ([\d.]+) of .* and at ([\d.]+) by what a caller waits", README)
    assert is_rounded(device, mean([row["speedup"] for row in rows.values()]))
    assert is_rounded(caller, mean([row["wall_speedup"] for row in rows.values()]))


@pytest.mark.parametrize("column", ["eager", "torch"])
def test_the_patterns_on_a_cpu(column: str) -> None:
    rows = measured("cpu_patterns")
    for name, cells in zip(PATTERNS, table("against"), strict=True):
        found = [row["speedups"][column] for key, row in rows.items() if key.partition(".")[0] == name]
        assert found, name
        assert is_rounded(cells[1 if column == "eager" else 2], mean(found)), name
    ((torch, eager),) = re.findall(r"78 rows: ([\d.]+) times.*?([\d.]+) times eager's", README, re.DOTALL)
    assert is_rounded(
        {"torch": torch, "eager": eager}[column], mean([row["speedups"][column] for row in rows.values()])
    )
