"""Lamina's own rules, by subject. ``Rewriting`` runs what is listed here, except with ``numerics="eager"``."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor
from torch.fx import GraphModule, Node

from lamina.base.rule import Rule
from lamina.rewrite.rules.activations import ACTIVATIONS, ACTIVATIONS_OF_FINITE
from lamina.rewrite.rules.losses import LOSSES_BY_GATHER, LOSSES_BY_ONE_HOT, LOSSES_OF_FINITE
from lamina.rewrite.rules.norms import NORMS, NORMS_OF_FINITE
from lamina.rewrite.rules.softmax import OVER, SOFTMAX, SOFTMAX_OF_FINITE

__all__ = ["OF_FINITE", "RULES", "without_hope"]

_BY_NEED: tuple[tuple[frozenset[str], tuple[Rule, ...]], ...] = (
    (frozenset(("exp", "sigmoid", "erf", "erfc", "tanh")), ACTIVATIONS),
    (frozenset(("exp", "log", "logsumexp")), SOFTMAX),
    (frozenset(("sqrt", "rsqrt", "pow")), NORMS),
    (frozenset(("gather",)), LOSSES_BY_GATHER),
    (frozenset(("one_hot",)), LOSSES_BY_ONE_HOT),
)
"""Rules by calls of which each needs at least one. Most programs have none, and then pay nothing for the rules."""

RULES: tuple[Rule, ...] = tuple(one for _, rules in _BY_NEED for one in rules)
"""Rules, tried after the user's."""

OF_FINITE = frozenset(
    one.name for one in (*ACTIVATIONS_OF_FINITE, *SOFTMAX_OF_FINITE, *NORMS_OF_FINITE, *LOSSES_OF_FINITE)
)
"""The names of those that give eager's values only where no infinity and no NaN comes up, in what is given or on the
way. They run with the option ``assume_finite``."""

_TOTALS = frozenset(("sum", "softmax", "log_softmax", "logsumexp"))
"""Calls of which every rule of ``OVER`` needs one, over its dimension."""


def without_hope(gm: GraphModule) -> frozenset[str]:
    """The names of those of ``RULES`` that cannot match anything in a captured graph."""
    calls = [(str(getattr(n.target, "__name__", n.target)).strip("_").partition(".")[0], n) for n in gm.graph.nodes]
    called = {name for name, _ in calls}
    hopeless = {one.name for needs, rules in _BY_NEED if not needs & called for one in rules}
    dims = {dim for name, node in calls if name in _TOTALS for dim in _dims(node)}
    return frozenset(hopeless.union(*({one.name for one in rules} for dim, rules in OVER.items() if dim not in dims)))


def _dims(node: Node) -> Iterable[int]:
    """The dimensions, counted from the last, that a call may be over: all where that is not plain to see."""
    operand = node.args[0] if node.args else None
    value = operand.meta.get("example_value") if isinstance(operand, Node) else None
    given = [*node.args[1:], *(node.kwargs[name] for name in ("dim", "axis") if name in node.kwargs)]
    flat = [d for one in given for d in (one if isinstance(one, (tuple, list)) else (one,))]
    if not isinstance(value, Tensor) or not flat or any(isinstance(d, Node) for d in flat):
        return tuple(OVER)
    return {d if d < 0 else d - value.dim() for d in flat if type(d) is int}
