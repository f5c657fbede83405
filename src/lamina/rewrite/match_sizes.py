"""Sizes in a match: the names that a pattern gives to dimensions, and what they are in the graph.

``bound`` are the parameters that are known, and the sizes by their names after a "#"; of dimensions that have a name
together all sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.fx import Node

from lamina.base.rule import TensorWildcard
from lamina.rewrite.pattern import Size
from lamina.rewrite.torch_private import same_size

__all__ = ["size_of", "with_tensor"]


def with_tensor(name: str, wildcard: TensorWildcard, node: Node, bound: Mapping[str, Any]) -> dict[str, Any] | None:
    """``bound`` with ``node`` as the parameter ``name``, and its sizes; None if they are not what the wildcard says."""
    found = {**bound, name: node}
    shape, sizes = node.meta["val"].shape, wildcard.sizes
    if len(shape) < len(sizes) or (not wildcard.leading and len(shape) > len(sizes)):
        return None
    if wildcard.leading.startswith("*"):
        actual = shape[: len(shape) - len(sizes)]
        known = found.setdefault(f"#{wildcard.leading}", actual)
        if len(known) != len(actual) or not all(map(same_size, known, actual)):
            return None
    for i, size in enumerate(sizes):
        actual = shape[i - len(sizes)]
        if isinstance(size, int):
            if not same_size(size, actual):
                return None
        elif not same_size(found.setdefault(f"#{size}", actual), actual):
            return None
    return found


def size_of(size: Size, parameters: Mapping[str, Any], bound: Mapping[str, Any]) -> Any:
    """The number that ``size`` is; None if tensors disagree or have no such dimension."""
    total: Any = 1
    for name in size.names:
        own = name.startswith("-")
        found = _own_size(name, parameters, bound) if own else bound.get(f"#{name}")
        if found is None:
            return None
        total = total * found
    ratio = size.ratio
    if ratio.numerator != 1:
        total = total * ratio.numerator
    if ratio.denominator != 1:
        if not isinstance(total, int) or total % ratio.denominator:
            return None
        total = total // ratio.denominator
    if size.power == 1:
        return total
    return float(total) ** size.power if isinstance(total, int) and total > 0 else None


def _own_size(name: str, parameters: Mapping[str, Any], bound: Mapping[str, Any]) -> Any:
    """The size of dimension ``name`` (from the last) that all tensors without a name for it have."""
    place, found = int(name), None
    for parameter, wildcard in parameters.items():
        if not isinstance(wildcard, TensorWildcard) or wildcard.leading != "..." or -place <= len(wildcard.sizes):
            continue
        shape = bound[parameter].meta["val"].shape
        if len(shape) < -place:
            return None
        if found is not None and not same_size(found, shape[place]):
            return None
        found = shape[place]
    return found
