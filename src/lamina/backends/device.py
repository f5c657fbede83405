"""What a kind of device brings to the driver: the stages from a fused program to a callable, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor
from torch.fx import GraphModule

from lamina.ir.loops import LoopProgram
from lamina.ir.plan import KernelCall, Plan
from lamina.options import Options
from lamina.record import Record
from lamina.schedule.fuse import Fused

__all__ = ["Boxed", "Device", "DeviceOf", "LoadedPlan"]

Boxed = Callable[[list[Any]], Any]
"""A compiled region: takes one list of inputs, which it empties, and returns the outputs."""


RunStep = Callable[[KernelCall, Mapping[str, Tensor], Mapping[str, int]], None]
"""Runs one step's kernel on buffers and sizes by name."""


@dataclass(frozen=True, slots=True)
class LoadedPlan:
    """A region's plan as it was built: what runs its kernels one by one, and their sources by name."""

    plan: Plan
    launch: RunStep
    sources: Mapping[str, str]
    suffix: str


class Device(Protocol):
    """One kind of device with its options. The driver calls the stages in this order, each with what the last one gave.

    What passes from one to the next is the device's own: the driver does not look into it. Each is also given the graph
    that the program was lowered from, and the record, in which it notes its values and decisions.
    """

    def plan(self, fused: Fused, gm: GraphModule, record: Record) -> Any:
        """Kernels with their schedules, and the order in which they run."""

    def codegen(self, planned: Any, gm: GraphModule, record: Record) -> Any:
        """The texts of the kernels and of the host program that launches them."""

    def build(self, sources: Any, gm: GraphModule, record: Record) -> Any:
        """The kernels, on their way to machine code in the background."""

    def load(self, building: Any, gm: GraphModule, record: Record) -> Boxed:
        """A callable, which waits for its kernels at its first call."""

    def plans(self, planned: Any) -> Sequence[Plan]:
        """What runs at first, as a value: one plan, or none where nothing is planned."""

    def steps(self, building: Any) -> LoadedPlan | None:
        """What runs the kernels one by one, after they were loaded; None where there are none."""


DeviceOf = Callable[[LoopProgram, Options], Device]
"""Gives the device whose stages make kernels of a program."""
