"""Each decomposed operation: gone from the graph, with eager's values, gradients, dtypes and strides."""

import pytest
import torch

import lamina
from lamina.base.philox import uniform
from lamina.decomp.random_ops import philox_seed, philox_uniform
from lamina.decomp.table import decompositions

from .reference import Reference, operations

aten = torch.ops.aten

SAMPLES = {
    "adaptive_max_pool2d": lambda x: torch.nn.functional.adaptive_max_pool2d(x[None], (2, 3)),
    "_weight_norm_interface": lambda x: torch._weight_norm(x, torch.ones(4, 1, dtype=x.dtype), 0).sin(),
    "block_diag": lambda x: torch.block_diag(x, x.sin()),
    "mvlgamma": lambda x: torch.mvlgamma(x.abs() + 2, 3),
}


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", SAMPLES)
def test_as_in_eager(name, dtype):
    function = SAMPLES[name]
    reference = Reference()
    x = torch.randn(4, 6).to(dtype).requires_grad_()
    y = x.detach().clone().requires_grad_()
    actual, expected = reference.compile(function)(x), function(y)
    actual.sum().backward()
    expected.sum().backward()
    assert actual.stride() == expected.stride()
    tolerance = {} if dtype is torch.float32 else {"rtol": 0.02, "atol": 0.02}
    torch.testing.assert_close(actual, expected, equal_nan=True, **tolerance)
    torch.testing.assert_close(x.grad, y.grad, equal_nan=True, **tolerance)
    left = {op.split(".")[1] for r in reference.regions for op in operations(r.gm.graph) if "." in op}
    assert name not in left


def test_the_table_holds_what_it_says():
    held = {op._schema.name.partition("::")[2] for op in decompositions("eager")}
    assert held == {*SAMPLES, "native_dropout", "adaptive_max_pool2d_backward"}
    fast = {aten.native_dropout_backward.default, aten._euclidean_dist.default}
    fast |= {aten.rrelu_with_noise_functional.default}
    assert set(decompositions("fast")) - set(decompositions("eager")) == fast


def test_the_seed_follows_the_global_generator():
    cpu = torch.device("cpu")
    torch.manual_seed(5)
    first, second = philox_seed(cpu), philox_seed(cpu)
    torch.manual_seed(5)
    assert philox_seed(cpu) == first
    assert first != second


def test_uniform_is_a_function_of_seed_stream_and_element():
    cpu, seed = torch.device("cpu"), torch.tensor(2**40 + 7)
    drawn = philox_uniform([3, 100], seed, 2, torch.float32, cpu)
    torch.testing.assert_close(drawn.view(-1), uniform(torch.arange(300), int(seed), 2), rtol=0, atol=0)
    assert not torch.equal(drawn, philox_uniform([3, 100], seed, 3, torch.float32, cpu))
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert abs(drawn.mean() - 0.5) < 0.05
    with pytest.raises(TypeError):
        philox_uniform([3], seed, 0, torch.bfloat16, cpu)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_random_slopes_are_drawn_in_kernels_and_again_in_the_backward(dtype):
    x = torch.tensor([-2.0, -1.0, -0.0, 0.0, 1.0, float("nan"), float("inf")]).to(dtype).repeat(999, 1).requires_grad_()
    compiled = lamina.compile(lambda x: torch.nn.functional.rrelu(x, 0.1, 0.3, training=True), options={"strict": True})
    result = compiled(x)
    (found,) = torch.autograd.grad(result, x, torch.ones_like(result))
    slopes = (result / x).detach()[:, :2]
    assert slopes.min() >= 0.099
    assert slopes.max() <= 0.301
    assert len(slopes.unique()) > 20
    assert slopes.double().mean().sub(0.2).abs() < 0.01
    torch.testing.assert_close(found[:, :2], slopes, rtol=1e-2, atol=0)
    assert (found[:, 2:4] <= 0.301).all(), "zeros have slopes too"
    assert torch.equal(result[:, 4], x[:, 4])
    assert torch.equal(found[:, 4:], torch.ones_like(x[:, 4:]))
    assert result[:, 5].isnan().all()
    assert not torch.equal(compiled(x), result)
    plans = [stage.value for stage in compiled.record.stages if hasattr(stage.value, "library_count")]
    assert [plan.kernel_count for plan in plans] == [1, 1]


def test_random_slopes_are_eagers_where_eagers_numbers_are_asked_for():
    x = torch.randn(64, 8)
    compiled = lamina.compile(lambda x: torch.nn.functional.rrelu(x, training=True), options={"numerics": "eager"})
    torch.manual_seed(3)
    result = compiled(x)
    torch.manual_seed(3)
    assert torch.equal(result, torch.nn.functional.rrelu(x, training=True))
