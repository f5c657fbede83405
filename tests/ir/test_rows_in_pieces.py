"""Places of a row that was cut into dimensions and is gone over in pieces: the row's own places, simply."""

from __future__ import annotations

import random

from lamina.ir.index import Axis, Expr, Mod, as_expr


def _in_dimensions(place: Expr, inner: int, middle: int) -> Expr:
    """The place by the three dimensions (any, ``middle``, ``inner``) that a view gives the row."""
    both = inner * middle
    return place // both * both + place // inner % middle * inner + place % inner


def test_pieces_of_a_row() -> None:
    piece, point = as_expr(Axis("piece", as_expr(16))), as_expr(Axis("point", as_expr(25984)))
    place = piece * 25984 + point
    assert _in_dimensions(place, 7, 512) == place


def test_values() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        pieces, points, scale = rng.choice([6, 12, 24]), rng.choice([5, 7, 35]), rng.choice([1, 3])
        inner, middle = rng.choice([2, 3, 5, 7]), rng.choice([2, 4, 5])
        piece, point = as_expr(Axis("piece", as_expr(pieces))), as_expr(Axis("point", as_expr(points)))
        made = _in_dimensions(piece * points + point, inner, middle) * scale + piece
        for p in range(0, pieces, 3):
            for q in range(points):
                assert made.evaluate({"piece": p, "point": q}) == (p * points + q) * scale + p


def test_other_remainders_are_left() -> None:
    a, b = as_expr(Axis("a", as_expr(100))), as_expr(Axis("b", as_expr(100)))
    mixed = a % 7 + b % 5 * 7
    assert sum(isinstance(atom, Mod) for atom in mixed.atoms()) == 2
    assert mixed.evaluate({"a": 95, "b": 99}) == 95 % 7 + 99 % 5 * 7
