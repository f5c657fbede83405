"""Whole training steps: forward, backward and the optimizer of one function, in calls that are not interpreted."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import lamina
from lamina.capture.own.callable import interpreted_callable
from lamina.capture.own.machine import Machine
from lamina.record import Record
from tests.capture.own.machines import MACHINES, no_machine
from tests.capture.own.training_steps import differences, training_program

SEEDS = 24


class Counted:
    """A step that is compiled, with how many of its calls were ``interpreted``."""

    def __init__(self, step, monkeypatch, machine=no_machine):
        self.record, self.interpreted = Record(), 0
        run = Machine.run

        def counted(machine, *given):
            self.interpreted += not machine.frames
            return run(machine, *given)

        monkeypatch.setattr(Machine, "run", counted)
        self.call = interpreted_callable(
            step, backend_callable=lambda gm, fakes: gm.forward, record=self.record, machine=machine
        )

    def reasons(self):
        return [str(decision.reason) for decision in self.record.decisions("capture")]


def step(model, opt, x, y):
    opt.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    opt.step()
    return loss


def clipped(model, opt, x, y):
    opt.zero_grad(set_to_none=False)
    for half in (x[:2], x[2:]):
        (model(half).square().mean() / 2).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    opt.step()
    return norm


def by_hand(model, opt, x, y):
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad
            p.grad = None
    return loss.item()


def with_functions(model, opt, x, y):
    loss = F.cross_entropy(model(x), y)
    wanted = list(model.parameters())
    for p, gradient in zip(wanted, torch.autograd.grad(loss, wanted, create_graph=True), strict=True):
        p.grad = gradient.detach()
    opt.step()
    return loss


def model_of():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.25), nn.Linear(8, 4))


def batch():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(5, 6, generator=generator), torch.randint(0, 4, (5,), generator=generator)


def optimizers():
    return (
        lambda p: torch.optim.SGD(p, lr=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
        lambda p: torch.optim.Adam(p, lr=0.01),
        lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, lr=0.01),
    )


def both(compiled, plain, make, calls, before=lambda model, opt, call: None):
    """Calls of what was compiled and of the function, on equal models; whether the last of them were interpreted."""
    worlds = []
    for _ in range(2):
        model = model_of()
        worlds.append((model, make(model.parameters())))
    counts = []
    for call in range(calls):
        found = []
        for function, (model, opt) in zip((compiled.call, plain), worlds, strict=True):
            before(model, opt, call)
            torch.manual_seed(call)
            x, y = batch()
            result = function(model, opt, x, y)
            result = result.detach() if isinstance(result, torch.Tensor) else result
            grads = [p.grad for p in model.parameters()]
            found.append((result, [p.detach() for p in model.parameters()], grads, opt.state_dict()["state"]))
        assert differences(*found) == []
        counts.append(compiled.interpreted)
    return [after - before for before, after in pairwise(counts)]


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("make", optimizers())
@pytest.mark.parametrize("function", [step, clipped, by_hand, with_functions])
def test_a_training_step_is_not_interpreted_from_the_third_call_on(function, make, machine, monkeypatch) -> None:
    compiled = Counted(function, monkeypatch, machine)
    counts = both(compiled, function, make, 6)
    assert counts[2:] == [0, 0, 0], compiled.reasons()


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_training_steps_leave_what_eager_does(seed, monkeypatch) -> None:
    program = training_program(seed)
    wanted = program.outcomes(program.step())
    found = program.outcomes(Counted(program.step(), monkeypatch, MACHINES["machine"]).call)
    for call, (one, other) in enumerate(zip(wanted, found, strict=True)):
        assert differences(one, other) == [], f"call {call} of {program}"


def _hook_of_tensor(model, told):
    return model[0].weight.register_hook(lambda g: told.append(float(g.sum())))


def _hook_after(model, told):
    return model[0].weight.register_post_accumulate_grad_hook(lambda p: told.append(float(p.grad.sum())))


def _hook_of_node(model, told):
    return torch.autograd.graph.get_gradient_edge(model[0].weight).node.register_hook(lambda *g: told.append(len(g)))


@pytest.mark.parametrize("hook", [_hook_of_tensor, _hook_after, _hook_of_node])
def test_hooks_that_come_between_two_calls_end_the_reuse(hook, monkeypatch) -> None:
    """A hook may change what the rest of the call reads."""
    compiled, told = Counted(step, monkeypatch), {}
    nodes, handles = [], []

    def before(model, opt, call):
        nodes.append(torch.autograd.graph.get_gradient_edge(model[0].weight).node)
        if call == 4:
            handles.append(hook(model, told.setdefault(id(model), [])))

    counts = both(compiled, step, lambda p: torch.optim.SGD(p, lr=0.1), 7, before)
    assert counts[2:] == [0, 1, 1, 1]
    one, other = told.values()
    assert one == other
    assert len(one) == 3


TOLD: list[int] = []


class Told(torch.autograd.Function):
    """A function whose backward changes what the program reads."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        TOLD.append(len(TOLD))
        return gradient * 2


