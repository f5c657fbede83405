"""Results in one memory that are views of one tensor in eager: so they are again in a compiled graph.

A graph's results come back as tensors that know nothing of each other. Eager's share a version, and where one is
written to with a gradient the others get that history as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import getitem
from typing import Any

from torch import Tensor, is_inference_mode_enabled, no_grad
from torch.fx import GraphModule, Node

from lamina.aot import eager_reasons
from lamina.aot.torch_private import is_grad_enabled, never_captured, transforms_are_active
from lamina.base.aliasing import tensors_written
from lamina.base.captured import example, fakes, memory
from lamina.base.overlap import may_overlap
from lamina.base.reasons import Reason
from lamina.base.source import source_of
from lamina.base.symbolic.torch_private import is_constant
from lamina.base.torch_private import as_usual, count_together, how_made, makes_parts, note_how_made, storage_of

__all__ = ["Below", "Relations", "below", "made_again", "relations", "view_of_windows", "written_since"]

Below = tuple[tuple[int, int, Any], ...]
"""Places of results that are views of other results, with the places of these and the ways, those that others are views
of first."""


@dataclass(frozen=True, slots=True)
class _Family:
    """Results that are views of one tensor, by their places; ``root`` is the place of that tensor, if it is one.

    ``made`` says for each view how it was made, which decides whether it may be written to with a gradient. ``alike``:
    the root has the place and strides of the tensor beside which it is made. ``parents`` has for each view the place of
    the view that it was made of, None if that is the root or no result.
    """

    root: int | None
    views: tuple[int, ...]
    made: tuple[Any, ...]
    parents: tuple[int | None, ...]
    alike: bool

    @property
    def members(self) -> tuple[int, ...]:
        """All its places."""
        return self.views if self.root is None else (self.root, *self.views)


@dataclass(frozen=True, slots=True)
class _Group:
    """The families that have one version: those with a history, which AOTAutograd has given them by then, and others.

    ``input`` is the place of an input that has this version too. What is a view of it is so already, and in none of the
    families. ``known`` is the place of a result with a history, if there is one. ``apart``: something else in the same
    memory has another version, as behind ``data``.
    """

    trained: tuple[_Family, ...]
    others: tuple[_Family, ...]
    input: int | None
    known: int | None
    apart: bool


@dataclass(frozen=True, slots=True)
class Relations:
    """The families of results that share memory: ``detach`` begins another one.

    ``same`` has, for each result, the first place of the same object, ``made`` the places of results that are views of
    inputs in another way than autograd takes for granted, with that way and whether they require a gradient. ``below``
    has the places of views of inputs that were made of another result, with the place of that one and the way.
    """

    groups: tuple[_Group, ...]
    same: tuple[int, ...]
    made: tuple[tuple[int, Any, bool], ...]
    below: Below

    def applied(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """``compiled`` with results that are related as eager's are. Inference tensors have nothing to share."""
        groups, same, views, below = self.groups, self.same, self.made, self.below

        def run(*inputs: Any) -> Any:
            results = compiled(*inputs)
            if is_inference_mode_enabled() or transforms_are_active():
                return results
            made = list(results)
            for place, how, trained in views:
                made[place] = _made_so(made[place], how, trained)
            made_again(made, below)
            for group in groups:
                for family in group.trained:
                    _rejoin(made, family)
                if group.input is not None:
                    known = inputs[group.input]
                    _relate_to(known, made, [family for family in group.others if not _is_free(made, family)])
                elif group.known is not None:
                    _relate_to(made[group.known], made, group.others)
                else:
                    _relate(made, group.others, group.apart)
            return tuple([made[place] for place in same])

        never_captured(run)
        return run


