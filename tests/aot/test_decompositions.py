"""Each decomposed operation: gone from the graph, with eager's values, gradients, dtypes and strides."""

import pytest
import torch
import torch.nn.functional as F

from lamina.base.philox import uniform
from lamina.decomp.random_ops import philox_seed, philox_uniform
from lamina.decomp.table import FAMILIES, decompositions

from .reference import Reference, operations

aten = torch.ops.aten

SAMPLES = {
    "celu": lambda x: F.celu(x, 1.3),
    "elu_backward": F.elu,
    "glu": lambda x: F.glu(x, -1),
    "hardshrink": lambda x: F.hardshrink(x, 0.4),
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "hardtanh_backward": F.hardtanh,
    "leaky_relu_backward": lambda x: F.leaky_relu(x, 0.2),
    "log_sigmoid_forward": F.logsigmoid,
    "logit": lambda x: torch.logit(x.sigmoid(), 1e-3),
    "mish": F.mish,
    "_prelu_kernel": lambda x: F.prelu(x, torch.tensor([0.3], dtype=x.dtype)),
    "softplus": lambda x: F.softplus(x, beta=2.0, threshold=3.0),
    "softshrink": lambda x: F.softshrink(x, 0.3),
    "addcdiv": lambda x: torch.addcdiv(x, x.sin(), x.cos() + 2, value=0.5),
    "addcmul": lambda x: torch.addcmul(x, x.sin(), x.cos(), value=0.5),
    "addr": lambda x: torch.addr(x, x[:, 0], x[0], beta=0.5, alpha=2.0),
    "deg2rad": torch.deg2rad,
    "frac": torch.frac,
    "heaviside": lambda x: torch.heaviside(x.detach(), x.detach().cos()) * x,
    "isneginf": lambda x: torch.where(torch.isneginf(x / 0), x, -x),
    "lerp": lambda x: torch.lerp(x, x.exp(), 0.7),
    "logaddexp": lambda x: torch.logaddexp(x, x.sin()),
    "logaddexp2": lambda x: torch.logaddexp2(x, x.sin()),
    "nan_to_num": lambda x: torch.nan_to_num(x / x.round(), nan=1.0, posinf=2.0, neginf=-3.0),
    "rsub": lambda x: torch.rsub(x, 2.0, alpha=3.0),
    "sinc": torch.sinc,
    "special_entr": lambda x: torch.special.entr(x.abs()),
    "special_xlog1py": lambda x: torch.special.xlog1py(x, x.abs()),
    "xlogy": lambda x: torch.xlogy(x, x.abs() + 0.5),
    "diagonal_backward": lambda x: x.diagonal(1).sin(),
    "select_backward": lambda x: x.select(1, 2).sin(),
    "slice_backward": lambda x: x[:, 1:5:2].sin(),
    "diag_embed": lambda x: torch.diag_embed(x, 1),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x.view(1, 4, 2, 3), 2),
    "select_scatter": lambda x: torch.select_scatter(x, x[0].sin(), 0, 2),
    "stack": lambda x: torch.stack([x, x.sin()], 1),
    "tril": lambda x: torch.tril(x, -1),
    "triu": lambda x: torch.triu(x, 1),
    "new_full": lambda x: x.new_full((2,), 3.0).sum() * x,
    "zeros_like": lambda x: torch.zeros_like(x) + x,
    "_fused_rms_norm": lambda x: F.rms_norm(x, (6,)),
    "count_nonzero": lambda x: torch.count_nonzero(x > 0, 1).to(x.dtype).unsqueeze(1) * x,
    "nansum": lambda x: torch.nansum(x / x.round(), 1),
}


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


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
    left = {op.split(".")[1] for r in reference.regions for op in operations(r.gm.graph)}
    assert name not in left


def test_the_table_holds_what_its_families_say():
    named = {op for family in FAMILIES for op in family.operations}
    held = {op._schema.name.partition("::")[2] for op in decompositions("eager")}
    assert held == named
    assert set(decompositions("fast")) - set(decompositions("eager")) == {
        aten.native_dropout.default,
        aten.native_dropout_backward.default,
    }


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
