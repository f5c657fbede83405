"""Putting the right side of a rule where its left side was found."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from lamina.base.captured import mark_unsaved_result
from lamina.base.fx.copying import add_calls
from lamina.base.fx.recording import Decompositions
from lamina.base.identity import line_of, place_of
from lamina.base.reasons import Reason
from lamina.base.rule import Match, Rule
from lamina.base.source import source_of
from lamina.base.symbolic.torch_private import contiguous
from lamina.ops.aliasing import makes_view
from lamina.rewrite import reasons
from lamina.rewrite.gradients import lost_gradient
from lamina.rewrite.terms import is_tensor
from lamina.rewrite.torch_private import same_size, saves_its_result, symbol_of, unlike_sizes
from lamina.rewrite.tracing import Fragment, Untraceable, trace

__all__ = ["Refused", "Replaced", "Replacer", "WrongRightSide"]

aten = torch.ops.aten

_FOLLOWED = 64
"""So many nodes are looked at to see whether a tensor's strides matter to anything."""


class Refused(Exception):
    """A match that cannot be replaced. Says why."""


class WrongRightSide(Refused):
    """The rule is wrong: its right side, at ``place``, fails or gives something else than its left side."""

    def __init__(self, why: Reason, place: str) -> None:
        super().__init__(why)
        self.why, self.place = why, place


@dataclass(frozen=True, slots=True)
class Replaced:
    """What a match was, as text, the nodes that are there now, and those that are gone."""

    before: tuple[str, ...]
    made: tuple[Node, ...]
    gone: frozenset[Node]


