"""The architectures of tests/models on a GPU, judged as there: errors against fp64 at most twice eager's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import transformers

from benchmarks.compilers import CompileFunction
from lamina.testing import compare_draws
from tests.models.architectures import ARCHITECTURES, Architecture, case
from tests.models.test_models import DTYPES, MIXTRAL, PLAIN, batched, decided, decoded, draws

GRADS = pytest.mark.parametrize("grads", [True, False], ids=["training", "inference"])


@pytest.fixture(autouse=True)
def as_in_tests_models() -> Iterator[None]:
    """Products of fp32 as exact as on a CPU, and no notes about packages that are missing."""
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield
    transformers.logging.set_verbosity(verbosity)


@GRADS
@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("architecture", PLAIN, ids=lambda a: a.name)
def test_model(compile: CompileFunction, architecture: Architecture, dtype: str, grads: bool) -> None:
    model = case(architecture, DTYPES[dtype], device="cuda").model
    inputs = draws(architecture, model, DTYPES[dtype], device="cuda")
    comparison = compare_draws(model, compile(model, dynamic=False), inputs, grads=grads)
    assert comparison.ok, str(comparison)


@GRADS
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_mixture_of_experts(compile: CompileFunction, dtype: str, grads: bool) -> None:
    model = case(MIXTRAL, DTYPES[dtype], device="cuda").model
    compiled = compile(model, dynamic=False)
    inputs = decided(model, DTYPES[dtype], device="cuda")
    comparison = compare_draws(model, compiled, inputs, grads=grads, widened=batched)
    assert comparison.ok, str(comparison)


def test_generation_with_a_cache(compile: CompileFunction) -> None:
    gpt2 = next(a for a in ARCHITECTURES if a.name == "gpt2")
    model = case(gpt2, torch.float32, device="cuda").model
    compiled = compile(model, dynamic=True)
    torch.manual_seed(1)
    prompt = torch.randint(3, 61, (2, 4)).cuda()
    with torch.no_grad():
        assert torch.equal(decoded(compiled, prompt), decoded(model, prompt))
