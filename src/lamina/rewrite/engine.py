"""The engine that runs all rules: a worklist of nodes, an index by operation, fuel, and a trace of what was done."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch.fx import Graph, Node

from lamina.base.bounded import remember
from lamina.base.decision import Decision
from lamina.base.fx.recording import Decompositions
from lamina.base.reasons import Reason
from lamina.base.rule import Match, Rule
from lamina.base.source import source_of
from lamina.errors import RuleFailed
from lamina.rewrite import reasons
from lamina.rewrite.canonical import key_of
from lamina.rewrite.left_side import patterns_of
from lamina.rewrite.match import Matcher
from lamina.rewrite.needs import kinds_in, needs_of
from lamina.rewrite.pattern import Pattern
from lamina.rewrite.replace import Refused, Replacer, WrongRightSide

__all__ = ["Index", "Rewrite", "Rewrites", "dtypes_in", "run_rules"]

_LONGEST_LINEAGE = 40
"""A value that one rule has had a hand in so many times in a row is being rewritten in circles."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One rewrite: which rule, what was there before, what is there now, and the user's lines it came from."""

    rule: str
    rule_place: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    sources: tuple[str, ...]

    def text(self) -> str:
        """Several lines: the rule, then what went and what came."""
        lines = [f"{self.rule} ({self.rule_place}) at {', '.join(self.sources) or 'no known line'}"]
        return "\n".join([*lines, *(f"  - {line}" for line in self.before), *(f"  + {line}" for line in self.after)])


@dataclass(frozen=True, slots=True)
class Rewrites:
    """What the rules did to one graph.

    ``stopped`` says that the fuel ran out, ``circling`` are rules that undid each other's work and were stopped,
    ``wrong`` those whose right side failed or did not fit, with the first such decision of each.
    """

    done: tuple[Rewrite, ...]
    decisions: tuple[Decision, ...]
    stopped: bool = False
    circling: tuple[tuple[Rule, Reason], ...] = ()
    wrong: tuple[tuple[Rule, Decision], ...] = ()

    def count(self, rule: str) -> int:
        """How many times a rule was applied."""
        return sum(one.rule == rule for one in self.done)

    def text(self) -> str:
        """Every rewrite, one after the other."""
        return "\n".join(one.text() for one in self.done)


_patterns: dict[tuple[Rule, str, bool, bool, bool], tuple[Pattern, ...]] = {}
"""Patterns by their rule and what it reads from outside, whether they are decomposed, and for tensors of which kinds
they were traced."""
_MOST_PATTERNS = 4096
"""Lamina's rules have some hundreds; a program may make rules anew for each model that it compiles."""
_NARROW = frozenset((torch.float16, torch.bfloat16))


class Index:
    """The patterns of some rules by the operation of their first result, for tensors of ``dtypes``.

    Rules are traced once in a process; those that need operations besides ``kinds``, the names of a captured graph's,
    not before these are ``met``.
    """

    def __init__(
        self,
        rules: Sequence[Rule],
        decompositions: Decompositions | None,
        dtypes: frozenset[torch.dtype],
        kinds: frozenset[str] | None = None,
    ) -> None:
        self.rules, self.decompositions, self.dtypes = tuple(rules), decompositions, dtypes
        self.by_target: dict[Hashable, list[Pattern]] = {}
        self.depth = 0
        self._places = {rule: place for place, rule in enumerate(self.rules)}
        self._kinds, self._waiting = kinds or frozenset(), list(self.rules)
        self._enter(lambda rule: kinds is None or needs_of(rule) <= kinds)

    def waits(self, name: str) -> bool:
        """Whether the rule of this name needs operations that the graph does not have."""
        return any(rule.name == name for rule in self._waiting)

    def met(self, made: Sequence[Node]) -> None:
        """These nodes are new in the graph: rules that waited for what they compute come in."""
        if self._waiting and not (fresh := kinds_in(made)) <= self._kinds:
            self._kinds = kinds = self._kinds | fresh
            self._enter(lambda rule: needs_of(rule) <= kinds)

    def _enter(self, ready: Callable[[Rule], bool]) -> None:
        looked_at, self._waiting = self._waiting, []
        for rule in looked_at:
            if not ready(rule):
                self._waiting.append(rule)
                continue
            for pattern in self._traced(rule):
                self.by_target.setdefault(pattern.target, []).append(pattern)
                self.depth = max(self.depth, pattern.depth)
        for patterns in self.by_target.values():
            # The larger of two that fit replaces more.
            patterns.sort(key=lambda p: (-p.calls, self._places[p.rule]))

    def _traced(self, rule: Rule) -> tuple[Pattern, ...]:
        narrow, wide = not self.dtypes.isdisjoint(_NARROW), bool(self.dtypes - _NARROW)
        key = (rule, rule.reads(), self.decompositions is not None, narrow, wide)
        if key not in _patterns:
            return remember(_patterns, key, patterns_of(rule, self.decompositions, self.dtypes), _MOST_PATTERNS)
        return _patterns[key]

    def of(self, node: Node) -> Sequence[Pattern]:
        """The patterns that may end in ``node``."""
        return self.by_target.get(key_of(node), ()) if node.op == "call_function" else ()


