"""Facts as lines of a program that asks for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lamina.capture.own.reuse.facts import SINGLETONS, Fact, Place, constant_key

__all__ = ["Line", "Names", "asked", "condition", "literal"]


class Names:
    """Names of the objects that a program uses: one for each object, and one for equal keys of constants."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self._names: dict[Any, str] = {}

    def kept(self) -> list[tuple[bool, Any]]:
        """What has names, in their order, with whether equal constants share the name."""
        return [(isinstance(key, tuple), self.objects[name]) for key, name in self._names.items()]

    def object(self, value: Any) -> str:
        """The name of an object."""
        return self._named(id(value), value)

    def key(self, value: Any) -> str:
        """The name of a key, or of another constant, which equal ones have too."""
        return self._named(("key", constant_key(value)), value)

    def _named(self, key: Any, value: Any) -> str:
        found = self._names.get(key)
        if found is None:
            found = self._names[key] = f"o{len(self._names)}"
            self.objects[found] = value
        return found


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a program; with a ``fact``, the condition under which that does not hold."""

    text: str
    fact: Fact | None = None


def asked(rows: Sequence[Place | Fact], names: Names) -> list[Line]:
    """The lines of a program that ask for facts; it has each place as a variable."""
    found = []
    for row in rows:
        if isinstance(row, Place):
            found.append(Line(f"{row.variable} = {_read(row, names)}"))
        else:
            found.append(Line(condition(row.kind, [place.variable for place in row.places], row.value, names), row))
    return found


def _read(place: Place, names: Names) -> str:
    if place.how == "argument":
        return f"args[{place.key}]"
    if place.how == "keyword":
        return f"kwargs[{place.key!r}]"
    if place.how == "object":
        return names.object(place.key)
    if place.how == "computed":
        function, *operands = place.key
        given = (one.variable if type(one) is Place else literal(one, names) for one in operands)
        return f"{names.object(function)}({', '.join(given)})"
    assert place.parent is not None
    if place.how == "attribute":
        return f"{place.parent.variable}.{place.key}"
    return f"{place.parent.variable}[{literal(place.key, names)}]"


def literal(value: Any, names: Names) -> str:
    """An expression for a constant."""
    plain = type(value) in (int, str, bool, type(None)) or (type(value) is float and math.isfinite(value))
    return repr(value) if plain else names.key(value)


def condition(kind: str, variables: list[str], value: Any, names: Names) -> str:
    """An expression that is true where a fact does not hold."""
    return _CONDITIONS[kind](names, variables, value)


def _constant(objects: Names, names: list[str], value: Any) -> str:
    kind = type(value)
    if kind in SINGLETONS:
        return f"{names[0]} is not {literal(value, objects)}"
    if kind in (int, str) or (kind is float and value and math.isfinite(value)):
        return f"type({names[0]}) is not {kind.__name__} or {names[0]} != {value!r}"
    return f"constant_key({names[0]}) != {objects.key(constant_key(value))}"


def _looks(objects: Names, names: list[str], value: Any) -> str:
    p = names[0]
    return " or ".join(
        (
            f"{p}.dtype is not {objects.object(value[0])}",
            f"{p}.shape != {value[2]!r}",
            f"{p}.stride() != {value[3]!r}",
            *_looks_but_for_sizes(objects, p, value),
        )
    )


def _varies(objects: Names, names: list[str], value: Any) -> str:
    """The same but for the sizes and strides at some positions."""
    look, positions = value
    p, rank = names[0], len(look[2])
    sizes = [f"{p}.shape[{at}] != {size}" for at, size in enumerate(look[2]) if at not in positions]
    strides = [f"{p}.stride({at}) != {one}" for at, one in enumerate(look[3]) if rank + at not in positions]
    asked = (f"{p}.dtype is not {objects.object(look[0])}", f"{p}.dim() != {rank}", *sizes, *strides)
    return " or ".join((*asked, *_looks_but_for_sizes(objects, p, look)))


def _looks_but_for_sizes(objects: Names, p: str, value: Any) -> list[str]:
    _, device, _, _, offset, requires_grad, is_leaf, conj, neg, inference = value
    return [
        f"{p}.requires_grad is not {requires_grad}",
        *([f"is_leaf({p}) is not {is_leaf}"] if requires_grad else []),
        f"{p}.storage_offset() != {offset}",
        f"{p}.device != {objects.key(device)}",
        f"{p}.is_conj() is not {conj}",
        f"{p}.is_neg() is not {neg}",
        f"{p}.layout is not {objects.object(torch.strided)}",
        f"{p}.is_quantized or {p}.is_inference() is not {inference} or is_wrapped({p})",
    ]


def _keys(objects: Names, names: list[str], value: Any) -> str:
    kinds = objects.key((*map(type, value),))
    return f"len({names[0]}) != {len(value)} or (*map(type, {names[0]}),) != {kinds} or (*{names[0]},) != {value!r}"


_CONDITIONS: dict[str, Callable[[Names, list[str], Any], str]] = {
    "arguments": lambda f, n, v: f"len(args) != {v[0]} or " + (f"(*kwargs,) != {v[1]!r}" if v[1] else "kwargs"),
    "state": lambda f, n, v: f"state() != {f.key(v)}",
    "type": lambda f, n, v: f"type({n[0]}) is not {f.object(v)}",
    "is": lambda f, n, v: f"{n[0]} is not {f.object(v)}",
    "constant": _constant,
    "length": lambda f, n, v: f"len({n[0]}) != {v}",
    "keys": _keys,
    "absent": lambda f, n, v: f"{literal(v, f)} in {n[0]}",
    "present": lambda f, n, v: f"{literal(v, f)} not in {n[0]}",
    "same": lambda f, n, v: f"{n[0]} is not {n[1]}",
    "apart": lambda f, n, v: f"{n[0]} is {n[1]}",
    "look": _looks,
    "varies": _varies,
    "bare": lambda f, n, v: f"{n[0]}.__dict__",
    "distinct": lambda f, n, v: f"len({{{', '.join(f'id({p})' for p in n)}}}) != {len(n)}",
    "answer": lambda f, n, v: f"{f.key(v[0])}({', '.join(n)}) is not {v[1]}",
}
