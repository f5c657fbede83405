"""Programs with recurrent layers, autocast and functions of torch's that take functions, and changes of their worlds.

``python -m tests.capture.own.layered_programs [NAME ...]`` prints how many of their calls were interpreted, and why.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

from lamina.capture.own.callable import interpreted_callable
from lamina.capture.own.interpreting import Interpreting
from lamina.record import Record

__all__ = ["PROGRAMS", "Found", "World", "found_of", "same"]


@dataclass
class World:
    """A ``program`` of one tensor, the ``model`` whose state it may read and write, and ``changes`` between calls.

    ``state`` gives what else a call may leave behind; results may differ by ``rounding``.
    """

    program: Callable[..., Any]
    model: nn.Module
    changes: dict[str, Callable[[], Any]] = field(default_factory=dict)
    make: Callable[[int], torch.Tensor] = lambda rows: torch.randn(rows, 3, 8)
    state: Callable[[], Any] = lambda: None
    rounding: float = 1e-4


@dataclass
class Found:
    """What calls came to: outcomes, which were ``interpreted`` and ``why``, how many calls of torch's are in graphs."""

    outcomes: list[Any]
    interpreted: list[str]
    in_graphs: int
    why: list[str]
    rounding: float


PROGRAMS: dict[str, Callable[[], World]] = {}


def program(make: Callable[[], World]) -> Callable[[], World]:
    PROGRAMS[make.__name__] = make
    return make


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))


def _changed(model: nn.Module) -> dict[str, Callable[[], Any]]:
    """What may become of a model between two calls."""
    first = next(name for name, _ in model.named_parameters())
    path, _, name = first.rpartition(".")
    owner = model.get_submodule(path)

    def write() -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.25)

    def replace() -> None:
        setattr(owner, name, nn.Parameter(getattr(owner, name).detach() * 0.5))

    def freeze() -> None:
        getattr(owner, name).requires_grad_(False)

    return {
        "weights are written to": write,
        "a weight is another tensor": replace,
        "a weight is frozen": freeze,
        "evaluation": model.eval,
        "a hook": lambda: model.register_forward_hook(lambda module, given, found: _doubled(found)),
    }


def _doubled(found: Any) -> Any:
    return found * 2 if isinstance(found, torch.Tensor) else (found[0] * 2, *found[1:])


# Autocast.


@program
def autocast_region() -> World:
    model = _mlp()

    def called(x):
        with torch.autocast("cpu", torch.bfloat16):
            y = model(x)
        return y.float() * 2

    def in_eager():
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            return model(torch.ones(2, 8))

    return World(called, model, _changed(model), state=in_eager)


@program
def autocast_by_a_variable() -> World:
    model = _mlp()
    model.enabled, model.dtype = True, torch.bfloat16

    def called(x):
        with torch.amp.autocast(device_type="cpu", dtype=model.dtype, enabled=model.enabled):
            return model(x).sum(-1), x @ x.mT

    def switch(name, value):
        return lambda: setattr(model, name, value)

    changes = {"off": switch("enabled", False), "on": switch("enabled", True), "half": switch("dtype", torch.float16)}
    return World(called, model, {**changes, **_changed(model)})


@program
def autocast_off_within() -> World:
    model = _mlp()

    def called(x):
        with torch.autocast("cpu", torch.bfloat16):
            y = model(x)
            with torch.autocast("cpu", enabled=False):
                z = y.float() @ x.mT
        return z + torch.is_autocast_enabled("cpu")

    return World(called, model, _changed(model))


@program
def autocast_decorates() -> World:
    model = _mlp()

    @torch.autocast("cpu", torch.bfloat16)
    def cast(x):
        return model(x)

    return World(lambda x: cast(x * 2).float().tanh(), model, _changed(model))


@program
def autocast_kept_outside() -> World:
    model, region = _mlp(), torch.autocast("cpu", torch.bfloat16)

    def called(x):
        with region:
            y = model(x) + 1
        return y.relu()

    return World(called, model, _changed(model))


