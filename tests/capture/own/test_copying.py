"""Deep copies within a call are interpreted, and made again: of what copies plainly, as ``copy`` makes them."""

from __future__ import annotations

import copy
import copyreg
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import lamina
from lamina.artefacts.front import stored_calls
from lamina.capture.frame_reasons import LOADED
from lamina.capture.own.copying import copyable, deep_copy
from tests.capture.own.machines import MACHINES
from tests.capture.own.test_reuse import Compiled


class Config:
    """A configuration, as libraries have them."""

    def __init__(self) -> None:
        self.width, self.names = 2, ["a", {"b": (1, 2.5)}]
        self.by_name = {"names": self.names, "dtype": torch.float32}
        self.pair = (self.names, 3)


class Renaming(Config):
    """One that reads and writes attributes by code of its own."""

    def __getattribute__(self, name: str) -> Any:
        return super().__getattribute__("width" if name == "wide" else name)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__("width" if name == "wide" else name, value)


def _program(config: Any) -> Any:
    whole = type(config) is Config  # of others each object that is returned is made by its own code

    def program(x: Tensor) -> tuple[Tensor, Any]:
        mine = copy.deepcopy(config)
        mine.width = config.width + 1
        mine.names.append(mine.width)
        if hasattr(mine, "gone"):
            delattr(mine, "gone")
        made = mine if whole else [mine.width, mine.names, mine.by_name, mine.pair]
        return x * mine.width + len(config.names) * len(mine.by_name["names"]), made

    return program


def _shape(value: Any, seen: list[Any]) -> Any:
    """What is in a copy, and which of its parts are one object."""
    for place, one in enumerate(seen):
        if one is value:
            return place
    if isinstance(value, (list, tuple, dict)) or hasattr(value, "__dict__"):
        seen.append(value)
        parts = value.items() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else None
        return type(value), [_shape(part, seen) for part in (vars(value).items() if parts is None else parts)]
    return type(value), value


def _check(compiled: Any, program: Any) -> None:
    (found, mine), (wanted, other) = compiled.call(torch.ones(3)), program(torch.ones(3))
    assert torch.equal(found, wanted)
    assert _shape(mine, []) == _shape(other, [])


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("kind", [Config, Renaming])
def test_a_copied_configuration_needs_no_interpretation(kind: type, machine: str, monkeypatch) -> None:
    config: Any = kind()
    config.gone = 1
    program = _program(config)
    compiled = Compiled(program, monkeypatch, MACHINES[machine])
    for _ in range(3):
        _check(compiled, program)
    assert compiled.interpreted == 1, compiled.reasons()
    for change in (
        lambda: setattr(config, "width", 7),
        lambda: config.names.append("more"),
        lambda: setattr(config, "by_name", {**config.by_name, "names": [*config.names]}),  # no longer the same list
        lambda: config.names.insert(0, config.names),
        lambda: delattr(config, "gone"),
    ):
        change()
        for _ in range(2):
            _check(compiled, program)


_ANSWERS: dict[str, Any] = {}
"""What objects of the class below have, beside their attributes."""


class _Answering(Config):
    """One that has code for the methods that copies are asked for, which its class does not show."""

    def __getattribute__(self, name: str) -> Any:
        return _ANSWERS[name] if name in _ANSWERS else object.__getattribute__(self, name)


class _Lazy(Config):
    """One that makes up what it lacks."""

    def __getattr__(self, name: str) -> Any:
        if name == "__setstate__":
            return lambda state: vars(self).update(state, width=11)
        raise AttributeError(name)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", ["__deepcopy__", "__reduce_ex__", "__getstate__", "__setstate__"])
def test_what_code_of_a_class_answers_when_it_is_copied_is_used(name: str, machine: str, monkeypatch) -> None:
    inner = Config()
    inner.width = 9
    answer = inner.__reduce_ex__ if name == "__reduce_ex__" else lambda *given: inner
    if name == "__getstate__":
        answer = lambda: {"width": 10}  # noqa: E731
    config = _Lazy() if name == "__setstate__" else _Answering()
    if name != "__setstate__":
        monkeypatch.setitem(_ANSWERS, name, answer)
    held = [config, {"again": config}]

    def program(x: Tensor) -> Tensor:
        one = copy.deepcopy(held)
        return x * one[0].width + (one[0] is one[1]["again"])

    compiled = Compiled(program, monkeypatch, MACHINES[machine])
    for _ in range(3):
        assert torch.equal(compiled.call(torch.ones(3)), program(torch.ones(3)))


