"""Constants as values of JSON that are told apart as the facts about them are: 0.0 from -0.0, 1 from True."""

from __future__ import annotations

import math
import struct
from typing import Any

import torch

from lamina.capture.own.frame import MISSING

__all__ = ["Unstorable", "read_constant", "written_constant"]


class Unstorable(Exception):
    """Something cannot be named, or made again, in another process; the text says what."""


_OF_TORCH = (torch.dtype, torch.layout, torch.memory_format)
_SINGLE = {"...": ..., "NotImplemented": NotImplemented, "missing": MISSING}


def written_constant(value: Any) -> Any:
    """A value of JSON for a constant. Raises ``Unstorable`` for what is none."""
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return {"float": struct.pack("<d", value).hex()}
    if kind is complex:
        return {"complex": struct.pack("<dd", value.real, value.imag).hex()}
    if kind is bytes:
        return {"bytes": value.hex()}
    if kind is tuple or kind is torch.Size:
        return {"tuple" if kind is tuple else "size": [written_constant(part) for part in value]}
    if kind is frozenset:
        return {"frozenset": [written_constant(part) for part in value]}
    if kind is slice:
        return {"slice": [written_constant(part) for part in (value.start, value.stop, value.step)]}
    if kind in _OF_TORCH:
        return {"torch": str(value).removeprefix("torch.")}
    if kind is torch.device:
        return {"device": str(value)}
    for name, single in _SINGLE.items():
        if value is single:
            return {"single": name}
    raise Unstorable(f"a {kind.__qualname__} is no constant")


def read_constant(text: Any) -> Any:
    """The constant that a value of JSON stands for. Raises ``ValueError`` for what stands for none."""
    if not isinstance(text, dict):
        if isinstance(text, (bool, int, str)) or text is None:
            return text
        raise ValueError(f"{text!r} is no constant")
    ((kind, value),) = text.items()
    if kind not in _READERS:
        raise ValueError(f"nothing is a {kind}")
    return _READERS[kind](value)


def _of_torch(name: str) -> Any:
    found = getattr(torch, name)
    if type(found) not in _OF_TORCH:
        raise ValueError(f"torch.{name} is no constant")
    return found


def _number(text: str) -> float:
    (found,) = struct.unpack("<d", bytes.fromhex(text))
    return math.nan if math.isnan(found) else float(found)


_READERS: dict[str, Any] = {
    "float": _number,
    "complex": lambda text: complex(*struct.unpack("<dd", bytes.fromhex(text))),
    "bytes": bytes.fromhex,
    "tuple": lambda parts: tuple(map(read_constant, parts)),
    "size": lambda parts: torch.Size(parts),
    "frozenset": lambda parts: frozenset(map(read_constant, parts)),
    "slice": lambda parts: slice(*map(read_constant, parts)),
    "torch": _of_torch,
    "device": torch.device,
    "single": _SINGLE.__getitem__,
}