@program
def autocast_and_an_exception() -> World:
    model = _mlp()

    def called(x):
        try:
            with torch.autocast("cpu", torch.bfloat16):
                y = model(x)
                raise ValueError
        except ValueError:
            return y.float() + torch.is_autocast_enabled("cpu") + x @ x.mT @ x

    return World(called, model, _changed(model))


@program
def autocast_with_a_break() -> World:
    model = _mlp()

    def called(x):
        with torch.autocast("cpu", torch.bfloat16):
            y = model(x)
            if y.sum() > -1e6:
                y = model(y)
        return y.float().sin()

    return World(called, model, _changed(model), rounding=0.05)  # eager adds gradients of one cast, which it has kept


@program
def autocast_left_open() -> World:
    model = _mlp()

    def called(x):
        region = torch.autocast("cpu", enabled=False)
        region.__enter__()
        return model(x)

    def depth():
        torch.autocast_increment_nesting()
        found = torch.autocast_decrement_nesting()
        while found and torch.autocast_decrement_nesting():
            pass
        return found

    return World(called, model, _changed(model), state=depth)


# Recurrent layers.


def _layer(kind: type[nn.Module], **options: Any) -> World:
    model = kind(8, 8, **options)

    def called(x):
        found, last = model(x.tanh() * 2)
        return found.sigmoid() + 1, last

    return World(called, model, _changed(model))


@program
def lstm() -> World:
    return _layer(nn.LSTM)


@program
def lstm_of_two_layers_both_ways() -> World:
    return _layer(nn.LSTM, num_layers=2, bidirectional=True, batch_first=True)


@program
def lstm_with_dropout() -> World:
    return _layer(nn.LSTM, num_layers=2, dropout=0.5)


@program
def lstm_projected() -> World:
    return _layer(nn.LSTM, proj_size=4)


@program
def gru() -> World:
    return _layer(nn.GRU)


@program
def gru_of_many_steps() -> World:
    world = _layer(nn.GRU, num_layers=2)
    world.make = lambda rows: torch.randn(20, 2, 8)
    return world


@program
def rnn_with_relu() -> World:
    return _layer(nn.RNN, nonlinearity="relu", bias=False)


@program
def lstm_and_its_state() -> World:
    model = nn.LSTM(8, 8)
    model.last = None

    def called(x):
        found, last = model(x + 1, model.last)
        model.last = tuple(one.detach() for one in last)
        return found * 2

    def forget():
        model.last = None

    return World(called, model, {"forgotten": forget, **_changed(model)}, state=lambda: model.last)


@program
def lstm_and_linear() -> World:
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.drop, self.out = nn.LSTM(8, 8, batch_first=True), nn.Dropout(0.25), nn.Linear(8, 4)

        def forward(self, x):
            found, (last, _) = self.lstm(self.drop(x))
            return F.log_softmax(self.out(found).relu(), -1), last[-1]

    model = Tagger()
    return World(model, model, _changed(model))


@program
def lstm_under_autocast() -> World:
    model = nn.LSTM(8, 8)

    def called(x):
        with torch.autocast("cpu", torch.bfloat16):
            found, _ = model(x * 2)
        return found.float() + 1

    return World(called, model, _changed(model), rounding=0.02)


@program
def lstm_without_gradients() -> World:
    model, out = nn.LSTM(8, 8), nn.Linear(8, 8)

    def called(x):
        with torch.no_grad():
            found, _ = model(x * 2)
        return out(found)

    return World(called, model, _changed(model))


@program
def cells() -> World:
    model = nn.ModuleList((nn.LSTMCell(8, 8), nn.GRUCell(8, 8)))

    def called(x):
        h = c = g = torch.zeros(3, 8)
        for step in x.unbind():
            h, c = model[0](step, (h, c))
            g = model[1](h, g)
        return g.relu()

    return World(called, model, {"written": _changed(model)["weights are written to"]})


