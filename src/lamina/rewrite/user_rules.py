"""What is checked of the user's rules and of names of rules, and what is said of a rule that is wrong."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from lamina.base.bounded import remember
from lamina.base.decision import Decision
from lamina.base.rule import NestRule, Rule
from lamina.base.user_warnings import warn_user
from lamina.errors import BadArgument, RuleFailed, UnexpectedMatches, UnknownOption
from lamina.options import Options
from lamina.rewrite.order import RULE_NAMES
from lamina.rewrite.rules import RULES

__all__ = ["RIGHT_SIDE_REMEDY", "check_rules", "right_side_of", "warn_of_right_side", "wrong_right_side"]

RIGHT_SIDE_REMEDY = "mend its right side, which lamina.testing.check_rule tries, or give it a where= that says no there"


def check_rules(options: Options) -> None:
    """Raise for options that name rules that are not there, and for a rule of the user's called like one of ours."""
    for unknown in (n for n in options.without_rules if n not in RULE_NAMES):
        raise UnknownOption(
            f"without_rules names {unknown!r}, which is no rule of Lamina's", remedy=_closest(unknown, RULE_NAMES)
        )
    for taken in (r for r in options.rules if isinstance(r, Rule) and r.name in RULE_NAMES and r not in RULES):
        raise BadArgument(
            f"a rule of yours is called {taken.name!r}, as one of Lamina's is",
            where=taken.place,
            remedy='give it a name of its own: rule(before, after, name="...")',
        )
    known = {*RULE_NAMES, *(r.name for r in options.rules if isinstance(r, Rule))}
    on_nests = {r.name: r for r in options.rules if isinstance(r, NestRule)}
    for name in (n for n, _ in options.expect_matches if n not in known):
        if name in on_nests:
            raise UnexpectedMatches(
                f"rule {name!r} is one on loop nests, whose matches are not counted",
                where=on_nests[name].place,
                remedy="leave it out of expect_matches; the record's decisions of kind 'rewrite' tell what it did",
            )
        raise UnexpectedMatches(f"no rule is called {name!r}", remedy=_closest(name, known))


def right_side_of(decision: Decision) -> str:
    """Where the right side is that is at fault for a match that was not replaced; "" if none is."""
    return str(dict(decision.facts).get("right side at", ""))


def wrong_right_side(rule: Rule, decision: Decision) -> RuleFailed:
    """The error for a rule whose left side matched and whose right side ``decision`` says is wrong."""
    matched = ", ".join(decision.subject[1:])
    return RuleFailed(
        f"rule {rule.name!r} matches, but is not applied: {decision.reason}",
        where=right_side_of(decision) + (f", matched at {matched}" if matched else ""),
        remedy=RIGHT_SIDE_REMEDY,
    )


_warned: dict[Rule, None] = {}
"""Rules of which the user was warned."""
_MOST_WARNED = 1024
"""A program may make rules anew for each model that it compiles."""


def warn_of_right_side(rule: Rule, decision: Decision) -> None:
    """Warn that a rule of the user's is not applied because it is wrong, once in a process for each rule."""
    if rule not in _warned:
        remember(_warned, rule, None, _MOST_WARNED)
        warn_user(str(wrong_right_side(rule, decision)))


def _closest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, sorted(known), n=3)
    return f"did you mean {' or '.join(map(repr, close))}?" if close else "docs/rules.md lists Lamina's by name"
