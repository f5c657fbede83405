"""Random training steps: a model, an optimizer, a step as a function of both, and what changes between its calls."""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

__all__ = ["TrainingProgram", "differences", "training_program"]

WIDTH, CLASSES = 6, 4
_LAYERS = ("nn.ReLU()", "nn.Tanh()", "nn.Dropout(0.25)", "nn.LayerNorm(6)", "nn.BatchNorm1d(6)", "nn.Linear(6, 6)")
_OPTIMIZERS = (
    "SGD(groups, lr=0.1)",
    "SGD(groups, lr=0.1, momentum=0.9)",
    "SGD(groups, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)",
    "SGD(groups, lr=0.1, momentum=0.9, dampening=0.5, foreach=True)",
    "SGD(groups, lr=0.1, weight_decay=0.01, maximize=True, foreach=False)",
    "Adam(groups, lr=0.01)",
    "Adam(groups, lr=0.01, foreach=True)",
    "Adam(groups, lr=0.01, amsgrad=True, weight_decay=0.1)",
    "AdamW(groups, lr=0.01)",
    "AdamW(groups, lr=0.01, foreach=True, betas=(0.8, 0.99))",
    "RMSprop(groups, lr=0.01, momentum=0.5)",
    "Adagrad(groups, lr=0.05)",
)
_ZERO = ("opt.zero_grad()", "opt.zero_grad(set_to_none=False)", "model.zero_grad()", "none(model)", "pass")
_CLIP = (
    "norm = clip_grad_norm_(model.parameters(), 0.5)",
    "norm = clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0, foreach=False)",
    "clip_grad_value_(model.parameters(), 0.1)",
)
_UPDATES = ("p -= 0.1 * p.grad", "p.add_(p.grad, alpha=-0.1)", "p.mul_(0.99).sub_(p.grad * 0.05)")
_BACKWARD = (
    "loss.backward()",
    "loss.backward(retain_graph=True)",
    "torch.autograd.backward(loss)",
    "(loss * 2).backward()",
)
_RETURNED = ("loss", "loss.detach()", "loss.item()", "(loss, norm)", "None", "[p.grad for p in model.parameters()]")


@dataclass
class World:
    """A model with its optimizer, and what the caller holds of it."""

    model: Any
    opt: Any
    sched: Any
    held: list[Any] = field(default_factory=list)
    handles: list[Any] = field(default_factory=list)
    told: list[Any] = field(default_factory=list)


@dataclass
class TrainingProgram:
    """``source`` defines ``step(model, opt, sched, x, y)``; ``events`` happen before the calls of these numbers."""

    seed: int
    layers: list[str]
    optimizer: str
    scheduler: str
    source: str
    frozen: list[int]
    events: dict[int, list[str]]
    calls: int

    def world(self) -> World:
        torch.manual_seed(self.seed)
        model = nn.Sequential(*(eval(layer) for layer in self.layers))
        parameters = list(model.parameters())
        for at in self.frozen:
            parameters[at % len(parameters)].requires_grad_(False)
        if self.seed % 3 == 0 and len(parameters) > 2:
            groups: Any = [{"params": parameters[:2], "lr": 0.03}, {"params": parameters[2:]}]
        else:
            groups = parameters
        opt = eval("torch.optim." + self.optimizer, {"torch": torch, "groups": groups})
        sched = eval(self.scheduler, {"torch": torch, "opt": opt}) if self.scheduler else None
        return World(model, opt, sched)

    def step(self) -> Callable[..., Any]:
        space = {
            "torch": torch, "F": F, "none": _none, "clip_grad_norm_": clip_grad_norm_,
            "clip_grad_value_": clip_grad_value_,
        }  # fmt: skip
        exec(compile(self.source, f"<training step {self.seed}>", "exec"), space)
        made: Callable[..., Any] = space["step"]
        return made

    def outcomes(self, step: Callable[..., Any], through: Callable[[int], None] = lambda call: None) -> list[Any]:
        """What each call leaves, ``step`` being the function or what was compiled of it."""
        world = self.world()
        found = []
        for call in range(self.calls):
            for event in self.events.get(call, ()):
                _EVENTS[event](world)
            x, y = _batch(self.seed, call, 7 if "batch" in self.events.get(call, ()) else 5)
            torch.manual_seed(self.seed + call)
            before = [p.grad for p in world.model.parameters()]
            through(call)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    result: Any = step(world.model, world.opt, world.sched, x, y)
                except Exception as error:
                    result = (type(error).__name__, str(error)[:80])
            world.held = [result]
            found.append(_seen(world, result, before))
        return found

    def __str__(self) -> str:
        return f"{self.layers} {self.optimizer} {self.scheduler} frozen {self.frozen}\n{self.source}\n{self.events}"


