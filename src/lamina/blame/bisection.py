"""``bisect``: a program, compiled with every stage kept, and the first stage that makes its results differ."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch.fx import GraphModule

from lamina.aot.partition import Partition
from lamina.base.paths import path_of
from lamina.blame.differentiation import Unalike, blamed_halves, blamed_joint, joint_inputs
from lamina.blame.found import Bisection, Blame
from lamina.blame.observed import GraphCall, Observed, RegionCall, Snapshot, compile_observed
from lamina.blame.regions import blamed_region
from lamina.blame.rewrites import GraphRun, blamed_rewrite
from lamina.blame.values import Captured, Values, evaluated, run_captured
from lamina.compile import compile
from lamina.errors import LaminaWarning
from lamina.options import Options
from lamina.testing.runs import Runs, differing, options_given, uncompiled
from lamina.testing.torch_private import compiled_anew

__all__ = ["bisect"]


def bisect(
    fn: Callable[..., Any], *args: Any, options: Mapping[str, Any] | None = None, to: str = "", **kwargs: Any
) -> Bisection:
    """Find the stage, and the rule, fusion or kernel of it, that makes ``fn(*args, **kwargs)`` differ from eager.

    The call is compared as by ``verify``, from the state that there is, which is left as it was. Where anything
    differs, the tensors of the first call of each graph are put through every value that the compiler made of it: the
    captured graph after each rewrite, the joint graph, its halves, loop programs after lowering and each sub-pass of
    fusion, plan, kernels and host program. ``options`` are those of ``lamina.compile``; ``to`` is the folder for the
    source of a wrong kernel, a new one by default. Raises ``BadArgument`` for what cannot be called, and for a ``to``
    that is no path.
    """
    start = time.perf_counter()
    fn, folder = uncompiled(fn), str(path_of(to, "the folder of a wrong kernel")) if to != "" else ""
    name = str(getattr(fn, "__qualname__", type(fn).__name__))
    runs = Runs(fn, args, kwargs, options_given(options))
    eager, exact = runs.run(fn), runs.exact(fn)
    notes: list[str] = []
    chosen = dict(runs.options)
    if eager.draws_numbers and chosen.get("numerics", "fast") != "eager":
        chosen["numerics"] = "eager"
        notes.append('it draws random numbers: it is compared with numerics="eager", which draws as eager does')
    with _quietly():
        compiled, record, settings = compile_observed(fn, chosen)
        ours = runs.run(compiled)
    different = tuple(f"{d.where}: {d.kind}: {d.text.partition(': [')[0]}" for d in differing(eager, ours, exact))
    search = _Search(record, settings, folder, notes)
    blame = next(search.blames(), None) if different else None
    if different and blame is None:
        with _quietly():
            captured = runs.run(_captured_alone(fn, chosen))
        stage = "capture" if differing(eager, captured, exact) else "run time"
        blame = Blame(stage, name, text=different[0])
    seconds = time.perf_counter() - start
    return Bisection(name, different, blame, tuple(search.right), tuple(notes), seconds)


def _captured_alone(fn: Callable[..., Any], options: Mapping[str, Any]) -> Callable[..., Any]:
    """``fn`` as the front end captures it, its graphs run as they are."""
    captured: Callable[..., Any] = (
        compile(fn, backend="eager", options={"capture": "own"})
        if options.get("capture") == "own"
        else torch.compile(fn, backend="eager")
    )
    return captured


@contextmanager
def _quietly() -> Iterator[None]:
    with compiled_anew(), warnings.catch_warnings():
        warnings.simplefilter("ignore", LaminaWarning)
        yield


@dataclass(slots=True)
class _Search:
    """All stages of all graphs in order; those that are right are noted in ``right``."""

    record: Observed
    settings: Options
    folder: str
    notes: list[str]
    right: list[str] = field(default_factory=list)

    def blames(self) -> Iterator[Blame]:
        """Stages that differ from the one before, graph by graph."""
        for name, call in self.record.graphs.items():
            graph = _Graph(name, call, self.record, self.settings)
            for stage, check in (
                ("captured rewrites", graph.of_captured_rewrites),
                ("differentiation", graph.of_differentiation),
                ("joint rewrites", graph.of_joint_rewrites),
                ("partition", graph.of_partition),
            ):
                yield from self.checked(f"{stage} of {name}", check)
        for name, region in self.record.regions.items():
            yield from self.checked(f"rewrites of {name}", partial(self.of_late_rewrites, name, region))
            blame, note = blamed_region(region, self.record, self.settings, self.folder)
            if note:
                self.notes.append(note)
            if blame is None:
                self.right.append(f"region {name}")
            else:
                yield blame

    def of_late_rewrites(self, name: str, call: RegionCall) -> Blame | None:
        """The rewrite of the forward or backward graph alone that changes values."""
        late = [s for s in self.record.snapshots if s.graph == name and s.place in ("partitioned", "lowered")]
        if not late:
            return None
        run = GraphRun(call.inputs, call.generators, partial(_plain, call))
        return blamed_rewrite("late rewrite", late, run, self.settings, self.record, False)

    def checked(self, what: str, check: Callable[[], Blame | None]) -> Iterator[Blame]:
        """What ``check`` blames; a stage that cannot be evaluated is noted."""
        try:
            blame = check()
        except Exception as problem:
            self.notes.append(f"{what}: not evaluated: {type(problem).__name__}: {problem}")
            return
        if blame is None:
            self.right.append(what)
        else:
            yield blame


def _plain(call: RegionCall, gm: GraphModule, wide: bool) -> Values:
    return evaluated(gm, call.inputs, call.generators, wide)


@dataclass
class _Graph:
    """One captured graph and what became of it up to its halves."""

    name: str
    call: GraphCall
    record: Observed
    settings: Options

    def at(self, *places: str) -> list[Snapshot]:
        """The graphs of these places, in order."""
        return [s for s in self.record.snapshots if s.graph == self.name and s.place in places]

    @cached_property
    def captured(self) -> GraphModule:
        """The captured graph after its rewrites."""
        return self.at("captured")[-1].gm

    @cached_property
    def eager(self) -> Captured | Exception:
        """What the captured graph gives before its rewrites."""
        return run_captured(self.at("captured")[0].gm, self.call)

    def values(self, gm: GraphModule, wide: bool) -> Captured | Exception:
        """What a captured graph gives, differentiated alike."""
        cotangents = self.eager.cotangents if isinstance(self.eager, Captured) else None
        return run_captured(gm, self.call, wide, cotangents)

    def of_captured_rewrites(self) -> Blame | None:
        """The rewrite of the captured graph that changes results or gradients."""

        def values(gm: GraphModule, wide: bool) -> Values:
            found = self.values(gm, wide)
            return found if isinstance(found, Exception) else found.values()

        inputs = [x.detach() if isinstance(x, torch.Tensor) else x for x in self.call.inputs]
        run = GraphRun(inputs, self.call.generators, values)
        snapshots = self.at("captured")
        gradients = self.call.gradients
        return blamed_rewrite("captured rewrite", snapshots, run, self.settings, self.record, gradients)

    def of_differentiation(self) -> Blame | None:
        """Whether the joint graph is the captured one with gradients."""
        joint = self.at("joint", "device")
        if not joint:
            return None
        return blamed_joint(
            self.name, joint[0].gm, self.captured, self.call, lambda wide: self.values(self.captured, wide)
        )

    def joint(self) -> tuple[list[Snapshot], list[Any]]:
        """The joint graph after each rewrite, and its inputs. Raises ``Unalike``."""
        snapshots = self.at("joint", "device")
        captured = self.values(self.captured, False)
        if not snapshots or isinstance(captured, Exception):
            raise Unalike("there is no joint graph")
        return snapshots, joint_inputs(snapshots[0].gm, self.call, captured)

    def of_joint_rewrites(self) -> Blame | None:
        """The rewrite of the joint graph that changes results or gradients."""
        snapshots, inputs = self.joint()
        generators = self.call.generators
        run = GraphRun(inputs, generators, lambda gm, wide: evaluated(gm, inputs, generators, wide))
        gradients = self.call.gradients
        return blamed_rewrite("joint rewrite", snapshots, run, self.settings, self.record, gradients)

    def of_partition(self) -> Blame | None:
        """Whether the forward and the backward graph, one after the other, are the joint one."""
        found = [s.value for s in self.record.stages if s.region == self.name and isinstance(s.value, Partition)]
        if not found:
            return None
        snapshots, inputs = self.joint()
        return blamed_halves(self.name, snapshots[-1].gm, found[-1], inputs, self.call.generators)
