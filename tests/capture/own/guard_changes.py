"""Random changes of all that a call reads, after each of which the guard machine and Python are asked for the facts.

``python -m tests.capture.own.guard_changes SEED COUNT`` makes COUNT changes. The machine may never say that facts hold
where Python says that one does not.
"""

from __future__ import annotations

import gc
import random
import sys
from collections import OrderedDict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from lamina.capture.own.callable import interpreted_callable
from lamina.capture.own.guards.library import Library
from lamina.capture.own.reuse.driver import Driver
from lamina.record import Record
from tests.capture.own.machines import guard_machine

__all__ = ["Compared", "compared"]

Change = Callable[[], None]
NUMBER = 2
HELD: Any = None


class Base:
    """A class with an entry that methods read."""

    scale = 2

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


class Derived(Base):
    """One with a base."""


class Other(Derived):
    """One that objects may become an instance of."""


def _helper(x: torch.Tensor, k: int = 2, *, j: int = 1) -> torch.Tensor:
    return x * k + j


def _replacement(x: torch.Tensor, k: int = 3, *, j: int = 2) -> torch.Tensor:
    return x - k * j


class World:
    """What the program below reads."""

    def __init__(self) -> None:
        self.thing: Any = Derived()
        self.thing.number, self.thing.list, self.thing.pair = 3, [1, 2.0, "a"], (1, [2, (3,)])
        self.thing.table, self.thing.ordered = {"a": 1, "b": [2]}, OrderedDict(a=1, b=2)
        self.thing.tensor, self.thing.zero = torch.arange(4.0), 0.0
        self.thing.space = SimpleNamespace(v=1, inner=SimpleNamespace(v=[1]))
        self.layer: Any = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.kept = [torch.ones(4), nn.Linear(4, 4)]
        cell, self.cell = self._closed(5)
        self.function = cell

    def _closed(self, value: Any) -> tuple[Any, Any]:
        def inner(x: torch.Tensor) -> torch.Tensor:
            return x + value

        return inner, inner.__closure__[0]  # type: ignore[index]

    def program(self) -> Callable[..., Any]:
        thing, layer, kept, function = self.thing, self.layer, self.kept, self.function

        def run(x: torch.Tensor, given: Any) -> Any:
            x = thing.scaled(x) * thing.number + thing.list[0] * thing.list[1] + len(thing.list)
            x = _helper(x) + thing.pair[0] + thing.pair[1][0] + thing.pair[1][1][0] + NUMBER
            x = x + thing.table["a"] + thing.table["b"][0] + (1 if "c" in thing.table else 2)
            for key in thing.table:
                x = x + len(key)
            x = x + thing.ordered["a"] + thing.tensor + thing.space.v + thing.space.inner.v[0]
            x = function(layer(x)) + kept[0] * thing.zero
            x = kept[1](x)
            return x + given[0] if isinstance(given, list) else x * given

        return run


class Compared:
    """What was counted: changes, calls for which facts held, those of them the machine knew, and what was wrong."""

    def __init__(self) -> None:
        self.changes = self.held = self.known = 0
        self.wrong: list[str] = []


def compared(seed: int, count: int, machine: Callable[[], Library | None] = guard_machine) -> Compared:
    """Make ``count`` changes of a world by ``seed``; each is undone sooner or later."""
    r = random.Random(seed)
    outcome = Compared()
    while outcome.changes < count:
        world = World()
        _run(r, world, min(count - outcome.changes, 2000), machine, outcome)
    return outcome


def _run(r: random.Random, world: World, count: int, machine: Any, outcome: Compared) -> None:
    drivers: list[Driver] = []
    before = Driver.__init__

    def kept(driver: Driver, *given: Any) -> None:
        before(driver, *given)
        drivers.append(driver)

    Driver.__init__ = kept  # type: ignore[method-assign]
    try:
        call = interpreted_callable(
            world.program(), backend_callable=lambda gm, _: gm.forward, record=Record(), machine=machine
        )
        call(torch.ones(4), [1])
    finally:
        Driver.__init__ = before  # type: ignore[method-assign]
    (driver,) = drivers
    assert driver.guard is not None
    undo: list[Change] = []
    for _ in range(count):
        outcome.changes += 1
        if undo and r.random() < 0.65:
            undo.pop()()
        else:
            change = r.choice(_CHANGES)(r, world)
            if change is not None:
                undo.append(change)
        if r.random() < 0.02:
            gc.collect(0)
        args = _arguments(r)
        _compare(driver, args, outcome)
    while undo:
        undo.pop()()
    _compare(driver, (torch.ones(4), [1]), outcome)


