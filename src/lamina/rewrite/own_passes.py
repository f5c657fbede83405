"""Lamina's own graph passes beside its rules, in the order in which they run."""

from __future__ import annotations

import functools
from collections.abc import Callable

from torch.fx import GraphModule

from lamina.base.decision import Decision
from lamina.options import Options
from lamina.record import Record, Stage
from lamina.rewrite.aligned_products import align_products
from lamina.rewrite.custom import lower_custom
from lamina.rewrite.epilogues import library_epilogues
from lamina.rewrite.layouts import channels_last
from lamina.rewrite.losses import open_log_softmax
from lamina.rewrite.numbers import fold_factors
from lamina.rewrite.passes import clean
from lamina.rewrite.products import widen_products
from lamina.rewrite.tracing import Decompositions

__all__ = ["OwnPasses"]

Pass = Callable[[GraphModule], GraphModule]


class OwnPasses:
    """The passes that ``options`` ask for; what they decide goes into ``record`` under ``name``."""

    def __init__(self, options: Options, record: Record, name: str, decompositions: Decompositions) -> None:
        self.record, self.name, self.fast = record, name, options.numerics == "fast"
        self.lower_custom = functools.partial(lower_custom, decompositions=decompositions, note=self._note("lowering"))

    def joint(self) -> tuple[Pass, ...]:
        """What runs on the joint graph, and on a graph without gradients."""
        if not self.fast:
            return (self.lower_custom, clean)
        return (
            self.lower_custom,
            fold_factors,
            widen_products,
            open_log_softmax,
            functools.partial(channels_last, note=self._note("layout")),
            clean,
            functools.partial(library_epilogues, note=self._note("epilogues")),
        )

    def lowered(self, gm: GraphModule, region: str) -> GraphModule:
        """What runs on each graph right before it is lowered."""
        return align_products(gm, self._note("products", region)) if self.fast else gm

    def _note(self, stage: str, name: str | None = None) -> Callable[[Decision], None]:
        return lambda decision: self.record.stages.append(Stage(name or self.name, stage, None, 0.0, (decision,)))