def relations(gm: GraphModule) -> Relations | None:
    """How results of ``gm`` are related that share memory; None if none are.

    Results that are views of inputs are made so by what makes them.
    """
    returned: Any = gm.graph.output_node().args[0]
    if not isinstance(returned, (tuple, list)) or not all(isinstance(one, Node) for one in returned):
        return None
    values = [example(one) for one in returned]
    same = tuple(next(i for i, other in enumerate(values) if other is one) for one in values)
    parents = _parents(gm, returned, values)
    inputs = [example(node) for node in gm.graph.find_nodes(op="placeholder")]
    lying = {memory(one): place for place, one in reversed(list(enumerate(inputs))) if memory(one) is not None}
    places: dict[Any, list[int]] = {}
    for place, value in enumerate(values):
        if same[place] == place and memory(value) is not None:
            places.setdefault(memory(value), []).append(place)
    found = [one for where, lie in places.items() for one in _groups(values, parents, lie, inputs, lying.get(where))]
    views = ((i, one) for i, one in enumerate(values) if memory(one) in lying and one._is_view())
    made = tuple((i, how_made(one), one.requires_grad) for i, one in views if not as_usual(one))
    taken = {id(one) for one in inputs}
    of_inputs = {i for i in parents if memory(values[i]) in lying and id(values[parents[i]]) not in taken}
    again = _below(values, parents, of_inputs)
    return Relations(tuple(found), same, made, again) if found or made or again else None


def below(gm: GraphModule, place: int) -> Below | None:
    """The other results in the memory of the one at ``place``; None if not all are views of it, or the graph's own."""
    returned: Any = gm.graph.output_node().args[0]
    values = [example(one) for one in returned]
    where = memory(values[place])
    if where is None:
        return ()
    others = {i for i, one in enumerate(values) if memory(one) == where and one is not values[place]}
    if not others:
        return ()
    parents = _parents(gm, returned, values)
    inputs = {memory(example(node)) for node in gm.graph.find_nodes(op="placeholder")}
    if where in inputs or not all(_leads_up(parents, i, place) for i in others if values[i].requires_grad):
        return None
    return _below(values, parents, others & set(parents))


def view_of_windows(gm: GraphModule) -> Reason | None:
    """Why the captured graph is eager's to run: a result that is made again as a view of overlapping elements, or None.

    The gradient of ``as_strided`` is spread evenly over the elements in one place of memory.
    """
    returned: Any = gm.graph.output_node().args[0]
    if not isinstance(returned, (tuple, list)) or not all(isinstance(one, Node) for one in returned):
        return None
    values = [example(one) for one in returned]
    for place, parent in _parents(gm, returned, values).items():
        if _leads(values[place], values[parent]) and may_overlap(values[parent]):
            return eager_reasons.VIEW_OF_WINDOWS(place=source_of(returned[place]))
    return None


def _leads_up(parents: Mapping[int, int], place: int, above: int) -> bool:
    while place != above and place in parents:
        place = parents[place]
    return place == above


def _below(values: Sequence[Tensor], parents: Mapping[int, int], places: Iterable[int]) -> Below:
    found = sorted((i for i in places if _leads(values[i], values[parents[i]])), key=lambda i: _depth(parents, i))
    return tuple((i, parents[i], how_made(values[i])) for i in found)


def made_again(results: list[Any], below: Below) -> None:
    """Make results views of the results that they were made of."""
    for place, parent, how in below:
        if results[parent].grad_fn is not None:
            results[place] = _placed(results[parent], results[place])
            note_how_made(results[place], how)


def _leads(view: Tensor, other: Tensor) -> bool:
    """Whether a view of another result leads autograd there, and is one by strides."""
    alike = view.dtype == other.dtype and not any(one.is_conj() or one.is_neg() for one in (view, other))
    return alike and view.requires_grad and not view.is_leaf and other.requires_grad


