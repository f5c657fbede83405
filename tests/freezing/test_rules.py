"""Rules that need frozen parameters: they fire on the ways people write it, and not where they must not."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lamina
from lamina.base.accuracy import judge
from lamina.freezing.folding import Channelwise, folded

from .compiled import calls, check, decisions, folds, frozen

MERGE, FOLD = "merge_projections", "fold_into_products"
X = torch.randn(2, 8, 64)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def _products(compiled: Any) -> list[str]:
    """The products and convolutions of the main graph."""
    (stage,) = [s for s in compiled.record.stages if s.name == "freeze" and s.value is not None]
    names = [str(n.target) for n in stage.value.main.graph.nodes if n.op == "call_function"]
    return [n for n in names if "mm" in n or "convolution" in n]


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    heads = [t.view(2, 8, -1, 16).transpose(1, 2) for t in (q, k, v)]
    return F.scaled_dot_product_attention(*heads, enable_gqa=True)


class Layers(nn.Module):
    """Queries, and half as many keys and values, with biases or without."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(64, 64), nn.Linear(64, 32, bias=False), nn.Linear(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        return _attend(self.q(x), self.k(x), self.v(x))


class Functions(nn.Module):
    """The same with parameters as attributes, at rank 4."""

    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wk, self.wv = (nn.Parameter(torch.randn(n, 64) / 8) for n in (64, 32, 32))

    def forward(self, x: Tensor) -> Tensor:
        x = x[None]
        q, k, v = (F.linear(x, w) for w in (self.wq, self.wk, self.wv))
        return _attend(q[0], k[0], v[0])


class Products(nn.Module):
    """The same with products written as such."""

    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wk, self.wv = (nn.Parameter(torch.randn(n, 64) / 8) for n in (64, 32, 32))
        self.bq = nn.Parameter(torch.randn(64))

    def forward(self, x: Tensor) -> Tensor:
        return _attend(x @ self.wq.T + self.bq, x @ self.wk.T, torch.matmul(x, self.wv.t()))


class Addmm(nn.Module):
    """Of matrices, with weights as they are multiplied."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.u = nn.Parameter(torch.randn(64, 32) / 8), nn.Parameter(torch.randn(64, 16) / 8)
        self.b, self.c = nn.Parameter(torch.randn(32)), nn.Parameter(torch.randn(16))

    def forward(self, x: Tensor) -> Tensor:
        x = x[0]
        return torch.addmm(self.b, x, self.w).tanh().sum(-1) + torch.addmm(self.c, x, self.u).sigmoid().sum(-1)


class Gated(nn.Module):
    """SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(64, 96), nn.Linear(64, 96), nn.Linear(96, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


MERGED: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "layers": (Layers, 1),
    "functions": (Functions, 1),
    "products": (Products, 1),
    "addmm": (Addmm, 1),
    "gated": (Gated, 2),
}


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MERGED)
def test_products_of_one_input_are_one(name: str, dtype: torch.dtype) -> None:
    make, products = MERGED[name]
    model, x = make().to(dtype).eval(), X.to(dtype)
    compiled = frozen(model, expect_matches={MERGE: 1})
    check(compiled, model, x, factor=1 if dtype is torch.float32 else 5e3)
    assert len(_products(compiled)) == products
    with torch.no_grad():
        next(model.parameters()).mul_(-0.5)
    check(compiled, model, x, factor=1 if dtype is torch.float32 else 5e3)
    assert folds(compiled) == 2


def test_merged_with_symbolic_rows() -> None:
    model = Gated()
    compiled = lamina.compile(
        model, backend=calls, dynamic=True, options={"freeze": True, "strict": True, "expect_matches": {MERGE: 1}}
    )
    for rows in (5, 9, 12):
        check(compiled, model, torch.randn(2, rows, 64))
    assert folds(compiled) == 1


