"""A compiled module is still the user's module: state, hooks, modes, copies."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from benchmarks.compilers import CompileFunction


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)
        self.last = nn.Linear(8, 2)
        self.register_buffer("offset", torch.full((2,), 0.5))
        self.register_buffer("hidden", torch.ones(2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(self.norm(self.first(x)).relu())) + self.offset + self.hidden


def _net() -> Net:
    torch.manual_seed(0)
    return Net()


X = torch.linspace(-2, 2, 30).view(5, 6)


def test_state_dict_of_the_original_is_untouched(compile: CompileFunction) -> None:
    model = _net()
    keys, parameters, buffers = list(model.state_dict()), list(model.parameters()), list(model.buffers())
    names = [name for name, _ in model.named_modules()]
    compiled = compile(model, dynamic=False)
    compiled(X).sum().backward()
    assert list(model.state_dict()) == keys
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert all(a is b for a, b in zip(model.buffers(), buffers, strict=True))
    assert [name for name, _ in model.named_modules()] == names
    assert type(model) is Net


def test_compiled_module_has_the_same_parameters(compile: CompileFunction, compiler_name: str) -> None:
    model = _net()
    compiled = compile(model, dynamic=False)
    assert all(a is b for a, b in zip(compiled.parameters(), model.parameters(), strict=True))
    assert isinstance(compiled, nn.Module)
    assert compiled.first.weight is model.first.weight
    assert compiled.training
    if compiler_name == "lamina":
        assert list(compiled.state_dict()) == list(model.state_dict())


def test_train_and_eval_follow_either_name(compile: CompileFunction) -> None:
    model = _net()
    compiled = compile(model, dynamic=False)
    compiled(X)
    compiled.eval()
    assert not model.training
    assert not model.drop.training
    torch.testing.assert_close(compiled(X), model(X))
    torch.testing.assert_close(compiled(X), compiled(X), rtol=0, atol=0)
    model.train()
    assert compiled.training
    assert not torch.equal(compiled(X), compiled(X)), "dropout does nothing in training mode"


def test_loading_a_state_takes_effect(compile: CompileFunction) -> None:
    model, other = _net().eval(), Net().eval()
    compiled = compile(model, dynamic=False)
    compiled(X)
    model.load_state_dict(other.state_dict())
    torch.testing.assert_close(compiled(X), other(X))


def test_changing_parameters_takes_effect(compile: CompileFunction) -> None:
    model = _net().eval()
    compiled = compile(model, dynamic=False)
    compiled(X)
    with torch.no_grad():
        model.last.weight.mul_(3)
        model.offset.add_(1)
    torch.testing.assert_close(compiled(X), model(X))
    model.last.weight = nn.Parameter(torch.randn(2, 8))
    torch.testing.assert_close(compiled(X), model(X))
    model.first = nn.Linear(6, 8)
    torch.testing.assert_close(compiled(X), model(X))
    model.last.weight.data = torch.randn(2, 8)
    torch.testing.assert_close(compiled(X), model(X))


def test_freezing_and_thawing(compile: CompileFunction) -> None:
    model = _net().eval()
    compiled = compile(model, dynamic=False)
    for frozen in (False, True, False):
        model.zero_grad()
        model.first.requires_grad_(not frozen)
        compiled(X).sum().backward()
        assert (model.first.weight.grad is None) == frozen
        assert model.last.weight.grad is not None


def test_moving_to_another_type(compile: CompileFunction) -> None:
    model = _net().eval()
    compiled = compile(model, dynamic=False)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float32):
        model.to(dtype)
        out = compiled(X.to(dtype))
        assert out.dtype == dtype
        tolerance = 0.03 if dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(out, model(X.to(dtype)), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("which", ["outer", "inner"])
def test_forward_hooks(compile: CompileFunction, compiler_name: str, when: str, which: str) -> None:
    if when == "after" and which == "inner" and not compiler_name.startswith(("lamina", "eager")):
        pytest.skip("torch.compile looks for new hooks of inner modules only with skip_nnmodule_hook_guards=False")
    model = _net().eval()
    calls: list[str] = []

    def pre(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        calls.append("pre")
        return (args[0] * 2,)

    def post(module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
        calls.append("post")
        return out + 1

    target = model if which == "outer" else model.last
    expected = (model(X * 2) if which == "outer" else None, model(X))
    if when == "after":
        compiled = compile(model, dynamic=False)
        compiled(X)
    handles = [target.register_forward_pre_hook(pre), target.register_forward_hook(post)]
    if when == "before":
        compiled = compile(model, dynamic=False)
    out = compiled(X)
    assert calls == ["pre", "post"]
    if expected[0] is not None:
        torch.testing.assert_close(out, expected[0] + 1)
    torch.testing.assert_close(out, model(X))
    for handle in handles:
        handle.remove()
    torch.testing.assert_close(compiled(X), expected[1])


def test_backward_hooks(compile: CompileFunction) -> None:
    model = _net().eval()
    seen: list[tuple[int, ...]] = []
    model.first.register_full_backward_hook(lambda m, gi, go: seen.append(tuple(go[0].shape)))
    model.last.weight.register_post_accumulate_grad_hook(lambda p: seen.append(tuple(p.shape)))
    compile(model, dynamic=False)(X).sum().backward()
    assert sorted(seen) == [(2, 8), (5, 8)]


def test_original_can_be_pickled_and_copied(compile: CompileFunction) -> None:
    model = _net().eval()
    compiled = compile(model, dynamic=False)
    out = compiled(X)
    for twin in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert type(twin) is Net
        torch.testing.assert_close(twin(X), out)
        assert twin.first.weight is not model.first.weight


def test_compiled_module_can_be_copied(compile: CompileFunction) -> None:
    model = _net().eval()
    compiled = compile(model, dynamic=False)
    expected = compiled(X)
    twin = copy.deepcopy(compiled)
    with torch.no_grad():
        model.last.weight.zero_()
        model.last.bias.zero_()
    torch.testing.assert_close(twin(X), expected)
    torch.testing.assert_close(compiled(X), torch.full((5, 2), 1.5))


def test_shared_and_parametrized_weights(compile: CompileFunction) -> None:
    class Double(nn.Module):
        def forward(self, w: Tensor) -> Tensor:
            return w * 2

    model: Any = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
    model[2].weight = model[0].weight
    parametrize.register_parametrization(model[0], "weight", Double())
    compiled = compile(model, dynamic=False)
    torch.testing.assert_close(compiled(X), model(X))
    mine, theirs = (torch.autograd.grad(f(X).square().sum(), list(model.parameters())) for f in (compiled, model))
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_methods_submodules_and_lists(compile: CompileFunction) -> None:
    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
            self.table = nn.ModuleDict({"a": nn.Tanh()})
            self.scales = nn.ParameterList([nn.Parameter(torch.ones(6) * i) for i in range(3)])

        def forward(self, x: Tensor) -> Tensor:
            for layer, scale in zip(self.layers, self.scales, strict=True):
                x = self.table["a"](layer(x)) * scale + x
            return x

    model = Stack()
    whole = compile(model, dynamic=False)
    torch.testing.assert_close(whole(X), model(X))
    bound = compile(model.forward, dynamic=False)
    torch.testing.assert_close(bound(X), model(X))
    expected = model(X)
    model.layers[1] = compile(model.layers[1], dynamic=False)
    torch.testing.assert_close(model(X), expected)
