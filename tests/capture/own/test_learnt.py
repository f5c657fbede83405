"""What a call writes to tensors and what it learns from them: both are done again without interpretation."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import lamina
from lamina.capture.own import places
from lamina.capture.own.callable import interpreted_callable
from lamina.capture.own.machine import Machine
from lamina.capture.own.reuse.copies import INTEGERS_ARE_COPIED, copied
from lamina.capture.own.writing import overlaps_itself, written_by
from lamina.record import Record


class Compiled:
    """A compiled callable that counts its calls that are interpreted, its graphs and their calls."""

    def __init__(self, target: Any, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.interpreted = self.graphs = self.calls = 0
        self.record = Record()
        run = Machine.run

        def counted(machine: Machine, *given: Any) -> Any:
            self.interpreted += not machine.frames
            return run(machine, *given)

        def backend(gm: torch.fx.GraphModule, fakes: Any) -> Callable[..., Any]:
            self.graphs += 1
            self.calls += sum(node.op.startswith("call") for node in gm.graph.nodes)
            return gm.forward

        monkeypatch.setattr(Machine, "run", counted)
        self.call = interpreted_callable(target, backend_callable=backend, record=self.record, **options)


def values() -> torch.Tensor:
    return torch.arange(4.0)


class Cache(nn.Module):
    """Attention with keys and values that are kept in buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 24)
        self.register_buffer("keys", torch.zeros(1, 16, 8))
        self.register_buffer("held", torch.zeros(1, 16, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.project(x).chunk(3, -1)
        self.keys[:, :2] = key
        self.held[:, :2].copy_(value)
        return torch.softmax(query @ self.keys.transpose(1, 2), -1) @ self.held


def test_a_batch_norm_in_training_is_one_graph_and_one_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def norms() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.BatchNorm1d(4))

    wanted, model = norms(), norms()
    compiled = Compiled(model, monkeypatch)
    for step in range(3):
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(step))
        one, other = wanted(x), compiled.call(x)
        assert torch.allclose(one, other)
        one.square().sum().backward()
        other.square().sum().backward()
    assert all(map(torch.allclose, wanted.state_dict().values(), model.state_dict().values()))
    assert all(torch.allclose(p.grad, q.grad) for p, q in zip(wanted.parameters(), model.parameters(), strict=True))
    assert (compiled.graphs, compiled.interpreted) == (1, 1)


def test_a_cache_is_written_to_in_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    wanted = Cache()
    model = Cache()
    model.load_state_dict(wanted.state_dict())
    compiled = Compiled(model, monkeypatch)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(1, 2, 8)
            assert torch.allclose(wanted(x), compiled.call(x))
    assert torch.equal(wanted.keys, model.keys)
    assert torch.equal(wanted.held, model.held)
    assert (compiled.graphs, compiled.interpreted) == (1, 1)


