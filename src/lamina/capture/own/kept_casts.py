"""Casts of parameters that eager's autocast keeps, of which graphs know nothing.

While any level of autocast is entered, eager keeps the cast of a leaf that requires a gradient, and takes it again
within a level of another type. Graphs of levels of two types each cast to their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from lamina.base.modes import autocast_depth
from lamina.base.torch_private import is_leaf
from lamina.base.user_warnings import warn_user

__all__ = ["KeptCasts"]


class KeptCasts:
    """To which types the graphs and calls of one call have cast leaves, and whether the user was told of two."""

    def __init__(self) -> None:
        self._types: dict[int, tuple[torch.Tensor, set[torch.dtype]]] = {}
        self._told = False

    def note(self, tensors: Iterable[torch.Tensor], grad: bool, autocast: tuple[Any, ...]) -> None:
        """A graph, or a call, of ``tensors`` is going to run in these modes.

        Tells the user if eager may go on with other casts of them.
        """
        *kinds, cached = autocast
        types = {dtype for _, enabled, dtype in kinds if enabled}
        if not types or not cached or not grad:
            return
        for tensor in tensors:
            if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
                continue  # whose class may look at what is asked
            if not (tensor.requires_grad and is_leaf(tensor) and tensor.dtype is torch.float32):
                continue
            known = self._types.setdefault(id(tensor), (tensor, set()))[1]
            if known - types and autocast_depth() > 1 and not self._told:
                self._told = True
                names = " and ".join(sorted(map(str, known | types)))
                warn_user(
                    f"a parameter is used under autocast of {names}, one within the other: eager goes on with the "
                    "first cast, which it has kept, and compiled graphs do not",
                    "enter autocast with cache_enabled=False, or set the option capture to dynamo",
                )
            known |= types
