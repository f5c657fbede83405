"""Lamina's own graph passes beside its rules, in the order in which they run."""

from __future__ import annotations

import functools
from collections.abc import Callable

from torch.fx import GraphModule

from lamina.base.decision import Decision
from lamina.base.recovery import recover
from lamina.options import Options
from lamina.record import Record
from lamina.rewrite.aligned_products import align_products
from lamina.rewrite.attention_tables import drop_block_tables
from lamina.rewrite.cpu_epilogues import cpu_epilogues
from lamina.rewrite.custom import lower_custom
from lamina.rewrite.epilogues import library_epilogues
from lamina.rewrite.layouts import channels_last
from lamina.rewrite.losses import open_log_softmax
from lamina.rewrite.norm_masks import masks_from_norms
from lamina.rewrite.norms import open_group_norm, share_means
from lamina.rewrite.passes import clean
from lamina.rewrite.placement import made_where_read
from lamina.rewrite.pool_places import short_pool_places
from lamina.rewrite.products import widen_products
from lamina.rewrite.tracing import Decompositions

__all__ = ["OwnPasses"]

Pass = Callable[[GraphModule], GraphModule]


class OwnPasses:
    """The passes that ``options`` ask for; what they decide goes into ``record`` under ``name``.

    Those that choose library calls or write operations of our own run only where the graph is for our kernels
    (``ours``): another backend chooses its own, and should find the plain operations.
    """

    def __init__(
        self, options: Options, record: Record, name: str, decompositions: Decompositions, ours: bool = True
    ) -> None:
        self.record, self.name, self.ours = record, name, ours
        self.fast, self.strict, self.finite = options.numerics == "fast", options.strict, options.assume_finite
        self.clean = functools.partial(clean, without=frozenset(options.without_rules))
        self.lower_custom = functools.partial(lower_custom, decompositions=decompositions, note=self._note("lowering"))

    def joint(self) -> tuple[Pass, ...]:
        """What runs on the joint graph, and on a graph without gradients. ``lower_custom`` calls the user's code."""
        if not self.fast:
            return (self.lower_custom, self._safely(self.clean))
        ours: tuple[Pass, ...] = (
            *((drop_block_tables,) if self.ours else ()),
            functools.partial(made_where_read, note=self._note("placement")),
            widen_products,
            open_log_softmax,
            open_group_norm,
            share_means,
            masks_from_norms,
            *((short_pool_places,) if self.ours else ()),
            functools.partial(channels_last, note=self._note("layout")),
            *((functools.partial(align_products, note=self._note("products")),) if self.ours else ()),
            self.clean,
        )
        libraries: tuple[Pass, ...] = (
            functools.partial(library_epilogues, note=self._note("epilogues"), finite=self.finite),
            functools.partial(cpu_epilogues, note=self._note("epilogues")),
        )
        chosen = (*ours, *libraries) if self.ours else ours
        return (self.lower_custom, *(self._safely(change) for change in chosen))

    def _safely(self, change: Pass) -> Pass:
        """``change``, which makes a new graph; where it fails the old one goes on, and the record says why."""
        what = getattr(change, "func", change).__name__

        def run(gm: GraphModule) -> GraphModule:
            try:
                return change(gm)
            except Exception as error:
                recover(
                    error,
                    doing=what,
                    region=self.name,
                    instead="the graph stays as it was",
                    strict=self.strict,
                    note=self._note("rewrite"),
                    kind="rewrite",
                )
                return gm

        return run

    def _note(self, stage: str, name: str | None = None) -> Callable[[Decision], None]:
        return lambda decision: self.record.note(name or self.name, stage, decision)
