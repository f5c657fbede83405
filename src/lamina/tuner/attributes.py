"""What a call leaves behind in Python: attributes of the model's modules, and containers that it was given."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lamina.base.devices import kind_of
from lamina.tuner.parts import modules_in
from lamina.tuner.torch_private import MARKS

__all__ = ["Attributes", "changed_containers"]

_CONTAINERS = (list, dict, set, deque)
_OF_MODULES = frozenset(vars(nn.Module()))


class Attributes:
    """The attributes of a model and of its modules but for parameters, buffers, children and hooks."""

    def __init__(self, model: Callable[..., Any]) -> None:
        owners: dict[str, Any] = dict(modules_in(model))
        if "" not in owners and type(model).__module__ != "builtins" and hasattr(model, "__dict__"):
            owners[""] = model
        self.owners = {path: owner for path, owner in owners.items() if hasattr(owner, "__dict__")}
        self.before = {path: self._of(owner) for path, owner in self.owners.items()}

    @staticmethod
    def _of(owner: Any) -> dict[str, tuple[Any, Any]]:
        """The values by name, with copies of containers and tensors."""
        names = [name for name in vars(owner) if not name.startswith(MARKS)]
        if isinstance(owner, nn.Module):
            names = [name for name in names if name not in _OF_MODULES]
        return {name: (vars(owner)[name], _copy(vars(owner)[name])) for name in names}

    def changed(self) -> dict[str, Any]:
        """Those that were set, or are containers that hold something else, since this was made."""
        found: dict[str, Any] = {}
        for path, owner in self.owners.items():
            before, now = self.before[path], self._of(owner)
            for name in {**before, **now}:
                if not _same(before.get(name), now.get(name)):
                    value, copy = now.get(name, ("is gone", None))
                    found[f"{path}.{name}" if path else name] = copy if isinstance(copy, Tensor) else value
        return found

    def restore(self) -> None:
        """Make them what they were."""
        for path, owner in self.owners.items():
            held, before = vars(owner), self.before[path]
            for name in [name for name in self._of(owner) if name not in before]:
                del held[name]
            for name, (value, copy) in before.items():
                if copy is not None and not _alike(copy, value):
                    _fill(value, copy)
                held[name] = value

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Within it calls may change them; in the end they are as before."""
        try:
            yield
        finally:
            self.restore()


def _same(one: tuple[Any, Any] | None, other: tuple[Any, Any] | None) -> bool:
    """Whether two values are one object, a container with the same items; numbers and texts may be equal."""
    if one is None or other is None:
        return one is other
    (first, held), (second, now) = one, other
    if first is not second:
        return isinstance(first, (bool, int, float, str)) and type(first) is type(second) and first == second
    return held is None or _alike(held, now)


def _copy(value: Any) -> Any:
    """A copy of what can be written to, one level deep; None for other values."""
    if isinstance(value, Tensor):
        stored = value.layout is torch.strided and kind_of(value).stored
        plain = stored and not (value.is_inference() or value.is_quantized)
        return value.detach().clone() if plain else None
    return value.copy() if type(value) in _CONTAINERS else None


def _fill(value: Any, copy: Any) -> None:
    if isinstance(value, Tensor):
        with torch.no_grad():
            value.detach().copy_(copy)
        return
    value.clear()
    (value.extend if isinstance(value, (list, deque)) else value.update)(copy)


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if len(one) != len(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(_is(a, b) for a, b in zip(one.values(), other.values(), strict=True))
    if isinstance(one, set):
        return {id(a) for a in one} == {id(b) for b in other}
    return all(_is(a, b) for a, b in zip(one, other, strict=True))


def _is(one: Any, other: Any) -> bool:
    return one is other or (isinstance(one, (bool, int, float, str)) and type(one) is type(other) and one == other)


def changed_containers(before: Any, after: Any) -> bool:
    """Whether arguments, as ``opened`` gave them, hold other objects than before: tensors are compared elsewhere."""
    if isinstance(before, Tensor) or isinstance(after, Tensor):
        return before is not after
    if isinstance(before, dict) and isinstance(after, dict):
        return list(before) != list(after) or any(changed_containers(before[k], after[k]) for k in before)
    if isinstance(before, (list, tuple)) and isinstance(after, (list, tuple)):
        pairs = zip(before, after, strict=False)
        return len(before) != len(after) or any(changed_containers(a, b) for a, b in pairs)
    return not _is(before, after)
