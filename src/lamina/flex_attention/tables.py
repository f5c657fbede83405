"""Calls of ``flex_attention`` without the tables of their block masks.

The tables say which blocks of scores a mask hides; the mask's function says it too, and eager asks only that. So what
makes the tables is dead code, and a backward has none of them to keep.
"""

from __future__ import annotations

from typing import Any

from torch.fx import GraphModule, Node

from lamina.base.fx.editing import erase_dead
from lamina.rewrite.torch_private import FLEX_ATTENTIONS

__all__ = ["drop_block_tables"]


def drop_block_tables(gm: GraphModule) -> GraphModule:
    """``gm`` in which such calls take no table; the very same where none did."""
    changed = False
    for target, place in FLEX_ATTENTIONS.items():
        for node in gm.graph.find_nodes(op="call_function", target=target):
            mask: Any = node.args[place]
            tables = tuple(None if isinstance(item, Node) else item for item in mask[:-1])
            if tables != tuple(mask[:-1]):
                node.update_arg(place, (*tables, mask[-1]))
                changed = True
    return erase_dead(gm) if changed else gm
