"""All rewrites of graphs, in the order in which they run: our rules and passes, library choices, the user's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from torch.fx import GraphModule

from lamina.flex_attention.tables import drop_block_tables
from lamina.freezing.folding import fold_into_products
from lamina.freezing.projections import leave_projections_apart, merge_projections
from lamina.options import Options
from lamina.rewrite.aligned_products import align_products
from lamina.rewrite.cpu_epilogues import cpu_epilogues
from lamina.rewrite.custom import lower_custom
from lamina.rewrite.epilogues import library_epilogues
from lamina.rewrite.layouts import channels_last, channels_last_on_cpu
from lamina.rewrite.losses import open_log_softmax
from lamina.rewrite.norm_masks import masks_from_norms
from lamina.rewrite.norms import open_group_norm, share_means
from lamina.rewrite.numbers import fold_factors
from lamina.rewrite.passes import clean, merge_common, remove_dead_code, remove_no_ops
from lamina.rewrite.placement import made_where_read
from lamina.rewrite.pool_places import short_pool_places
from lamina.rewrite.products import widen_products
from lamina.rewrite.rules import RULES
from lamina.rewrite.rules.attention import use_library_attention, use_library_attention_unchecked
from lamina.rewrite.rules.attention_library import simplify_library_attention, simplify_library_attention_unchecked
from lamina.rewrite.rules.attention_one_query import open_attention_of_one_query
from lamina.rewrite.rules.chains import join_casts, join_permutations, join_views
from lamina.rewrite.rules.complex_numbers import turn_in_real_numbers
from lamina.rewrite.rules.dropout import without_dropout
from lamina.rewrite.rules.windows import strided_windows
from lamina.rewrite.rules.writes import without_fresh_writes

__all__ = [
    "PASSES",
    "PLACES",
    "RULE_NAMES",
    "Engine",
    "Need",
    "Pass",
    "Place",
    "changed",
    "passes_at",
]

Place = Literal["captured", "joint", "device", "partitioned", "lowered"]
PLACES: tuple[Place, ...] = ("captured", "joint", "device", "partitioned", "lowered")
"""Where a pass runs: on the graph of the user's calls; on forward and backward in one, or a graph without gradients,
first as it is for any backend, then for the device; on forward and backward each by itself; right before lowering."""

Need = Literal["fast", "kernels", "frozen", "not frozen"]
"""When a pass runs: with ``numerics="fast"``; on graphs for our kernels, since another backend chooses its own library
calls; with the option freeze on a graph without gradients; not then."""

Argument = Literal["decisions", "note", "finite", "without", "decompositions", "engine"]
"""What a pass may be given: a list for its decisions, a function to note one, the option ``assume_finite``, the names
that are not to run, torch's decompositions, what runs rules."""


class Engine(Protocol):
    """What runs rules on a graph."""

    def on_captured(self, gm: GraphModule) -> GraphModule:
        """The graph of the user's calls after the rules for it."""

    def on_joint(self, gm: GraphModule) -> GraphModule:
        """The joint graph, or one without gradients, after the rules for it."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One rewrite: ``function`` takes a graph and what ``takes`` names, and gives it rewritten, or the very same.

    It runs at its ``place`` if all ``needs`` hold. What it notes goes into the record at ``stage``. ``optional``: it
    can be left out by its name, and matches of it expected. ``unchecked`` stands for it with the option
    ``assume_finite``. ``by_user``: what it makes is checked, and its errors are the user's to see; where another fails,
    the graph stays as it was.
    """

    name: str
    place: Place
    function: Callable[..., GraphModule]
    needs: tuple[Need, ...] = ()
    takes: tuple[Argument, ...] = ()
    stage: str = "rewrite"
    optional: bool = False
    unchecked: Callable[..., GraphModule] | None = None
    by_user: bool = False


def rules_on_captured(gm: GraphModule, engine: Engine) -> GraphModule:
    """The rules for captured graphs, the user's before ours."""
    return engine.on_captured(gm)


def rules_on_joint(gm: GraphModule, engine: Engine) -> GraphModule:
    """The rules for joint graphs, the user's before ours."""
    return engine.on_joint(gm)


def users_passes(gm: GraphModule) -> GraphModule:
    """Where the user's passes of a place run: one ``Pass`` each stands there."""
    return gm


def _rewrite(
    place: Place,
    function: Callable[..., GraphModule],
    *needs: Need,
    unchecked: Callable[..., GraphModule] | None = None,
) -> Pass:
    """A rewrite with a name that users may leave out; it notes each match as a decision."""
    return Pass(function.__name__, place, function, needs, ("decisions",), optional=True, unchecked=unchecked)


