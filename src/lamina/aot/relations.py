"""Results in one memory that are views of one tensor in eager: so they are again in a compiled graph.

A graph's results come back as tensors that know nothing of each other. Eager's share a version, and where one is
written to with a gradient the others get that history as well.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import getitem
from typing import Any

from torch import Tensor, is_grad_enabled
from torch.fx import GraphModule, Node

from lamina.aot import eager_reasons
from lamina.aot.engine.relating import Below, Family, Group, Relations
from lamina.aot.torch_private import is_leaf
from lamina.base.aliasing import tensors_written
from lamina.base.captured import example, fakes, is_custom_function, memory
from lamina.base.overlap import may_overlap, meet
from lamina.base.reasons import Reason
from lamina.base.source import source_of
from lamina.base.symbolic.torch_private import is_constant, is_sure
from lamina.base.torch_private import as_usual, base_of, count_together, how_made, is_view, makes_parts

__all__ = ["below", "parts_that_meet", "relations", "view_by_function", "view_of_windows", "written_since"]


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
    views = [(i, one) for i, one in enumerate(values) if memory(one) in lying and is_view(one)]
    made = tuple((i, how_made(one), one.requires_grad) for i, one in views if not as_usual(one))
    since = written_since(gm)
    anew = tuple(i for i, one in views if as_usual(one) and one.requires_grad and since(returned[i]) and same[i] == i)
    taken = {id(one) for one in inputs}
    of_inputs = {i for i in parents if memory(values[i]) in lying and id(values[parents[i]]) not in taken}
    again = _below(values, parents, of_inputs)
    return Relations(tuple(found), same, made, again, anew) if found or made or again or anew else None


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
    # After a write to one of them, views are made again of what they all are views of.
    parents |= {i: place for i in others if i not in parents and base_of(values[i]) is values[place]}
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


def parts_that_meet(gm: GraphModule) -> Reason | None:
    """Why the captured graph is eager's to run: a result that is a part of several, beside another with elements of it.

    What both are views of is not returned, nor one of them made of the other. None if there is no such result.
    """
    returned: Any = gm.graph.output_node().args[0]
    if not isinstance(returned, (tuple, list)) or not all(isinstance(one, Node) for one in returned):
        return None
    values = [example(one) for one in returned]
    inputs = {memory(example(node)) for node in gm.graph.find_nodes(op="placeholder")}
    by_base: dict[int, list[int]] = {}
    for i, value in enumerate(values):
        tracked = isinstance(value, Tensor) and value.requires_grad and memory(value) not in {None, *inputs}
        if tracked and not any(other is value for other in values[:i]):
            by_base.setdefault(id(_base(value)), []).append(i)
    for family in by_base.values():
        parts = [i for i in family if is_view(values[i]) and makes_parts(how_made(values[i]))]
        wholes = [i for i in family if i not in parts]
        if not parts or len(wholes) > 1 or (wholes and _is_all(values[wholes[0]])):
            continue
        parents = _parents(gm, returned, values)
        for i, k in itertools.product(parts, family):
            apart = i == k or _leads_up(parents, i, k) or _leads_up(parents, k, i)
            if not apart and _share_elements(returned[i], returned[k]):
                return eager_reasons.PARTS_THAT_MEET(place=source_of(returned[i]))
    return None


def _is_all(value: Tensor) -> bool:
    """Whether a view has all elements of its base, or is no view."""
    base = _base(value)
    return base is value or (is_sure(value.numel() == base.numel()) and not may_overlap(value))


def _share_elements(one: Node, other: Node) -> bool:
    """Whether two results have elements in common, unless they are other parts that one call gives."""
    (call, pick), (other_call, other_pick) = _picked(one), _picked(other)
    if call is not None and call is other_call and pick != other_pick:
        return False
    return meet(example(one), example(other), alike=True)


def _picked(node: Node) -> tuple[Node | None, Any]:
    """The call of several results of one of which ``node`` is a view, and which that is."""
    above: Node | None = node
    while above is not None:
        if (giving := _giving(above)) is not above:
            return giving, above.args[1]
        above = _viewed(above)
    return None, None


def view_by_function(gm: GraphModule) -> Reason | None:
    """Why the captured graph is eager's to run: a result in another's memory, by a custom autograd function, or None.

    Made again as a view, it would have a view's gradient, not the function's.
    """
    returned: Any = gm.graph.output_node().args[0]
    if not any(map(is_custom_function, gm.graph.nodes)) or not isinstance(returned, (tuple, list)):
        return None
    values = [example(one) for one in returned if isinstance(one, Node)]
    for node in returned:
        value = example(node) if isinstance(node, Node) else None
        if not isinstance(value, Tensor) or not value.requires_grad or memory(value) is None:
            continue
        beside = any(memory(one) == memory(value) and one is not value for one in values)
        above: Node | None = node if beside else None
        while above is not None and not is_custom_function(_giving(above)):
            above = _viewed(above)
        if above is not None and _viewed(above) is not None:
            return eager_reasons.VIEW_BY_FUNCTION(place=source_of(node))
    return None


def _leads_up(parents: Mapping[int, int], place: int, above: int) -> bool:
    while place != above and place in parents:
        place = parents[place]
    return place == above


def _below(values: Sequence[Tensor], parents: Mapping[int, int], places: Iterable[int]) -> Below:
    found = sorted((i for i in places if _leads(values[i], values[parents[i]])), key=lambda i: _depth(parents, i))
    return tuple((i, parents[i], how_made(values[i])) for i in found)


def _leads(view: Tensor, other: Tensor) -> bool:
    """Whether a view of another result leads autograd there, and is one by strides."""
    alike = view.dtype == other.dtype and not any(one.is_conj() or one.is_neg() for one in (view, other))
    return alike and view.requires_grad and not is_leaf(view) and other.requires_grad


def _groups(
    values: Sequence[Tensor],
    parents: Mapping[int, int],
    places: Sequence[int],
    inputs: Sequence[Any],
    input: int | None,
) -> Iterator[Group]:
    """The groups of the results at ``places``, in one memory, which is that of an ``input`` if its place is given."""
    if len(places) < 2 and input is None and not _is_told_apart(values[places[0]]):
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
        views = [one for one in trained if len(one) > 1 or base_of(values[one[0]]) is not None]
        if others or views:
            place = None if number else input
            first = _first(values, (trained or others)[0])
            beside = values[first] if place is None else inputs[place]
            yield Group(
                tuple(_family(values, parents, one, beside) for one in views),
                tuple(_family(values, parents, one, beside) for one in others),
                place,
                first if trained else None,
                apart=len(counting) > 1,
            )


def _is_told_apart(value: Tensor) -> bool:
    """Whether a result that is a view of what is not returned differs from a tensor of its own for autograd.

    Where gradients are off all around, what calls under ``no_grad`` cost counts more than a refused write with one.
    """
    return base_of(value) is not None and (value.requires_grad or (is_grad_enabled() and not as_usual(value)))


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
    base = base_of(value)
    return value if base is None else base


def _first(values: Sequence[Tensor], family: Sequence[int]) -> int:
    """The place of the tensor that the results of a family are views of, if it is one of them, or else the first."""
    return next((i for i in family if base_of(values[i]) is None), family[0])


def _family(values: Sequence[Tensor], parents: Mapping[int, int], members: Sequence[int], beside: Tensor) -> Family:
    root = next((i for i in members if base_of(values[i]) is None), None)
    views = tuple(sorted((i for i in members if i != root), key=lambda i: _depth(parents, i)))
    above = tuple(k if (k := parents.get(i)) in views else None for i in views)
    made = tuple(how_made(values[i]) for i in views)
    return Family(root, views, made, above, root is not None and _alike(values[root], beside))


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
    node = _giving(node)
    where = memory(fakes(node)[0]) if fakes(node) else None
    return next((n for n in node.all_input_nodes if where is not None and memory(example(n)) == where), None)


def _giving(node: Node) -> Node:
    """The call that gives what ``node`` picks of several results; ``node`` itself if it picks none."""
    picks = node.target is getitem and isinstance(node.args[0], Node) and not isinstance(example(node.args[0]), Tensor)
    return node.args[0] if picks else node  # type: ignore[return-value]


def _alike(one: Tensor, other: Tensor) -> bool:
    """Whether both lie alike. Numbers that a call tells are not asked for, which would guard them or fail."""
    return all(map(is_constant, (*_layout(one), *_layout(other)))) and _layout(one) == _layout(other)


def _layout(value: Tensor) -> tuple[Any, ...]:
    return (*value.shape, *value.stride(), value.storage_offset())