def _compare(driver: Driver, args: tuple[Any, ...], outcome: Compared) -> None:
    known = driver.guard.check(args, {}) is not None  # type: ignore[union-attr]
    holds = driver.holds(args, {})
    outcome.held += holds
    outcome.known += known
    if known and not holds:
        outcome.wrong.append(str(driver.failing(args, {})))
    if holds and not known:
        driver.guard.vain = 0  # type: ignore[union-attr]
        driver.learn(args, {})


def _arguments(r: random.Random) -> tuple[Any, ...]:
    if r.random() < 0.8:
        return torch.ones(4), [1]
    return r.choice([
        (torch.ones(5), [1]), (torch.ones(4, requires_grad=True), [1]), (torch.ones(4), [2]), (torch.ones(4), 1),
        (torch.ones(4).double(), [1]), (torch.ones(8)[::2], [1]), (torch.ones(4),), (torch.ones(4), [1, 2]),
        (torch.ones(4), (1,)), (torch.ones(4), {0: 1}), (torch.ones(6)[1:5], [1]),
    ])  # fmt: skip


def _set(owner: Any, name: str, value: Any) -> Change | None:
    own = type(owner) is not Derived or name in vars(owner)
    before = getattr(owner, name)
    setattr(owner, name, value)
    return (lambda: setattr(owner, name, before)) if own else (lambda: vars(owner).pop(name, None))


def _put(owner: Any, key: Any, value: Any) -> Change:
    before = owner[key]
    owner[key] = value

    def undo() -> None:
        owner[key] = before

    return undo


def _attribute(r: random.Random, w: World) -> Change | None:
    values = (
        r.randrange(5),
        3,
        3.0,
        True,
        None,
        [1, 2.0, "a"],
        (1, [2, (3,)]),
        -0.0,
        0.0,
        torch.arange(4.0),
        Derived(),
    )
    return _set(w.thing, r.choice(("number", "list", "pair", "zero", "tensor", "scale", "space")), r.choice(values))


def _unread(r: random.Random, w: World) -> Change | None:
    owner = r.choice((w.thing, w.layer, w.layer[0], w.kept[1], w.thing.__class__))
    setattr(owner, f"unread{r.randrange(3)}", object())
    return None


def _item(r: random.Random, w: World) -> Change | None:
    table = r.choice((w.thing.table, w.thing.ordered))
    return _put(table, r.choice([*table]), r.choice((1, 2, [2], 1.0, True, "x")))


def _more_keys(r: random.Random, w: World) -> Change | None:
    table = r.choice((w.thing.table, w.thing.ordered))
    if "c" in table:
        return None
    table["c"] = 1
    return lambda: table.pop("c", None)


def _order(r: random.Random, w: World) -> Change | None:
    table = r.choice((w.thing.table, w.thing.ordered))
    before = dict(table)
    key = r.choice([*table])
    table[key] = table.pop(key)

    def undo() -> None:
        table.clear()
        table.update(before)

    return undo


def _equal_dictionary(r: random.Random, w: World) -> Change | None:
    return _set(w.thing, "table", dict(w.thing.table))


def _own_dictionary(r: random.Random, w: World) -> Change | None:
    owner = r.choice((w.thing, w.layer, w.layer[0]))
    return _set(owner, "__dict__", dict(vars(owner)))


def _listed(r: random.Random, w: World) -> Change | None:
    if not isinstance(w.thing.list, list):
        return None
    before = list(w.thing.list)
    target = w.thing.list
    what = r.randrange(4)
    if what == 0:
        target.append(1)
    elif what == 1 and target:
        target[r.randrange(len(target))] = r.choice((1, 2.0, "a", True, 1.0))
    elif what == 2:
        target.clear()
    else:
        target[:] = list(before)

    def undo() -> None:
        target[:] = before

    return undo


def _class(r: random.Random, w: World) -> Change | None:
    before = w.thing.__class__
    w.thing.__class__ = r.choice((Derived, Other, Base))

    def undo() -> None:
        w.thing.__class__ = before

    return undo


def _class_entry(r: random.Random, w: World) -> Change | None:
    kind = r.choice((Base, Derived, Other))
    if "scale" in vars(kind):
        return _set(kind, "scale", r.choice((2, 2, 3, 2.0)))
    kind.scale = r.choice((2, 4))
    return lambda: delattr(kind, "scale")


