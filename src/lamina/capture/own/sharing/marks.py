"""Which sizes of a graph's inputs the user wants to vary, and which not."""

from __future__ import annotations

import torch

from lamina.capture.own.compiler_marks.torch_private import marked_dimensions
from lamina.capture.own.segment import Segment
from lamina.capture.own.sharing.outline import Outline

__all__ = ["asked", "settled"]


def asked(segment: Segment, outline: Outline, all_sizes: bool) -> set[int]:
    """Positions of the integers that are to vary from the first graph on, though no other graph was seen.

    They are sizes from 2 on that are marked, or ``all_sizes`` but those of parameters, with the strides of their
    tensors and the arguments of calls that are one of these numbers.
    """
    found: set[int] = set()
    numbers: set[int] = set()
    for tensor, look, first in zip(segment.inputs, segment.looks, outline.firsts, strict=True):
        rank, usual = len(look[3]), all_sizes and look[0] is torch.Tensor
        marked = range(rank) if usual else marked_dimensions(tensor, varying=True)
        fixed = marked_dimensions(tensor, varying=False)
        sizes = [at for at in marked if 0 <= at < rank and at not in fixed and look[3][at] > 1]
        if sizes:
            found.update(first + at for at in sizes)
            found.update(first + rank + at for at in range(rank) if look[4][at] > 1)
            numbers.update(look[3][at] for at in sizes)
    rest = range(outline.sizes, len(outline.numbers))
    return found | {at for at in rest if outline.numbers[at] in numbers}


def settled(segment: Segment, outline: Outline) -> set[int]:
    """Positions of the sizes that are marked to be no inputs of a graph."""
    given = zip(segment.inputs, segment.looks, outline.firsts, strict=True)
    return {
        first + at
        for tensor, look, first in given
        for at in marked_dimensions(tensor, varying=False)
        if 0 <= at < len(look[3])  # as Dynamo, which takes no other for a dimension
    }
