"""Both sides of a rule on random inputs: values and gradients, judged against double precision."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lamina.base.rule import DimensionWildcard, Match, Rule, ScalarWildcard, TensorWildcard
from lamina.base.torch_private import version_of
from lamina.errors import BadArgument, RuleFailed
from lamina.testing.compare import DRAWS, compare_draws

__all__ = ["RuleCase", "RuleCheck", "check_rule"]

_SHAPES = (
    (3, (4, 6, 8, 10, 12, 14), 0.5),
    (2, (3, 5, 7, 9, 11, 13), 1.25),
    (4, (2, 3, 8, 4, 6, 5), 0.125),
    (1, (16, 8, 12, 24, 4, 6), 2.0),
    (3, (1, 2, 1, 4, 2, 6), 0.75),
)
"""Number of dimensions of tensors of any shape, sizes by order of the names' first appearance (those of a tensor of
any shape from its first dimension on), and the number for scalars."""
_MOST_DRAWS = 4 * DRAWS


@dataclass(frozen=True, slots=True)
class RuleCase:
    """One kind of input: its shapes, dtypes and numbers as text, and what was wrong there ("" if nothing)."""

    inputs: str
    complaint: str


@dataclass(frozen=True, slots=True)
class RuleCheck:
    """What became of both sides on each kind of input. ``skipped`` are those that the rule does not apply to."""

    rule: str
    cases: tuple[RuleCase, ...]
    skipped: tuple[RuleCase, ...]

    @property
    def ok(self) -> bool:
        """True if both sides agree wherever they were run."""
        return not any(case.complaint for case in self.cases)

    def __str__(self) -> str:
        """One line, or one for each kind of input on which the sides differ."""
        wrong = [f"{case.inputs}: {case.complaint}" for case in self.cases if case.complaint]
        return "\n".join(wrong) or f"{self.rule}: both sides agree on {len(self.cases)} kinds of input"


def check_rule(
    rule: Rule,
    *,
    dtypes: Sequence[torch.dtype] = (torch.float32, torch.bfloat16),
    examples: Sequence[Mapping[str, Any]] = (),
    device: str = "cpu",
    grads: bool | None = None,
) -> RuleCheck:
    """Run both sides of ``rule`` on random inputs of several shapes and of ``dtypes``, forward and backward.

    ``after`` may be at most twice as far from ``before`` in double precision as ``before`` itself is, over several
    draws; so may the gradients, unless the rule is ``inference_only`` or ``grads`` is False. ``examples`` are further
    inputs, by parameter name; give some where random numbers will not do (indices). What the rule's ``where`` refuses,
    and what ``before`` raises on, is skipped. Raises ``RuleFailed`` naming the inputs on which the sides differ, and
    where no input could be tried; ``BadArgument`` for what is no rule, and for a ``before`` that is no pattern.
    """
    if not isinstance(rule, Rule):
        raise BadArgument(f"check_rule was given a {type(rule).__name__}", remedy="pass what lamina.extend.rule made")
    if isinstance(dtypes, (str, torch.dtype)) or not all(isinstance(one, torch.dtype) for one in dtypes):
        raise BadArgument(f"the dtypes of check_rule are {dtypes!r}", remedy="pass some, such as (torch.float32,)")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # no such device; torch was built without it
        what = f"the device of check_rule is {device!r}: {str(error).splitlines()[0]}"
        raise BadArgument(what, remedy='pass one that this machine has, such as "cpu"') from None
    differentiate = not rule.inference_only if grads is None else grads
    cases: list[RuleCase] = []
    skipped: list[RuleCase] = []
    seen: set[str] = set()
    for draw in (*_draws(rule, dtypes, device), *(_repeated(example) for example in examples)):
        first = draw(torch.Generator().manual_seed(0))
        described = _described(first)
        if described in seen:
            continue
        seen.add(described)
        why = _inapplicable(rule, first)
        if why:
            skipped.append(RuleCase(described, why))
            continue
        cases.append(RuleCase(described, _complaint(rule, draw, differentiate)))
    found = RuleCheck(rule.name, tuple(cases), tuple(skipped))
    if not cases:
        reasons = "; ".join(f"{case.inputs}: {case.complaint}" for case in skipped[:3])
        raise RuleFailed(
            f"rule {rule.name!r} could be tried on no input: {reasons}",
            where=rule.place,
            remedy="name sizes that belong together with tensor(...), or give examples=",
        )
    if not found.ok:
        wrong, *others = [case for case in cases if case.complaint]
        more = f"\nand on {len(others)} more of {len(cases)} kinds of input" if others else ""
        raise RuleFailed(
            f"the two sides of rule {rule.name!r} differ:\n{wrong.inputs}: {wrong.complaint}{more}",
            where=rule.place,
            remedy="correct one of the sides",
        )
    return found


Draw = Callable[[torch.Generator], dict[str, Any]]


def _draws(rule: Rule, dtypes: Sequence[torch.dtype], device: str) -> Iterator[Draw]:
    for rank, sizes, scalar in _SHAPES:
        for dtype in dtypes:
            shapes = _shapes(rule, sizes, rank)
            if shapes is not None:
                for dimensions in _dimensions(rule, shapes):
                    yield _random(rule, shapes, dimensions, dtype, scalar, device)


def _dimensions(rule: Rule, shapes: Mapping[str, tuple[int, ...]]) -> list[dict[str, int]]:
    """For wildcards that stand for dimensions the last and the first ones, in this order."""
    names = [name for name, wildcard in rule.parameters if isinstance(wildcard, DimensionWildcard)]
    if not names:
        return [{}]
    rank = max(map(len, shapes.values()))
    orders = (range(-1, -1 - rank, -1), range(-rank, 0))
    return [dict(zip(names, order, strict=False)) for order in orders if rank >= len(names)]


def _shapes(rule: Rule, sizes: Sequence[int], rank: int) -> dict[str, tuple[int, ...]] | None:
    """A shape for each tensor; None if one must have more dimensions than ``rank``."""
    known: dict[str | int, int] = {}
    longest: dict[str, int] = {}
    for _, wildcard in rule.parameters:
        if isinstance(wildcard, TensorWildcard):
            longest[wildcard.leading] = max(longest.get(wildcard.leading, 0), len(wildcard.sizes))

    def size(name: str | int) -> int:
        if isinstance(name, int) and name >= 0:
            return name
        return known.setdefault(name, sizes[len(known) % len(sizes)])

    found: dict[str, tuple[int, ...]] = {}
    for name, wildcard in rule.parameters:
        if not isinstance(wildcard, TensorWildcard):
            continue
        named = wildcard.sizes
        if wildcard.leading and rank < len(named):
            return None
        leading: tuple[str | int, ...] = ()
        if wildcard.leading == "...":
            leading = tuple(range(-rank, -len(named)))  # numbered from the last, and so shared among tensors
        elif wildcard.leading:
            leading = tuple(f"{wildcard.leading}{i}" for i in range(rank - longest[wildcard.leading]))
        found[name] = tuple(size(s) for s in (*leading, *named))
    return found


def _random(
    rule: Rule,
    shapes: Mapping[str, tuple[int, ...]],
    dimensions: Mapping[str, int],
    dtype: torch.dtype,
    scalar: float,
    device: str,
) -> Draw:
    def draw(generator: torch.Generator) -> dict[str, Any]:
        values: dict[str, Any] = dict(dimensions)
        for name, wildcard in rule.parameters:
            if isinstance(wildcard, ScalarWildcard):
                whole = type(wildcard.example) is int
                values[name] = wildcard.example if whole else scalar
            if not isinstance(wildcard, TensorWildcard):
                continue
            chosen = dtype if not wildcard.dtypes or dtype in wildcard.dtypes else wildcard.dtypes[0]
            values[name] = _tensor(shapes[name], chosen, generator).to(device)
        return values

    return draw


def _tensor(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) > 0.4
    if not dtype.is_floating_point and not dtype.is_complex:
        return torch.randint(0, 4, shape, generator=generator).to(dtype)
    wide = torch.complex64 if dtype.is_complex else torch.float32
    return torch.randn(shape, generator=generator, dtype=wide).to(dtype)


def _repeated(example: Mapping[str, Any]) -> Draw:
    return lambda generator: dict(example)


def _described(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_text(value)}" for name, value in values.items())


def _text(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return repr(value)


def _inapplicable(rule: Rule, values: Mapping[str, Any]) -> str:
    """Why the rule does not apply to these inputs; "" if it does."""
    try:
        with torch.no_grad():
            given = {name: v.clone() if isinstance(v, torch.Tensor) else v for name, v in values.items()}
            results = rule.before(**given)
    except Exception as error:
        return f"before raises {type(error).__name__}: {error}"
    _check_pattern(rule, values, given, results if isinstance(results, (tuple, list)) else (results,))
    if rule.where is None:
        return ""
    match = Match(rule, values, {}, (), (), training=False)
    try:
        return "" if rule.where(match) else "where(match) is False"
    except KeyError:  # it asks about nodes, of which there are none here
        return ""
    except Exception as error:
        return f"where(match) raises {type(error).__name__}: {error}"


def _check_pattern(rule: Rule, values: Mapping[str, Any], given: Mapping[str, Any], results: Sequence[Any]) -> None:
    """Raise ``BadArgument`` for a left side that is found nowhere: it writes, or returns what it was given."""
    for name, value in values.items():
        if isinstance(value, torch.Tensor) and version_of(given[name]):  # a clone's is 0
            raise BadArgument(
                f"rule {rule.name!r}: before writes to {name}",
                where=rule.place,
                remedy="use operations that return new tensors",
            )
        if any(result is given[name] for result in results):
            raise BadArgument(
                f"rule {rule.name!r}: before returns {name}, which it did not compute",
                where=rule.place,
                remedy="compute each result from the parameters",
            )


def _complaint(rule: Rule, draw: Draw, grads: bool) -> str:
    taken = set(inspect.signature(rule.after).parameters)

    def before(values: Mapping[str, Any]) -> Any:
        return rule.before(**values)

    def after(values: Mapping[str, Any]) -> Any:
        return rule.after(**{name: value for name, value in values.items() if name in taken})

    def arguments() -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
        generator = torch.Generator().manual_seed(1)
        for _ in range(_MOST_DRAWS):
            values = draw(generator)
            for value in values.values():
                if isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex()):
                    value.requires_grad_(grads)
            yield (values,), {}

    found = compare_draws(before, after, arguments(), grads=grads, strides=False)
    # What compares two runs of a program calls them eager and compiled: here they are the sides.
    return "" if found.ok else str(found).replace("compiled", "after").replace("eager", "before")