# Tensors without their histories, and those whose sizes depend on values.


@program
def data() -> World:
    model = nn.Linear(8, 8)

    def called(x):
        y = (x * 2).data + model.weight.data.sum()
        return model(y) * 2

    return World(called, model, _changed(model))


@program
def data_is_written_to() -> World:
    model = nn.Linear(8, 8)

    def called(x):
        y = model(x)
        model.weight.data.mul_(0.5)
        return y.detach() * 2 + model.weight.sum()

    return World(called, model, _changed(model), state=lambda: model.weight._version)


@program
def nonzero() -> World:
    model = nn.Linear(8, 8)

    def called(x):
        y = model(x).relu()
        rows = torch.nonzero(x[:, 0, 0] > 0)
        return y[rows.squeeze(-1)].sum(0) + rows.shape[0]

    return World(called, model, _changed(model))


# Functions of autograd's.


def _applied(kind: Any, *more: Any, changes: Any = (), **options: Any) -> World:
    model = nn.Linear(8, 8)
    model.more = more

    def called(x):
        found = kind.apply((x @ model.weight).tanh() * 2, *model.more)
        return [one * 2 for one in found] if isinstance(found, tuple) else found.sin() + 1

    changed = {**dict(changes), **_changed(model)}
    return World(called, model, changed, **options)


