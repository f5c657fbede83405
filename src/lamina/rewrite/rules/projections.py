"""Several linear layers of one input, as queries, keys and values, or gate and up: noted, and left apart.

One product with the concatenated weights would be one launch instead of several. But to concatenate at each call reads
and writes every weight once more: with one row, where a decoder spends its time on reading weights, that takes 1.8
times as long as the separate products, and with 512 rows, where the products take their time anyway, 1.04 times
(float32, three of 768 x 768, AVX2). A concatenation kept between calls would have to know that no weight has changed,
and cannot: a write through ``weight.data`` changes neither the weight's version nor its address.
"""

from __future__ import annotations

from collections import defaultdict

from torch.fx import GraphModule, Node

from lamina.base.decision import Decision
from lamina.base.source import source_of
from lamina.rewrite.rules.spelling import spelled

__all__ = ["leave_projections_apart"]

_REASON = "their weights would have to be concatenated at each call, which takes longer than the separate products"


def leave_projections_apart(gm: GraphModule, decisions: list[Decision]) -> GraphModule:
    """``gm`` itself, with a decision for each input that several linear layers read."""
    layers: dict[Node, list[Node]] = defaultdict(list)
    for node in gm.graph.nodes:
        call = spelled(node)
        if call is None or call.name != "linear" or not isinstance(call.args[0], Node):
            continue
        if isinstance(call.args[1], Node) and call.args[1].op == "placeholder":
            layers[call.args[0]].append(node)
    for several in layers.values():
        if len(several) > 1:
            subject = ("leave_projections_apart", *dict.fromkeys(source_of(node) for node in several))
            decisions.append(
                Decision("rewrite", subject, False, f"{len(several)} linear layers of one input: {_REASON}")
            )
    return gm
