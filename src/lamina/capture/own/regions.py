"""The graphs of one callable that were compiled, by what they compute."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node

from lamina.base.captured import UNSEEN_RESULTS
from lamina.base.fx.torch_private import calls_of
from lamina.base.recipes import captured, made_of
from lamina.capture.own.checkpoints.torch_private import is_checkpointed
from lamina.capture.own.fakes import Fakes
from lamina.capture.own.frame import MOST_KEPT
from lamina.capture.own.segment import Segment
from lamina.capture.own.sharing.families import Families
from lamina.capture.own.torch_private import SET_GRAD, compiling
from lamina.capture.own.trials import SMALL
from lamina.capture.own.writing import Writing
from lamina.capture.stance.torch_private import forbids_recompiles

__all__ = ["FEW", "Backend", "Regions", "by_calls"]

Backend = Callable[[GraphModule, Sequence[Any]], Callable[..., Any]]
_MOST_REGIONS = 256
"""Compiled graphs that one callable keeps; a program whose sizes are all different would keep one for each."""
FEW = 16
"""Calls of a small graph at most, how many times as many another has beside which it pays for no compilation, and
modules of a model that has such another."""


@dataclass(slots=True)
class Regions:
    """The graphs of one callable that were compiled, by what they compute; ``calls`` counts the calls recorded.

    ``other_in_eager`` says of a call whether fake tensors tell another type or rank of its results than it gives or, if
    that is asked, other strides; each kind of call is ``asked`` once.
    ``families`` has those that differ in integers only, unless each is to be compiled by itself. Beside a graph of many
    calls, or in a ``large`` program, which is going to have one, small graphs between two breaks are not compiled:
    ``told`` is given the number of calls of each. ``told_parts`` is given how many equal blocks a graph is cut into, of
    how many calls each; ``in_parts`` tells of graphs, by their calls, whether they are, ``cut`` has those of which all
    parts are compiled. ``functions`` are calls of transforms, by what they compute. ``others`` names a call that was
    made uncompiled between graphs, though Dynamo captures it. ``told_shared`` is called where the calls of a graph are
    made one by one, as an input that it writes to shares memory with another.
    """

    backend: Backend
    other_in_eager: Callable[[Node, bool], bool]
    compiled: dict[Any, Callable[..., Any] | None] = field(default_factory=dict)
    calls: int = 0
    native: int = 0
    of_thread: Any = field(default_factory=threading.local)
    families: Families | None = None
    asked: dict[Any, bool] = field(default_factory=dict)
    large: bool = False
    told: Callable[[int], None] = lambda calls: None
    told_parts: Callable[[int, int], None] = lambda blocks, calls: None
    most: int = 0
    in_parts: dict[Any, bool] = field(default_factory=dict)
    cut: dict[Any, bool] = field(default_factory=dict)
    ahead: dict[Any, Any] = field(default_factory=dict)
    functions: dict[Any, Callable[..., Any]] = field(default_factory=dict)
    others: str = ""
    told_shared: Callable[[], None] = lambda: None

    def fakes(self) -> Fakes:
        """Those of the thread: a mode is entered by one thread at a time."""
        found: Fakes | None = getattr(self.of_thread, "fakes", None)
        if found is None or len(found.made) > _MOST_REGIONS:
            found = self.of_thread.fakes = Fakes()
        return found

    def is_other(self, kind: Any, node: Callable[[], Node], laid_out: bool) -> bool:
        """Whether a call, one of a ``kind``, gives tensors of another type, rank or, if asked, layout than traced."""
        if kind not in self.asked:
            if len(self.asked) >= MOST_KEPT:
                self.asked.clear()
            self.asked[kind] = self.other_in_eager(node(), laid_out)
        return self.asked[kind]

    def keep(self, key: Any, compiled: Callable[..., Any] | None) -> None:
        """Keep the compiled form of a graph, or that it computes nothing that anybody may see."""
        if len(self.compiled) >= _MOST_REGIONS:
            del self.compiled[next(iter(self.compiled))]
        self.compiled[key] = compiled

    def of(
        self, segment: Segment, key: Any, outputs: list[Node], pin: Callable[..., None]
    ) -> Callable[..., Any] | None:
        """A graph as a function of its inputs; None if nobody would see that it ran.

        ``pin`` is given numbers that it holds as constants.
        """
        if key in self.compiled:
            return self.compiled[key]
        outputs = [*outputs, *segment.unread(outputs)]
        if not outputs and not (segment.draws or segment.writes):
            self.keep(key, None)
            return None
        segment.graph.output(tuple(outputs)).meta[UNSEEN_RESULTS] = segment.unseen
        calls = calls_of(GraphModule(torch.nn.Module(), segment.graph)) if segment.writes else None
        compiled = None
        backend = self.backend if self._pays(segment) else by_calls
        if self.families is not None and not is_checkpointed(segment.graph):
            compiled = self.families.compiled(segment, outputs, backend)
        fixed = False
        if compiled is None:
            try:
                gm, fakes, mode = segment.module()
            except Exception:
                if not segment.learnt:
                    raise
                fixed = True  # what stands for a number tells too little of it
                pin(*segment.with_constants())
                gm, fakes, mode = segment.module()
            with compiling(mode):
                compiled = backend(gm, fakes)
            captured(compiled, gm, fakes)
        if calls is not None:
            compiled = Writing(compiled, calls, segment.written(), tuple(segment.pairs), segment.apart_by_place())
            compiled.told = self.told_shared
        SET_GRAD(segment.state[0])
        if not fixed:
            self.keep(key, compiled)
        return compiled

    def _pays(self, segment: Segment) -> bool:
        """Whether a graph is to be compiled, rather than that its calls are made one by one."""
        calls = _calls_in(segment)
        if segment.is_part and calls <= FEW and (self.large or calls * FEW <= self.most):
            plain = not (segment.draws or segment.writes or segment.learnt or segment.tracks or forbids_recompiles())
            if plain and all(one.numel() <= SMALL for one in segment.tensors()):
                self.told(calls)
                return False
        self.most = max(self.most, calls)
        return True


def by_calls(gm: GraphModule, fakes: Sequence[Any]) -> Callable[..., Any]:
    """The calls of a graph, made one by one."""
    return made_of(calls_of(gm), "by calls")


def _calls_in(segment: Segment) -> int:
    return sum(node.op in ("call_function", "call_method") for node in segment.graph.nodes)
