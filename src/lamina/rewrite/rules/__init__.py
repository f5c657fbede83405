"""Lamina's own rules, by subject. ``Rewriting`` runs what is listed here, except with ``numerics="eager"``."""

from __future__ import annotations

from torch.fx import GraphModule

from lamina.base.rule import Rule
from lamina.rewrite.rules.activations import ACTIVATIONS, ACTIVATIONS_OF_FINITE
from lamina.rewrite.rules.losses import LOSSES_BY_GATHER, LOSSES_BY_ONE_HOT, LOSSES_OF_FINITE
from lamina.rewrite.rules.norms import NORMS, NORMS_OF_FINITE
from lamina.rewrite.rules.softmax import SOFTMAX, SOFTMAX_OF_FINITE

__all__ = ["OF_FINITE", "RULES", "without_hope"]

_TOTALS = frozenset(("sum", "softmax", "log_softmax", "logsumexp"))

_BY_NEED: tuple[tuple[tuple[frozenset[str], ...], tuple[Rule, ...]], ...] = (
    ((frozenset(("exp", "sigmoid", "erf", "erfc", "tanh")),), ACTIVATIONS),
    ((frozenset(("exp", "log", "logsumexp")), _TOTALS), SOFTMAX),
    ((frozenset(("sqrt", "rsqrt", "pow")),), NORMS),
    ((frozenset(("gather",)),), LOSSES_BY_GATHER),
    ((frozenset(("one_hot",)),), LOSSES_BY_ONE_HOT),
)
"""Rules by calls of which they need one of each set. Most programs have none, and then pay nothing for the rules."""

RULES: tuple[Rule, ...] = tuple(one for _, rules in _BY_NEED for one in rules)
"""Rules, tried after the user's."""

OF_FINITE = frozenset(
    one.name for one in (*ACTIVATIONS_OF_FINITE, *SOFTMAX_OF_FINITE, *NORMS_OF_FINITE, *LOSSES_OF_FINITE)
)
"""The names of those that give eager's values only where no infinity and no NaN comes up, in what is given or on the
way. They run with the option ``assume_finite``."""


def without_hope(gm: GraphModule) -> frozenset[str]:
    """The names of those of ``RULES`` that cannot match anything in a captured graph."""
    called = {str(getattr(n.target, "__name__", n.target)).strip("_").partition(".")[0] for n in gm.graph.nodes}
    return frozenset(one.name for needs, rules in _BY_NEED if not all(n & called for n in needs) for one in rules)
