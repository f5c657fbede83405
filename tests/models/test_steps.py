"""Changing sizes, mixed precision and decoding with a cache, judged as in test_models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.compilers import CompileFunction
from lamina.testing import compare_draws
from tests.models.architectures import ARCHITECTURES, Architecture, case
from tests.models.steps import Autocast, Decoding
from tests.models.test_models import draws

NAMED = {a.name: a for a in ARCHITECTURES}
SIZES = (16, 11, 9, 8)


def _of_many_sizes(architecture: Architecture, model: nn.Module) -> Iterator[tuple[tuple[()], dict[str, Any]]]:
    for number, (args, inputs) in enumerate(draws(architecture, model, torch.float32)):
        yield args, {"x": inputs["x"][: SIZES[number % len(SIZES)]]}


def test_training_with_changing_sizes(compile: CompileFunction) -> None:
    model = case(NAMED["resnet_block"], torch.float32).model
    comparison = compare_draws(model, compile(model, dynamic=True), _of_many_sizes(NAMED["resnet_block"], model))
    assert comparison.ok, str(comparison)


def test_mixed_precision(compile: CompileFunction) -> None:
    model = case(NAMED["resnet_block"], torch.float32).model
    compiled = Autocast(model, compile(model, dynamic=False))
    comparison = compare_draws(Autocast(model), compiled, draws(NAMED["resnet_block"], model, torch.float32))
    assert comparison.ok, str(comparison)


@pytest.mark.parametrize("cache", ["static", pytest.param("dynamic", marks=pytest.mark.slow)])
def test_decoding(compile: CompileFunction, cache: str) -> None:
    model = case(NAMED["llama"], torch.float32).model
    compiled = Decoding(model, compile(model, dynamic=None), cache == "static")

    def prompts() -> Iterator[tuple[tuple[Tensor, int], dict[str, Any]]]:
        for _, inputs in draws(NAMED["llama"], model, torch.float32):
            yield (inputs["input_ids"], 4), {}

    comparison = compare_draws(Decoding(model, static=cache == "static"), compiled, prompts(), grads=False)
    assert comparison.ok, str(comparison)