@program
def function_that_saves() -> World:
    class Square(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * x * 3

    def other(ctx, x):
        ctx.save_for_backward(x * 2)
        return x.exp()

    def patch_forward():
        Square.forward = staticmethod(other)

    def patch_backward():
        Square.backward = staticmethod(lambda ctx, grad: grad * 5)

    return _applied(Square, changes={"other forward": patch_forward, "other backward": patch_backward}.items())


@program
def function_that_saves_its_result() -> World:
    class Exp(Function):
        @staticmethod
        def forward(ctx, x):
            y = x.exp()
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.saved_tensors[0] * 2

    return _applied(Exp)


@program
def function_with_a_number() -> World:
    class Scale(Function):
        @staticmethod
        def forward(x, by):
            return x * by

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.by = inputs[1]

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.by * 2, None

    world = _applied(Scale, 2.0)

    def give(number):
        return lambda: setattr(world.model, "more", (number,))

    world.changes = {"three": give(3.0), "four": give(4.0), "five": give(5.0), **world.changes}
    return world


@program
def function_of_several() -> World:
    class Several(Function):
        @staticmethod
        def forward(ctx, x, weight, bias):
            ctx.save_for_backward(x, weight)
            ctx.with_bias = bias is not None
            found = x @ weight.t()
            most = x.max(-1).indices
            ctx.mark_non_differentiable(most)
            ctx.set_materialize_grads(False)
            return (found if bias is None else found + bias), most, found.sum(-1)

        @staticmethod
        def backward(ctx, grad, of_most, of_sum):
            x, weight = ctx.saved_tensors
            wanted = ctx.needs_input_grad
            grad = 0 if grad is None else grad
            grad = grad + of_sum.unsqueeze(-1)
            of_x = grad @ weight if wanted[0] else None
            of_weight = grad.flatten(0, -2).t() @ x.flatten(0, -2) if wanted[1] else None
            return of_x, of_weight, grad.flatten(0, -2).sum(0) if ctx.with_bias and wanted[2] else None

    model = nn.Linear(8, 8)

    def called(x):
        found, most, total = Several.apply(x * 2, model.weight, model.bias)
        return found.relu(), most + 1, total * 3

    changes = _changed(model)
    return World(called, model, {**changes, "no bias": lambda: setattr(model, "bias", None)})


@program
def function_that_passes_on() -> World:
    class Reversed(Function):
        @staticmethod
        def forward(ctx, x):
            return x

        @staticmethod
        def backward(ctx, grad):
            return -grad

    return _applied(Reversed)


@program
def function_that_gives_a_view() -> World:
    class Flat(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.shape = x.shape
            return x.flatten(1)

        @staticmethod
        def backward(ctx, grad):
            return grad.view(ctx.shape) * 2

    return _applied(Flat)


@program
def function_that_writes() -> World:
    class Added(Function):
        @staticmethod
        def forward(ctx, x):
            x.add_(1)
            ctx.mark_dirty(x)
            return x

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    return _applied(Added)


@program
def function_that_counts() -> World:
    seen = []

    class Counted(Function):
        @staticmethod
        def forward(ctx, x):
            seen.append("forward")
            return x.relu()

        @staticmethod
        def backward(ctx, grad):
            seen.append("backward")
            return grad

    return _applied(Counted, state=lambda: [*seen])


@program
def function_under_autocast() -> World:
    class Product(Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu")
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return x @ weight

        @staticmethod
        @torch.amp.custom_bwd(device_type="cpu")
        def backward(ctx, grad):
            x, weight = ctx.saved_tensors
            return grad @ weight.t().to(grad.dtype), x.flatten(0, -2).t().float() @ grad.flatten(0, -2).float()

    model = nn.Linear(8, 8)

    def called(x):
        with torch.autocast("cpu", torch.bfloat16):
            found = Product.apply(x * 2, model.weight)
        return found.float().tanh()

    return World(called, model, _changed(model), rounding=0.02)


@program
def function_within_a_function() -> World:
    class Inner(Function):
        @staticmethod
        def forward(ctx, x):
            return x.round()

        @staticmethod
        def backward(ctx, grad):
            return grad

    class Outer(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return Inner.apply(x * 4) / 4 + torch.is_grad_enabled()

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.saved_tensors[0].cos()

    return _applied(Outer)


@program
def function_with_a_decision() -> World:
    class Clipped(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.large = bool(x.abs().max() > 0.5)
            return x.clamp(-0.5, 0.5) if ctx.large else x * 1

        @staticmethod
        def backward(ctx, grad):
            return grad * 2 if ctx.large else grad

    return _applied(Clipped)


@program
def function_with_random_numbers() -> World:
    class Noisy(Function):
        @staticmethod
        def forward(ctx, x):
            mask = torch.rand_like(x) > 0.5
            ctx.save_for_backward(mask)
            return x * mask

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.saved_tensors[0] * 2

    return _applied(Noisy)


# Activation checkpointing.


def _checkpointed(block: nn.Module, **options: Any) -> World:
    model = nn.Sequential(nn.Linear(8, 8), block)
    options = {"use_reentrant": False, **options}

    def called(x):
        return checkpoint(model[1], model[0](x).relu(), **options).sin() * 2

    return World(called, model, _changed(model))


@program
def checkpoint_of_a_module() -> World:
    return _checkpointed(_mlp())


@program
def checkpoint_with_dropout() -> World:
    return _checkpointed(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Tanh()))


@program
def checkpoint_with_other_random_numbers() -> World:
    return _checkpointed(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)), preserve_rng_state=False)


@program
def checkpoint_with_a_norm() -> World:
    return _checkpointed(nn.Sequential(nn.BatchNorm1d(3), nn.Linear(8, 8), nn.ReLU()))


@program
def checkpoint_reentrant() -> World:
    return _checkpointed(_mlp(), use_reentrant=True)


@program
def checkpoint_of_a_function() -> World:
    model = _mlp()

    def called(x):
        def block(x, by, bias=0.0):
            return model(x) * by + bias

        first = checkpoint(block, x * 2, 2.0, use_reentrant=False, bias=1.0)
        return checkpoint(block, first.tanh(), 3.0, use_reentrant=False) + first

    return World(called, model, _changed(model))


@program
def checkpoint_that_counts() -> World:
    model, seen = _mlp(), []

    def called(x):
        def block(x):
            seen.append(len(seen))
            return model(x).relu()

        return checkpoint(block, x * 2, use_reentrant=False) + 1

    return World(called, model, _changed(model), state=lambda: [*seen])


@program
def checkpoint_that_counts_here() -> World:
    model = _mlp()
    model.counts = []

    def called(x):
        count, found = 0, []

        def block(x):
            nonlocal count
            count += 1
            found.append(count)
            return model(x).relu()

        result = checkpoint(block, x * 2, use_reentrant=False) + 1
        model.counts = found
        return result

    return World(called, model, _changed(model), state=lambda: [*model.counts])


@program
def checkpoint_with_a_decision() -> World:
    model = _mlp()

    def called(x):
        def block(x):
            y = model(x)
            return y.relu() if y.sum() > -1e6 else y.sin()

        return checkpoint(block, x * 2, use_reentrant=False) + 1

    return World(called, model, _changed(model))


@program
def checkpoint_given_up_within_contexts() -> World:
    model = _mlp()
    model.kept = torch.zeros(8)

    def called(x):
        def block(x):
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
                found = torch.ones(8) @ model[0].weight.t().float() + torch.rand(16)
                model.kept.add_(1)
            return model(x).relu() + found.float().sum()

        y = x + torch.rand(8)
        found = checkpoint(block, y * 2, use_reentrant=False) + torch.rand(8)
        return found, torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")

    return World(called, model, _changed(model), state=lambda: model.kept.clone())


@program
def checkpoint_given_up_at_a_device() -> World:
    model = _mlp()

    def called(x):
        def block(x):
            with torch.no_grad(), torch.device("cpu"):
                found = torch.ones(8)
            return model(x).relu() + found

        return checkpoint(block, x * 2, use_reentrant=False) + torch.rand(8)

    return World(called, model, _changed(model), state=lambda: str(torch.get_default_device()))


@program
def checkpoint_of_layers() -> World:
    class Layers(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers, self.checkpointing = nn.ModuleList(_mlp() for _ in range(4)), True

        def forward(self, x):
            for layer in self.layers:
                x = x + (checkpoint(layer, x, use_reentrant=False) if self.checkpointing else layer(x))
            return x.mean(-1)

    model = Layers()
    changes = {"off": lambda: setattr(model, "checkpointing", False), **_changed(model)}
    return World(model, model, changes)


@program
def checkpoint_under_autocast() -> World:
    model = _mlp()

    def called(x):
        y = x * 2
        with torch.autocast("cpu", torch.bfloat16):
            found = checkpoint(model, y, use_reentrant=False)
        return found.float() + 1

    return World(called, model, _changed(model), rounding=0.02)


# Training steps of such.


def _trained(model: nn.Module, loss_of: Callable[[torch.Tensor], torch.Tensor], **options: Any) -> World:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(x):
        optimizer.zero_grad()
        loss = loss_of(x.detach())
        loss.backward()
        optimizer.step()
        return loss.detach()

    return World(step, model, {"written": _changed(model)["weights are written to"]}, **options)


@program
def training_of_an_lstm() -> World:
    model = nn.LSTM(8, 8)
    return _trained(model, lambda x: model(x * 2)[0].square().mean())


@program
def training_with_autocast_and_checkpoints() -> World:
    model = _mlp()

    def loss(x):
        with torch.autocast("cpu", torch.bfloat16):
            found = checkpoint(model, x * 2, use_reentrant=False)
        return found.float().square().mean()

    return _trained(model, loss, rounding=0.02)


@program
def training_with_a_function() -> World:
    seen = []

    class Noted(Function):
        @staticmethod
        def forward(ctx, x):
            return x.relu()

        @staticmethod
        def backward(ctx, grad):
            seen.append(1)
            return grad * 2

    model = _mlp()
    model.seen = seen
    return _trained(model, lambda x: Noted.apply(model(x)).sum() * (1 + len(model.seen)), state=lambda: len(seen))


def found_of(make: Callable[[], World], compiled: bool, **options: Any) -> Found:
    """What the calls of a program come to, in eager or with its calls ``compiled``."""
    torch.manual_seed(0)
    world, record = make(), Record()
    count, names = [0], [""]
    interpreted: list[str] = []

    def backend(gm, fakes):
        count[0] += sum(node.op in ("call_function", "call_method") for node in gm.graph.nodes)
        return gm.forward

    def counted(self, *given):
        interpreted.append(names[0])
        return call(self, *given)

    call = Interpreting.call
    function = world.program
    if compiled:
        function = interpreted_callable(function, backend_callable=backend, record=record, **options)
    found, rows = [], 5
    calls = {"first": None, "second": None, "third": None, **world.changes, "without gradients": None}
    Interpreting.call = counted
    try:
        for at, (name, change) in enumerate(calls.items()):
            if change is not None:
                change()
            for again in range(2):
                names[0] = f"{name}, again" if again else name
                torch.manual_seed(at + 100 * again)
                given = world.make(rows).requires_grad_(at % 3 == 2)
                with torch.set_grad_enabled(name != "without gradients"):
                    found.append((names[0], _outcome(world, function, given)))
    finally:
        Interpreting.call = call
    why = [str(one.reason) for one in record.decisions("capture") if "interpreted:" in str(one.reason)]
    return Found(found, interpreted, count[0], why, world.rounding)


def _outcome(world: World, function: Callable[..., Any], given: torch.Tensor) -> Any:
    """The results of a call, and what its gradients and it leave behind."""
    try:
        result = function(given)
    except Exception as error:
        return type(error), str(error), world.state()
    tensors = [one for one in _flat(result) if isinstance(one, torch.Tensor)]
    tracked = [one for one in tensors if one.requires_grad]
    raised = None
    try:
        if tracked:
            torch.autograd.backward([one.float().pow(2).sum() for one in tracked])
    except RuntimeError as error:
        raised = str(error)[:60]
    held = {**dict(world.model.named_parameters()), **dict(world.model.named_buffers()), "given": given}
    grads = {name: None if one.grad is None else one.grad.clone() for name, one in held.items() if one.is_leaf}
    for one in held.values():
        one.grad = None
    values = {name: one.detach().clone() for name, one in held.items()}
    told = [(one.dtype, one.requires_grad, one.is_leaf, one.stride()) for one in tensors]
    return [*map(_detached, _flat(result))], told, grads, values, world.state(), torch.get_rng_state(), raised


def _detached(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _flat(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [part for one in value.values() for part in _flat(one)]
    return [part for one in value for part in _flat(one)] if isinstance(value, (tuple, list)) else [value]


def same(one: Any, other: Any, rounding: float) -> bool:
    """Whether two outcomes are, but for roundings."""
    if isinstance(one, torch.Tensor):
        alike = isinstance(other, torch.Tensor) and (one.shape, one.dtype) == (other.shape, other.dtype)
        return alike and bool(
            torch.allclose(one.double(), other.double(), rtol=rounding, atol=rounding, equal_nan=True)
        )
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key], rounding) for key, value in one.items())
    if isinstance(one, (tuple, list)) and not isinstance(one, torch.Size):
        return len(one) == len(other) and all(same(*pair, rounding) for pair in zip(one, other, strict=True))
    return bool(one == other)


def main() -> None:
    for name in sys.argv[1:] or PROGRAMS:
        eager, found = found_of(PROGRAMS[name], False), found_of(PROGRAMS[name], True)
        pairs = zip(eager.outcomes, found.outcomes, strict=True)
        differs = [at for (at, one), (_, other) in pairs if not same(one, other, found.rounding)]
        print(f'    "{name}": ({len(found.interpreted)}, {found.in_graphs}),  # of {len(found.outcomes)}')
        print("        interpreted:", ", ".join(found.interpreted))
        print(*(f"        {line}\n" for line in found.why), sep="", end="")
        if differs:
            print("        DIFFERS:", differs)


if __name__ == "__main__":
    main()
