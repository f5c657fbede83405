"""A graph serves only while what its trace asked for and did not find is still not there, and what it found is."""

from __future__ import annotations

import collections
import enum
import functools
import os
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import lamina
from lamina.capture.missing_attributes.lookup import keys_of, lacks, may_make_up

WAYS: dict[str, Callable[[Any], Any]] = {
    "lamina": lamina.compile,
    "torch": lambda f: torch.compile(f, backend="lamina"),
}
X = torch.arange(1.0, 4.0)


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Plain:
    pass


class Slotted:
    __slots__ = ("later",)


class Items(list[int]):
    pass


class Keys(dict[str, int]):
    pass


def kind() -> type:
    return type("Kind", (type("Base", (), {}),), {})


VALUES: dict[str, Callable[[], Any]] = {
    "object": Plain,
    "slots": Slotted,
    "class": kind,
    "object of such a class": lambda: kind()(),
    "function": lambda: types.FunctionType((lambda: 1).__code__, {}),
    "module": lambda: types.ModuleType("module"),
    "tensor": lambda: torch.ones(2),
    "torch module": lambda: torch.nn.Linear(2, 2),
    "list": lambda: Items([1]),
    "dict": lambda: Keys(a=1),
    "namespace": types.SimpleNamespace,
    "exception": lambda: ValueError("text"),
}


def asks(value: Any, how: str) -> Any:
    if how == "hasattr":
        return lambda x: x * (2 if hasattr(value, "later") else 3)
    if how == "getattr":
        return lambda x: x * getattr(value, "later", 3)
    if how == "keys":
        return lambda x: x * (2 if "later" in value.__dict__ else 3)
    if how == "vars":
        return lambda x: x * vars(value).get("later", 3)

    def attempt(x: torch.Tensor) -> torch.Tensor:
        try:
            return x * value.later
        except AttributeError:
            return x * 3

    return attempt


@pytest.mark.filterwarnings("ignore:lamina runs")
@pytest.mark.parametrize(
    ("name", "how"),
    [
        *[(name, "attempt") for name in VALUES],
        *[("function", how) for how in ("hasattr", "getattr", "keys", "vars")],
        *[("module", "hasattr"), ("object", "keys"), ("torch module", "vars"), ("dict", "keys")],
    ],
)
def test_an_attribute_comes_and_goes(name: str, how: str) -> None:
    value = VALUES[name]()
    function = asks(value, how)
    compiled = lamina.compile(function, backend="eager")
    for change in (lambda: None, lambda: setattr(value, "later", 5), lambda: delattr(value, "later")):
        change()
        assert torch.equal(compiled(X), function(X))


def test_an_attribute_comes_to_a_base() -> None:
    for value in (kind(), kind()()):
        function = asks(value, "attempt")
        compiled = lamina.compile(function, backend="eager")
        assert torch.equal(compiled(X), function(X))
        (value if isinstance(value, type) else type(value)).__mro__[1].later = 5  # type: ignore[attr-defined]
        assert torch.equal(compiled(X), X * 5)


def key_of_a_dictionary() -> tuple[Any, Any]:
    held: dict[str, int] = {}

    def program(x: torch.Tensor) -> torch.Tensor:
        try:
            return x * held["key"]
        except KeyError:
            return x * 7

    return program, lambda: held.update(key=5)


def variable_of_the_environment() -> tuple[Any, Any]:
    return lambda x: x * int(os.environ.get("A_VARIABLE", "3")), lambda: os.environ.update(A_VARIABLE="5")


def attribute_before_a_graph_break() -> tuple[Any, Any]:
    value = VALUES["function"]()

    def program(x: torch.Tensor) -> torch.Tensor:
        factor = getattr(value, "later", 3)
        print(end="")
        return x * factor

    return program, lambda: setattr(value, "later", 5)


def order_before_a_graph_break() -> tuple[Any, Any]:
    held = collections.OrderedDict(a=1, b=2)

    def program(x: torch.Tensor) -> torch.Tensor:
        factor = functools.reduce(lambda a, b: a * 3 + b, held.values())
        print(end="")
        return x * factor

    return program, lambda: held.move_to_end("a")