def test_a_backward_of_the_users_is_seen(monkeypatch) -> None:
    def told(model, opt, x, y):
        loss = Told.apply(F.cross_entropy(model(x), y))
        loss.backward()
        opt.step()
        return loss, len(TOLD) % 3

    TOLD.clear()
    compiled = Counted(told, monkeypatch)
    model = model_of()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    assert [compiled.call(model, opt, *batch())[1] for _ in range(7)] == [1, 2, 0, 1, 2, 0, 1]


def test_a_hook_elsewhere_leaves_the_reuse(monkeypatch) -> None:
    compiled, others = Counted(step, monkeypatch), torch.nn.Linear(2, 2)

    def before(model, opt, call):
        others.weight.register_hook(lambda g: g)

    assert both(compiled, step, lambda p: torch.optim.SGD(p, lr=0.1), 6, before)[2:] == [0, 0, 0]


def test_a_count_of_steps_that_is_replaced_is_read(monkeypatch) -> None:
    """The number that an optimizer counts to is told before anything runs, of what is there in that call."""

    def before(model, opt, call):
        for state in opt.state.values():
            if call in (4, 5):
                state["step"] = torch.tensor(float(7 * call))

    compiled = Counted(step, monkeypatch)
    assert both(compiled, step, lambda p: torch.optim.Adam(p, lr=0.01), 8, before)[2:] == [0, 0, 0, 0, 0]


def test_a_count_in_the_memory_of_what_is_updated_is_no_number_ahead(monkeypatch) -> None:
    def before(model, opt, call):
        if call == 4:
            state = opt.state[model[0].weight]
            state["step"] = state["exp_avg"].view(-1)[0]

    compiled = Counted(step, monkeypatch)
    assert 1 in both(compiled, step, lambda p: torch.optim.Adam(p, lr=0.01), 7, before)[3:]


def test_a_backward_in_another_grad_mode_has_its_keywords(monkeypatch) -> None:
    """Its names are those of no parameter of what switches the mode."""

    def told(leaf, x):
        leaf.grad = None
        with torch.enable_grad():
            loss = (leaf * x).sin().sum()
            loss.backward(inputs=[leaf])
        return loss.detach()

    compiled, leaf = Counted(told, monkeypatch), torch.randn(4, requires_grad=True)
    for call in range(5):
        x = torch.randn(4)
        compiled.interpreted = 0
        with torch.no_grad():
            compiled.call(leaf, x)
        torch.testing.assert_close(leaf.grad, (leaf * x).cos().mul(x).detach())
        assert compiled.interpreted == (call < 2)


def test_optimizers_that_dynamo_has_changed_are_entered(monkeypatch) -> None:
    """It keeps itself from some of their functions when it is first used."""
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    compiled = Counted(step, monkeypatch)
    assert both(compiled, step, lambda p: torch.optim.Adam(p, lr=0.01), 6)[2:] == [0, 0, 0]


def test_lr_schedules_are_not_interpreted_for_ever(monkeypatch) -> None:
    def scheduled(model, opt, x, y):
        loss = step(model, opt, x, y)
        opt.sched.step()
        return loss

    def make(parameters):
        opt = torch.optim.Adam(parameters, lr=0.01)
        opt.sched = torch.optim.lr_scheduler.StepLR(opt, 2, 0.5)
        return opt

    compiled = Counted(scheduled, monkeypatch)
    assert both(compiled, scheduled, make, 14)[6:] == [0] * 7


@pytest.mark.parametrize("make", [optimizers()[1], optimizers()[4]])
def test_compiled_training_steps_compute_what_eager_does(make) -> None:
    worlds = []
    for _ in range(2):
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
        torch.manual_seed(0)
        for p in model.parameters():
            nn.init.uniform_(p, -0.5, 0.5)
        worlds.append((model, make(model.parameters())))
    compiled = lamina.compile(step, options={"capture": "own"})
    for _ in range(6):
        losses = [f(*world, *batch()) for f, world in zip((compiled, step), worlds, strict=True)]
        torch.testing.assert_close(*losses)
        for one, other in zip(*(world[0].parameters() for world in worlds), strict=True):
            torch.testing.assert_close(one, other)
            torch.testing.assert_close(one.grad, other.grad)