def test_ways_of_copying_that_a_class_gets_are_noticed(monkeypatch) -> None:
    class Mine(Config):
        pass

    config = Mine()
    program = _program(config)
    compiled = Compiled(program, monkeypatch)
    _check(compiled, program)
    monkeypatch.setattr(Mine, "__deepcopy__", lambda self, memo: Renaming(), raising=False)
    _check(compiled, program)
    monkeypatch.delattr(Mine, "__deepcopy__")
    _check(compiled, program)
    monkeypatch.setitem(copyreg.dispatch_table, Mine, lambda one: (Config, ()))
    _check(compiled, program)
    monkeypatch.delitem(copyreg.dispatch_table, Mine)
    monkeypatch.setitem(copy._deepcopy_dispatch, list, lambda one, memo: ["other"])
    _check(compiled, program)


class _Slotted:
    __slots__ = ("a",)

    def __init__(self) -> None:
        self.a = [1]


class _Counted(list):
    pass


class _Reduced(Config):
    def __reduce__(self) -> Any:
        return Config, ()


class _Stated(Config):
    def __getstate__(self) -> Any:
        return {"width": 5, "names": [], "by_name": {"names": []}}


@pytest.mark.parametrize(
    "value",
    [_Slotted(), _Counted([1]), _Reduced(), _Stated(), {1, 2}, SimpleNamespace(a=[1]), torch.ones(2), [object()]],
)
def test_what_has_a_way_of_its_own_is_copied_by_python(value: Any, monkeypatch) -> None:
    assert copyable([value]) is None

    def program(x: Tensor) -> tuple[Tensor, Any]:
        return x + 1, copy.deepcopy([value])

    compiled = Compiled(program, monkeypatch)
    for _ in range(2):
        found, wanted = compiled.call(torch.ones(2))[1], program(torch.ones(2))[1]
        assert type(found[0]) is type(wanted[0])
        assert found[0] is not value


def _random_value(rng: random.Random, made: list[Any], depth: int) -> Any:
    if made and rng.random() < 0.2:
        return rng.choice(made)
    what = rng.randrange(8 if depth else 4)
    if what < 4:
        return (rng.randrange(3), rng.random(), "text", None)[what]
    parts = [_random_value(rng, made, depth - 1) for _ in range(rng.randrange(4))]
    if what == 7:
        result: Any = Config.__new__(Config)
        vars(result).update({f"a{i}": part for i, part in enumerate(parts)})
    else:
        result = (parts, tuple(parts), dict(enumerate(parts)))[what - 4]
    made.append(result)
    return result


def test_random_values_are_copied_as_copy_does() -> None:
    for seed in range(400):
        rng, made = random.Random(seed), list[Any]()
        value = _random_value(rng, made, 4)
        lists = [one for one in made if type(one) is list]
        if lists and rng.random() < 0.5:
            rng.choice(lists).append(value)  # a circle, often
        if copyable(value) is not None:
            assert _shape(deep_copy(value), []) == _shape(copy.deepcopy(value), []), seed
            shared = [one for one in _parts(deep_copy(value)) if any(one is other for other in _parts(value))]
            assert all(any(one is other for other in _parts(copy.deepcopy(value))) for one in shared), seed


def _parts(value: Any) -> list[Any]:
    found: list[Any] = []
    _shape(value, found)
    return found


def test_a_stored_call_copies_what_it_finds(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("lamina.runtime.library._LOADED", {})
    monkeypatch.setattr("lamina.runtime.library._LIBRARIES", {})

    def compiled() -> Any:
        return lamina.compile(_stored, options={"capture": "own", "cache_dir": str(tmp_path), "compare_eager": "off"})

    first = compiled()
    for _ in range(2):
        first(torch.ones(3))
    store = stored_calls(first)
    assert store is not None
    store.keep()
    assert not store.refused
    second = compiled()
    assert torch.equal(second(torch.ones(3)), _stored(torch.ones(3)))
    assert LOADED.number in {d.reason.code for d in second.record.decisions("capture")}
    monkeypatch.setattr(Config, "__deepcopy__", lambda self, memo: SimpleNamespace(width=9), raising=False)
    assert torch.equal(compiled()(torch.ones(3)), torch.ones(3) * 9)


CONFIG = Config()


def _stored(x: Tensor) -> Tensor:
    return x * copy.deepcopy(CONFIG).width
