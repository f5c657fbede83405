"""What AOTAutograd hands to the compiler: one functional graph with what is known of its inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch.fx import GraphModule

from lamina.base.files import graph_text, text_of

__all__ = ["Region", "RegionInput"]


@dataclass(frozen=True, slots=True)
class RegionInput:
    """One placeholder of a region.

    ``role`` is "primal" (an input of the user's function, parameters and buffers included), "saved" (kept by the
    forward for the backward), "tangent" (a gradient coming in) or "symbol" (a size, given as an integer).
    ``static`` says that the tensor is a parameter or buffer: same address at every call.
    """

    name: str
    role: str
    static: bool


@dataclass(frozen=True, slots=True)
class Region:
    """A graph to compile.

    ``gm`` is in normal form: functional ATen except for trailing ``aten.copy_`` into placeholders, every node with
    ``meta["val"]`` and ``meta["source"]``. ``example_inputs`` are FakeTensors, SymInts and integers, one for each
    placeholder, ``inputs`` what is known of them. ``kind`` is "inference", "forward" or "backward". ``name`` is
    unique within one compilation and readable.
    """

    gm: GraphModule
    example_inputs: tuple[Any, ...]
    kind: str
    name: str
    inputs: tuple[RegionInput, ...]

    def with_graph(self, change: Callable[[GraphModule, str], GraphModule]) -> Region:
        """The region after ``change``, which gets its graph and its name."""
        return replace(self, gm=change(self.gm, self.name))

    def __str__(self) -> str:
        return text_of(self)

    def files(self) -> dict[str, str]:
        """The graph as Python."""
        return {".py": graph_text(self.gm)}