def test_merged_under_autocast() -> None:
    model = Layers()
    compiled = frozen(model, expect_matches={MERGE: 1})
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(compiled(X), model(X), rtol=3e-2, atol=3e-2)


def test_merged_by_kernels() -> None:
    model = Layers()
    compiled = lamina.compile(model, options={"freeze": True, "strict": True, "verify": True})
    check(compiled, model, X)
    assert decisions(compiled, "rewrite", MERGE)[0].taken


class Other(nn.Module):
    """A layer's result, and another layer of it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x))


class Returned(Other):
    """Tensors of the caller's, who may write to one of them."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return self.a(x), self.b(x)


class Odd(nn.Module):
    """Widths of which the second part begins at an odd place."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(64, 3), nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x).sin().sum(-1) + self.b(x).cos().sum(-1)


class OneRow(nn.Module):
    """A vector."""

    def __init__(self) -> None:
        super().__init__()
        self.gated = Gated()

    def forward(self, x: Tensor) -> Tensor:
        return self.gated(x[0, :1])


class Across(nn.Module):
    """Keys of one memory for two layers: merged, the second layer's would wait in memory for the first layer's end."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.first(x) @ x.mT
        return (scores @ x) @ self.second(x).mT


@pytest.mark.parametrize("make", [Other, Returned, Odd, OneRow, Across])
def test_products_that_are_left_apart(make: Callable[[], nn.Module]) -> None:
    model = make()
    compiled = frozen(model, expect_matches={MERGE: 0})
    check(compiled, model, X)


def test_without_freezing_the_remedy_is_named() -> None:
    compiled = lamina.compile(Layers(), backend=calls)
    with torch.no_grad():
        compiled(X)
    assert decisions(compiled, "rewrite", MERGE) == []
    (decision,) = decisions(compiled, "rewrite", "leave_projections_apart")
    assert '"freeze": True' in decision.reason


def test_training_merges_nothing() -> None:
    compiled = frozen(Layers(), expect_matches={MERGE: 0})
    compiled(X).sum().backward()
    assert decisions(compiled, "rewrite", "leave_projections_apart")


def _settled(model: nn.Module, x: Tensor) -> nn.Module:
    """``model`` for inference, its batch norms with statistics of such inputs."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.momentum = None
            if module.affine:
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.normal_(module.bias)
    with torch.no_grad():
        for _ in range(4):
            model.train()(x + 0.1 * torch.randn_like(x))
    return model.eval()


class ByHand(nn.Module):
    """A batch norm written out after a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 24)
        self.register_buffer("mean", torch.randn(24))
        self.register_buffer("var", torch.rand(24) + 0.5)
        self.scale, self.shift = nn.Parameter(torch.rand(24) + 0.5), nn.Parameter(torch.randn(24))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return ((y - self.mean) / torch.sqrt(self.var + 1e-5) * self.scale + self.shift).relu()


