"""Rules and the user's passes, at their places in one compilation."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch.fx import Graph, GraphModule, Node

from lamina.base.decision import Decision
from lamina.base.fx.recording import Decompositions
from lamina.base.fx.torch_private import graph_module
from lamina.base.recovery import is_internal, recover
from lamina.base.rule import Rule
from lamina.errors import RuleFailed, UnexpectedMatches
from lamina.options import Options
from lamina.record import Record
from lamina.rewrite import reasons
from lamina.rewrite.captured import aten_form
from lamina.rewrite.engine import Index, Rewrites, dtypes_in, run_rules
from lamina.rewrite.match import Matcher
from lamina.rewrite.misses import Miss
from lamina.rewrite.needs import kinds_in
from lamina.rewrite.order import RULE_NAMES, Need, Pass, Place, passes_at
from lamina.rewrite.rules import OF_FINITE, RULES, without_hope
from lamina.rewrite.torch_private import SET_GRAD, autocast_enabled, entered_autocast, plain_dispatch
from lamina.rewrite.unmatched import told_miss, unmatched
from lamina.rewrite.user_passes import run_pass
from lamina.rewrite.user_rules import RIGHT_SIDE_REMEDY, right_side_of, warn_of_right_side, wrong_right_side
from lamina.rewrite.verify import verify_fx

__all__ = ["Rewriting"]

_TESTED = frozenset(RULES)


class Rewriting:
    """What the rules and passes of ``options`` do to one captured graph, called ``name``, and what comes of it.

    Each method takes a graph at one place and returns it rewritten, or the very same. The user's rules come before
    Lamina's own.
    """

    def __init__(self, options: Options, record: Record, name: str, decompositions: Decompositions) -> None:
        self.options, self.record, self.name, self.decompositions = options, record, name, decompositions
        theirs = dict.fromkeys(r for r in options.rules if isinstance(r, Rule))
        ours = RULES if options.numerics == "fast" else ()
        left_out = frozenset(options.without_rules) | (frozenset() if options.assume_finite else OF_FINITE)
        self.rules = (*theirs, *(r for r in ours if r.name not in left_out))
        self.counts: dict[str, int] = {}
        self.misses: dict[str, tuple[str, Miss | None]] = {}
        self.declined: dict[str, Decision] = {}
        self.wrong: dict[Rule, Decision] = {}
        self.recording = torch.is_grad_enabled()

    def captured(self, gm: GraphModule) -> GraphModule:
        """The graph of the user's calls, before it is differentiated."""
        gm = self._run_passes("captured", gm)
        self._warn()
        return gm

    def joint(self, gm: GraphModule) -> GraphModule:
        """The forward and backward in one graph, or a graph without gradients, before anything else is done to it."""
        gm = self._run_passes("joint", gm)
        self._warn()
        if self.options.passes.partitioned and not _has_tangents(gm):
            self._note(Decision("pass", (self.name,), False, reasons.NO_FORWARD_AND_BACKWARD()))
        self.check_expected()
        self.record.told(self.name, "rewrite", unmatched, self.options.rules, self.misses, _found(self))
        return gm

    def device(self, gm: GraphModule, kernels: bool = True) -> GraphModule:
        """The same graph for the device it is on; ``kernels``: it is for our kernels and not for another backend."""
        return self._run_passes("device", gm, kernels=kernels)

    def partitioned(self, gm: GraphModule, kind: str) -> GraphModule:
        """The forward or the backward graph."""
        return self._run_passes("partitioned", gm, f"{self.name}_{kind}")

    def lowered(self, gm: GraphModule, region: str) -> GraphModule:
        """A graph right before it is lowered."""
        return self._run_passes("lowered", gm, region)

    def _run_passes(self, place: Place, gm: GraphModule, region: str = "", kernels: bool = True) -> GraphModule:
        """``gm`` after the passes of a place, in order.

        One of ours that fails leaves the graph as it was, which is noted. What is about something that the user gave
        is raised, and so is all with the option strict.
        """
        where = region or self.name
        _passed(self.record, where, place, "", gm)
        for one in passes_at(place, self.options):
            if one.by_user:
                gm = run_pass(gm, one.function, place, self.record, where)
                _passed(self.record, where, place, one.name, gm)
                continue
            if not all(self._holds(need, gm, place, kernels) for need in one.needs) or self._left_out(one):
                continue
            try:
                gm = self._run_pass(one, gm)
                _passed(self.record, where, place, one.name, gm)
            except Exception as error:
                if not is_internal(error):
                    raise
                recover(
                    error,
                    doing=one.name,
                    region=self.name,
                    instead="the graph stays as it was",
                    strict=self.options.strict,
                    note=self._note,
                    kind="rewrite",
                )
        return gm

    def _run_pass(self, one: Pass, gm: GraphModule) -> GraphModule:
        start = time.perf_counter()
        decisions: list[Decision] = []
        given = {
            "decisions": decisions,
            "note": self.record.noting(self.name, one.stage),
            "finite": self.options.assume_finite,
            "without": frozenset(self.options.without_rules),
            "decompositions": self.decompositions,
            "engine": self,
        }
        function = one.unchecked if one.unchecked is not None and self.options.assume_finite else one.function
        gm = function(gm, **{name: given[name] for name in one.takes})
        if one.optional:
            self.counts[one.name] = self.counts.get(one.name, 0) + sum(d.taken for d in decisions)
        if decisions:
            self.record.add(self.name, one.stage, time.perf_counter() - start, None, tuple(decisions))
        return gm

    def _holds(self, need: Need, gm: GraphModule, place: Place, kernels: bool) -> bool:
        if need == "fast":
            return self.options.numerics == "fast"
        if need == "kernels":
            return kernels
        gradients = self._differentiable(gm.graph) if place == "captured" else _has_tangents(gm)
        return (self.options.freeze and not gradients) == (need == "frozen")

    def _left_out(self, one: Pass) -> bool:
        return one.optional and "fast" in one.needs and one.name in self.options.without_rules

    def on_joint(self, gm: GraphModule) -> GraphModule:
        """The forward and backward in one graph, or a graph without gradients, after the rules."""
        differentiable = _has_tangents(gm)
        rules = self._at("joint" if differentiable else "inference")
        if not rules:
            return gm
        start = time.perf_counter()
        index = Index(rules, self.decompositions, dtypes_in(gm.graph))
        found = self._run("joint" if differentiable else "inference", gm.graph, index, lambda node: differentiable)
        self._record(found, time.perf_counter() - start)
        if found.done:
            gm = graph_module(gm, gm.graph)
            if self.options.verify is True:
                verify_fx(gm, "rules")
        return gm

    def on_captured(self, gm: GraphModule) -> GraphModule:
        """The graph of the user's calls after the rules on it as ATen operations."""
        hopeless = without_hope(gm)
        rules = [r for r in self._at("captured") if r.name not in hopeless]
        if not rules:
            return gm
        start = time.perf_counter()
        why = _unfit(gm)
        if why:
            self._note(Decision("rewrite", (self.name,), False, reasons.NOT_ON_CAPTURED(why=why)))
            return gm
        form = aten_form(gm)
        differentiable = self._differentiable(gm.graph)
        found = self._run(
            "captured",
            form.graph,
            Index(rules, None, dtypes_in(form.graph), kinds_in(form.graph)),
            lambda node: differentiable and form.recording.get(node, True),
            form.untouchable,
        )
        self._record(found, time.perf_counter() - start)
        return graph_module(gm, form.graph) if found.done else gm

    def check_expected(self) -> None:
        """Raise ``UnexpectedMatches`` where a rule was applied another number of times than expected."""
        for name, wanted in self.options.expect_matches:
            count = self.counts.get(name, 0)
            if count == wanted:
                continue
            rule = next((r for r in self.rules if r.name == name), None)
            if rule is None and name in self.counts:
                raise UnexpectedMatches(
                    f"rewrite {name!r} was made {count} times in {self.name}, not {wanted}",
                    remedy="see the record's decisions of kind 'rewrite' for its reasons",
                )
            if rule is None and name in RULE_NAMES:
                raise UnexpectedMatches(
                    f"rewrite {name!r} did not run in {self.name}, and is expected {wanted} times",
                    remedy=self._why_not_run(name),
                )
            assert rule is not None  # others were refused at once
            declined = self.declined.get(name)
            if declined is not None and count < wanted:
                place, matched = right_side_of(declined), ", ".join(declined.subject[1:])
                raise UnexpectedMatches(
                    f"rule {name!r} was applied {count} times in {self.name}, not {wanted}; a match"
                    f"{' at ' * bool(matched)}{matched} was left as it was: {declined.reason}",
                    where=place or rule.place,
                    remedy=RIGHT_SIDE_REMEDY if place else "change the program there, or the number that is expected",
                )
            raise UnexpectedMatches(
                f"rule {name!r} matched {count} times in {self.name}, not {wanted}{told_miss(self.misses.get(name))}",
                where=rule.place,
                remedy="change the rule so that it takes this spelling, or the number that is expected",
            )

    def _why_not_run(self, name: str) -> str:
        """What keeps a rewrite of Lamina's from running, as something to do about it."""
        if self.options.numerics != "fast":
            return 'none runs with numerics="eager": leave that out, or the expectation'
        if name in OF_FINITE and not self.options.assume_finite:
            return 'it gives eager\'s values of finite numbers alone: set the option "assume_finite"'
        if name in self.options.without_rules:
            return "it is in without_rules: leave it out there, or in expect_matches"
        if any(one.name == name and "frozen" in one.needs for one in passes_at("joint", self.options)):
            return 'it needs the option "freeze" and a call without gradients, as within torch.no_grad()'
        return "see the record's decisions of kind 'rewrite' for its reasons"

    def _at(self, place: str) -> list[Rule]:
        return [r for r in self.rules if place in r.at]

    def _differentiable(self, graph: Graph) -> bool:
        """Whether a call of a captured graph may give its result a history, as it begins or after a switch."""
        switches = graph.find_nodes(op="call_function", target=SET_GRAD)
        if not self.recording and all(node.args[0] is False for node in switches):
            return False
        values = [n.meta.get("example_value") for n in graph.find_nodes(op="placeholder")]
        return any(isinstance(v, torch.Tensor) and v.requires_grad for v in values)

    def _run(
        self,
        place: str,
        graph: Graph,
        index: Index,
        training: Callable[[Node], bool],
        untouchable: frozenset[Node] = frozenset(),
    ) -> Rewrites:
        fuel = self.options.fuel - sum(self.counts.values())
        found = run_rules(graph, index, training=training, untouchable=untouchable, fuel=fuel, tested=_TESTED)
        for rule, why in found.circling:
            if rule in self.options.rules:
                raise RuleFailed(
                    why,
                    where=rule.place,
                    remedy="give one of them a condition that does not hold for what the others make",
                )
        for rule, decision in found.wrong:
            if rule in self.options.rules and rule not in RULES:
                if self.options.strict:
                    raise wrong_right_side(rule, decision)
                self.wrong.setdefault(rule, decision)
        for one in found.done:
            self.counts[one.rule] = self.counts.get(one.rule, 0) + 1
        with self.record.harmless("rewrite"):
            self._explain_all(place, graph, index, training, found)
        return found

    def _explain_all(
        self, place: str, graph: Graph, index: Index, training: Callable[[Node], bool], found: Rewrites
    ) -> None:
        """Note why the user's rules, and those of which a number is expected, matched too seldom in a graph."""
        expected = dict(self.options.expect_matches)
        own = {r.name: 1 for r in self.options.rules if isinstance(r, Rule)}
        for name, wanted in {**own, **expected}.items():
            if name not in expected and index.waits(name):
                self.misses.setdefault(name, (place, None))
            elif self.counts.get(name, 0) < wanted:
                declined = next((d for d in found.decisions if d.subject[0] == name and not d.taken), None)
                if declined is not None:
                    self.declined.setdefault(name, declined)
                self._explain(name, place, graph, index, training)

    def _warn(self) -> None:
        """Warn of the user's rules that were found to be wrong; not within what keeps errors of ours from the user."""
        for rule in list(self.wrong):
            warn_of_right_side(rule, self.wrong.pop(rule))

    def _explain(self, name: str, place: str, graph: Graph, index: Index, training: Callable[[Node], bool]) -> None:
        """Note the nearest miss of a rule that matched too seldom."""
        matcher = Matcher(training, explain=True)
        index = Index([r for r in index.rules if r.name == name], index.decompositions, index.dtypes)
        matched: Miss | None = None
        for node in graph.nodes:
            for pattern in index.of(node):
                for match in matcher.matches(pattern, node):
                    matched = Miss(len(match.matched), node, "its condition where(match) says no", cause="condition")
        miss = matched or matcher.miss
        before = self.misses.get(name)
        if before is None or before[1] is None or (miss is not None and miss.nearness > before[1].nearness):
            self.misses[name] = (place, miss)

    def _record(self, found: Rewrites, seconds: float) -> None:
        self.record.add(self.name, "rewrite", seconds, found, found.decisions)

    def _note(self, decision: Decision) -> None:
        self.record.note(self.name, "rewrite", decision)


def _unfit(gm: GraphModule) -> str:
    """Why rules cannot look at a captured graph; "" if they can."""
    if autocast_enabled() or any(entered_autocast(n) for n in gm.graph.nodes):
        return "autocast changes what its calls mean"
    if not plain_dispatch():
        return "a function transform or a dispatch mode is active"
    return ""


def _has_tangents(gm: GraphModule) -> bool:
    """Whether a graph in normal form has a backward in it."""
    return any("tangents" in str(n.target) for n in gm.graph.find_nodes(op="placeholder"))


def _found(rewriting: Rewriting) -> frozenset[str]:
    """Names of rules whose left side was found."""
    return frozenset(rewriting.declined) | {name for name, count in rewriting.counts.items() if count}


def _passed(record: Record, where: str, place: Place, name: str, gm: GraphModule) -> None:
    """Tell the record of a graph that passes by; one that compares stages may end the compilation."""
    if record.compares_stages:
        record.passed(where, place, name, gm)
        return
    with record.harmless("rewrites"):
        record.passed(where, place, name, gm)
