"""Results in one memory that are views of one tensor in eager: so they are again in a compiled graph.

A graph's results come back as tensors that know nothing of each other. Eager's share a version, and where one is
written to with a gradient the others get that history as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, is_inference_mode_enabled
from torch.fx import GraphModule, Node

from lamina.aot.torch_private import is_grad_enabled, never_captured, transforms_are_active
from lamina.base.captured import example, memory
from lamina.base.torch_private import how_made, note_how_made, storage_of

__all__ = ["Relations", "relations"]


@dataclass(frozen=True, slots=True)
class _Family:
    """Results that are views of one tensor, by their places; ``root`` is the place of that tensor, if it is one.

    ``made`` says for each view how it was made, which decides whether it may be written to with a gradient.
    ``trained``: they have a history, which AOTAutograd has given them by then.
    """

    root: int | None
    views: tuple[int, ...]
    made: tuple[Any, ...]
    trained: bool = False

    @property
    def members(self) -> tuple[int, ...]:
        """All its places."""
        return self.views if self.root is None else (self.root, *self.views)


@dataclass(frozen=True, slots=True)
class Relations:
    """For each memory that several results of a graph lie in, the families of these: ``detach`` begins another.

    ``same`` has, for each result, the first place of the same object.
    """

    groups: tuple[tuple[_Family, ...], ...]
    same: tuple[int, ...]

    def applied(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """``compiled`` with results that are related as eager's are. Inference tensors have nothing to share."""
        groups, same = self.groups, self.same

        def run(*inputs: Any) -> Any:
            results = compiled(*inputs)
            if is_inference_mode_enabled() or transforms_are_active():
                return results
            made = list(results)
            for families in groups:
                (_rejoin if families[0].trained else _relate)(made, families)
            return tuple([made[place] for place in same])

        never_captured(run)
        return run


def relations(gm: GraphModule) -> Relations | None:
    """How results of ``gm`` are related that share memory, which is no input's; None if none are.

    Results in an input's memory are made views by what makes these.
    """
    returned: Any = gm.graph.output_node().args[0]
    if not isinstance(returned, (tuple, list)) or not all(isinstance(one, Node) for one in returned):
        return None
    values = [example(one) for one in returned]
    same = tuple(next(i for i, other in enumerate(values) if other is one) for one in values)
    known = {memory(example(node)) for node in gm.graph.find_nodes(op="placeholder")}
    places: dict[Any, list[int]] = {}
    for place, value in enumerate(values):
        if same[place] == place and memory(value) is not None and memory(value) not in known:
            places.setdefault(memory(value), []).append(place)
    groups = [_families(values, group) for group in places.values() if len(group) > 1]
    found = tuple(group for group in groups if group is not None)
    return Relations(found, same) if found else None


def _families(values: Sequence[Tensor], group: Sequence[int]) -> tuple[_Family, ...] | None:
    if any(values[i].is_conj() or values[i].is_neg() for i in group):
        return None
    if len({values[i].dtype for i in group}) > 1:
        return None
    roots: dict[int, list[int]] = {}
    for i in group:
        base = values[i]._base
        roots.setdefault(id(values[i] if base is None else base), []).append(i)
    found = []
    for members in roots.values():
        root = next((i for i in members if values[i]._base is None), None)
        views = tuple(i for i in members if i != root)
        trained = all(values[i].requires_grad for i in members)
        found.append(_Family(root, views, tuple(how_made(values[i]) for i in views), trained))
    if not any(values[i].requires_grad for i in group):
        return tuple(found)
    return tuple(family for family in found if family.trained and len(family.members) > 1) or None


def _relate(results: list[Any], families: Sequence[_Family]) -> None:
    """Make the results of one memory again as views of one tensor for each family; all count versions together."""
    members = [i for family in families for i in family.members]
    if len({storage_of(results[i]) for i in members}) > 1:
        return  # kept apart by whoever compiled the graph
    first, *others = families
    if all(family.root is not None for family in families):
        known = results[first.members[0]]
        roots = [known, *[_placed(known, results[family.members[0]]).detach() for family in others]]
    else:
        known = _whole(results[members[0]])
        given = [None if family.root is None else results[family.root] for family in families]
        roots = [(known if root is None else _placed(known, root)).detach() for root in given]
    for family, root in zip(families, roots, strict=True):
        if family.root is not None:
            results[family.root] = root
        for i, how in zip(family.views, family.made, strict=True):
            if results[i]._base is not root:
                results[i] = _placed(root, results[i])
            note_how_made(results[i], how)


def _rejoin(results: list[Any], families: Sequence[_Family]) -> None:
    """Make results with a history views of one tensor where AOTAutograd made them views of several.

    It makes a view by all that led from memory to it: what began as a copy (``flatten``) then has a base of its own.
    """
    for family in families:
        if len({storage_of(results[i]) for i in family.members}) > 1:
            continue
        root = results[family.views[0]]._base if family.root is None else results[family.root]
        if root is None or root._base is not None or not root.requires_grad or not is_grad_enabled():
            continue
        for i, how in zip(family.views, family.made, strict=True):
            if results[i]._base is not root:
                results[i] = _placed(root, results[i])
                note_how_made(results[i], how)


def _placed(root: Tensor, like: Tensor) -> Tensor:
    return root.as_strided(like.size(), like.stride(), like.storage_offset())


def _whole(tensor: Tensor) -> Tensor:
    """All elements of the memory that ``tensor`` lies in, in one dimension, and no view."""
    storage = tensor.untyped_storage()
    return tensor.new_empty(0).set_(storage, 0, (storage.nbytes() // tensor.element_size(),), (1,))