class ByFunction(nn.Module):
    """A batch norm as a function, without scale and shift, of a convolution in groups."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Conv2d(8, 24, 3, groups=2), nn.BatchNorm2d(24, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return self.norm(self.layer(x))
        y = F.batch_norm(self.layer(x), self.norm.running_mean, self.norm.running_var, training=False)
        return 2.0 - y * 0.5


def _pair(layer: nn.Module, norm: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(copy.deepcopy(layer), copy.deepcopy(norm), nn.ReLU())


FOLDED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "by hand": (ByHand, (4, 7, 16)),
    "by function": (ByFunction, (2, 8, 9, 9)),
    "linear": (_pair(nn.Linear(16, 24), nn.BatchNorm1d(24)), (32, 16)),
    "linear without bias": (_pair(nn.Linear(16, 24, bias=False), nn.BatchNorm1d(24)), (32, 16)),
    "1d in groups": (_pair(nn.Conv1d(8, 24, 3, groups=4), nn.BatchNorm1d(24)), (4, 8, 9)),
    "2d": (_pair(nn.Conv2d(8, 24, 3), nn.BatchNorm2d(24)), (2, 8, 9, 9)),
    "2d without bias": (_pair(nn.Conv2d(8, 24, 3, bias=False), nn.BatchNorm2d(24)), (2, 8, 9, 9)),
    "3d": (_pair(nn.Conv3d(8, 24, 3), nn.BatchNorm3d(24)), (2, 8, 5, 5, 5)),
    "transposed": (_pair(nn.ConvTranspose2d(8, 24, 3), nn.BatchNorm2d(24)), (2, 8, 9, 9)),
    "transposed in groups": (_pair(nn.ConvTranspose2d(8, 24, 3, groups=4), nn.BatchNorm2d(24)), (2, 8, 9, 9)),
}


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FOLDED)
def test_functions_of_channels_are_in_the_weights(name: str, dtype: torch.dtype) -> None:
    make, shape = FOLDED[name]
    x = torch.randn(shape)
    model = _settled(make(), x).to(dtype)
    compiled, x = frozen(model, expect_matches={FOLD: 1}), x.to(dtype)
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(x.double())
        eager, ours = model(x), compiled(x)
    assert judge(ours, eager, exact, strides=True) == ""
    (stage,) = [s for s in compiled.record.stages if s.name == "freeze"]
    assert not any("batch_norm" in str(n.target) or "sqrt" in str(n.target) for n in stage.value.main.graph.nodes)
    assert len(_products(compiled)) == 1


def test_folded_weights_follow_statistics() -> None:
    model = _settled(FOLDED["2d"][0](), torch.randn(2, 8, 9, 9))
    compiled = frozen(model)
    check(compiled, model, torch.randn(2, 8, 9, 9), factor=10)
    with torch.no_grad():
        model[1].running_var.mul_(4)
    check(compiled, model, torch.randn(2, 8, 9, 9), factor=10)
    assert folds(compiled) == 2


class TwoReaders(nn.Module):
    """The product itself is needed beside what the norm makes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Conv2d(8, 24, 3), nn.BatchNorm2d(24)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return self.norm(y) + y.sin()


class ActivatedFirst(TwoReaders):
    """The norm is of something else."""

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layer(x).relu())


class OfInputs(TwoReaders):
    """The factors are no parameters."""

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * x.mean()


class OfPixels(TwoReaders):
    """The factors are not one for each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(7))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.scale


@pytest.mark.parametrize("make", [TwoReaders, ActivatedFirst, OfInputs, OfPixels])
def test_what_stays_after_its_product(make: Callable[[], nn.Module]) -> None:
    model = make().eval()
    compiled = frozen(model, expect_matches={FOLD: 0})
    check(compiled, model, torch.randn(2, 8, 9, 9), factor=10)


def test_norms_in_training_stay() -> None:
    model = TwoReaders().train()
    twin = copy.deepcopy(model)
    compiled = frozen(model, expect_matches={FOLD: 0})
    with torch.no_grad():
        x = torch.randn(2, 8, 9, 9)
        torch.testing.assert_close(compiled(x), twin(x))
    torch.testing.assert_close(model.norm.running_mean, twin.norm.running_mean)


def test_the_algebra_on_tensors() -> None:
    weight, bias, factor, shift = (torch.randn(s, dtype=torch.float64) for s in ((6, 4, 3, 3), (6,), (6,), (6,)))
    x = torch.randn(2, 4, 5, 5, dtype=torch.float64)

    def call(operation: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return operation(*args, **kwargs)

    step = Channelwise(factor, None).then(call, Channelwise(None, shift))
    w, b = folded(call, weight, bias, step, (-1, 1, 1, 1), 6, torch.float64)
    wanted = F.conv2d(x, weight, bias) * factor[:, None, None] + shift[:, None, None]
    torch.testing.assert_close(F.conv2d(x, w, b), wanted)
