"""Forward and gradients of real architectures: errors against fp64 at most twice eager's.

The judge is ``lamina.testing.compare_draws``: one compiled model, eight draws of all its weights and inputs, and for
every output, gradient and buffer the mean of its errors (worst element and rms), at most twice eager's over the same
draws; nothing is forgiven, however small. Eight draws, because eager's error in one of them can be ten times smaller
than in the next: of a loss, or of a bias whose gradient is zero but for rounding. A tensor above twice eager's gets up
to 32. All of these models stay below 1.5 over many draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from benchmarks.compilers import CompileFunction, compile_function
from lamina.base.reference import copied, in_double
from lamina.testing import DRAWS, compare_draws, doubled
from tests.models.architectures import ARCHITECTURES, Architecture, case

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
PLAIN = [a for a in ARCHITECTURES if a.name != "mixtral"]
MIXTRAL = next(a for a in ARCHITECTURES if a.name == "mixtral")

FAST = ("bert", "llama", "resnet_block")
"""Inference of these is tested every time; a training step, which contains it, of all."""

TRAINED = [
    pytest.param(a, dtype, id=f"{a.name}-{dtype}", marks=[] if (place + k) % 2 else [pytest.mark.slow])
    for place, a in enumerate(PLAIN)
    for k, dtype in enumerate(DTYPES)
]
"""Each of them in one of the dtypes every time, in both at length."""

MOST_DRAWS = 4 * DRAWS

CLEAR_MARGIN = 0.04
"""Distance between the last expert chosen and the first not, in standard deviations of the router's logits, that
bfloat16 rounding of these models does not bridge."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Transformers' notes about missing CUDA packages are of no use here."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(before)


Draws = Iterator[tuple[tuple[()], dict[str, Any]]]


def draws(
    architecture: Architecture, model: nn.Module, dtype: torch.dtype, first: int = 1, device: str = "cpu"
) -> Draws:
    """Inputs of one call after another; ``model`` gets new weights before each."""
    for seed in range(first, first + MOST_DRAWS):
        drawn = case(architecture, dtype, seed, device)
        model.load_state_dict(drawn.model.state_dict())
        yield (), drawn.inputs


@pytest.mark.sampled(one_in=5)
@pytest.mark.parametrize(("architecture", "dtype"), TRAINED)
def test_training_step(compile: CompileFunction, architecture: Architecture, dtype: str) -> None:
    model = case(architecture, DTYPES[dtype]).model
    comparison = compare_draws(model, compile(model, dynamic=False), draws(architecture, model, DTYPES[dtype]))
    assert comparison.ok, str(comparison)


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize(
    "architecture",
    [a if a.name in FAST else pytest.param(a, marks=pytest.mark.slow) for a in PLAIN],
    ids=lambda a: a.name,
)
def test_inference(compile: CompileFunction, architecture: Architecture, dtype: str) -> None:
    model = case(architecture, DTYPES[dtype]).model
    inputs = draws(architecture, model, DTYPES[dtype])
    comparison = compare_draws(model, compile(model, dynamic=False), inputs, grads=False)
    assert comparison.ok, str(comparison)


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("grads", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["training", "inference"])
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_mixture_of_experts(compile: CompileFunction, dtype: str, grads: bool) -> None:
    """Which experts a token takes hangs on a comparison: the draws are those where no rounding can turn it."""
    model = case(MIXTRAL, DTYPES[dtype]).model
    compiled = compile(model, dynamic=False)
    comparison = compare_draws(model, compiled, decided(model, DTYPES[dtype]), grads=grads, widened=batched)
    assert comparison.ok, str(comparison)


def batched(model: nn.Module) -> nn.Module:
    """A mixture of experts in double precision."""
    reference: Any = doubled(model)
    reference.set_experts_implementation("batched_mm")  # the default one has no fp64 product
    return reference  # type: ignore[no-any-return]


def decided(model: nn.Module, dtype: torch.dtype, device: str = "cpu") -> Draws:
    """Draws of the mixture of experts whose choices of experts no rounding can turn."""
    for args, inputs in draws(MIXTRAL, model, dtype, device=device):
        with in_double(), torch.no_grad():
            true = batched(model)(**copied(inputs, wide=True), output_router_logits=True).router_logits
        if min(_margin(logits) for logits in true) > CLEAR_MARGIN:
            with torch.no_grad():
                eager = model(**inputs, output_router_logits=True).router_logits
            pairs = zip(true, eager, strict=True)
            assert all(torch.equal(_experts(a), _experts(b)) for a, b in pairs), "eager itself routes otherwise"
            yield args, inputs


def _margin(logits: Tensor) -> float:
    ordered = logits.double().sort(-1, descending=True).values
    return float(((ordered[:, 1] - ordered[:, 2]) / logits.double().std()).min())


def _experts(logits: Tensor) -> Tensor:
    return logits.topk(2).indices.sort(-1).values


def test_generation_with_a_cache(compile: CompileFunction) -> None:
    """Greedy decoding, token by token, with the keys and values of the tokens before."""
    gpt2 = next(a for a in ARCHITECTURES if a.name == "gpt2")
    model = case(gpt2, torch.float32).model
    compiled = compile(model, dynamic=True)
    torch.manual_seed(1)
    prompt = torch.randint(3, 61, (2, 4))
    with torch.no_grad():
        assert torch.equal(decoded(compiled, prompt), decoded(model, prompt))


def decoded(model: Callable[..., Any], prompt: Tensor, steps: int = 5) -> Tensor:
    """``prompt`` and the likeliest tokens that follow."""
    tokens, cache, following = prompt, None, prompt
    for _ in range(steps):
        out = model(input_ids=following, past_key_values=cache, use_cache=True)
        cache, following = out.past_key_values, out.logits[:, -1:].argmax(-1)
        tokens = torch.cat([tokens, following], 1)
    return tokens


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("name", ["bert", "llama", "resnet_block"])
def test_these_tests_see_a_result_that_is_wrong_by_one_in_three_hundred(name: str) -> None:
    torch.compiler.reset()
    architecture = next(a for a in ARCHITECTURES if a.name == name)
    model = case(architecture, torch.float32).model
    wrong = compile_function("wrong")(model, dynamic=False)
    comparison = compare_draws(model, wrong, islice(draws(architecture, model, torch.float32), DRAWS))
    seen = {complaint.partition(":")[0] for complaint in comparison.complaints}
    measured = [t.name for t in comparison.tensors if not t.name.endswith("num_batches_tracked")]  # a count is exact
    assert len(set(measured) - seen) < 0.1 * len(measured)
    torch.compiler.reset()
