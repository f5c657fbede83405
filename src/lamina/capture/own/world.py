"""What the interpreter asks of the objects around it, and the plain answer: what CPython does."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, Protocol

from lamina.capture.own.frame import MISSING

__all__ = ["PlainWorld", "World"]


class World(Protocol):
    """How a frame reads, changes and calls what is outside of it.

    Each method does what CPython does and raises what it raises; an implementation may note what was asked.
    """

    def attribute(self, value: Any, name: str) -> Any:
        """``value.name``."""

    def looked_up(self, kind: type, name: str) -> Any:
        """What a class or a base of it has under ``name``, not bound; ``MISSING`` if there is nothing."""

    def variable(self, function: FunctionType, name: str) -> Any:
        """A global of ``function``'s, or a builtin; ``MISSING`` if there is none."""

    def cell(self, cell: Any) -> Any:
        """What a cell holds; raises ``ValueError`` if it is empty."""

    def operate(self, function: Callable[..., Any], *operands: Any) -> Any:
        """An operator, ``iter``, ``bool``, a subscript, a format: ``function(*operands)``."""

    def change(self, function: Callable[..., Any], *operands: Any) -> Any:
        """The same of what writes: ``setattr``, ``setitem``, a global, ``list.append``."""

    def build(self, function: Callable[..., Any], *operands: Any) -> Any:
        """The same where the first of the ``operands`` is in the making, so that nobody but the frame has it."""

    def enters(self, function: FunctionType) -> bool:
        """Whether ``function`` is to be interpreted, rather than called."""

    def call(self, caller: Callable[..., Any], function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call what is not interpreted; ``caller(function, args, kwargs)`` does so from where the user does."""

    def made(self, value: Any) -> Any:
        """``value``, an object that the frame has just made."""

    def frame_asked(self, function: Any) -> None:
        """``function`` was called, which asks the frame that calls it for its variables."""

    def settle(self) -> None:
        """Raise now what was only recorded and may raise: the program leaves what handles it, or changes something."""


class PlainWorld:
    """Nothing noted: a program does what it does in CPython."""

    def attribute(self, value: Any, name: str) -> Any:
        return getattr(value, name)

    def looked_up(self, kind: type, name: str) -> Any:
        return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), MISSING)

    def variable(self, function: FunctionType, name: str) -> Any:
        namespace = function.__globals__
        if name in namespace:
            return namespace[name]
        found: Any = function  # whose stubs lack a name
        return found.__builtins__.get(name, MISSING)

    def cell(self, cell: Any) -> Any:
        return cell.cell_contents

    def operate(self, function: Callable[..., Any], *operands: Any) -> Any:
        return function(*operands)

    def change(self, function: Callable[..., Any], *operands: Any) -> Any:
        return function(*operands)

    build = change

    def enters(self, function: FunctionType) -> bool:
        return True

    def call(self, caller: Callable[..., Any], function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return caller(function, args, kwargs)

    def made(self, value: Any) -> Any:
        return value

    def frame_asked(self, function: Any) -> None:
        pass

    def settle(self) -> None:
        pass
