"""Why rules of the user's were not applied, in words and as decisions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from lamina.base.decision import Decision
from lamina.base.rule import Rule
from lamina.base.source import source_of
from lamina.rewrite import reasons
from lamina.rewrite.misses import Miss

__all__ = ["told_miss", "unmatched"]

Found = tuple[str, Miss | None]
"""The kind of graph that was looked at, and the nearest miss in it, if anything came near."""

_CODES = {
    "differs": reasons.RULE_UNMATCHED,
    "needed": reasons.RULE_NEEDED_ELSEWHERE,
    "condition": reasons.RULE_CONDITION,
}


def unmatched(rules: Iterable[object], misses: Mapping[str, Found], found: Collection[str]) -> Iterator[Decision]:
    """A decision for each of the user's ``rules`` whose left side was not ``found`` (names), with what was nearest."""
    for rule in rules:
        if not isinstance(rule, Rule) or rule.name in found or rule.name not in misses:
            continue
        place, miss = misses[rule.name]
        facts: tuple[tuple[str, int | str], ...] = (("rule at", rule.place), ("graph", place))
        if miss is None:
            reason = reasons.RULE_NOTHING_NEAR(name=rule.name, graph=place)
        else:
            facts = (*facts, ("nearest", miss.node.name), ("called at", source_of(miss.node)), ("nodes", miss.fitted))
            reason = _CODES[miss.cause](name=rule.name, where=_where(place, miss), nodes=_nodes(miss), why=miss.why)
        yield Decision("rewrite", (rule.name,), False, reason, facts)


def told_miss(found: Found | None) -> str:
    """The nearest miss as the end of a sentence; "" where none was looked for."""
    if found is None:
        return ""
    place, miss = found
    if miss is None:
        return f"; nothing in the {place} graph comes near it"
    return f"; the nearest miss is {_where(place, miss)} after {_nodes(miss)}: {miss.why}"


def _where(place: str, miss: Miss) -> str:
    return f"{miss.node.name} ({source_of(miss.node)}) in the {place} graph"


def _nodes(miss: Miss) -> str:
    return f"{miss.fitted} {'node that fits' if miss.fitted == 1 else 'nodes that fit'}"
