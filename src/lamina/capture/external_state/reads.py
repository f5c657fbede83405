"""What traced functions read besides their arguments, by their code: the facts a graph of them depends on."""

from __future__ import annotations

import abc
import dis
import os
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from lamina.base.class_flags import MADE_BY_PYTHON
from lamina.capture.bytecode import instructions

__all__ = [
    "Check",
    "absent_names",
    "asks_for_type",
    "compares_equality",
    "compares_identity",
    "formats",
    "imported_modules",
    "names_read",
    "patched_methods",
    "shadowing_attributes",
    "subclasses",
    "users_own",
]

Check = Callable[[], bool]
"""Whether a fact still is as it was when it was read."""

_TORCH = os.path.dirname(torch.__file__) + os.sep
_CONSTANTS = ("LOAD_CONST", "LOAD_SMALL_INT", "LOAD_COMMON_CONSTANT")


def users_own(codes: Iterable[types.CodeType]) -> tuple[types.CodeType, ...]:
    """Those of ``codes`` that are not torch's, each once."""
    return tuple({code: None for code in codes if not code.co_filename.startswith(_TORCH)})


def names_read(codes: Iterable[types.CodeType]) -> frozenset[str]:
    """All names of globals and attributes in ``codes``."""
    return frozenset(name for code in codes for name in code.co_names)


def compares_identity(codes: Iterable[types.CodeType]) -> bool:
    """Whether there is an ``is`` between two values neither of which is a constant."""
    for code in codes:
        before: dis.Instruction | None = None
        for step in instructions(code):
            if step.opname == "IS_OP" and (before is None or before.opname not in _CONSTANTS):
                return True
            before = step
    return False


def compares_equality(codes: Iterable[types.CodeType]) -> bool:
    """Whether values, not constants, are compared for equality, which is identity where a class does not define it."""
    for code in codes:
        before: dis.Instruction | None = None
        for step in instructions(code):
            compares = step.opname == "CONTAINS_OP" or (step.opname == "COMPARE_OP" and step.argrepr in ("==", "!="))
            if compares and (before is None or before.opname not in _CONSTANTS):
                return True
            before = step
    return False


def formats(codes: Iterable[types.CodeType]) -> bool:
    """Whether a value becomes text in a string literal."""
    return any(step.opname.startswith("FORMAT_") for code in codes for step in instructions(code))


def asks_for_type(codes: Sequence[types.CodeType]) -> bool:
    """Whether anything asks for the type of a value."""
    if not names_read(codes).isdisjoint({"isinstance", "issubclass", "type", "__class__", "isscalar"}):
        return True
    return any(step.opname == "MATCH_CLASS" for code in codes for step in instructions(code))


def absent_names(codes: Iterable[tuple[types.CodeType, Mapping[str, Any]]]) -> Check | None:
    """Names that each code takes from the builtins since its globals do not have them."""
    absent: dict[tuple[int, str], Mapping[str, Any]] = {}
    for code, scope in codes:
        for step in instructions(code):
            if step.opname == "LOAD_GLOBAL" and step.argval not in scope:
                absent[id(scope), step.argval] = scope
    return _all_absent([(scope, name) for (_, name), scope in absent.items()])


def shadowing_attributes(kinds: Iterable[type], names: frozenset[str]) -> Check | None:
    """``names`` that are found on a base of one of ``kinds`` since the classes before it do not have them."""
    absent: dict[tuple[type, str], Mapping[str, Any]] = {}
    for kind in kinds:
        for base, name in _passed_over(kind, names):
            absent[base, name] = vars(base)
    return _all_absent([(scope, name) for (_, name), scope in absent.items()])


def constant_attributes(kinds: Iterable[type], names: frozenset[str]) -> Check | None:
    """``names`` that are found as immutable values on one of ``kinds``, where a call finds the same objects."""
    found: dict[tuple[type, str], object] = {}
    for kind in kinds:
        for name in names:
            base = next((base for base in kind.__mro__ if name in vars(base)), None)
            if base is not None and base.__flags__ & MADE_BY_PYTHON and isinstance(vars(base)[name], _IMMUTABLE):
                found[base, name] = vars(base)[name]
    if not found:
        return None
    held = tuple((vars(base), name, value) for (base, name), value in found.items())

    def check() -> bool:
        for scope, name, value in held:  # noqa: SIM110  (a generator takes twice as long)
            if scope.get(name, held) is not value:
                return False
        return True

    return check


_IMMUTABLE = (int, float, complex, str, bytes, tuple, frozenset, type(None), torch.dtype, torch.device)


def _passed_over(kind: type, names: frozenset[str]) -> Iterator[tuple[type, str]]:
    """Classes in which a lookup of each of ``names`` on ``kind`` finds nothing before it finds something."""
    for name in names:
        before: list[type] = []
        for base in kind.__mro__:
            if name in vars(base):
                yield from ((b, name) for b in before if b.__flags__ & MADE_BY_PYTHON)
                break
            before.append(base)


def _all_absent(absent: Sequence[tuple[Mapping[str, Any], str]]) -> Check | None:
    if not absent:
        return None
    found = tuple(absent)

    def check() -> bool:
        for scope, name in found:  # noqa: SIM110  (a generator takes twice as long)
            if name in scope:
                return False
        return True

    return check


def imported_modules(codes: Iterable[types.CodeType]) -> Check | None:
    """The modules that ``codes`` import by absolute names while they run."""
    names = {
        step.argval
        for code in codes
        for step in instructions(code)
        if step.opname == "IMPORT_NAME" and step.argval in sys.modules
    }
    if not names:
        return None
    whole = {name[:end] for name in names for end in (*_dots(name), len(name))}
    found = tuple((name, sys.modules.get(name)) for name in sorted(whole))
    return lambda: all(sys.modules.get(name) is module for name, module in found)


def _dots(name: str) -> list[int]:
    return [at for at, letter in enumerate(name) if letter == "."]


def patched_methods(names: frozenset[str]) -> Check | None:
    """Methods of ``torch.Tensor`` as they are.

    Inherited ones are as they were while the class has as many attributes of its own. Where that number is another one
    (pickling the first tensor puts ``__slotnames__`` there), the call asks whether any of them is hidden now.
    """
    attributes = vars(torch.Tensor)
    own = tuple((name, attributes[name]) for name in sorted(names) if name in attributes)
    inherited = names.difference(attributes)
    count = len(attributes)

    def check() -> bool:
        nonlocal count
        if len(attributes) != count:
            if not inherited.isdisjoint(attributes):
                return False
            count = len(attributes)
        for name, item in own:  # noqa: SIM110  (a generator takes twice as long)
            if attributes.get(name) is not item:
                return False
        return True

    return check


def subclasses(kinds: Iterable[type], bases: Iterable[type]) -> Check | None:
    """Which of ``kinds`` count as subclasses of which abstract ``bases``, where classes can be registered."""
    bases = [base for base in bases if isinstance(base, abc.ABCMeta)]
    pairs = [(kind, base) for kind in kinds for base in bases if kind is not base]
    if not pairs:
        return None
    answers = tuple(issubclass(kind, base) for kind, base in pairs)
    token = abc.get_cache_token()

    def check() -> bool:
        nonlocal token
        now = abc.get_cache_token()
        if now == token:
            return True
        if any(issubclass(kind, base) is not answer for (kind, base), answer in zip(pairs, answers, strict=True)):
            return False
        token = now
        return True

    return check
