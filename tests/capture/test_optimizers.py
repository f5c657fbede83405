"""Compiled steps of optimizers on a CPU give what eager's give, whatever the learning rate."""

import copy

import pytest
import torch

import lamina

ADAM = {
    "Adam": lambda p: torch.optim.Adam(p, 0.1),
    "amsgrad": lambda p: torch.optim.Adam(p, 0.1, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, 0.1),
    "lr is a tensor": lambda p: torch.optim.Adam(p, torch.tensor(0.1)),
}
COUNTING = ADAM | {
    "NAdam": lambda p: torch.optim.NAdam(p, 0.1),
    "Adamax": lambda p: torch.optim.Adamax(p, 0.1),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.1, lr_decay=0.1),
}


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def train(make, rates, compile_step):
    """Parameters after each step; the gradients of some of them are zero."""
    parameter = torch.nn.Parameter(torch.linspace(-1, 1, 8))
    optimizer = make([parameter])
    step = compile_step(optimizer.step)
    for rate in rates:
        for group in optimizer.param_groups:
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        parameter.grad = parameter.detach().relu()
        step()
        yield parameter.detach().clone()
    assert not any(group.get("capturable") for group in copy.deepcopy(optimizer.state_dict())["param_groups"])


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("rates", [(0.0, 0.1), (0.1, 0.2, 0.0, 0.3)], ids=["warm-up", "later"])
@pytest.mark.parametrize("make", ADAM.values(), ids=ADAM)
def test_a_learning_rate_of_zero(make, rates):
    steps = zip(train(make, rates, lambda f: f), train(make, rates, lamina.compile), strict=True)
    for wanted, found in steps:
        torch.testing.assert_close(found, wanted, rtol=3e-7, atol=3e-8)


@pytest.mark.parametrize("make", COUNTING.values(), ids=COUNTING)
def test_the_count_of_steps_is_not_rounded(make):
    steps = zip(train(make, (0.1, 0.1, 0.1), lambda f: f), train(make, (0.1, 0.1, 0.1), lamina.compile), strict=True)
    for wanted, found in steps:
        torch.testing.assert_close(found, wanted, rtol=3e-7, atol=3e-8)


def test_a_whole_training_step():
    def run(compile_step):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        optimizer = torch.optim.AdamW(model.parameters(), 0.0)

        def step(x):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        step = compile_step(step)
        for rate in (0.0, 0.1, 0.2):
            optimizer.param_groups[0]["lr"] = rate
            step(torch.ones(2, 4))
        return list(model.parameters())

    for wanted, found in zip(run(lambda f: f), run(lamina.compile), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("front", ["dynamo", "own"])
def test_parameters_of_a_compiled_optimizer_may_be_frozen_and_not_again(front: str) -> None:
    torch._dynamo.reset()
    frozen, other = (torch.ones(3, requires_grad=True) for _ in range(2))
    optimizer = torch.optim.SGD([frozen, other], lr=0.0)
    step = lamina.compile(optimizer.step, options={"capture": front})
    loss = lamina.compile(lambda x: sum((p * x).pow(2).sum() for p in (frozen, other)), options={"capture": front})
    for k in range(4):
        frozen.requires_grad_(k % 2 == 0)
        frozen.grad = torch.zeros(3)
        loss(1.0 + k).backward()
        step()
        wanted = 2 * (1.0 + k) ** 2 if k % 2 == 0 else 0.0
        torch.testing.assert_close(frozen.grad, torch.full((3,), wanted))


def test_parameters_of_a_compiled_optimizer_may_change_their_shape() -> None:
    torch._dynamo.reset()
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    weight.grad = torch.zeros(3)
    lamina.compile(optimizer.step)()
    total = lamina.compile(lambda: weight.sum() + weight.shape[0])
    assert total() == 6
    weight.grad, weight.data = None, torch.ones(5)
    assert total() == 10


@pytest.mark.parametrize("front", ["dynamo", "own"])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_steps_follow_dtypes_shapes_and_layouts(kind: type[torch.optim.Optimizer], front: str) -> None:
    torch._dynamo.reset()
    runs = []
    for compiled in (False, True):
        weight = torch.nn.Parameter(torch.ones(2, 3))
        optimizer = kind([weight], lr=0.125)  # type: ignore[call-arg]
        step = lamina.compile(optimizer.step, options={"capture": front}) if compiled else optimizer.step
        seen = []
        for gradient in (
            torch.arange(6.0).view(2, 3),
            torch.arange(6.0).view(3, 2).t(),
            torch.arange(6.0, dtype=torch.float64).view(2, 3),
            torch.arange(2.0, dtype=torch.float64).view(2, 1),
        ):
            if gradient.dtype != weight.dtype or gradient.shape != weight.shape:
                weight.grad = None
                weight.data = torch.ones_like(gradient)
                optimizer.state.clear()
            weight.grad = gradient
            step()
            seen.append(weight.detach().clone())
        runs.append(seen)
    for found, wanted in zip(runs[1], runs[0], strict=True):
        torch.testing.assert_close(found, wanted)
