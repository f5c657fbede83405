"""Elements that take turns: accesses of ``2 i`` and ``2 i + 1``, or of four such, as one access of all of them.

A stack along a short last axis stores every second element of a row, and then the others. Each such access of a warp
touches twice the sectors, and a thread that has neighbouring points moves their elements one by one. Accessed as one
tile of twice the length, which registers put together or take apart, they are as wide as others (H200, a stack of two
parts beside an operand of its size, 5.6 M rows of float32: 41 us apart, 31 together; bfloat16: 22.3 and 18.5).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from lamina.ir.index import Axis, Expr, Loaded, as_expr
from lamina.ir.loops import Equation, Load, Store

__all__ = ["Turns", "accesses_in_turns", "put_together", "taken_apart"]

_STEPS = (2, 4)


@dataclass(frozen=True, slots=True)
class Turns:
    """Equations at ``positions`` that access ``step * i + rest``, the next element and so on, ``i`` being a block's
    index: as many as a step has elements, in the order of memory.
    """

    step: int
    rest: Expr
    positions: tuple[int, ...]


def accesses_in_turns(
    body: Sequence[Equation], dtypes: Mapping[str, str], joined: Callable[[Expr], Expr], line: Axis
) -> dict[int, Turns]:
    """By its position in the ``body`` each access that takes turns along ``line``; none where no stores do.

    ``joined`` gives an index with the axes of a block replaced by its line, ``dtypes`` the elements of each buffer. A
    buffer that is both read and written is left alone, as its accesses have an order.
    """
    places: dict[tuple[str, bool, int], list[tuple[int, Expr]]] = defaultdict(list)
    touched: dict[str, set[bool]] = defaultdict(set)
    for position, eqn in enumerate(body):
        if not isinstance(eqn, Load | Store):
            continue
        stores = isinstance(eqn, Store)
        touched[eqn.buffer].add(stores)
        found = None if _is_bound(eqn) else _step(joined(eqn.index[0]), line)
        if found is not None and dtypes[eqn.buffer] != "bool":
            step, rest = found
            places[eqn.buffer, stores, step].append((position, rest))
    found_turns = [
        (stores, turns)
        for (buffer, stores, step), accesses in places.items()
        if len(touched[buffer]) == 1
        for turns in _complete(accesses, step)
    ]
    steps = {turns.step for stores, turns in found_turns if stores}
    return {p: turns for _, turns in found_turns if turns.step in steps for p in turns.positions}


def _is_bound(eqn: Load | Store) -> bool:
    """Whether an access has a condition of its own, adds, or is at a place that is loaded."""
    if eqn.mask is not None or (isinstance(eqn, Store) and eqn.mode != "set"):
        return True
    return any(isinstance(atom, Loaded) for atom in eqn.index[0].atoms())


def _step(place: Expr, line: Axis) -> tuple[int, Expr] | None:
    """How far apart the elements of neighbouring points are, and the rest of the place."""
    coefficient = place.coefficient(line)
    if coefficient is None or not coefficient.is_int or coefficient.const not in _STEPS:
        return None
    rest = place - as_expr(line) * coefficient.const
    if line.name in {atom.name for atom in rest.atoms() if isinstance(atom, Axis)}:
        return None
    return coefficient.const, rest


def _complete(accesses: Sequence[tuple[int, Expr]], step: int) -> Iterator[Turns]:
    """Of accesses at one step those that together touch every element, each one once."""
    left = list(accesses)
    while left:
        _, first = left[0]
        near = {(rest - first).const: (at, rest) for at, rest in left if not (rest - first).terms}
        begin = min(near)
        wanted = [near.get(begin + k) for k in range(step)]
        found = [place for place in wanted if place is not None]
        left = [place for place in left if place not in found and place[1] != near[begin][1]]
        if len(found) == step and _once(accesses, found):
            yield Turns(step, near[begin][1], tuple(at for at, _ in found))


def _once(accesses: Sequence[tuple[int, Expr]], found: Sequence[tuple[int, Expr]]) -> bool:
    return all(sum(rest == other for _, other in accesses) == 1 for _, rest in found)


def taken_apart(tile: str, names: Sequence[str], shape: Sequence[int]) -> list[str]:
    """Statements that give ``names`` the elements of a ``tile`` which take turns; ``shape`` is that of each."""
    if len(names) == 2:
        whole = ", ".join(map(str, (*shape, 2)))
        return [f"{names[0]}, {names[1]} = tl.split(tl.reshape({tile}, ({whole})))"]
    whole = ", ".join(map(str, (*shape, 2, 2)))
    even, odd = f"{names[0]}_even", f"{names[0]}_odd"
    return [
        f"{even}, {odd} = tl.split(tl.reshape({tile}, ({whole})))",
        f"{names[0]}, {names[2]} = tl.split({even})",
        f"{names[1]}, {names[3]} = tl.split({odd})",
    ]


def put_together(values: Sequence[str], shape: Sequence[int]) -> str:
    """The tile whose elements are those of ``values`` by turns; ``shape`` is that of each."""
    joined = f"tl.join({values[0]}, {values[1]})"
    if len(values) == 4:
        joined = f"tl.join(tl.join({values[0]}, {values[2]}), tl.join({values[1]}, {values[3]}))"
    whole = ", ".join(map(str, (*shape[:-1], shape[-1] * len(values))))
    return f"tl.reshape({joined}, ({whole}{',' if len(shape) == 1 else ''}))"