@pytest.mark.parametrize("real", [False, True])
def test_tensors_that_share_memory_are_written_to_as_eager_does(real: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        x.add_(1)
        z = y * 2
        x.mul_(3)
        return z + x, y + 1

    call = lamina.compile(step, options={"capture": "own"}) if real else Compiled(step, monkeypatch).call
    for make in (
        lambda base: (base[:4].clone(), base[4:].clone()),
        lambda base: (base[:4], base[4:]),
        lambda base: (base[:4], base[:4]),
        lambda base: (base[:4], base[2:6]),
    ):
        for _ in range(2):
            ours, theirs = torch.arange(8.0), torch.arange(8.0)
            assert all(map(torch.equal, call(*make(ours)), step(*make(theirs))))
            assert torch.equal(ours, theirs)


def test_a_write_raises_the_version_and_eager_says_what_it_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    @torch.no_grad()
    def update(w: torch.Tensor) -> None:
        w.mul_(0.5)

    call = Compiled(update, monkeypatch).call
    w = values().requires_grad_()
    call(w)
    loss = (w * w).sum()
    call(w)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        Compiled(lambda w: w.mul_(2), monkeypatch).call(w)
    with pytest.raises(RuntimeError, match="single memory location"):
        Compiled(lambda x: x.mul_(2), monkeypatch).call(torch.ones(1).expand(4))


def test_which_tensors_a_call_writes_to() -> None:
    x, mean, var = torch.ones(3, 2), torch.zeros(2), torch.ones(2)
    norm = nn.functional.batch_norm
    assert [id(t) for t in written_by(norm, (x, mean, var), {"training": True})] == [id(mean), id(var)]
    assert written_by(norm, (x, mean, var, None, None, False, 0.1, 1e-5), {}) == ()
    given = (x, None, None, mean, var, True, 0.1, 1e-5, False)
    assert [id(t) for t in written_by(torch.batch_norm, given, {})] == [id(mean), id(var)]
    assert written_by(nn.functional.silu, (x,), {"inplace": True}) == (x,)
    assert written_by(nn.functional.relu, (x, True), {}) == (x,)
    assert written_by(nn.functional.relu, (x,), {}) == ()
    assert overlaps_itself(x.expand(4, 3, 2))
    assert overlaps_itself(torch.as_strided(torch.ones(8), (3, 3), (2, 1)))
    assert not overlaps_itself(x.t()[:, ::2])


def test_a_decision_by_a_value_is_a_tree_in_one_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        if y.sum() > 3:
            return y.sin()
        return y.cos() if int(y.max()) == 0 else y.tan()

    compiled = Compiled(choose, monkeypatch)
    given = [values(), values() - 9, values() - 3] * 4
    for x in given:
        assert torch.equal(compiled.call(x.clone()), choose(x))
    assert compiled.interpreted == 3
    assert compiled.graphs == 5


def test_a_value_that_is_only_kept_makes_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    held = SimpleNamespace(losses=[], last=0.0)

    def step(x: torch.Tensor) -> Any:
        loss = (x * x).sum().item()
        held.losses.append(loss)
        held.last = loss / 2 + math.sqrt(abs(loss))
        return x * loss, {"loss": [loss]}

    compiled = Compiled(step, monkeypatch)
    for place in range(6):
        x = values() + place
        wanted, told = step(x)
        got, also = compiled.call(x)
        assert torch.equal(wanted, got)
        assert told == also
        assert held.losses[-1] == held.losses[-2]
    assert compiled.interpreted == 1


@pytest.mark.parametrize("rounds", [8, 1000, 8000])
def test_a_loop_compiles_its_body_once(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def loop(x: torch.Tensor, count: int) -> torch.Tensor:
        for _ in range(count):
            x = x.sin() * 2 + 1
            if x.sum().item() > 100:
                break
        return x

    compiled = Compiled(loop, monkeypatch)
    for _ in range(2):
        assert torch.equal(compiled.call(values(), rounds), loop(values(), rounds))
    assert compiled.graphs == 1
    assert compiled.interpreted == (1 if rounds < 2000 else 2)  # a driver's text is bounded


def test_a_loop_that_ends_by_a_value_leaves_at_any_round(monkeypatch: pytest.MonkeyPatch) -> None:
    def grow(x: torch.Tensor) -> Any:
        rounds = 0
        while x.abs().sum() < 1000:
            x, rounds = x * 2 + 1, rounds + 1
        return x, rounds

    compiled = Compiled(grow, monkeypatch)
    for _ in range(3):
        for start in (1.0, 30.0, 4.0, 200.0):
            wanted, got = grow(values() * start), compiled.call(values() * start)
            assert torch.equal(wanted[0], got[0])
            assert wanted[1] == got[1]
    assert compiled.interpreted == 4


def test_a_float_that_is_another_one_each_time_is_an_input(monkeypatch: pytest.MonkeyPatch) -> None:
    held = SimpleNamespace(rate=0.1)

    def scaled(x: torch.Tensor, k: float) -> Any:
        return (x * k + held.rate).relu() - k, k * 2

    compiled = Compiled(scaled, monkeypatch)
    for place in range(12):
        k = (0.25 * place, -0.0, float("nan"), float("inf"))[place % 4 if place > 7 else 0]
        held.rate = 0.5 + place
        wanted, got = scaled(values(), k), compiled.call(values(), k)
        assert torch.equal(wanted[0].nan_to_num(), got[0].nan_to_num())
        assert repr(wanted[1]) == repr(got[1])
    assert compiled.interpreted <= 5


Held = SimpleNamespace


def adam(held: Held, x: torch.Tensor) -> Any:
    held.n += 1
    return x * (held.rate / (1 - 0.9**held.n)) / math.sqrt(1 - 0.999**held.n), held.n


def warm_up(held: Held, x: torch.Tensor) -> Any:
    held.n += 1
    return x - held.rate * min(1.0, held.n / 5) * x.sin()


def as_tensors(held: Held, x: torch.Tensor) -> Any:
    held.n += 3
    held.rate *= 0.5
    return x * torch.tensor(held.rate), torch.tensor(held.n), torch.tensor(held.n, dtype=torch.float64)


def operands(held: Held, x: torch.Tensor) -> Any:
    held.n += 1
    return x * held.n + held.n, (held.n * 2, [held.n - 1]), x.to(torch.int64) + held.n < held.n


def written(held: Held, x: torch.Tensor) -> Any:
    held.n += 1
    x.add_(held.n)
    return x * 2 if held.n > 6 else x


def whole(held: Held, x: torch.Tensor) -> Any:
    held.items[1] += 1
    for part in held.items:
        x = x + part
    return x + sum(held.items), dict(enumerate(held.items, start=int(held.items[1])))


def raising(held: Held, x: torch.Tensor) -> Any:
    held.n = (held.n + 1) % 5
    try:
        return x * (1 / held.n)
    except ZeroDivisionError:
        return x - 1


def either_kind(held: Held, x: torch.Tensor) -> Any:
    held.n += 1
    x = x * held.n
    kind = {held.n: 1}
    return x.to(torch.int64) * held.n, x.size(held.n % 1), kind


VARYING: dict[str, tuple[Callable[..., Any], int]] = {
    one.__name__: (one, most)
    for one, most in (
        (adam, 3),
        (warm_up, 3),
        (as_tensors, 3),
        (operands, 3),
        (written, 4),
        (whole, 12),
        (raising, 12),
        (either_kind, 12),
    )
}
"""Programs with numbers that are others in each call, and how many of 12 calls are interpreted at most."""


@pytest.mark.parametrize("name", VARYING)
def test_numbers_that_are_others_in_each_call(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, most = VARYING[name]
    compiled = Compiled(function, monkeypatch)
    ours, theirs = (Held(n=0, rate=0.1, items=[1, 2.0, 3]) for _ in range(2))
    for place in range(12):
        x = values() + place
        wanted, got = function(theirs, x.clone()), compiled.call(ours, x.clone())
        assert repr(wanted) == repr(got)
        assert ours == theirs
    assert compiled.interpreted <= most
    assert most == 12 or compiled.graphs == most


def test_an_integer_is_an_input_of_as_many_digits_as_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    def scaled(x: torch.Tensor, n: int) -> Any:
        return x * n, x.double() * n, torch.tensor(n), n > 2**60, x.long() + n

    compiled = Compiled(scaled, monkeypatch)
    for n in (1, 2, 300, 2**53, 2**53 + 1, -(2**53) - 1, 2**62 + 1, 7, -9, 0):
        assert repr(compiled.call(values(), n)) == repr(scaled(values(), n))
    for n in (True, 2.0, 3):
        assert repr(compiled.call(values(), n)) == repr(scaled(values(), n))


def test_copies_of_integers_are_integers() -> None:
    for value in (*range(-300, 300), 2**30, -(2**62), 10**40):
        made = copied(value)
        assert made is not value
        assert type(made) is int
        assert (made, hash(made), str(made), made + 0, bool(made)) == (
            value,
            hash(value),
            str(value),
            value,
            bool(value),
        )
    assert copied(True) is True
    assert math.copysign(1.0, copied(-0.0)) == -1.0
    assert INTEGERS_ARE_COPIED


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64])
def test_compiled_kernels_take_floats_as_inputs(dtype: torch.dtype) -> None:
    def scaled(x: torch.Tensor, k: float) -> torch.Tensor:
        return (x * k + k / 3).clamp(min=k) + torch.tensor(k)

    call = lamina.compile(scaled, options={"capture": "own"})
    for place in range(12):
        x, k = values().to(dtype), 0.3 + place if place < 6 else place
        wanted, got = scaled(x, k), call(x, k)
        assert wanted.dtype == got.dtype
        assert torch.allclose(wanted, got, rtol=1e-2 if dtype is torch.bfloat16 else 1e-5)


def test_what_decides_after_a_write_is_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2 if x.sum() > 8 else x * 3

    compiled = Compiled(step, monkeypatch)
    for place in range(4):
        x = values() + place % 2
        assert torch.equal(compiled.call(x.clone()), step(x))
    assert compiled.interpreted == 4
    assert any("has written" in str(decision.reason) for decision in compiled.record.decisions("capture"))


def test_lines_that_are_called_from_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "MOST_KEPT", 4)
    lines = "".join(f"    found.append(len('{'a' * place}'))\n" for place in range(12))
    space: dict[str, Any] = {}
    exec(f"def many(found):\n{lines}    return found", space)
    assert Compiled(space["many"], monkeypatch).call([]) == [*range(12)]
    assert len(places._callers) <= max(4, len(places._caller_codes))


