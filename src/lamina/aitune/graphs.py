"""The structures of inputs that a module meets: which is which, and which axes vary within one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from lamina.aitune.dimensions import BatchDim, DynamicDim
from lamina.base.reference import copied
from lamina.errors import BadArgument
from lamina.tuner.samples import Sample

__all__ = ["Graph", "key_of", "leaves_of", "outside", "shape_of"]

_PLAIN = (bool, int, float, str, type(None))
_MOST = 4
"""Inputs kept of a graph: what is timed and what is verified with."""


def leaves_of(forward: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors and other values of a call by place, such as ``x[0]``; the same however the arguments are passed."""
    try:
        bound: Mapping[str, Any] = inspect.signature(forward).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):  # the call itself says what is wrong with it
        bound = {**{str(k): value for k, value in enumerate(args)}, **kwargs}
    return {path: leaf for name, value in bound.items() for path, leaf in _leaves(name, value)}


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (list, tuple)):
        for k, item in enumerate(value):
            yield from _leaves(f"{path}[{k}]", item)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(f"{path}[{key!r}]", item)
    else:
        yield path, value


def key_of(leaves: Mapping[str, Any]) -> str:
    """What makes two calls one graph: the same places with tensors of one dtype, device and number of axes, or with
    equal values.
    """
    return "; ".join(f"{path}: {_told(leaf)}" for path, leaf in leaves.items())


def _told(leaf: Any) -> str:
    if isinstance(leaf, Tensor):
        return f"{str(leaf.dtype).removeprefix('torch.')} with {leaf.dim()} axes on {leaf.device.type}"
    return repr(leaf) if isinstance(leaf, _PLAIN) else type(leaf).__qualname__


def shape_of(leaves: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors."""
    return {path: tuple(leaf.shape) for path, leaf in leaves.items() if isinstance(leaf, Tensor)}


class Graph:
    """A structure of inputs, the shapes that were met, and some of the inputs."""

    def __init__(self, key: str, shapes: Sequence[Mapping[str, tuple[int, ...]]] = ()) -> None:
        self.key = key
        self.shapes: list[dict[str, tuple[int, ...]]] = [dict(shape) for shape in shapes]
        self.samples: list[Sample] = []

    def add(self, leaves: Mapping[str, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Note the shapes of a call, and keep a copy of its arguments as long as there are few."""
        shape = shape_of(leaves)
        if len(self.samples) < _MOST:
            self.samples.append(Sample(*copied((args, dict(kwargs)))))
        if shape not in self.shapes:
            self.shapes.append(shape)

    def axes(self) -> dict[str, tuple[int | str, ...]]:
        """For each tensor its sizes, names where they vary: ``batch`` for what varies with the first tensor's leading
        axis, ``dim0``, ``dim1`` and so on for others; axes that vary together have one name.
        """
        names: dict[tuple[int, ...], str] = {}
        found = {}
        for path, first in (self.shapes[0] if self.shapes else {}).items():
            named: list[int | str] = []
            for axis, size in enumerate(first):
                sizes = tuple(shape[path][axis] for shape in self.shapes)
                if len(set(sizes)) == 1:
                    named.append(size)
                    continue
                fresh = "batch" if axis == 0 and not names else f"dim{len([n for n in names.values() if n != 'batch'])}"
                named.append(names.setdefault(sizes, fresh))
            found[path] = tuple(named)
        return found


def outside(
    declared: Mapping[str, Sequence[int | DynamicDim]], shapes: Mapping[str, tuple[int, ...]], where: str = ""
) -> str:
    """How shapes leave what was declared, in words; "" if they do not. Raises ``BadArgument`` for a declaration that is
    of no tensor, or of one with another number of axes.
    """
    sizes: dict[str, int] = {}
    for path, axes in declared.items():
        if path not in shapes or len(shapes[path]) != len(axes):
            raise BadArgument(
                f"dynamic_shapes of {where} name {path!r} with {len(axes)} axes; the call has "
                f"{', '.join(f'{p} with {len(s)} axes' for p, s in shapes.items()) or 'no tensor'}",
                remedy="name an argument of forward and give one entry for each axis",
            )
        for axis, (wanted, size) in enumerate(zip(axes, shapes[path], strict=True)):
            place = f"axis {axis} of {path} has {size} elements"
            if isinstance(wanted, DynamicDim):
                kind = "batch" if isinstance(wanted, BatchDim) else "axis"
                if not wanted.holds(size):
                    return f"{place}, {kind} {wanted.name} has {wanted.min} to {wanted.max}"
                if sizes.setdefault(wanted.name, size) != size:
                    return f"{place}, {kind} {wanted.name} has {sizes[wanted.name]} elsewhere"
            elif wanted != size:
                return f"{place}, {wanted} were declared"
    return ""