def attribute_that_is_made_up() -> tuple[Any, Any]:
    class Answers:
        def __getattr__(self, name: str) -> int:
            self.__dict__[name] = 5
            return 3

    value = Answers()
    return lambda x: x * value.factor, lambda: None


CHANGES = (
    key_of_a_dictionary,
    variable_of_the_environment,
    attribute_before_a_graph_break,
    order_before_a_graph_break,
    attribute_that_is_made_up,
)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", CHANGES, ids=lambda make: make.__name__)
def test_a_change_is_seen(make: Any, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("A_VARIABLE", raising=False)
    expected, found = [], []
    for results, entry in ((expected, lambda f: f), (found, WAYS[way])):
        monkeypatch.delenv("A_VARIABLE", raising=False)
        function, change = make()
        compiled = entry(function)
        results.append(compiled(X))
        change()
        results.append(compiled(X))
    for one, other in zip(expected, found, strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(expected[0], expected[1])


def test_what_is_stored_is_found_without_calling_anything() -> None:
    class Answers:
        here = 1

        @property
        def raising(self) -> int:
            raise AssertionError

        def __getattr__(self, name: str) -> int:
            raise AssertionError

    value: Any = Answers()
    value.own = 1
    assert not any(lacks(value, name) for name in ("here", "raising", "own", "__class__"))
    assert lacks(value, "absent")
    assert keys_of(value) == {"own"}
    assert may_make_up(value)
    assert not may_make_up(torch.nn.Linear(1, 1))
    assert not lacks(torch.nn.Linear(1, 1), "weight")
    assert lacks(Slotted(), "later")
    assert keys_of(Slotted()) == frozenset()


@pytest.mark.parametrize("capture", ["dynamo", "own"])
@pytest.mark.parametrize("made", [lambda: [torch.ones(2), 1], lambda: {0: torch.ones(2), "k": 1}], ids=["list", "dict"])
def test_what_a_function_did_before_it_asked_for_a_missing_attribute_stays(
    made: Callable[[], Any], capture: str
) -> None:
    def program(value: Any, x: torch.Tensor) -> torch.Tensor:
        value[0] = x * 2
        return x + value.absent(1)  # type: ignore[no-any-return]

    compiled = lamina.compile(program, options={"capture": capture})
    for _ in range(2):
        value, x = made(), torch.ones(2, requires_grad=True)
        with pytest.raises(AttributeError, match=f"'{type(value).__name__}' object has no attribute 'absent'"):
            compiled(value, x)
        assert torch.equal(value[0], x * 2)
        assert value[0].requires_grad


class Colour(enum.Enum):
    RED = 1


@pytest.mark.parametrize("value", [len, Colour, Plain])
def test_functions_and_classes_have_no_other_attributes(value: Any) -> None:
    def program(values: list[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        values[0] = x * 2
        return x + value.absent

    values = [X]
    with pytest.raises(AttributeError, match="absent"):
        lamina.compile(program)(values, X)
    assert torch.equal(values[0], X * 2)


def test_members_of_an_enumeration_are_attributes() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x * Colour.RED.value + len(Colour.__members__) + (0 if Colour.RED is Colour["RED"] else 1)

    assert torch.equal(lamina.compile(program)(X), program(X))


@pytest.mark.parametrize("value", [[1.0], (1.0,), {"a": 1.0}, {1.0}, collections.OrderedDict(a=1), frozenset([1])])
def test_a_missing_attribute_of_pythons_own_kinds_is_caught_by_the_program(value: Any) -> None:
    def program(value: Any, x: torch.Tensor) -> torch.Tensor:
        try:
            return x + value.absent
        except AttributeError:
            return x * (
                2 if hasattr(value, "absent") else len(value) + len(value.copy() if hasattr(value, "copy") else value)
            )

    assert torch.equal(lamina.compile(program)(value, X), program(value, X))