def dtypes_in(graph: Graph) -> frozenset[torch.dtype]:
    """The dtypes of the floating-point tensors of a graph."""
    values = (node.meta.get("val") for node in graph.nodes)
    return frozenset(v.dtype for v in values if isinstance(v, torch.Tensor) and v.dtype.is_floating_point)


@dataclass(slots=True)
class _Run:
    index: Index
    replacer: Replacer
    matcher: Matcher
    done: list[Rewrite] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    lineage: dict[Node, tuple[str, ...]] = field(default_factory=dict)
    gone: set[Node] = field(default_factory=set)
    circling: dict[Rule, Reason] = field(default_factory=dict)
    wrong: dict[Rule, Decision] = field(default_factory=dict)


def run_rules(
    graph: Graph,
    index: Index,
    *,
    training: Callable[[Node], bool],
    untouchable: frozenset[Node] = frozenset(),
    fuel: int = 1_000_000,
    tested: frozenset[Rule] = frozenset(),
) -> Rewrites:
    """Apply rules to ``graph``, in place, until none fits or ``fuel`` rewrites were made.

    ``training`` says of a node whether gradients are recorded there, ``untouchable`` are nodes no rule may look at.
    Gradients of right sides are not looked at for rules that are ``tested``.
    A rule that undoes another's work again and again is left out from then on. Raises ``RuleFailed`` for a rule whose
    condition raises.
    """
    run = _Run(index, Replacer(graph, index.decompositions, untouchable, tested), Matcher(training, untouchable))
    # The last results first: a rule for all of a computation comes before those for its parts.
    work = deque(node for node in reversed(graph.nodes) if index.of(node))
    waiting = set(work)
    stopped = fuel <= 0
    while work and not stopped:
        node = work.popleft()
        waiting.discard(node)
        if node in run.gone:
            continue
        for fresh in _rewritten(run, node):
            if fresh not in waiting and index.of(fresh):
                waiting.add(fresh)
                work.append(fresh)
        stopped = len(run.done) >= fuel
    run.replacer.finish()
    circling, wrong = tuple(run.circling.items()), tuple(run.wrong.items())
    return Rewrites(tuple(run.done), tuple(run.decisions), stopped, circling, wrong)


def _rewritten(run: _Run, node: Node) -> Iterator[Node]:
    """Apply the first rule that fits at ``node``; the nodes that are worth another look."""
    for pattern in run.index.of(node):
        rule = pattern.rule
        if run.circling and rule in run.circling:
            continue
        for match in run.matcher.matches(pattern, node):
            if not _wanted(rule, match):
                continue
            sources = _sources(match.matched)
            try:
                replaced = run.replacer.replace(match)
            except Refused as why:
                facts, reason = [("rule at", rule.place)], reasons.NOT_REPLACED(why=why)
                if isinstance(why, WrongRightSide):
                    facts.append(("right side at", why.place))
                    reason = why.why
                decision = Decision("rewrite", (rule.name, *sources), False, reason, tuple(facts))
                run.decisions.append(decision)
                if isinstance(why, WrongRightSide):
                    run.wrong.setdefault(rule, decision)
                continue
            run.matcher.forget()
            _note(run, match, sources, replaced.before, replaced.made)
            run.gone |= replaced.gone
            run.index.met(replaced.made)
            yield from _nearby(replaced.made, run.index.depth)
            return


def _wanted(rule: Rule, match: Match) -> bool:
    if rule.inference_only and match.training:
        return False
    if rule.where is None:
        return True
    try:
        answer = rule.where(match)
        wanted = bool(answer)
    except Exception as error:
        raise RuleFailed(
            f"the condition of rule {rule.name!r} raised {type(error).__name__}: {error}",
            where=rule.place,
            remedy="let where(match) return True or False for every match",
        ) from error
    if answer is None:
        raise RuleFailed(
            f"the condition of rule {rule.name!r} returned None",
            where=rule.place,
            remedy="let where(match) return True or False for every match",
        )
    return wanted


def _note(run: _Run, match: Match, sources: tuple[str, ...], before: tuple[str, ...], made: Sequence[Node]) -> None:
    rule = match.rule
    past = max((run.lineage.get(n, ()) for n in match.matched), key=len, default=())
    past = (*past, rule.name)
    if past.count(rule.name) > _LONGEST_LINEAGE:
        names = sorted(set(past[-_LONGEST_LINEAGE:]))
        run.circling[rule] = reasons.IN_CIRCLES(names=", ".join(names), count=len(past))
        run.decisions.append(Decision("rewrite", (rule.name,), False, run.circling[rule], (("rule at", rule.place),)))
    for node in made:
        run.lineage[node] = past
    after = tuple(node.format_node() or node.name for node in made)
    run.done.append(Rewrite(rule.name, rule.place, before, after, sources))
    run.decisions.append(
        Decision(
            "rewrite",
            (rule.name, *sources),
            True,
            reasons.RULE_APPLIED(before=len(match.matched), after=len(made)),
            (("rule at", rule.place),),
        )
    )


def _sources(nodes: Sequence[Node]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for text in map(source_of, sorted(nodes)) if text))


def _nearby(made: Sequence[Node], depth: int) -> Iterator[Node]:
    """New nodes, and what is computed from them within reach of a pattern."""
    seen: set[Node] = set()
    front = list(made)
    for _ in range(depth + 1):
        following: list[Node] = []
        for node in front:
            if node in seen:
                continue
            seen.add(node)
            yield node
            following.extend(node.users)
        front = following
