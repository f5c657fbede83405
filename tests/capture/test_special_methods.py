"""Methods that Python itself asks classes for come, or are there: a graph serves only while they are as it saw them."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import lamina

X = torch.arange(1.0, 4.0)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def held(kind: type) -> Any:
    """A subclass of ``kind`` with two items, if it has items, and an attribute and a method."""
    body: dict[str, Any] = {"a": 2, "m": lambda self: 3}
    made: Any = type("Held", (kind,), body)
    return made(a=1, b=2) if kind is dict else made([1, 2]) if kind is list else made(3) if kind is int else made()


USES: dict[str, tuple[type, Callable[[Any, torch.Tensor], Any], str, Callable[..., Any]]] = {
    "bool": (object, lambda a, x: x * 2 if a else x, "__bool__", lambda s: False),
    "len": (object, lambda a, x: x * 2 if a else x, "__len__", lambda s: 0),
    "eq": (object, lambda a, x: x * 2 if a == 3 else x, "__eq__", lambda s, o: True),
    "getattribute": (object, lambda a, x: x * a.a, "__getattribute__", lambda s, n: 50),
    "getattr": (object, lambda a, x: x * getattr(a, "b", 7), "__getattr__", lambda s, n: 50),
    "new": (object, lambda a, x: x * type(a)().a, "__new__", lambda c: types.SimpleNamespace(a=6)),
    "init": (object, lambda a, x: x * type(a)().a, "__init__", lambda s: setattr(s, "a", 9)),
    "item of a list": (list, lambda a, x: x * a[0], "__getitem__", lambda s, i: 9),
    "item of a dict": (dict, lambda a, x: x * a["a"], "__getitem__", lambda s, i: 9),
    "iteration of a dict": (dict, lambda a, x: x * len([*a]), "__iter__", lambda s: iter("abc")),
    "sum of a number": (int, lambda a, x: x * (a + 1), "__add__", lambda s, o: 9),
    "module's attribute": (torch.nn.Module, lambda a, x: x * a.a, "__getattribute__", lambda s, n: 50),
}


def differ(function: Callable[[torch.Tensor], Any], change: Callable[[], object]) -> bool:
    """Whether a compiled function sees a change as it is; that it changes what eager computes."""
    compiled = lamina.compile(function, backend="eager")
    before = function(X)
    assert torch.equal(compiled(X), before)
    change()
    assert not torch.equal(function(X), before)
    return not all(torch.equal(compiled(X), function(X)) for _ in range(2))


@pytest.mark.filterwarnings("ignore:lamina")
@pytest.mark.parametrize("name", USES)
def test_a_method_comes_to_a_class(name: str) -> None:
    base, use, special, method = USES[name]
    value = held(base)
    assert not differ(lambda x: use(value, x), lambda: setattr(type(value), special, method))


def test_what_a_class_holds_becomes_a_descriptor() -> None:
    part = held(object)
    whole: Any = type("Whole", (), {"part": part})()
    found = types.SimpleNamespace(a=9)
    assert not differ(lambda x: x * whole.part.a, lambda: setattr(type(part), "__get__", lambda s, o, t: found))


def test_methods_come_that_write_attributes() -> None:
    value, seen = held(object), []

    def function(x: torch.Tensor) -> torch.Tensor:
        value.b = 4
        del value.b
        return x * 2

    compiled = lamina.compile(function, backend="eager")
    compiled(X)
    kind: Any = type(value)
    kind.__setattr__ = lambda s, n, v: (seen.append(n), object.__setattr__(s, n, v))[1]
    kind.__delattr__ = lambda s, n: (seen.append(n), object.__delattr__(s, n))[1]
    compiled(X)
    assert seen == ["b", "b"]


@pytest.mark.filterwarnings("ignore:lamina")
@pytest.mark.parametrize(
    ("special", "method"),
    [("__call__", lambda c: types.SimpleNamespace(a=5)), ("__instancecheck__", lambda c, o: True)],
)
def test_a_method_comes_to_a_metaclass(special: str, method: Any) -> None:
    meta = type("Meta", (type,), {})
    kind: Any = meta("Kind", (), {"a": 2})

    def function(x: torch.Tensor) -> torch.Tensor:
        return x * kind().a + isinstance(3, kind) + 2 * isinstance(3, str | kind)

    assert not differ(function, lambda: setattr(meta, special, method))


@pytest.mark.by_dynamo("asks for Dynamo's error")
@pytest.mark.filterwarnings("ignore:lamina")
def test_one_object_of_a_class() -> None:
    class Single(type):
        made: Any = None

        def __call__(cls, *args: Any) -> Any:
            cls.made = cls.made or super().__call__(*args)
            return cls.made

    class Settings(metaclass=Single):
        def __init__(self, factor: int) -> None:
            self.factor = factor

    first = Settings(3)
    assert torch.equal(lamina.compile(lambda x: x * Settings(5).factor, backend="eager")(X), X * first.factor)
    with pytest.raises(Exception, match=r"metaclass .*Single has a __call__"):
        lamina.compile(lambda x: x * Settings(5).factor, backend="eager", fullgraph=True)(X)


@pytest.mark.filterwarnings("ignore:lamina")
def test_a_module_is_given_a_class() -> None:
    module = types.ModuleType("settings")
    module.factor = 2  # type: ignore[attr-defined]

    class Computed(types.ModuleType):
        factor = property(lambda self: 8, lambda self, value: None)

    assert not differ(lambda x: x * module.factor, lambda: setattr(module, "__class__", Computed))


def test_a_module_of_torch_is_given_another_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    module = torch.nn.Sequential(torch.nn.Tanh(), torch.nn.ReLU())
    assert not differ(module, lambda: monkeypatch.setattr(torch.nn.Tanh, "forward", lambda self, x: x * 2))


def test_other_attributes_of_a_class_may_come() -> None:
    value = held(object)
    compiled = lamina.compile(lambda x: x * value.a, backend="eager")
    compiled(X)
    with torch.compiler.set_stance("fail_on_recompile"):
        for at in range(3):
            setattr(type(value), f"other{at}", at)
            compiled(X)
