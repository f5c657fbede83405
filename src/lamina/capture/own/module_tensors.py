"""Which tensors are parameters or buffers of modules: what is computed of them alone may be kept between calls."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch

from lamina.base.torch_names.torch_private import BUFFERS
from lamina.capture.own.reuse.facts import Place

__all__ = ["held_by_modules"]


def held_by_modules(target: Any, place_of: Callable[[Any], Place | None]) -> Callable[[torch.Tensor], bool]:
    """A function that says of a tensor whether a module has it, as far as is known.

    Those are parameters, buffers of ``target``, if it is a module or a method of one, and what a call has read where
    modules have their buffers: ``place_of`` says where that is.
    """
    owner = target.__self__ if type(target) is MethodType else target
    buffers = {*map(id, owner.buffers())} if isinstance(owner, torch.nn.Module) else set()

    def held(tensor: torch.Tensor) -> bool:
        if isinstance(tensor, torch.nn.Parameter) or id(tensor) in buffers:
            return True
        place = place_of(tensor)
        return place is not None and place.parent is not None and place.parent.key == BUFFERS

    return held
