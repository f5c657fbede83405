"""Which backwards of a compiled graph may follow others, as eager's may, and what is kept for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from lamina.aot import reasons
from lamina.aot.engine.torch_private import graph_is_kept, saved_tensors
from lamina.aot.notes import Notes
from lamina.base.torch_private import version_of

__all__ = ["Again", "Held", "Kept"]

Held = tuple[frozenset[int], ...]
"""For each tensor the nodes behind it that hold tensors, numbered in the order in which the engine runs them."""


class Again:
    """Which backwards of a region may follow others, and what is kept for them.

    Eager has a node for each operation. A backward frees what the nodes hold that it goes through, and refuses a node
    that held something and was gone through before. A region has one node for all its results, which answers as eager's
    would. What eager holds is found when it is first asked for: by a backward that not all results have a gradient in,
    or by a second one.

    A context has the attributes ``freed``, the nodes gone through (None: all, if it ran), and ``kept``, the saved
    tensors where a later backward may want them although torch frees those of the context.
    """

    def __init__(self, find: Callable[[], Held | None], notes: Notes) -> None:
        self._find, self._notes = find, notes
        self._lock = threading.Lock()
        self._found: tuple[Held | None] | None = None

    @property
    def known(self) -> tuple[Held | None] | None:
        """What ``held`` gives, in a tuple, if it was asked already."""
        return self._found

    def held(self) -> Held | None:
        """What eager holds for each of the differentiable results; None if that is not known."""
        with self._lock:
            if self._found is None:
                held = self._find()
                self._found = (held,)
                if held is None:
                    self._notes.decided("second backward", False, reasons.UNKNOWN_SAVES())
                else:
                    which = ", ".join(str(k) for k, nodes in enumerate(held) if nodes) or "none"
                    why = reasons.EAGER_SAVES(count=len(held), which=which)
                    self._notes.decided("second backward", not all(held), why)
        return self._found[0]

    def refused(self, ctx: Any, there: Collection[int]) -> bool:
        """Whether eager refuses a backward for the results ``there`` after the earlier ones of ``ctx``."""
        held = self.held()
        if held is None:
            return False
        reached, freed = frozenset().union(*(held[k] for k in there)), ctx.freed
        first = min(reached if freed is None else reached & freed, default=None)
        if first is None:
            return False
        if freed is not None and not graph_is_kept():
            ctx.freed = freed | {node for node in reached if node < first}  # the engine went through these
        return True

    def goes(self, ctx: Any, there: Collection[int], first: bool) -> None:
        """Note that a backward for some of the results begins, the ``first`` or not; keep what another may want."""
        if graph_is_kept():
            return
        held = self.held()
        if held is None or (ctx.freed is None and not first):
            return
        ctx.freed = frozenset().union(ctx.freed or (), *(held[k] for k in there))
        rest = [k for k in range(len(held)) if k not in there]
        if not any(held[k] and held[k].isdisjoint(ctx.freed) for k in rest):
            ctx.kept = None
        elif first:
            ctx.kept = Kept.of(ctx)


class Kept:
    """Saved tensors that outlive a backward. They have no history, so they do not keep alive what made them."""

    __slots__ = ("_given", "_tensors", "_versions")

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = [t.detach() for t in tensors]
        self._versions = [version_of(t) for t in tensors]

    @classmethod
    def of(cls, ctx: Any) -> Kept | None:
        """The saved tensors of a context; None where one of them was written to."""
        try:
            return cls(saved_tensors(ctx))
        except RuntimeError:
            return None

    def tensors(self, read: Collection[int] | None = None) -> list[torch.Tensor]:
        """The tensors; nobody has written to those that are ``read`` (None: all)."""
        for place in range(len(self._tensors)) if read is None else read:
            error = self.changed(place)
            if error is not None:
                raise error
        return list(self._tensors)

    def changed(self, place: int) -> RuntimeError | None:
        """Autograd's error for a tensor that somebody has written to."""
        tensor, version = self._tensors[place], self._versions[place]
        if version_of(tensor) == version:
            return None
        return RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"[{tensor.type()} {list(tensor.shape)}] is at version {version_of(tensor)}; expected version {version} "
            "instead."
        )

    def unchanged(self) -> tuple[list[torch.Tensor | None], RuntimeError | None]:
        """The tensors, None for each that somebody has written to, and autograd's error for one of those."""
        errors = [self.changed(place) for place in range(len(self._tensors))]
        tensors = [None if error else tensor for tensor, error in zip(self._tensors, errors, strict=True)]
        return tensors, next(filter(None, errors), None)