class Replacer:
    """Replaces matches in one graph, in place. Right sides are traced once for equal operands.

    Of all rules but those ``tested`` it is found whether their right sides have the gradients of their left ones.
    """

    def __init__(
        self,
        graph: Graph,
        decompositions: Decompositions | None,
        untouchable: frozenset[Node] = frozenset(),
        tested: frozenset[Rule] = frozenset(),
    ) -> None:
        self.graph, self.decompositions, self.untouchable = graph, decompositions, untouchable
        self.tested = tested
        self._traces: dict[Hashable, Fragment | Refused] = {}
        self._symbols: dict[Any, Node] | None = None

    def replace(self, match: Match) -> Replaced:
        """Put ``match.rule.after`` in the place of the match. Raises ``Refused``, having changed nothing."""
        if self.untouchable and not self.untouchable.isdisjoint((*match.matched, *match.nodes.values())):
            raise Refused("memory of the match is written to")
        operands = list(dict.fromkeys(match.nodes.values()))
        fragment = self._fragment(match, operands)
        self._check(match, fragment, operands)
        before = tuple(str(node.format_node()) for node in sorted(match.matched))
        meta = self._meta(match)
        names: dict[Node, Node] = dict(zip(fragment.inputs, operands, strict=True))
        with self._place(match, operands):
            made = add_calls(self.graph, fragment.calls, names, meta)
            for old, result in zip(match.outputs, fragment.results, strict=True):
                new = self._restrided(old, names[result], meta)
                if new is not names[result]:
                    made.append(new)
                _take_value(new, old)
                old.replace_all_uses_with(new)
        return Replaced(before, tuple(made), self._erase(match))

    def finish(self) -> None:
        """Check the graph's structure once all matches are replaced."""
        self.graph.lint()

    def _fragment(self, match: Match, operands: Sequence[Node]) -> Fragment:
        key = _key(match, operands)
        found = self._traces.get(key) if key is not None else None
        if found is None:
            try:
                found = self._traced(match, operands)
            except Refused as why:
                found = why
            if key is not None:
                self._traces[key] = found
        if isinstance(found, Refused):
            raise found
        return found

    def _traced(self, match: Match, operands: Sequence[Node]) -> Fragment:
        rule = match.rule
        wanted = _parameters(rule)

        def function(tensors: Sequence[Any]) -> Any:
            known = dict(zip(operands, tensors, strict=True))
            values = {n: known[match.nodes[n]] if n in match.nodes else match.values[n] for n in wanted}
            return rule.after(**values)

        unknown: list[Any] = []

        def symbol(value: Any) -> Node | None:
            node = self._symbol(symbol_of(value))
            if node is None:
                unknown.append(value)
            return node

        fakes = [node.meta["val"].detach() for node in operands]  # each an object of its own
        place = place_of(rule.after)
        try:
            found = trace(function, fakes, self.decompositions, symbol)
        except Exception as error:
            named = "cannot be traced" if isinstance(error, Untraceable) else f"failed: {type(error).__name__}"
            why = reasons.WRONG_RIGHT_SIDE(named=named, error=error)
            # What its operations are taken apart into may write to memory, which is no fault of the rule.
            at_fault = self.decompositions is None or _fails(lambda: trace(function, fakes, None, symbol))
            if unknown or not at_fault:
                raise Refused(why) from None
            raise WrongRightSide(why, line_of(error, rule.after) or place) from None
        if not all(isinstance(r, Node) for r in found.results):
            raise WrongRightSide(reasons.NO_TENSOR_RIGHT(), place)
        if match.training and self.decompositions is None and rule not in self.tested:
            lost = lost_gradient(match, wanted)
            if lost:
                raise WrongRightSide(reasons.LOST_GRADIENT_RIGHT(why=lost), place)
        if len(found.results) != len(match.outputs):
            counts = reasons.OTHER_COUNT_RIGHT(right=len(found.results), left=len(match.outputs))
            raise WrongRightSide(counts, place)
        return found

    def _symbol(self, symbol: Any) -> Node | None:
        if self._symbols is None:
            self._symbols = {}
            for node in self.graph.nodes:
                found = symbol_of(node.meta.get("val"))
                if found is not None:
                    self._symbols.setdefault(found, node)
        return self._symbols.get(symbol)

    def _check(self, match: Match, fragment: Fragment, operands: Sequence[Node]) -> None:
        """Each result is the kind of tensor that was there, and shares no memory that it did not share."""
        names: dict[Node, Node] = dict(zip(fragment.inputs, operands, strict=True))
        seen: set[Node] = set()
        for old, result in zip(match.outputs, fragment.results, strict=True):
            a, b = old.meta["val"], result.meta["val"]
            alike = a.dtype == b.dtype and a.device == b.device and a.dim() == b.dim()
            sizes = list(zip(a.shape, b.shape, strict=True)) if alike else []
            if not alike or not all(same_size(x, y) for x, y in sizes):
                why = reasons.OTHER_TENSOR_RIGHT(right=_described(b), left=_described(a))
                unlike = not alike or any(unlike_sizes(x, y) for x, y in sizes)
                raise WrongRightSide(why, place_of(match.rule.after)) if unlike else Refused(why)
            shared = _looked_at(result)
            if _escapes(old):
                theirs = _looked_at(old, frozenset(match.matched))
                ours = {names[n] for n in shared if n in names}
                if ours != {n for n in theirs if n not in match.matched} or not shared.isdisjoint(seen):
                    raise Refused("a returned tensor would share memory with something else than before")
            seen |= shared

    def _place(self, match: Match, operands: Sequence[Node]) -> Any:
        first = min(match.outputs)
        last = max(operands, default=first)
        if last < first:
            return self.graph.inserting_before(first)
        inside = set(match.matched)
        users = [user for node in match.outputs for user in node.users if user not in inside]
        if any(not last < user for user in users):
            raise Refused("its operands are not all known where its first result is needed")
        return self.graph.inserting_after(last)

    def _meta(self, match: Match) -> dict[str, Any]:
        """What new nodes know: all that the last output knows, and all the user's lines of the match."""
        root = max(match.outputs)
        places: dict[str, None] = {}
        for node in (root, *sorted(match.matched)):
            place = source_of(node).split(" ")[0]
            if place:
                places[place] = None
        first, *others = places or [""]
        within = f" ({', '.join(others)})" if others else ""
        return {**root.meta, "source": f"{first} {match.rule.name}{within}"}

    def _restrided(self, old: Node, new: Node, meta: Mapping[str, Any]) -> Node:
        """``new``, copied to the strides of ``old`` where something may notice that it has others."""
        a, b = old.meta["val"], new.meta["val"]
        if len(a.stride()) == len(b.stride()) and all(same_size(x, y) for x, y in _dense_strides(a, b)):
            return new
        if self.decompositions is None and _strides_do_not_matter(old):
            return new
        order = _order(a)
        if order is None:
            return new
        value = b.detach()
        result = new
        steps: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []
        if order == sorted(order):
            steps.append((aten.clone.default, (), {"memory_format": torch.contiguous_format}))
        else:
            steps.append((aten.permute.default, (order,), {}))
            steps.append((aten.clone.default, (), {"memory_format": torch.contiguous_format}))
            steps.append((aten.permute.default, ([order.index(d) for d in range(len(order))],), {}))
        for target, args, kwargs in steps:
            value = target(value, *args, **kwargs)
            result = self.graph.call_function(target, (result, *args), kwargs)
            result.meta = {**meta, "val": value}
            if "example_value" in meta:
                result.meta["example_value"] = value
        return result

    def _erase(self, match: Match) -> frozenset[Node]:
        gone: set[Node] = set()
        for node in sorted(match.matched, reverse=True):
            if not node.users and not node.is_impure():
                self.graph.erase_node(node)
                gone.add(node)
        return frozenset(gone)


