"""Rules on loop nests: the user's functions Nest -> Nest | None, run before nests are fused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lamina.base.decision import Decision
from lamina.base.rule import NestRule, Rule
from lamina.errors import InvalidIR, RuleFailed
from lamina.ir.loops import LoopProgram, Nest, Store
from lamina.ir.loops_print import print_program
from lamina.ir.loops_verify import verify_program
from lamina.rewrite.reasons import NEST_REWRITTEN

__all__ = ["NestRewrites", "rewrite_nests"]


@dataclass(frozen=True, slots=True)
class NestRewrites:
    """The program after the rules, and which nests they replaced."""

    program: LoopProgram
    decisions: tuple[Decision, ...]

    def files(self) -> dict[str, str]:
        """The program as Python."""
        return {".py": print_program(self.program)}


def rewrite_nests(program: LoopProgram, rules: Sequence[Rule | NestRule]) -> NestRewrites:
    """``program`` with each nest as the rules on nests among ``rules`` give it, each asked once, in order.

    A nest must go on storing to the same buffers, and the program must be well formed after each rewrite. Raises
    ``RuleFailed`` naming the rule otherwise.
    """
    decisions: list[Decision] = []
    for rule in rules:
        if not isinstance(rule, NestRule):
            continue
        for place, step in enumerate(program.steps):
            if not isinstance(step, Nest):
                continue
            found = _applied(rule, step)
            if found is None or found == step:
                continue
            steps = (*program.steps[:place], found, *program.steps[place + 1 :])
            program = _verified(rule, step, replace(program, steps=steps))
            reason = NEST_REWRITTEN(before=len(step.body), after=len(found.body))
            decisions.append(Decision("rewrite", (rule.name, step.name), True, reason, (("rule at", rule.place),)))
    return NestRewrites(program, tuple(decisions))


def _applied(rule: NestRule, nest: Nest) -> Nest | None:
    try:
        found = rule.function(nest)
    except Exception as error:
        raise RuleFailed(
            f"rule {rule.name!r} raised {type(error).__name__} on nest {nest.name}: {error}",
            where=rule.place,
            remedy="let it return None for nests that it does not know",
        ) from error
    if found is None:
        return None
    if not isinstance(found, Nest):
        raise RuleFailed(
            f"rule {rule.name!r} returned a {type(found).__name__}",
            where=rule.place,
            remedy="return a lamina.ir.loops.Nest, or None",
        )
    if _stored(found) != _stored(nest):
        raise RuleFailed(
            f"rule {rule.name!r} made nest {nest.name} store to {sorted(_stored(found))}, not {sorted(_stored(nest))}",
            where=rule.place,
            remedy="keep every Store of the nest",
        )
    return found


def _stored(nest: Nest) -> frozenset[str]:
    return frozenset(eqn.buffer for eqn in nest.body if isinstance(eqn, Store))


def _verified(rule: NestRule, nest: Nest, program: LoopProgram) -> LoopProgram:
    try:
        verify_program(program)
    except InvalidIR as error:
        raise RuleFailed(
            f"rule {rule.name!r} left nest {nest.name} ill formed: {error.what}",
            where=rule.place,
            remedy="see lamina.ir.loops for what a nest may hold",
        ) from error
    return program