WITHIN: dict[str, Callable[[torch.Tensor], Any]] = {
    "tuple": lambda x: (x.item(),),
    "beside a tensor": lambda x: ((x.item(), None), x + 1),
    "arithmetic": lambda x: (x.item() * 2 + 1,),
    "list to tuple": lambda x: tuple(x.reshape(1).tolist()),
    "set": lambda x: frozenset((x.item(),)),
    "slice": lambda x: slice(x.item(), 2),
    "nested": lambda x: {"a": [(1, (x.item(), 2))]},
}


@pytest.mark.parametrize("name", WITHIN)
def test_learnt_numbers_within_constants_are_learnt_in_each_call(name: str) -> None:
    function = WITHIN[name]
    compiled = lamina.compile(function, options={"capture": "own"})
    for number in (4.0, 4.0, 9.0, 9.0, 2.0):
        assert str(compiled(torch.tensor(number))) == str(function(torch.tensor(number)))


def test_varying_numbers_within_constants() -> None:
    compiled = lamina.compile(lambda x, s: (s * 2, x), options={"capture": "own"})
    for number in (1.5, 2.5, 3.5, 4.5, 5.5):
        assert compiled(torch.tensor(1.0), number)[0] == number * 2


@pytest.mark.parametrize("asks", [True, False])
def test_parts_that_get_a_history_of_what_had_none(asks: bool) -> None:
    def program(held, x, y):
        scale = y.sum().item() if asks else 3.0
        held[1:].add_(x)
        return x * scale

    compiled = lamina.compile(program, options={"capture": "own"})
    told = []
    for call in (program, compiled):
        for _ in range(3):
            call(torch.zeros(2, 4), torch.ones(4), torch.ones(3))
            held, x = torch.zeros(2, 4), torch.ones(4, requires_grad=True)
            found = call(held, x, torch.ones(3))
            gradient = torch.autograd.grad(held.sum() + found.sum(), x)[0]
            told.append((held.requires_grad, held.tolist(), found.tolist(), gradient.tolist()))
    assert told == told[:1] * 6


