"""Calls of the library's attention, so that it can take its fastest kernels.

Flash attention takes no mask, and a mask that is one number repeated along the keys is taken by no fused kernel at
all. So a mask that is known while compiling and hides nothing goes. One that hides exactly what comes later is said by
``is_causal``, which skips keys that a mask lets take part: a masked number competes with scores as low, and what is
not finite behind it reaches the result. That is only for GPUs, by numbers that no scores come near, and wherever all
values may be taken as finite (``assume_finite``). Libraries of models make such masks where they are compiled, though
they leave them out where they are not. Heads of keys and values that are repeated for several heads of queries are
read where they lie (``enable_gqa``), neither written nor kept as often as they are used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule, Node

from lamina.base.decision import Decision
from lamina.base.devices import FUSED_ATTENTION, kind_of
from lamina.base.source import source_of
from lamina.rewrite.reasons import PASS_CHANGED
from lamina.rewrite.rules.attention_call import DEFAULTS, LIBRARY, OPERANDS, arguments_of
from lamina.rewrite.rules.attention_form import MASKED
from lamina.rewrite.rules.constants import Constants, distinct
from lamina.rewrite.rules.editing import Replacement, Writer, replaced
from lamina.rewrite.rules.layout import with_layout_of
from lamina.rewrite.rules.spelling import fake_of, spelled, written
from lamina.rewrite.rules.torch_private import shares_heads
from lamina.rewrite.torch_private import plain_dispatch

__all__ = ["simplify_library_attention", "simplify_library_attention_unchecked"]

_SHARING = (torch.bfloat16,)
"""Dtypes in which kernels share keys between heads. (float16: on an H200 gradients of keys were off by 5 % of the
largest where causal, with 64 features a head.)"""

_BEYOND = -1e30
"""Numbers from here on hide whatever does not overflow."""

_NOTHING, _LATER, _LATER_BY_NUMBERS = "nothing", "what comes later", "what comes later, by finite numbers"


def simplify_library_attention(gm: GraphModule, decisions: list[Decision]) -> GraphModule:
    """Each ``scaled_dot_product_attention`` without the mask, and the repeated heads, that it can do without."""
    return _simplified(gm, decisions, finite=False)


def simplify_library_attention_unchecked(gm: GraphModule, decisions: list[Decision]) -> GraphModule:
    """The same where all values are finite, and far above the numbers that hide."""
    return _simplified(gm, decisions, finite=True)


def _simplified(gm: GraphModule, decisions: list[Decision], finite: bool) -> GraphModule:
    calls = [node for node in gm.graph.nodes if node.target in LIBRARY]
    if not calls or not plain_dispatch():
        return gm
    masks = _Masks()
    writes = [node for node in gm.graph.nodes if written(node)]
    found: dict[Node, Replacement] = {}
    for node in calls:
        given = arguments_of(node)
        if given is None:
            continue
        call = _Call(node, given)
        reasons = [*call.without_mask(masks, finite), *call.with_shared_heads(writes)]
        if reasons:
            found[node] = call.write
            subject = ("simplify_library_attention", source_of(node))
            decisions.append(Decision("rewrite", subject, True, PASS_CHANGED(what="; ".join(reasons))))
    return replaced(gm, found)


@dataclass(slots=True)
class _Call:
    """A call, its arguments by name, and what of them is given otherwise from now on."""

    node: Node
    given: dict[str, Any]
    heads: Mapping[str, _Heads] | None = None

    def without_mask(self, masks: _Masks, finite: bool) -> list[str]:
        """Leave out a mask that says nothing, or what ``is_causal`` says as well; why."""
        mask = self.given["attn_mask"]
        query, key = fake_of(self.given["query"]), fake_of(self.given["key"])
        if not isinstance(mask, Node) or query is None or key is None or self.given["is_causal"] is not False:
            return []
        hides = masks.hides(mask, (query.shape[-2], key.shape[-2]))
        if not hides or not (hides == _NOTHING or finite or (hides == _LATER and kind_of(query).has(FUSED_ATTENTION))):
            return []
        self.given["attn_mask"], self.given["is_causal"] = None, hides != _NOTHING
        return [f"its mask hides {hides}"]

    def with_shared_heads(self, writes: Sequence[Node]) -> list[str]:
        """Read repeated heads of keys and values where they lie, unless something is written meanwhile; why."""
        query = fake_of(self.given["query"])
        if query is None or self.given["attn_mask"] is not None or self.given["enable_gqa"] is not False:
            return []
        heads = {name: _heads(self.given[name]) for name in ("key", "value")}
        key, value = heads["key"], heads["value"]
        if key is None or value is None or not self._may_share(query, key, value):
            return []
        if any(min(key.source, value.source) < n < self.node for n in writes):
            return []
        self.heads, self.given["enable_gqa"] = {"key": key, "value": value}, True
        return [f"{key.count} heads of queries share keys and values"]

    def _may_share(self, query: Tensor, key: _Heads, value: _Heads) -> bool:
        """Whether the library has a kernel that reads heads of keys and values where they lie."""
        dropout, causal = self.given["dropout_p"], self.given["is_causal"]
        if not kind_of(query).has(FUSED_ATTENTION) or query.dtype not in _SHARING or query.dim() != 4:
            return False
        if not isinstance(dropout, (int, float)) or not isinstance(causal, bool):
            return False
        k, v = key.once(), value.once()
        if any(type(n) is not int or n < 1 for n in (*query.shape, *k.shape, *v.shape)):
            return False
        (batch, heads, _, features), shared = query.shape, (*k.shape[:2], k.shape[3])
        if (*v.shape[:2], v.shape[3]) != shared or shared != (batch, heads // key.count, features):
            return False
        counts = (key.count, value.count, heads // k.shape[1])
        return len(set(counts)) == 1 and shares_heads(query, k, v, dropout, causal)

    def write(self, write: Writer) -> Node:
        """The call with what was changed."""
        given: dict[str, Any] = {}
        for name, value in self.given.items():
            if self.heads is not None and name in self.heads:
                given[name] = self.heads[name].write(write)
            elif isinstance(value, Node):
                given[name] = write.old(value)
            elif value is not None and value != DEFAULTS.get(name):
                given[name] = value
        operands = [given.pop(name) for name in OPERANDS]
        result = write.call(F.scaled_dot_product_attention, *operands, **given)
        return with_layout_of(write, result, self.node)


class _Masks:
    """What masks that are known while compiling hide; each is looked at once."""

    def __init__(self) -> None:
        self._constants = Constants()
        self._found: dict[tuple[Node, Any], str] = {}

    def hides(self, mask: Node, sizes: tuple[Any, Any]) -> str:
        """``_NOTHING``, one of ``_LATER`` for as many queries as keys, or "" for anything else."""
        if not all(type(n) is int for n in sizes):
            return ""
        if (mask, sizes) not in self._found:
            known = self._constants.value(mask)
            self._found[mask, sizes] = "" if known is None else _hides(distinct(known), *sizes)
        return self._found[mask, sizes]


def _hides(mask: Tensor, queries: int, keys: int) -> str:
    masked = mask.logical_not() if mask.dtype == torch.bool else mask <= MASKED
    if mask.dtype != torch.bool and bool(mask.masked_fill(masked, 0).any()):
        return ""
    if not bool(masked.any()):
        return _NOTHING
    if queries != keys or tuple(masked.shape[-2:]) != (queries, keys):
        return ""
    if not bool((masked == torch.ones(queries, keys, dtype=torch.bool).triu(1)).all()):
        return ""
    beyond = mask.dtype == torch.bool or bool((mask[masked] <= _BEYOND).all())
    return _LATER if beyond else _LATER_BY_NUMBERS


@dataclass(frozen=True, slots=True)
class _Heads:
    """Heads of keys or values, each of which ``count`` heads of queries read.

    In ``source`` heads and places are swapped if ``transposed``, and a dimension ``inserted`` of size one is added.
    """

    source: Node
    count: int
    transposed: bool = False
    inserted: int | None = None

    def once(self) -> Tensor:
        """The heads, each once: (batch, heads, length, features)."""
        fake = fake_of(self.source)
        assert fake is not None
        fake = fake if self.inserted is None else fake.squeeze(self.inserted)
        return fake.transpose(1, 2) if self.transposed else fake

    def write(self, write: Writer) -> Node:
        """The same in the graph."""
        node = write.old(self.source)
        node = node if self.inserted is None else write.call(torch.squeeze, node, self.inserted)
        return write.call(torch.transpose, node, 1, 2) if self.transposed else node


def _heads(node: object) -> _Heads | None:
    """The heads that ``node``, keys or values, repeats; None if it does not."""
    node, transposed = _copied(node), False
    call = spelled(node) if isinstance(node, Node) else None
    if call is not None and call.name == "transpose" and _axes(call.args[1:]) == {1, 2}:
        node, transposed = _copied(call.args[0]), True
    fake = fake_of(node)
    if not isinstance(node, Node) or fake is None or fake.dim() != 4:
        return None
    found = _repeated(node, 2 if transposed else 1)
    return None if found is None else replace(found, transposed=transposed)


def _copied(node: object) -> object:
    """What ``node`` is a copy of, or itself."""
    call = spelled(node) if isinstance(node, Node) else None
    return call.args[0] if call is not None and call.name == "contiguous" else node


def _axes(dims: tuple[Any, ...]) -> set[Any]:
    return {d % 4 if type(d) is int else d for d in dims}


def _repeated(node: Node, dim: int) -> _Heads | None:
    """What ``node`` repeats along ``dim``, each element so many times in a row."""
    call = spelled(node)
    if call is None or not isinstance(call.args[0], Node):
        return None
    if call.name == "repeat_interleave":
        source, count, along, _ = call.args
        return _Heads(source, count) if type(count) is int and type(along) is int and along % 4 == dim else None
    wide = _copied(call.args[0]) if call.name == "reshape" else None
    return _expanded(wide, node, dim) if isinstance(wide, Node) else None


def _expanded(wide: Node, node: Node, dim: int) -> _Heads | None:
    """The same where ``wide`` expands a dimension of size one after ``dim``, and ``node`` joins the two."""
    call = spelled(wide)
    if call is None or call.name != "expand" or not isinstance(call.args[0], Node):
        return None
    narrow, fake, after = fake_of(call.args[0]), fake_of(wide), fake_of(node)
    if narrow is None or fake is None or after is None or not narrow.dim() == fake.dim() == 5:
        return None
    once, sizes = tuple(narrow.shape), tuple(fake.shape)
    if not all(type(n) is int for n in (*once, *sizes, *after.shape)):
        return None
    count, before, rest = sizes[dim + 1], sizes[: dim + 1], sizes[dim + 2 :]
    joined = (*sizes[:dim], sizes[dim] * count, *rest)
    if once != (*before, 1, *rest) or tuple(after.shape) != joined:
        return None
    return _Heads(call.args[0], count, inserted=dim + 1)