def _own(function: Callable[..., GraphModule], *needs: Need, takes: tuple[Argument, ...] = (), stage: str = "") -> Pass:
    return Pass(function.__name__, "device", function, needs, takes, stage or "rewrite")


_NOTE: tuple[Argument, ...] = ("note",)

PASSES: tuple[Pass, ...] = (
    Pass("user's passes", "captured", users_passes),
    # What keeps views as eager has them where tracing would not.
    _rewrite("captured", without_dropout),
    _rewrite("captured", strided_windows),
    # What makes more spellings visible to the rules.
    _rewrite("captured", without_fresh_writes, "fast"),
    Pass("the rules", "captured", rules_on_captured, takes=("engine",)),
    # What looks for the whole functions that rules have put in the place of their parts.
    _rewrite("captured", turn_in_real_numbers, "fast"),
    _rewrite("captured", use_library_attention, "fast", unchecked=use_library_attention_unchecked),
    _rewrite("captured", open_attention_of_one_query, "fast"),
    _rewrite("captured", simplify_library_attention, "fast", unchecked=simplify_library_attention_unchecked),
    _rewrite("captured", leave_projections_apart, "fast", "not frozen"),
    Pass("user's passes", "joint", users_passes),
    Pass("the rules", "joint", rules_on_joint, takes=("engine",)),
    # What tidies.
    _rewrite("joint", fold_factors, "fast"),
    _rewrite("joint", join_casts, "fast"),
    _rewrite("joint", join_permutations, "fast"),
    _rewrite("joint", join_views, "fast"),
    _rewrite("joint", remove_no_ops, "fast"),
    _rewrite("joint", merge_common, "fast"),
    _rewrite("joint", remove_dead_code, "fast"),
    # What pays only where it is not computed at each call: parameters of inference graphs are marked.
    Pass("clean", "joint", clean, ("frozen",)),
    _rewrite("joint", fold_into_products, "fast", "frozen"),
    _rewrite("joint", merge_projections, "fast", "frozen"),
    _own(lower_custom, takes=("decompositions", "note"), stage="lowering"),
    _own(drop_block_tables, "fast", "kernels"),
    _own(made_where_read, "fast", takes=_NOTE, stage="placement"),
    _own(widen_products, "fast"),
    _own(open_log_softmax, "fast"),
    _own(open_group_norm, "fast"),
    _own(share_means, "fast"),
    _own(masks_from_norms, "fast"),
    _own(short_pool_places, "fast", "kernels"),
    _own(channels_last, "fast", takes=_NOTE, stage="layout"),
    _own(channels_last_on_cpu, "fast", "kernels", takes=_NOTE, stage="layout"),
    _own(align_products, "fast", "kernels", takes=_NOTE, stage="products"),
    _own(clean, takes=("without",)),
    # Library calls in the place of several.
    _own(library_epilogues, "fast", "kernels", takes=("note", "finite"), stage="epilogues"),
    _own(cpu_epilogues, "fast", "kernels", takes=_NOTE, stage="epilogues"),
    Pass("user's passes", "partitioned", users_passes),
    Pass("user's passes", "lowered", users_passes),
)
"""All of them. The places follow one another in the driver."""

RULE_NAMES = frozenset((*(r.name for r in RULES), *(one.name for one in PASSES if one.optional)))
"""What ``without_rules`` and ``expect_matches`` may name."""


def passes_at(place: Place, options: Options) -> list[Pass]:
    """The passes of a place in order, those of the ``options`` among them."""
    found: list[Pass] = []
    for one in PASSES:
        if one.place != place:
            continue
        if one.function is users_passes:
            theirs: Sequence[Any] = getattr(options.passes, place)
            found += [Pass(_named(f), place, f, by_user=True) for f in theirs]
        else:
            found.append(one)
    return found


def changed(name: str, change: Callable[[Callable[..., GraphModule]], Callable[..., GraphModule]]) -> tuple[Pass, ...]:
    """All passes, where ``change`` gives another function for that of each of the ``name``.

    In the place of ``PASSES`` they show what comes of a pass that fails, or that is told of another device.
    """
    found = []
    for one in PASSES:
        if one.name == name:
            unchecked = None if one.unchecked is None else change(one.unchecked)
            one = replace(one, function=change(one.function), unchecked=unchecked)
        found.append(one)
    return tuple(found)


def _named(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))