def _none(model: Any) -> None:
    for p in model.parameters():
        p.grad = None


def _batch(seed: int, call: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * seed + call)
    x = torch.randn(size, WIDTH, generator=generator)
    return x, torch.randint(0, CLASSES, (size,), generator=generator)


def _seen(world: World, result: Any, before: list[Any]) -> dict[str, Any]:
    """All that a caller can tell of a call, as values that are compared."""
    grads = [p.grad for p in world.model.parameters()]
    return {
        "result": _data(result),
        "parameters": _data([p.detach() for p in world.model.parameters()]),
        "buffers": _data(list(world.model.buffers())),
        "gradients": _data(grads),
        "kept": [one is not None and one is other for one, other in zip(grads, before, strict=True)],
        "tracked": [None if g is None else (g.requires_grad, g.is_leaf, g.stride()) for g in grads],
        "versions": [p._version for p in world.model.parameters()],
        "state": _data(world.opt.state_dict()),
        "scheduler": None if world.sched is None else _data(world.sched.state_dict()),
        "told": _data(world.told),
        "grad mode": torch.is_grad_enabled(),
    }


def _data(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        tracked = (value.requires_grad, value.grad_fn is not None)
        return ("tensor", value.dtype, tuple(value.shape), tracked, value.detach().clone())
    if isinstance(value, dict):
        return {key: _data(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *map(_data, value)]
    return value if isinstance(value, (int, float, str, bool, type(None))) else type(value).__name__


def differences(one: Any, other: Any, tolerance: float = 0.0, path: str = "") -> list[str]:
    """Where two outcomes differ: in numbers by more than ``tolerance``."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        near = torch.allclose(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)
        return [] if near else [f"{path}: {(one - other).abs().max()}"]
    if isinstance(one, dict) and isinstance(other, dict):
        if list(one) != list(other):
            return [f"{path}: keys {list(one)} and {list(other)}"]
        return [text for key in one for text in differences(one[key], other[key], tolerance, f"{path}.{key}")]
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        if len(one) != len(other):
            return [f"{path}: {len(one)} and {len(other)} entries"]
        return [
            text
            for at, (mine, others) in enumerate(zip(one, other, strict=True))
            for text in differences(mine, others, tolerance, f"{path}[{at}]")
        ]
    if isinstance(one, float) and isinstance(other, float) and tolerance:
        return [] if abs(one - other) <= tolerance * max(1.0, abs(one)) else [f"{path}: {one} and {other}"]
    return [] if type(one) is type(other) and (one == other or one != one) else [f"{path}: {one!r} and {other!r}"]


# What may happen between two calls.


def _first(world: World) -> Any:
    return next(iter(world.model.parameters()))


def _last(world: World) -> Any:
    return list(world.model.parameters())[-1]


def _forget_gradients(world: World) -> None:
    _none(world.model)


def _forget_one(world: World) -> None:
    _last(world).grad = None


def _other_memory(world: World) -> None:
    for p in world.model.parameters():
        if p.grad is not None:
            p.grad = p.grad.clone()


def _shared_gradient(world: World) -> None:
    """The gradient is a view of memory that somebody else has."""
    p = _first(world)
    world.held.append(torch.zeros(2, *p.shape))
    p.grad = world.held[-1][1]


def _other_rate(world: World) -> None:
    for group in world.opt.param_groups:
        group["lr"] *= 0.7


def _other_decay(world: World) -> None:
    for group in world.opt.param_groups:
        group["weight_decay"] = 0.25 if not group["weight_decay"] else 0


def _freeze(world: World) -> None:
    p = _first(world)
    p.requires_grad_(not p.requires_grad)


def _freeze_last(world: World) -> None:
    p = _last(world)
    p.requires_grad_(not p.requires_grad)


def _new_parameter(world: World) -> None:
    layer = next(one for one in world.model if isinstance(one, nn.Linear))
    layer.bias = nn.Parameter(torch.ones_like(layer.weight[:, 0]))
    world.opt.param_groups[0]["params"].append(layer.bias)


def _new_group(world: World) -> None:
    layer = nn.Linear(WIDTH, WIDTH)
    world.model.insert(0, layer)
    world.opt.add_param_group({"params": list(layer.parameters()), "lr": 0.02})


def _hook(world: World) -> None:
    if _last(world).requires_grad:
        told = world.told
        world.handles.append(_last(world).register_hook(lambda g: told.append(float(g.sum()))))


def _hook_that_changes(world: World) -> None:
    if _first(world).requires_grad:
        world.handles.append(_first(world).register_hook(lambda g: g * 0.5))


def _hook_after(world: World) -> None:
    p = _last(world)
    if p.requires_grad:
        world.handles.append(p.register_post_accumulate_grad_hook(lambda p: world.told.append(p.grad is None)))


def _hook_that_forgets(world: World) -> None:
    p = _last(world)
    if p.requires_grad:
        world.handles.append(p.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None)))


def _hook_of_node(world: World) -> None:
    """A hook where a gradient is accumulated that changes what the program reads."""
    p = _last(world)
    if p.requires_grad:
        node = p.view_as(p).grad_fn.next_functions[0][0]
        group = world.opt.param_groups[0]
        world.held.append(node)
        world.handles.append((node, node.register_hook(lambda *g: group.update(lr=group["lr"] * 0.5))))


def _hook_of_module(world: World) -> None:
    told = world.told
    layer = world.model[-1]
    world.handles.append(layer.register_full_backward_hook(lambda m, gi, go: told.append(float(go[0].sum()))))


def _hook_of_optimizer(world: World) -> None:
    told = world.told
    world.handles.append(world.opt.register_step_post_hook(lambda *given: told.append(len(given))))


def _unhook(world: World) -> None:
    while world.handles:
        handle = world.handles.pop()
        (handle[1] if isinstance(handle, tuple) else handle).remove()


def _load_optimizer(world: World) -> None:
    world.opt.load_state_dict(copy.deepcopy(world.opt.state_dict()))


def _reset_optimizer(world: World) -> None:
    world.opt.state.clear()


def _load_model(world: World) -> None:
    world.model.load_state_dict({name: value * 0.5 for name, value in world.model.state_dict().items()})


def _other_data(world: World) -> None:
    p = _first(world)
    p.data = p.data.clone() * 0.9


def _evaluate(world: World) -> None:
    world.model.train(not world.model.training)


def _outside(world: World) -> None:
    """A backward of the caller's own between two calls."""
    sum((p * p).sum() for p in world.model.parameters() if p.requires_grad).backward() if any(
        p.requires_grad for p in world.model.parameters()
    ) else None


def _count_anew(world: World) -> None:
    for state in world.opt.state.values():
        if isinstance(state.get("step"), torch.Tensor):
            state["step"].fill_(3.0)


def _count_below_zero(world: World) -> None:
    for state in world.opt.state.values():
        if isinstance(state.get("step"), torch.Tensor):
            state["step"].fill_(-2.0)


def _one_count(world: World) -> None:
    """All parameters count in one tensor."""
    states = [state for state in world.opt.state.values() if isinstance(state.get("step"), torch.Tensor)]
    for state in states:
        state["step"] = states[0]["step"]


def _alias_state(world: World) -> None:
    """Two buffers of an optimizer have one memory."""
    states = [s for s in world.opt.state.values() if isinstance(s.get("step"), torch.Tensor) and "exp_avg" in s]
    for state in states[:1]:
        state["step"] = state["exp_avg"].view(-1)[0]


def _other_model(world: World) -> None:
    world.model = copy.deepcopy(world.model)


def _nothing(world: World) -> None:
    pass


_EVENTS: dict[str, Callable[[World], None]] = {
    "batch": _nothing,
    **{
        function.__name__[1:]: function
        for function in (
            _forget_gradients, _forget_one, _other_memory, _shared_gradient, _other_rate, _other_decay, _freeze,
            _freeze_last, _new_parameter, _new_group, _hook, _hook_that_changes, _hook_after, _hook_that_forgets,
            _hook_of_node, _hook_of_module, _hook_of_optimizer, _unhook, _load_optimizer, _reset_optimizer,
            _load_model, _other_data, _evaluate, _outside, _count_anew, _count_below_zero, _one_count, _alias_state,
            _other_model,
        )
    },
}  # fmt: skip


def training_program(seed: int, calls: int = 9, eventful: bool = True) -> TrainingProgram:
    """The program of a number."""
    rng = random.Random(seed)
    layers = ["nn.Linear(6, 6)", *rng.choices(_LAYERS, k=rng.randint(0, 3)), f"nn.Linear({WIDTH}, {CLASSES})"]
    optimizer = rng.choice(_OPTIMIZERS)
    scheduler = rng.choice(
        (
            "",
            "",
            "",
            "torch.optim.lr_scheduler.StepLR(opt, 2, 0.5)",
            "torch.optim.lr_scheduler.CosineAnnealingLR(opt, 10)",
        )
    )
    body = _body(rng, bool(scheduler))
    events: dict[int, list[str]] = {}
    for _ in range(rng.randint(0, 3) if eventful else 0):
        events.setdefault(rng.randint(2, calls - 2), []).append(rng.choice(list(_EVENTS)))
    frozen = [rng.randint(0, 5)] if rng.random() < 0.25 else []
    source = "def step(model, opt, sched, x, y):\n    norm = None\n" + "".join(f"    {line}\n" for line in body)
    return TrainingProgram(seed, layers, optimizer, scheduler, source, frozen, events, calls)


def _body(rng: random.Random, schedules: bool) -> list[str]:
    zero, backward = rng.choice(_ZERO), rng.choice(_BACKWARD)
    first = rng.random() < 0.7
    lines = [zero] if first else []
    if rng.random() < 0.2:
        lines += ["for half in (x[:2], x[2:]):", "    loss = model(half).square().mean() / 2", "    loss.backward()"]
    elif rng.random() < 0.15:
        lines += ["loss = F.cross_entropy(model(x), y)", "wanted = [p for p in model.parameters() if p.requires_grad]"]
        lines += ["for p, g in zip(wanted, torch.autograd.grad(loss, wanted)):", "    p.grad = g"]
    else:
        lines += ["loss = F.cross_entropy(model(x), y)", backward]
    if rng.random() < 0.35:
        lines.append(rng.choice(_CLIP))
    if rng.random() < 0.25:
        lines += ["with torch.no_grad():", "    for p in model.parameters():", "        if p.grad is not None:"]
        lines.append(f"            {rng.choice(_UPDATES)}")
    else:
        lines.append("opt.step()")
    if schedules:
        lines.append("sched.step()")
    if not first:
        lines.append(zero)
    returned = rng.choice(_RETURNED)
    lines.append(f"return {returned}")
    return lines
