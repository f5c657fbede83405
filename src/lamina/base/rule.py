"""A rule: two plain PyTorch functions, of which one computes what the other does, and what is known of a match."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

import torch
from torch.fx import Node

from lamina.base.identity import caller_place, identity_of, place_of, values_of
from lamina.errors import BadArgument

__all__ = [
    "PLACES",
    "DimensionWildcard",
    "Match",
    "NestRule",
    "Rule",
    "ScalarWildcard",
    "TensorWildcard",
    "Wildcard",
    "dimension",
    "nest_rule",
    "rule",
    "scalar",
    "tensor",
]

PLACES = ("captured", "joint", "inference")
"""Where a rule may run: on the user's calls before they are differentiated; on forward and backward together; on
graphs without gradients, after decomposition."""


@dataclass(frozen=True, slots=True)
class TensorWildcard:
    """A parameter of a pattern that stands for any tensor with these sizes and one of these dtypes.

    ``leading`` says what stands in front of ``sizes``: "" nothing, "..." any dimensions, or a name for any dimensions.
    """

    sizes: tuple[str | int, ...] = ()
    dtypes: tuple[torch.dtype, ...] = ()
    leading: str = "..."

    @property
    def rank(self) -> int | None:
        """Number of dimensions; None if it may have any number of them in front."""
        return None if self.leading else len(self.sizes)


@dataclass(frozen=True, slots=True)
class ScalarWildcard:
    """A parameter of a pattern that stands for any number. ``example`` is the one that the pattern is traced with."""

    example: int | float | None = None


@dataclass(frozen=True, slots=True)
class DimensionWildcard:
    """A parameter of a pattern that stands for any dimension, counted from the last: -1, -2, ..."""


Wildcard = TensorWildcard | ScalarWildcard | DimensionWildcard


def tensor(*sizes: str | int | EllipsisType, dtype: torch.dtype | tuple[torch.dtype, ...] | None = None) -> Any:
    """A tensor wildcard, as a default value: ``def before(x=tensor(..., "n", "d"), w=tensor("d")): ...``.

    A size is a name (equal names are equal sizes within one match), a number, or, as the first one, ``...`` for any
    number of leading dimensions or ``"*name"`` for any number of them that all tensors with that name share. Without
    sizes the tensor may have any shape; a parameter without a default is such a tensor. ``dtype`` is the dtype, or a
    tuple of those, that it must have. Raises ``BadArgument``.
    """
    leading = "..." if not sizes or sizes[0] is ... else ""
    if sizes and isinstance(sizes[0], str) and sizes[0].startswith("*") and sizes[0][1:].isidentifier():
        leading = sizes[0]
    last: list[str | int] = []
    for place, size in enumerate(sizes):
        if place == 0 and leading:
            continue
        if isinstance(size, EllipsisType) or not (
            (isinstance(size, str) and size.isidentifier()) or (type(size) is int and size >= 0)
        ):
            remedy = 'use "a_name" or a number; as the first size also ... or "*a_name"'
            raise BadArgument(f"size {place} of a tensor wildcard is {size!r}", remedy=remedy)
        last.append(size)
    dtypes = () if dtype is None else dtype if isinstance(dtype, tuple) else (dtype,)
    if not all(isinstance(d, torch.dtype) for d in dtypes):
        raise BadArgument(f"the dtype of a tensor wildcard is {dtype!r}", remedy="use torch.float32 or a tuple of such")
    return TensorWildcard(tuple(last), dtypes, leading)


def scalar(example: float | None = None) -> Any:
    """A number wildcard, as a default value: ``def before(x, alpha=scalar()): ...``.

    The pattern is traced with ``example`` (by default a float that occurs nowhere else; give a whole number where the
    operation takes only those), and wherever the trace has exactly that number, any number matches. Symbolic numbers
    match too. Raises ``BadArgument`` for something else than a number.
    """
    if example is not None and type(example) not in (int, float):
        raise BadArgument(f"the example of a scalar wildcard is {example!r}", remedy="use a whole number or a float")
    return ScalarWildcard(example)


def dimension() -> Any:
    """A dimension wildcard, as a default value: ``def before(x, d=dimension()): return x.sum(d)``.

    It stands for any dimension that operations are given, however it is counted in the program; ``after`` and ``where``
    get it counted from the last (-1, -2, ...). The pattern is traced with two dimensions: a dimension in it that is not
    this one stays what it is.
    """
    return DimensionWildcard()


@dataclass(frozen=True, slots=True)
class Match:
    """Where a pattern was found: what a rule's ``where`` gets.

    ``match["x"]`` is what parameter ``x`` stands for: a FakeTensor with its shape (sizes may be symbolic), stride,
    dtype and device, a number, or a dimension counted from the last. ``nodes`` are the graph's nodes for the tensors
    among the parameters, ``matched`` the nodes that the pattern covers, ``outputs`` those of them that are its results.
    ``training`` is whether gradients are recorded there.
    """

    rule: Rule
    values: Mapping[str, Any]
    nodes: Mapping[str, Node]
    matched: tuple[Node, ...]
    outputs: tuple[Node, ...]
    training: bool = False

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def users(self, name: str) -> int:
        """How many nodes outside the match read the tensor that parameter ``name`` stands for."""
        return sum(user not in self.matched for user in self.nodes[name].users)


@dataclass(frozen=True, slots=True)
class Rule:
    """Whatever ``before`` computes may be computed by ``after``. Made by ``rule``.

    ``place`` is the "file.py:line" where the rule was made. ``parameters`` are the wildcards by name. ``at`` says where
    it runs (some of ``PLACES``).
    """

    name: str
    before: Callable[..., Any]
    after: Callable[..., Any]
    where: Callable[[Match], bool] | None
    at: tuple[str, ...]
    inference_only: bool
    ranks: tuple[int, ...]
    tolerance: float | None
    place: str
    parameters: tuple[tuple[str, Wildcard], ...]

    def reads(self) -> str:
        """The numbers and texts that ``before`` reads from outside, as they are now: what its traces depend on."""
        return values_of(self.before) if isinstance(self.before, types.FunctionType) else ""

    def identity(self) -> str:
        """Names and hashes of the functions it is made of: equal for equal code in any process."""
        code = "; ".join(identity_of(f) for f in (self.before, self.after, self.where) if f is not None)
        return f"{self.name}: {code} {self.at} {self.inference_only} {self.ranks} {self.tolerance}"


def rule(
    before: Callable[..., Any],
    after: Callable[..., Any],
    *,
    name: str | None = None,
    where: Callable[[Match], bool] | None = None,
    at: tuple[str, ...] = ("captured", "inference"),
    inference_only: bool = False,
    ranks: tuple[int, ...] = (),
    tolerance: float | None = None,
) -> Rule:
    """Whatever ``before`` computes is to be computed by ``after``: two plain PyTorch functions of equal parameters.

    Parameters of ``before`` are wildcards: tensors, or what their default values say (``tensor``, ``scalar``,
    ``dimension``); ``after`` takes some or all of them by name. Both return a tensor or the same number of tensors, and
    write to nothing. ``where`` gets each ``Match`` and may refuse it. ``at`` says where the rule runs (see ``PLACES``);
    one that is ``inference_only`` leaves alone what gradients are recorded for. ``ranks`` are numbers of dimensions
    that tensors of any rank are to be traced with, where the pattern looks different for them (by default one is
    enough).
    Floating-point constants match within ``tolerance``, relative; by default within the rounding of the dtype that the
    match computes in (float32 for narrower ones). Raises ``BadArgument`` for what is no function, for parameters of
    ``after`` that ``before`` does not have, and for other wrong arguments.
    """
    made_at = caller_place()
    for role, function in (("before", before), ("after", after)):
        if not callable(function):
            raise BadArgument(f"{role} is {function!r}", where=made_at, remedy="pass a function of tensors")
    _check_options(made_at, name, where, at, tolerance)
    ranks = _checked_ranks(ranks, made_at)
    parameters = _parameters(before, made_at)
    extra = [p for p in _signature("after", after, made_at) if p not in dict(parameters)]
    if extra:
        raise BadArgument(
            f"after takes {', '.join(extra)}, which before does not",
            where=made_at,
            remedy=f"use some of before's parameters: {', '.join(p for p, _ in parameters)}",
        )
    called = name or _name(before, after) or made_at
    return Rule(called, before, after, where, at, inference_only, ranks, tolerance, made_at, parameters)


def _checked_ranks(ranks: Any, made_at: str) -> tuple[int, ...]:
    several = isinstance(ranks, (tuple, list, set, frozenset))
    if not several or not all(type(rank) is int and rank >= 0 for rank in ranks):
        remedy = "pass some numbers of dimensions: (2, 3)"
        raise BadArgument(f"ranks of a rule are {ranks!r}", where=made_at, remedy=remedy)
    return tuple(ranks)


def _check_options(made_at: str, name: Any, where: Any, at: Any, tolerance: Any) -> None:
    if name is not None and not isinstance(name, str):
        raise BadArgument(f"the name of a rule is {name!r}", where=made_at, remedy="pass a text")
    if where is not None and not callable(where):
        raise BadArgument(f"where is {where!r}", where=made_at, remedy="pass a function Match -> bool")
    if not isinstance(at, tuple) or not at or any(one not in PLACES for one in at):
        raise BadArgument(f"a rule runs at {at!r}", where=made_at, remedy=f"use a tuple of some of {PLACES}")
    if tolerance is not None and (type(tolerance) not in (int, float) or not 0 <= tolerance < 1):
        raise BadArgument(
            f"the tolerance of a rule is {tolerance!r}", where=made_at, remedy="pass a relative difference such as 1e-4"
        )


def _signature(role: str, function: Callable[..., Any], made_at: str) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # functions written in C have none
        name = getattr(function, "__name__", type(function).__name__)
        raise BadArgument(
            f"{role} is {name}, which does not say what it takes",
            where=made_at,
            remedy=f"wrap it: lambda x: {name}(x), with the names of before's parameters",
        ) from None


def _parameters(before: Callable[..., Any], made_at: str) -> tuple[tuple[str, Wildcard], ...]:
    found: list[tuple[str, Wildcard]] = []
    for parameter in _signature("before", before, made_at).values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise BadArgument(
                f"before takes *{parameter.name}", where=made_at, remedy="name each parameter: each is one wildcard"
            )
        default = parameter.default
        if default is parameter.empty:
            default = TensorWildcard()
        if not isinstance(default, Wildcard):
            raise BadArgument(
                f"the default of parameter {parameter.name!r} is {default!r}",
                where=made_at,
                remedy="use tensor(...), scalar(...) or dimension(), or no default for a tensor of any shape",
            )
        found.append((parameter.name, default))
    if not any(isinstance(w, TensorWildcard) for _, w in found):
        raise BadArgument("before takes no tensor", where=made_at, remedy="give it at least one parameter")
    return tuple(found)


def _name(before: Callable[..., Any], after: Callable[..., Any]) -> str:
    for function in (before, after):
        name = str(getattr(function, "__name__", "<lambda>"))
        if name not in ("<lambda>", "before", "after"):
            return name
    return ""


@dataclass(frozen=True, slots=True)
class NestRule:
    """A function that gives a better loop nest for one, or None. Made by ``nest_rule``."""

    name: str
    function: Callable[[Any], Any]
    place: str

    def identity(self) -> str:
        """Name and hash of the function: equal for equal code in any process."""
        return f"{self.name}: {identity_of(self.function)}"


def nest_rule(function: Callable[[Any], Any], *, name: str | None = None) -> NestRule:
    """A rule on loop nests: ``function`` takes a ``lamina.ir.loops.Nest`` and returns another one, or None.

    It is called for each nest before nests are fused, and what it returns is verified. Usable as a decorator. Raises
    ``BadArgument`` for something that cannot be called.
    """
    if not callable(function):
        raise BadArgument(f"a rule on nests is {function!r}", remedy="pass a function Nest -> Nest | None")
    called = name or str(getattr(function, "__name__", type(function).__name__))
    return NestRule(called, function, place_of(function))
