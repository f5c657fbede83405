"""Writes to an input through a tensor that shares its memory and not its history: ``x.detach()``, ``x.data``.

Autograd does not see such a write. AOTAutograd copies the new value into the input at the end of its graph, which is a
write that autograd does see, unless the input is a leaf; and what it returns of the written tensor is a view of the
input, without the history that the written tensor got.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import GraphModule

from lamina.aot import eager_reasons
from lamina.aot.torch_private import is_leaf, share_history
from lamina.base.aliasing import tensors_written
from lamina.base.captured import example, fakes, memory
from lamina.base.reasons import Reason
from lamina.base.source import source_of

__all__ = ["untracked_write"]


def untracked_write(gm: GraphModule) -> Reason | None:
    """Why the captured graph is eager's to run: a write that autograd does not see, to an input that has a history.

    Or one by which a tensor in the memory of an input gets a history that the input has not, if it is returned.
    None if there is neither.
    """
    inputs: dict[Any, list[torch.Tensor]] = {}
    for one in (value for node in gm.graph.find_nodes(op="placeholder") for value in fakes(node)):
        inputs.setdefault(memory(one), []).append(one)
    inputs.pop(None, None)
    returned = [one for node in gm.graph.output_node().all_input_nodes for one in fakes(node)]
    for node in gm.graph.nodes:
        if any(_is_unseen(example(one), inputs, returned) for one in tensors_written(node)):
            return eager_reasons.UNTRACKED_WRITE(place=source_of(node))
    return None


def _is_unseen(written: Any, inputs: Mapping[Any, list[torch.Tensor]], returned: list[Any]) -> bool:
    given = inputs.get(memory(written), [])
    if not given or _is_known(written, given):
        return False
    if any(one.requires_grad and not is_leaf(one) for one in given):
        return True
    made = (one for one in returned if memory(one) == memory(written) and not _is_known(one, given))
    return any(one.requires_grad for one in made)


def _is_known(tensor: torch.Tensor, given: list[torch.Tensor]) -> bool:
    return any(share_history(tensor, one) for one in given)