def _groups(
    values: Sequence[Tensor],
    parents: Mapping[int, int],
    places: Sequence[int],
    inputs: Sequence[Any],
    input: int | None,
) -> Iterator[_Group]:
    """The groups of the results at ``places``, in one memory, which is that of an ``input`` if its place is given."""
    if len(places) < 2 and input is None:
        return
    sharing = [values[i] for i in places] + ([] if input is None else [inputs[input]])
    if any(one.is_conj() or one.is_neg() or one.dtype != sharing[0].dtype for one in sharing):
        return
    owners = {id(_base(one)) for one in inputs if isinstance(one, Tensor)}
    by_base: dict[int, list[int]] = {}
    for i in places:
        if id(_base(values[i])) not in owners:
            by_base.setdefault(id(_base(values[i])), []).append(i)
    counting = _by_version(values, list(by_base.values()), None if input is None else inputs[input])
    for number, families in enumerate(counting):
        trained = [one for one in families if input is None and all(values[i].requires_grad for i in one)]
        others = [one for one in families if not any(values[i].requires_grad for i in one)]
        if others or any(len(one) > 1 for one in trained):
            place = None if number else input
            first = _first(values, (trained or others)[0])
            beside = values[first] if place is None else inputs[place]
            yield _Group(
                tuple(_family(values, parents, one, beside) for one in trained if len(one) > 1),
                tuple(_family(values, parents, one, beside) for one in others),
                place,
                first if trained else None,
                apart=len(counting) > 1,
            )


def _by_version(values: Sequence[Tensor], families: Sequence[list[int]], input: Tensor | None) -> list[list[list[int]]]:
    """The families with one version together; those with the version of ``input``, if there is one, are the first."""
    known: list[Tensor] = [] if input is None else [input]
    found: list[list[list[int]]] = [[] for _ in known]
    for members in families:
        one = values[members[0]]
        place = next((k for k, other in enumerate(known) if count_together(other, one)), len(known))
        if place == len(known):
            known.append(one)
            found.append([])
        found[place].append(members)
    return found


def _base(value: Tensor) -> Tensor:
    return value if value._base is None else value._base


def _first(values: Sequence[Tensor], family: Sequence[int]) -> int:
    """The place of the tensor that the results of a family are views of, if it is one of them, or else the first."""
    return next((i for i in family if values[i]._base is None), family[0])


def _family(values: Sequence[Tensor], parents: Mapping[int, int], members: Sequence[int], beside: Tensor) -> _Family:
    root = next((i for i in members if values[i]._base is None), None)
    views = tuple(sorted((i for i in members if i != root), key=lambda i: _depth(parents, i)))
    above = tuple(k if (k := parents.get(i)) in views else None for i in views)
    made = tuple(how_made(values[i]) for i in views)
    return _Family(root, views, made, above, root is not None and _alike(values[root], beside))


def _depth(parents: Mapping[int, int], place: int) -> int:
    depth = 0
    while place in parents:
        place, depth = parents[place], depth + 1
    return depth


def _parents(gm: GraphModule, returned: Sequence[Node], values: Sequence[Tensor]) -> dict[int, int]:
    """For results that were made of others as views, the places of these.

    None for those that the graph writes to since: a write gives views another history than that of their calls.
    """
    places = {id(one): i for i, one in reversed(list(enumerate(values)))}
    outdated = written_since(gm)
    found = {}
    for i, node in enumerate(returned):
        if places[id(values[i])] == i and not outdated(node):
            above: Node | None = node
            while above is not None and (above := _viewed(above)) is not None:
                if (k := places.get(id(example(above)), i)) != i:
                    found[i] = k
                    break
    return found


def written_since(gm: GraphModule) -> Callable[[Node], bool]:
    """Whether the graph writes to the memory of a node's value after the node."""
    order = {node: i for i, node in enumerate(gm.graph.nodes)}
    last: dict[Any, int] = {}
    for node, i in order.items():
        for one in tensors_written(node):
            last[memory(example(one))] = i
    return lambda node: last.get(memory(example(node)), -1) > order[node]


def _viewed(node: Node) -> Node | None:
    """The operand that a call gives a view of, or the call whose result it picks."""
    if node.op not in ("call_function", "call_method"):
        return None
    if node.target is getitem and isinstance(node.args[0], Node) and not isinstance(example(node.args[0]), Tensor):
        node = node.args[0]
    where = memory(fakes(node)[0]) if fakes(node) else None
    return next((n for n in node.all_input_nodes if where is not None and memory(example(n)) == where), None)


