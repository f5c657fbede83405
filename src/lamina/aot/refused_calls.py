"""Captured calls that eager refuses and tracing takes, and one of which tracing makes something else."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from lamina.aot import eager_reasons
from lamina.base.captured import argument, example
from lamina.base.reasons import Reason
from lamina.base.source import operation_name, source_of
from lamina.base.symbolic.torch_private import depends_on_data, hint, is_guarded

__all__ = ["refused_call"]


_MISTOLD = {
    "multilabel_margin_loss": eager_reasons.COUNTED_LABELS,
    "multilabel_margin_loss_forward": eager_reasons.COUNTED_LABELS,
    "multi_margin_loss": eager_reasons.KEPT_MARGINS,
    "unsafe_chunk": eager_reasons.UNSAFE_VIEWS,
    "unsafe_split": eager_reasons.UNSAFE_VIEWS,
    "unsafe_split_with_sizes": eager_reasons.UNSAFE_VIEWS,
}
"""Calls that torch, in 2.11 to 2.13, traces by another formula than eager's, and what is wrong with it."""


_VIEWS = frozenset({"unflatten", "view", "view_as"})
"""Calls for another shape of the same memory. Fake tensors give it where dimensions of one element are in the way."""


def refused_call(gm: GraphModule) -> Reason | None:
    """Why the captured graph is eager's to run: a call that raises there alone or is traced wrongly, or None."""
    for node in gm.graph.nodes:
        if node.op not in ("call_function", "call_method"):
            continue
        name = operation_name(node.target)
        if name in _MISTOLD:
            return _MISTOLD[name](place=source_of(node))
        if name in _VIEWS and _has_no_view(node):
            return eager_reasons.NO_SUCH_VIEW(place=source_of(node))
        if name in ("pad", "constant_pad_nd") and _cuts_too_much(node):
            return eager_reasons.REFUSED_CALL(place=source_of(node))
    return None


def _has_no_view(node: Node) -> bool:
    """Whether there are no strides for the shape of a view, with likely sizes. Views of another dtype are not asked."""
    source, view = (example(n) for n in (node.args[0], node))
    if not (isinstance(source, torch.Tensor) and isinstance(view, torch.Tensor)) or source.dtype != view.dtype:
        return False
    if source.layout is not torch.strided or any(map(depends_on_data, (*source.shape, *source.stride(), *view.shape))):
        return False
    sizes, steps, shape = ([hint(n) for n in numbers] for numbers in (source.shape, source.stride(), view.shape))
    try:
        torch.empty_strided(sizes, steps, dtype=source.dtype, device="meta").view(shape)
    except RuntimeError:
        return True
    return False


def _cuts_too_much(node: Node) -> bool:
    """Whether a side of a padding loses more than there is; the other may gain it back. What varies is then guarded."""
    given = dict(zip(("input", "pad"), node.args, strict=False)) | dict(node.kwargs)
    source: Any = given.get("input", given.get("self"))
    pad = given.get("pad")
    image = example(source)
    if not isinstance(image, torch.Tensor) or not isinstance(pad, (list, tuple)):
        return False
    numbers: list[Any] = [argument(n) for n in pad]
    sizes: list[Any] = list(reversed(image.shape))
    if len(numbers) > 2 * len(sizes) or not all(isinstance(n, (int, torch.SymInt)) for n in numbers):
        return False
    for k, number in enumerate(numbers):
        if is_guarded(number >= 0):
            continue
        sizes[k // 2] = sizes[k // 2] + number
        if not is_guarded(sizes[k // 2] >= 0):
            return True
    return False