def _take_value(new: Node, old: Node) -> None:
    """Give ``new`` the value of ``old``, in whose place it is: a traced one is that of all matches that share a trace.

    Nodes of one value are one tensor to what looks at a captured graph.
    """
    a, b = old.meta["val"], new.meta["val"]
    if new.op != "call_function" or "example_value" not in new.meta:
        return
    if not saves_its_result(a):
        mark_unsaved_result(new)
    if len(a.stride()) == len(b.stride()) and all(map(same_size, a.stride(), b.stride())):
        new.meta.update(val=a, example_value=a)


def _fails(call: Callable[[], object]) -> bool:
    try:
        call()
    except Exception:
        return True
    return False


def _parameters(rule: Rule) -> list[str]:
    code = getattr(rule.after, "__code__", None)
    names = [n for n, _ in rule.parameters]
    if code is None:
        return names
    taken = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return [n for n in names if n in taken]


def _key(match: Match, operands: Sequence[Node]) -> Hashable:
    """Equal for matches whose right sides trace alike; None with symbolic sizes."""
    described: list[Hashable] = [match.rule]
    for name, value in match.values.items():
        if name in match.nodes:
            described.append((name, operands.index(match.nodes[name])))
        elif type(value) in (int, float):
            described.append((name, type(value), repr(value)))
        else:
            return None
    for node in operands:
        fake = node.meta["val"]
        if any(type(n) is not int for n in (*fake.shape, *fake.stride())):
            return None
        described.append((tuple(fake.shape), fake.stride(), fake.dtype, fake.device))
    for node in match.outputs:
        described.append(len(node.meta["val"].shape))
    return (*described, match.training)


def _described(value: torch.Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} on {value.device}"


def _looked_at(node: Node, within: frozenset[Node] | None = None) -> set[Node]:
    """The nodes whose memory ``node`` may share: itself and, through views, its operands."""
    found: set[Node] = set()
    front = [node]
    while front:
        one = front.pop()
        if one in found:
            continue
        found.add(one)
        inside = within is None or one in within
        if inside and one.op == "call_function" and makes_view(one.target):
            front.extend(n for n in one.all_input_nodes if is_tensor(n) or within is None)
    return found


def _escapes(node: Node) -> bool:
    """Whether the caller gets ``node`` or a view of it."""
    front, seen = [node], {node}
    while front:
        for user in front.pop().users:
            if user.op == "output":
                return True
            if user not in seen and user.op.startswith("call") and makes_view(user.target):
                seen.add(user)
                front.append(user)
    return False


def _dense_strides(a: torch.Tensor, b: torch.Tensor) -> list[tuple[Any, Any]]:
    """Strides side by side, without those of sizes one, which mean nothing."""
    return [
        (x, y)
        for size, x, y in zip(a.shape, a.stride(), b.stride(), strict=True)
        if not (isinstance(size, int) and size == 1)
    ]


def _order(value: torch.Tensor) -> list[int] | None:
    """The dimensions from the slowest to the fastest, if the tensor has no gaps in that order."""
    sizes, strides = value.shape, value.stride()
    if any(not isinstance(n, int) for n in (*sizes, *strides)):
        return list(range(value.dim())) if contiguous(value) else None
    order = sorted(range(value.dim()), key=lambda d: (-int(strides[d]), d))
    expected = 1
    for d in reversed(order):
        if sizes[d] != 1 and strides[d] != expected:
            return None
        expected *= sizes[d]
    return order


_LAYOUT_ENDS = {
    aten.contiguous.default,
    aten.linear.default,
    aten.matmul.default,
    aten.bmm.default,
    aten.mm.default,
    aten.layer_norm.default,
    aten.rms_norm.default,
    aten.mean.dim,
    aten.mean.default,
    aten.sum.default,
    aten.sum.dim_IntList,
    aten.cross_entropy_loss.default,
    aten.nll_loss_nd.default,
}
"""Operations whose results are laid out the same however their operands are."""
_LAYOUT_PASSES = {
    aten.transpose.int,
    aten.permute.default,
    aten.reshape.default,
    aten.flatten.using_ints,
    aten.dropout.default,
    aten.scaled_dot_product_attention.default,
    aten.add.Tensor,
    aten.mul.Tensor,
    aten.sub.Tensor,
    aten.div.Tensor,
    aten.silu.default,
    aten.gelu.default,
    aten.relu.default,
    aten.sigmoid.default,
    aten.tanh.default,
    aten._to_copy.default,
    aten.unsqueeze.default,
    aten.select.int,
    aten.slice.Tensor,
}
"""Operations that take any layout and hand it on."""


def _strides_do_not_matter(node: Node) -> bool:
    """Whether nothing that is computed from ``node`` depends on its strides, as far as is easily seen."""
    front, seen = [node], {node}
    while front:
        for user in front.pop().users:
            if user.target in _LAYOUT_ENDS or user in seen:
                continue
            if user.target not in _LAYOUT_PASSES or len(seen) > _FOLLOWED:
                return False
            seen.add(user)
            front.append(user)
    return True