def _function(r: random.Random, w: World) -> Change | None:
    name = r.choice(("__code__", "__defaults__", "__kwdefaults__"))
    other = {"__code__": _replacement.__code__, "__defaults__": (2,), "__kwdefaults__": {"j": 1}}[name]
    return _set(_helper, name, other)


def _cell(r: random.Random, w: World) -> Change | None:
    return _set(w.cell, "cell_contents", r.choice((5, 6, 5.0, True, 10**20 + r.randrange(2))))


def _global(r: random.Random, w: World) -> Change | None:
    return _put(globals(), "NUMBER", r.choice((2, 2, 3, 2.0, 10**20)))


def _shadow(r: random.Random, w: World) -> Change | None:
    if "len" in globals():
        return None
    globals()["len"] = len
    return lambda: globals().pop("len", None)


def _helper_replaced(r: random.Random, w: World) -> Change | None:
    return _put(globals(), "_helper", r.choice((_helper, _replacement)))


def _parameter(r: random.Random, w: World) -> Change | None:
    made = nn.Parameter(torch.ones(4, 4) if r.random() < 0.8 else torch.ones(4, 4).t(), r.random() < 0.8)
    return _set(r.choice((w.layer[0], w.kept[1])), "weight", made)


def _header(r: random.Random, w: World) -> Change | None:
    tensor = r.choice((w.layer[0].weight, w.layer[0].bias, w.kept[1].weight, w.kept[0]))
    if not isinstance(tensor, torch.Tensor):
        return None
    if r.random() < 0.5 and tensor.is_leaf and tensor.is_floating_point():
        before = tensor.requires_grad
        tensor.requires_grad_(not before)
        return lambda: tensor.requires_grad_(before) if tensor.is_leaf else None
    other = torch.ones(r.choice((4, 5, (4, 4), (2, 2))), dtype=r.choice((torch.float32, torch.float32, torch.int32)))
    try:
        return _set(tensor, "data", other)
    except RuntimeError:
        return None


def _mode(r: random.Random, w: World) -> Change | None:
    if r.random() < 0.5:
        before = w.layer.training
        w.layer.train(not before)
        return lambda: w.layer.train(before)
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(not before)
    return lambda: torch.set_grad_enabled(before)


def _hook(r: random.Random, w: World) -> Change | None:
    handle = r.choice((w.layer, w.layer[0], w.kept[1])).register_forward_hook(lambda *given: None)
    return handle.remove


def _child(r: random.Random, w: World) -> Change | None:
    before = w.layer[1]
    w.layer[1] = r.choice((nn.Tanh, nn.ReLU))()

    def undo() -> None:
        w.layer[1] = before

    return undo


def _kept_replaced(r: random.Random, w: World) -> Change | None:
    at = r.randrange(2)
    return _put(w.kept, at, (torch.ones(4), nn.Linear(4, 4))[at])


def _nested(r: random.Random, w: World) -> Change | None:
    space = w.thing.space
    if not isinstance(space, SimpleNamespace):
        return None
    if r.random() < 0.5:
        return _set(space, "inner", SimpleNamespace(v=[r.choice((1, 1, 2))]))
    return _put(space.inner.v, 0, r.choice((1, 1.0, 2)))


def _swapped(r: random.Random, w: World) -> Change | None:
    one, other = w.kept[0], torch.ones(r.choice((4, 5)))
    if type(one) is not torch.Tensor:
        return None
    torch.utils.swap_tensors(one, other)
    return lambda: torch.utils.swap_tensors(one, other)


_CHANGES: tuple[Callable[[random.Random, World], Change | None], ...] = (
    _attribute, _unread, _item, _more_keys, _order, _equal_dictionary, _own_dictionary, _listed, _class, _class_entry,
    _function, _cell, _global, _shadow, _helper_replaced, _parameter, _header, _mode, _hook, _child, _kept_replaced,
    _nested, _swapped,
)  # fmt: skip


def main() -> None:
    """Make as many changes as are asked for."""
    machine = guard_machine()
    by = "the machine" if machine is not None and machine.layouts.tensor is not None else "Python"
    print(f"tensors are compared by {by}")
    outcome = compared(int(sys.argv[1]), int(sys.argv[2]))
    for told in outcome.wrong[:10]:
        print(told)
    print(f"{outcome.changes} changes, {outcome.held} times facts held, {outcome.known} known to the machine; "
          f"{len(outcome.wrong)} wrong")  # fmt: skip


if __name__ == "__main__":
    main()
