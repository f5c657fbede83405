"""What a function writes under one name and reads under another: a global of its module, an attribute of a class."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

import lamina

GLOBALS = {
    "an entry of globals()": "globals()['k'] += 1\n    return x * k",
    "globals() in a variable": "g = globals()\n    g['k'] = g['k'] + 1\n    return x * k",
    "an update of globals()": "globals().update(k=k + 1)\n    return x * k",
    "read before and after": "y = x * k\n    globals()['k'] = k + 1\n    return y * k",
    "a function's scope": "f.__globals__['k'] += 1\n    return x * k",
    "read in a function's scope": "global k\n    k = k + 1\n    return x * f.__globals__['k']",
    "an attribute of the module": "sys.modules[__name__].k = k + 1\n    return x * k",
    "setattr of the module": "setattr(sys.modules[__name__], 'k', k + 1)\n    return x * k",
    "read of the module": "global k\n    k = k + 1\n    return x * sys.modules[__name__].k",
    "vars of the module": "vars(sys.modules[__name__])['k'] += 1\n    return x * k",
    "written twice": "global k\n    k = k + 1\n    sys.modules[__name__].k = k + 1\n    return x * k",
    "written twice, the other way": "global k\n    sys.modules[__name__].k = k + 1\n    k = k + 1\n    return x * k",
}


@pytest.fixture
def module(request: pytest.FixtureRequest) -> Iterator[Callable[[str], ModuleType]]:
    made: list[str] = []

    def make(body: str) -> ModuleType:
        name = f"scope_of_a_test_{len(made)}_{abs(hash(request.node.name))}"
        found = sys.modules[name] = ModuleType(name)
        made.append(name)
        exec(f"import sys\nk = 2\ndef f(x):\n    {body}\n", found.__dict__)
        return found

    yield make
    for name in made:
        del sys.modules[name]


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("capture", ["dynamo", "own"])
@pytest.mark.parametrize("way", GLOBALS)
def test_a_global_variable_has_what_was_written_to_it(
    way: str, capture: str, module: Callable[[str], ModuleType]
) -> None:
    eager, other = module(GLOBALS[way]), module(GLOBALS[way])
    compiled = lamina.compile(other.f, backend="interp", options={"capture": capture})
    x = torch.tensor([1.0, 3.0])
    for _ in range(2):
        assert compiled(x).tolist() == eager.f(x).tolist()
        assert other.k == eager.k


class Counting:
    """Counts its calls for all instances."""

    calls = 0

    def by_type(self, x: torch.Tensor) -> torch.Tensor:
        """The class is written to, an instance read."""
        type(self).calls += 1
        return x * self.calls

    def by_base(self, x: torch.Tensor) -> torch.Tensor:
        """A class is written to, one derived from it read."""
        Counting.calls += 1
        return x * type(self).calls

    def by_instance(self, x: torch.Tensor) -> torch.Tensor:
        """An instance gets an attribute of its own after its class was written to."""
        type(self).calls += 1
        self.calls += 5
        return x * self.calls * type(self).calls


class Derived(Counting):
    """Has all from its base."""


@pytest.mark.parametrize("capture", ["dynamo", "own"])
@pytest.mark.parametrize("kind", [Counting, Derived])
@pytest.mark.parametrize("name", ["by_type", "by_base", "by_instance"])
def test_an_attribute_of_a_class_has_what_was_written_to_it(name: str, kind: Any, capture: str) -> None:
    def outcome(compile: Callable[[Any], Any]) -> list[Any]:
        Counting.calls = 0
        if "calls" in vars(Derived):
            del Derived.calls
        one = kind()
        step = compile(getattr(one, name))
        found = [step(torch.tensor([1.0, 3.0])).tolist() for _ in range(2)]
        return [*found, Counting.calls, kind.calls, one.calls]

    wanted = outcome(lambda f: f)
    assert outcome(lambda f: lamina.compile(f, backend="interp", options={"capture": capture})) == wanted


class Attributes(dict[str, Any]):
    """A dictionary whose items are its attributes."""

    def __init__(self, **items: Any) -> None:
        super().__init__(items)
        self.__dict__ = self


@pytest.mark.parametrize("capture", ["dynamo", "own"])
def test_items_that_are_attributes_have_what_was_written_to_them(capture: str) -> None:
    def outcome(compile: Callable[[Any], Any]) -> list[Any]:
        held = Attributes(k=1)

        def step(x: torch.Tensor) -> torch.Tensor:
            held.k = held["k"] + 1
            held["j"] = held.k * 2
            return x * held["k"] * held.j

        compiled = compile(step)
        return [compiled(torch.ones(2)).tolist(), compiled(torch.ones(2)).tolist(), dict(held)]

    wanted = outcome(lambda f: f)
    assert outcome(lambda f: lamina.compile(f, backend="interp", options={"capture": capture})) == wanted


@pytest.mark.parametrize("capture", ["dynamo", "own"])
def test_the_environment_is_read_anew(capture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = lamina.compile(
        lambda x: x * int(os.getenv("FACTOR_OF_A_TEST", "1")), backend="interp", options={"capture": capture}
    )
    found = [float(compiled(torch.ones(())))]
    for factor in ("5", "7"):
        monkeypatch.setenv("FACTOR_OF_A_TEST", factor)
        found.append(float(compiled(torch.ones(()))))
    assert found == [1, 5, 7]