def _alike(one: Tensor, other: Tensor) -> bool:
    """Whether both lie alike. Numbers that a call tells are not asked for, which would guard them or fail."""
    return all(map(is_constant, (*_layout(one), *_layout(other)))) and _layout(one) == _layout(other)


def _layout(value: Tensor) -> tuple[Any, ...]:
    return (*value.shape, *value.stride(), value.storage_offset())


def _relate(results: list[Any], families: Sequence[_Family], apart: bool) -> None:
    """Make the results of one memory again as views of one tensor for each family."""
    first, *others = families
    members = [i for family in families for i in family.members]
    if len({storage_of(results[i]) for i in members}) > 1:
        return  # kept apart by whoever compiled the graph
    known = _whole(results[members[0]]) if first.root is None else results[first.root]
    if apart and first.root is not None:
        known = known.data
    _make_views(known, results, first)
    _relate_to(known if first.root is not None else results[first.views[0]], results, others)


def _relate_to(known: Tensor, results: list[Any], families: Sequence[_Family]) -> None:
    """The same where a tensor is known that belongs to none of the families."""
    for family in families:
        if all(storage_of(results[i]) == storage_of(known) for i in family.members):
            beside = known.detach()
            if not family.alike:
                beside = _placed(beside, _whole(known) if family.root is None else results[family.root]).detach()
            _make_views(beside, results, family)


def _is_free(results: Sequence[Any], family: _Family) -> bool:
    """Whether a family is a detached input that AOTAutograd made so."""
    return not family.views and results[family.members[0]]._base is None


def _make_views(root: Tensor, results: list[Any], family: _Family) -> None:
    if family.root is not None:
        results[family.root] = root
    for i, how in zip(family.views, family.made, strict=True):
        if results[i]._base is not root:
            results[i] = _placed(root, results[i])
        note_how_made(results[i], how)


def _rejoin(results: list[Any], family: _Family) -> None:
    """Make results with a history views of one tensor where AOTAutograd made them views of several.

    It makes a view by all that led from memory to it: what began as a copy (``flatten``) then has a base of its own.
    """
    if len({storage_of(results[i]) for i in family.members}) > 1:
        return
    root = results[family.views[0]]._base if family.root is None else results[family.root]
    if root is None and is_grad_enabled():
        _note_parts(results, family)
    if root is None or root._base is not None or not root.requires_grad or not is_grad_enabled():
        return
    for i, how, parent in zip(family.views, family.made, family.parents, strict=True):
        if results[i]._base is not root or parent is not None:
            results[i] = _placed(root if parent is None else results[parent], results[i])
            note_how_made(results[i], how)


def _made_so(view: Tensor, how: Any, trained: bool) -> Tensor:
    """A result that is a view of an input, made as it is in eager: AOTAutograd makes it where gradients are on."""
    if view.requires_grad and not trained:
        with no_grad():
            view = view.view_as(view)
    if view._is_view():
        note_how_made(view, how)
    return view


def _note_parts(results: list[Any], family: _Family) -> None:
    """Let autograd refuse writes to parts that AOTAutograd returns as tensors of their own, each a view of itself."""
    for i, how in zip(family.views, family.made, strict=True):
        if results[i].requires_grad and makes_parts(how):
            results[i] = results[i].view_as(results[i])
            note_how_made(results[i], how)


def _placed(root: Tensor, like: Tensor) -> Tensor:
    return root.as_strided(like.size(), like.stride(), like.storage_offset())


def _whole(tensor: Tensor) -> Tensor:
    """All elements of the memory that ``tensor`` lies in, in one dimension, and no view."""
    storage = tensor.untyped_storage()
    return tensor.new_empty(0).set_(storage, 0, (storage.nbytes() // tensor.element_size(),), (1,))
