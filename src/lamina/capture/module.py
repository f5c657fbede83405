"""A compiled module that stays, to everything but the clock, the module it was made from."""

from __future__ import annotations

import copy
import copyreg
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch

__all__ = ["calls_through", "is_transparent", "original_of", "transparent"]


@dataclass(frozen=True, slots=True)
class _Link:
    """The original module, how it is compiled, its compiled call, and its class when the transparent one was made."""

    original: torch.nn.Module
    compile: Callable[[Any], Any]
    call: Callable[..., Any]
    attributes: Mapping[str, object]
    kind: type[torch.nn.Module]


class _Transparent:
    """Comes before the original class in the bases of a transparent module's class."""

    __slots__ = ()
    _lamina_link: _Link

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Ends here: the original class's own hook must not take the derived class for one of the user's."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """``type(module)(...)`` in user code means another module of the original class."""
        return type(cls._lamina_link.original)(*args, **kwargs)

    @property
    def __class__(self) -> Any:
        return type(_followed(self).original)

    @__class__.setter
    def __class__(self, kind: Any) -> None:
        """Replace the original's class, as parametrizations and ``fully_shard`` do."""
        self._lamina_link.original.__class__ = kind
        _followed(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        link = self._lamina_link
        if type(link.original) is not link.kind:
            link = _followed(self)
        return link.call(*args, **kwargs)

    def __repr__(self) -> str:
        """A line that says what is compiled, then the original's text."""
        link = self._lamina_link
        stats: Any = link.attributes.get("stats")
        first = "" if stats is None else f": {str(stats()).partition(chr(10))[0]}"
        return f"compiled by Lamina{first}\n{link.original!r}"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._lamina_link.original.__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        link = self._lamina_link
        twin = transparent(copy.deepcopy(link.original, memo), link.compile, link.attributes)
        memo[id(self)] = twin
        return twin

    def __copy__(self) -> Any:
        link = self._lamina_link
        return transparent(copy.copy(link.original), link.compile, link.attributes)


def is_transparent(module: object) -> bool:
    """Whether ``module`` came from ``transparent``."""
    return isinstance(module, _Transparent)


def original_of(module: Any) -> torch.nn.Module:
    """The module that a transparent module was made from."""
    link: _Link = module._lamina_link
    return link.original


@contextmanager
def calls_through(module: Any, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Within it, calls of a transparent module go through what ``around`` makes of its compiled call."""
    call = module._lamina_link.call
    type(module)._lamina_link = replace(module._lamina_link, call=around(call))
    try:
        yield
    finally:  # its class may be another one by now
        type(module)._lamina_link = replace(module._lamina_link, call=call)


def transparent(
    module: torch.nn.Module, compile: Callable[[Any], Any], attributes: Mapping[str, object] = MappingProxyType({})
) -> torch.nn.Module:
    """``module`` with calls to it going through ``compile(module)``.

    The result is an instance of a subclass of ``type(module)`` that shares the original's ``__dict__``: parameters,
    ``state_dict`` keys, hooks, mode and attributes are one and the same on both. It pickles as the original
    module; ``copy.deepcopy`` gives a compiled copy. Calling ``forward`` by hand skips hooks and the compiler, as it
    skips hooks in eager. ``attributes`` are found by their names, but where the module has one of its own.
    """
    link = _Link(module, compile, _compiled_call(module, compile), attributes, type(module))
    result: torch.nn.Module = object.__new__(_derived(link))
    object.__setattr__(result, "__dict__", module.__dict__)
    return result


def _derived(link: _Link) -> type[Any]:
    """The class of a transparent module: the original's with the compiled call."""
    original = link.kind
    body: dict[str, Any] = {
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
        "_lamina_link": link,
    }
    body.update({name: value for name, value in link.attributes.items() if not hasattr(link.original, name)})
    body.update({name: _slot(name) for name in copyreg._slotnames(original)})  # type: ignore[attr-defined]
    return types.new_class(original.__name__, (_Transparent, original), {}, lambda space: space.update(body))


def _slot(name: str) -> property:
    """What stands for a slot of the original's class: the two have one ``__dict__``, but slots of their own."""
    return property(
        lambda self: getattr(self._lamina_link.original, name),
        lambda self, value: setattr(self._lamina_link.original, name, value),
        lambda self: delattr(self._lamina_link.original, name),
    )


def _followed(module: Any) -> _Link:
    """The link of a transparent ``module``, whose class is made anew if that of its original was replaced."""
    link: _Link = module._lamina_link
    if type(link.original) is not link.kind:
        link = replace(link, kind=type(link.original))
        object.__dict__["__class__"].__set__(module, _derived(link))
    return link


def _compiled_call(module: torch.nn.Module, compile: Callable[[Any], Any]) -> Callable[..., Any]:
    """The compiled call, without the module call of torch.compile's wrapper around it."""
    wrapper = compile(module)
    forward = getattr(wrapper, "forward", None)
    call: Callable[..., Any] = forward if isinstance(wrapper, torch.nn.Module) and callable(forward) else wrapper
    return call
