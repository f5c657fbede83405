"""Index expressions mean what they say: every simplification is checked by evaluating it over a small box."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lamina.ir.index import Axis, Div, Expr, Loaded, Mod, Size, as_expr, ceildiv, prod

N, M, P, Q = Size("n", 1), Size("m", 0), Size("p", None), Size("q", -3)
AXES = (Axis("i", as_expr(4)), Axis("j", as_expr(6)), Axis("t", as_expr(N)), Axis("u", as_expr(M) * 2))
K = Loaded("k", as_expr(5))
LEAVES = (*AXES, K, N, M, P, Q)
Meaning: TypeAlias = Callable[[Mapping[str, int]], int]


def points() -> Iterator[dict[str, int]]:
    """Sizes, and axes and indices within their ranges (of the long ones only the ends and the middle)."""
    for n, m, p, q in ((1, 2, -5, -3), (3, 1, 7, 2), (2, 1, -2, 0)):
        ranges = [_some(4), _some(6), _some(n), _some(2 * m), _some(5)]
        for i, j, t, u, k in itertools.product(*ranges):
            yield {"n": n, "m": m, "p": p, "q": q, "i": i, "j": j, "t": t, "u": u, "k": k}


def _some(extent: int) -> list[int]:
    return sorted({0, 1, extent // 2, extent - 1} & set(range(extent)))


POINTS = list(points())
"""Sizes for which every axis has a value."""


def build(draw: st.DrawFn, depth: int) -> tuple[Expr, Meaning]:
    """An expression and, independently, what it should evaluate to."""
    inner = ("leaf", "add", "sub", "mul", "scale", "div", "mod")
    kind = draw(st.sampled_from(inner if depth else ("leaf", "number")))
    if kind == "leaf":
        atom = draw(st.sampled_from(LEAVES))
        return as_expr(atom), lambda env: env[atom.name]
    if kind == "number":
        value = draw(st.integers(-7, 12))
        return as_expr(value), lambda env: value
    left, a = build(draw, depth - 1)
    if kind in ("scale", "div", "mod"):
        small = draw(st.sampled_from((1, 2, 3, 4, 6, 8, 12, 24, -2, -3)))
        if kind == "scale":
            return left * small, lambda env: a(env) * small
        by_size = draw(st.integers(0, 4)) == 0 and small > 0
        den = as_expr(N) * small if by_size else as_expr(small)

        def below(env: Mapping[str, int]) -> int:
            return env["n"] * small if by_size else small

        if kind == "div":
            return left // den, lambda env: a(env) // below(env)
        return left % den, lambda env: a(env) % below(env)
    right, b = build(draw, depth - 1)
    if kind == "add":
        return left + right, lambda env: a(env) + b(env)
    if kind == "sub":
        return left - right, lambda env: a(env) - b(env)
    return left * right, lambda env: a(env) * b(env)


@st.composite
def expressions(draw: st.DrawFn, depth: int = 3) -> tuple[Expr, Meaning]:
    return build(draw, draw(st.integers(0, depth)))


@settings(max_examples=120, deadline=None)
@given(expressions(4))
def test_simplification_keeps_the_value(made: tuple[Expr, Meaning]) -> None:
    expr, meaning = made
    for env in POINTS:
        assert expr.evaluate(env) == meaning(env), (expr, env)


@settings(max_examples=80, deadline=None)
@given(expressions())
def test_text_means_the_same_in_python(made: tuple[Expr, Meaning]) -> None:
    expr, meaning = made
    code = compile(str(expr), "expr", "eval")
    for env in POINTS[::7]:
        assert eval(code, {}, dict(env)) == meaning(env)


@settings(max_examples=120, deadline=None)
@given(expressions())
def test_bounds_hold(made: tuple[Expr, Meaning]) -> None:
    expr, meaning = made
    low, high = expr.bounds()
    for env in POINTS:
        value = meaning(env)
        assert low is None or low <= value
        assert high is None or value <= high.evaluate(env)
        assert not expr.nonnegative() or value >= 0
        for limit in (as_expr(4), as_expr(N), as_expr(N) * 6):
            assert not expr.below(limit) or value < limit.evaluate(env)


@settings(max_examples=80, deadline=None)
@given(expressions(), expressions(2), expressions(2))
def test_substitution(made: tuple[Expr, Meaning], first: tuple[Expr, Meaning], second: tuple[Expr, Meaning]) -> None:
    """Holds wherever the replacements stay in the ranges of what they replace."""
    expr, meaning = made
    (for_i, a), (for_k, b) = first, second
    replaced = expr.substitute({AXES[0]: for_i, K: for_k})
    for env in POINTS[::3]:
        i, k = a(env), b(env)
        if 0 <= i < 4 and 0 <= k < 5:
            assert replaced.evaluate(env) == meaning({**env, "i": i, "k": k})


@settings(max_examples=80, deadline=None)
@given(expressions())
def test_coefficient_is_the_slope(made: tuple[Expr, Meaning]) -> None:
    expr, meaning = made
    factor = expr.coefficient(AXES[1])
    if factor is None:
        return
    for env in POINTS[::3]:
        if env["j"] + 1 < 6:
            step = meaning({**env, "j": env["j"] + 1}) - meaning(env)
            assert step == factor.evaluate(env)


@settings(max_examples=80, deadline=None)
@given(expressions(2), expressions(2), expressions(2))
def test_arithmetic_laws_hold_by_identity(
    x: tuple[Expr, Meaning], y: tuple[Expr, Meaning], z: tuple[Expr, Meaning]
) -> None:
    """The canonical form: equal polynomials are one object."""
    a, b, c = x[0], y[0], z[0]
    assert a + b is b + a
    assert a * b is b * a
    assert a - a is as_expr(0)
    assert a * 1 is a
    assert a + 0 is a
    if not any(isinstance(atom, Mod) for e in (a, b, c) for atom in e.atoms()):
        assert (a + b) + c is a + (b + c)
        assert a * (b + c) is a * b + a * c


def test_divisions_that_disappear() -> None:
    i, j, t = (as_expr(a) for a in AXES[:3])
    flat = (t * 4 + i) * 6 + j
    assert flat // 24 is t
    assert (flat // 6) % 4 is i
    assert flat % 6 is j
    assert (flat // 5) * 5 + flat % 5 is flat
    assert (flat // 5 // 7) is flat // 35
    assert (flat % 35) % 5 is flat % 5
    assert (i * as_expr(N) + t) // as_expr(N) is i
    assert (i * as_expr(N) + t) % as_expr(N) is t
    assert (i * 6 + 4) // 4 is (i * 3 + 2) // 2
    assert (i * 6 + 4) % 4 is ((i * 3 + 2) % 2) * 2
    assert ((i + 1) % 4 + 3) % 4 is i
    assert (((j + 2) % 6) * 3 + t + 1) % 3 is (t + 1) % 3
    row = as_expr(Axis("r", as_expr(96)))  # nibbles of bytes of groups: a remainder of a remainder is one
    assert (row % 32) // 2 * 2 + row % 2 + row // 32 * 32 is row
    assert ((row + 3) % 32) // 4 * 8 + (row + 3) % 4 * 2 + 5 is (row + 3) % 32 * 2 + 5
    assert (row % 32) // 2 * 2 + row % 4 is not row % 32
    rolled = (i * 7 + j + 17) % 28
    assert rolled // 7 * 7 + (j + 3) % 7 is rolled
    whole = (i * 6 + j + 18) % 24
    assert whole // 6 * 6 + j is whole


def test_atoms_and_axes() -> None:
    i, k = as_expr(AXES[0]), as_expr(K)
    expr = (i + k * 3) // 5 + as_expr(N)
    assert {a for a in expr.atoms() if not isinstance(a, Div | Mod)} == {AXES[0], K, N}
    assert expr.axes() == {"i"}
    assert as_expr(3).atoms() == set()


def test_equal_to_the_number_and_hashed_like_it() -> None:
    assert as_expr(5) == 5
    assert as_expr(AXES[0]) != 5
    assert {5: "five"}[as_expr(5)] == "five"  # type: ignore[index]
    assert as_expr(5) != "5"
    assert int(as_expr(5)) == 5
    with pytest.raises(TypeError, match="not a plain integer"):
        int(as_expr(N))


def test_immutable_and_pickles_to_itself() -> None:
    expr = as_expr(AXES[0]) * as_expr(N) + 3
    with pytest.raises(AttributeError):
        expr.const = 4
    assert pickle.loads(pickle.dumps(expr)) is expr
    assert repr(expr) == f"Expr({expr})"


def test_helpers() -> None:
    assert prod(()) == 1
    assert prod((2, as_expr(N), 3)) is as_expr(N) * 6
    assert ceildiv(as_expr(N), 4).evaluate({"n": 9}) == 3
    assert ceildiv(8, 4) == 2
    assert 7 - as_expr(N) is -(as_expr(N) - 7)
    assert as_expr(AXES[0]).text(lambda atom: f"<{atom}>") == "<i>"


def test_loaded_and_mod_ranges() -> None:
    k = as_expr(K)
    assert k.below(5)
    assert not k.below(4)
    assert (as_expr(AXES[1]) % 4).below(4)
    assert ((as_expr(N) - 1) % 7).nonnegative()
    assert not (as_expr(M) - 1).nonnegative()
    assert (as_expr(N) - 1).nonnegative()


def test_places_along_an_axis_without_elements_are_some() -> None:
    """What rolls an empty part reads nothing there, behind a mask: a kernel does not divide, the interpreter would."""
    places = as_expr(AXES[0]) % as_expr(M)
    assert places.evaluate({"i": torch.arange(3), "m": 0}).shape == (3,)
    with pytest.raises(ZeroDivisionError):
        places.evaluate({"i": 3, "m": 0})


def test_axes_and_loaded_places_of_one_name_are_hashed_apart_by_their_extents():
    # All nests of a network call their axes alike, and a table of expressions holds those of hundreds of extents.
    extents = [as_expr(n) for n in range(2, 500)]
    for kind in (Axis, Loaded):
        assert len({hash(kind("i0", extent)) for extent in extents}) > 490
