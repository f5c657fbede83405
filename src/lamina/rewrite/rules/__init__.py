"""Lamina's own rules, by subject. ``Rewriting`` runs what is listed here, except with ``numerics="eager"``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from torch import Tensor
from torch.fx import GraphModule, Node

from lamina.base.decision import Decision
from lamina.base.rule import Rule
from lamina.rewrite.numbers import fold_factors
from lamina.rewrite.passes import merge_common, remove_dead_code, remove_no_ops
from lamina.rewrite.rules.activations import ACTIVATIONS, ACTIVATIONS_OF_FINITE
from lamina.rewrite.rules.attention import use_library_attention, use_library_attention_unchecked
from lamina.rewrite.rules.attention_library import (
    simplify_library_attention,
    simplify_library_attention_unchecked,
)
from lamina.rewrite.rules.attention_one_query import open_attention_of_one_query
from lamina.rewrite.rules.chains import join_casts, join_permutations, join_views
from lamina.rewrite.rules.complex_numbers import turn_in_real_numbers
from lamina.rewrite.rules.dropout import without_dropout
from lamina.rewrite.rules.folding import fold_into_products
from lamina.rewrite.rules.losses import LOSSES_BY_GATHER, LOSSES_BY_ONE_HOT, LOSSES_OF_FINITE
from lamina.rewrite.rules.norms import NORMS, NORMS_OF_FINITE
from lamina.rewrite.rules.projections import leave_projections_apart, merge_projections
from lamina.rewrite.rules.softmax import OVER, SOFTMAX, SOFTMAX_OF_FINITE
from lamina.rewrite.rules.windows import strided_windows
from lamina.rewrite.rules.writes import without_hidden_writes

__all__ = [
    "AFTER_RULES",
    "AS_EAGER",
    "BEFORE_RULES",
    "FROZEN_RULES",
    "JOINT_RULES",
    "OF_FINITE",
    "RULES",
    "RULE_NAMES",
    "UNCHECKED",
    "CapturedRewrite",
    "without_hope",
]

CapturedRewrite = Callable[[GraphModule, list[Decision]], GraphModule]
"""A rewrite of the graph of the user's calls that is more than a rule can say. It notes in the list what it did or
not, as ``Decision("rewrite", (its name, ...), ...)``."""

AS_EAGER: tuple[CapturedRewrite, ...] = (without_dropout, strided_windows)
"""Run first, in order, whatever the options say: what keeps views as eager has them where tracing would not."""

BEFORE_RULES: tuple[CapturedRewrite, ...] = (without_hidden_writes,)
"""Run before the rules, in order: what makes more spellings visible to them."""

AFTER_RULES: tuple[CapturedRewrite, ...] = (
    turn_in_real_numbers,
    use_library_attention,
    open_attention_of_one_query,
    simplify_library_attention,
    leave_projections_apart,
)
"""Run after the rules, in order: what looks for the whole functions that rules have put in place of their parts."""

UNCHECKED: Mapping[CapturedRewrite, CapturedRewrite] = MappingProxyType(
    {
        use_library_attention: use_library_attention_unchecked,
        simplify_library_attention: simplify_library_attention_unchecked,
    }
)
"""What stands for a rewrite with the option ``assume_finite``, under its name."""

JOINT_RULES: tuple[CapturedRewrite, ...] = (
    fold_factors,
    join_casts,
    join_permutations,
    join_views,
    remove_no_ops,
    merge_common,
    remove_dead_code,
)
"""Run in order on graphs in normal form, forward and backward in one or without gradients: what tidies them."""

FROZEN_RULES: tuple[CapturedRewrite, ...] = (fold_into_products, merge_projections)
"""Run with the option freeze, in order, on inference graphs in normal form whose parameters are marked: what pays only
where it is not computed at each call."""

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

_REWRITES = (*AS_EAGER, *BEFORE_RULES, *AFTER_RULES, *JOINT_RULES, *FROZEN_RULES)
RULE_NAMES = frozenset((*(r.name for r in RULES), *(change.__name__ for change in _REWRITES)))
"""What ``without_rules`` and ``expect_matches`` may name."""


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
