"""Loops that are left out: those that would add up zeros only, as a value that is known before them says."""

from __future__ import annotations

from lamina.codegen.cpp.nest_analysis import NestAnalysis
from lamina.codegen.cpp.text import LoopBody
from lamina.ir.loops import Compute, Reduce

__all__ = ["condition"]


def condition(facts: NestAnalysis, loop_body: LoopBody) -> str:
    """The value, known before a loop, without which all of the loop's goals are sums of zeros; none: ``""``."""
    found = {_condition(facts, goal.position) if not goal.name else "" for goal in loop_body.goals}
    name = found.pop() if len(found) == 1 else ""
    return name if name in loop_body.known and facts.axes[name] <= loop_body.opened else ""


def _condition(facts: NestAnalysis, position: int) -> str:
    """The value without which what is at ``position`` is a sum of zeros."""
    eqn = facts.body[position]
    if not isinstance(eqn, Reduce) or eqn.op != "sum":
        return ""
    choice = facts.body[facts.use_def.positions[eqn.value]]
    if not isinstance(choice, Compute) or choice.op != "where":
        return ""
    other = facts.constant(choice.ins[2])
    return choice.ins[0] if other is not None and other.value == 0 else ""