_REFUSED: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "fill_": lambda x, n: x.clone().fill_(n),
    "masked_fill": lambda x, n: x.masked_fill(x > 2, n),
    "full_like": lambda x, n: torch.full_like(x, n),
    "clamp": lambda x, n: x.clamp(max=n),
    "where": lambda x, n: torch.where(x > 1, x, n),
    "alpha": lambda x, n: torch.add(x, x, alpha=n),
    "alpha beside a number": lambda x, n: x.sub(2, alpha=n),
}


def _told(call: Callable[..., Any], *given: Any) -> str:
    try:
        return str(call(*given))
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("name", _REFUSED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_numbers_that_a_type_cannot_hold(name: str, dtype: torch.dtype) -> None:
    """They are others in each call, and torch refuses to convert some of them to the type of a tensor."""
    x = torch.arange(4).to(dtype)
    compiled = lamina.compile(_REFUSED[name], backend="interp", options={"capture": "own"})
    for number in (1.5, 2.5, 3.5, 1e300, float("nan"), 5):
        assert _told(compiled, x, number) == _told(_REFUSED[name], x, number), number


BOUNDS: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "method": lambda x, s: x.clamp(max=s),
    "both": lambda x, s: torch.clamp(x, -s, s * 2),
    "lower": lambda x, s: x.double().clamp(min=s - 1),
    "clamp_max": torch.clamp_max,
    "clamp_min": torch.clamp_min,
}


@pytest.mark.parametrize("name", BOUNDS)
def test_a_bound_that_is_no_number_is_one_of_a_graph_of_its_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that is NaN bounds nothing in some versions of torch, where a tensor that is NaN does."""
    compiled = Compiled(BOUNDS[name], monkeypatch)
    for k, bound in enumerate((2.0, 3.0, math.inf, 0.5, math.nan, math.nan, 1.0)):
        found, wanted = (call(values() + k, bound) for call in (compiled.call, BOUNDS[name]))
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
        if k == 3:
            before = compiled.graphs
    assert compiled.graphs == before + 1
