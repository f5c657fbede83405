"""Run a program eagerly and compiled, and compare everything that the caller can see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.compilers import CompileFunction
from lamina.base.reference import copied, doubled, in_double
from lamina.testing import judge, mismatch, tensors

__all__ = ["Build", "Outcome", "agree", "cotangent", "observe", "raises_alike", "same"]

Build = Callable[[], tuple[Any, tuple[Any, ...]]]
"""A program: called with the seed set, it returns a callable (or module) and its arguments, fresh each time."""

SEED = 1234


@dataclass(frozen=True, slots=True)
class Outcome:
    """What running a program left behind: everything a caller can observe."""

    outputs: tuple[Tensor, ...]
    plain: tuple[Any, ...]
    inputs: tuple[Tensor, ...]
    state: tuple[tuple[str, Tensor], ...]
    gradients: tuple[tuple[str, Tensor | None], ...]
    aliases: frozenset[tuple[int, int]]
    identical: frozenset[tuple[int, int]]

    def named(self) -> list[tuple[str, Tensor]]:
        """Every tensor with a name that says what it is."""
        return [
            *((f"output {i}", t) for i, t in enumerate(self.outputs)),
            *((f"input {i} afterwards", t) for i, t in enumerate(self.inputs)),
            *((f"state {name}", t) for name, t in self.state),
            *((f"gradient of {name}", t) for name, t in self.gradients if t is not None),
        ]


def cotangent(output: Tensor, number: int) -> Tensor:
    """The gradient given to output ``number``: eighths from -1 to 1, exact in every floating type."""
    generator = torch.Generator().manual_seed(number)
    eighths = torch.randint(-8, 9, output.shape, generator=generator, device="cpu")
    return (eighths / 8).to(output.dtype).to(output.device)


def observe(model: Any, args: tuple[Any, ...], function: Any, *, backward: bool = True, calls: int = 1) -> Outcome:
    """Call ``function`` (``model`` or its compiled form) ``calls`` times, with backward each time, and look."""
    given = tensors(args)
    for _ in range(calls):
        result = function(*args)
        outputs = tensors(result)
        differentiable = [(i, t) for i, t in enumerate(outputs) if t.requires_grad]
        if backward and differentiable:
            torch.autograd.backward([t for _, t in differentiable], [cotangent(t, i) for i, t in differentiable])
    everything = [*given, *outputs]
    module = model if isinstance(model, nn.Module) else None
    parameters = list(module.named_parameters()) if module else []
    leaves = [(f"argument {i}", t) for i, t in enumerate(given) if t.requires_grad and t.is_leaf] + parameters
    return Outcome(
        tuple(outputs),
        _plain(result),
        tuple(t.detach().clone() for t in given),
        tuple((name, t.detach().clone()) for name, t in module.state_dict().items()) if module else (),
        tuple((name, t.grad) for name, t in leaves),
        frozenset(pair for pair in combinations(range(len(everything)), 2) if _share(*(everything[i] for i in pair))),
        frozenset((i, j) for i, o in enumerate(outputs) for j, g in enumerate(given) if o is g),
    )


def agree(
    compile: CompileFunction,
    build: Build,
    *,
    backward: bool = True,
    calls: int = 1,
    exact: bool = True,
    strides: bool = True,
    floor: float = 4.0,
    **options: Any,
) -> None:
    """Check that the compiled program does what the eager one does.

    Values, gradients, mutated inputs, module state, dtypes, shapes, strides, which outputs share storage with which
    inputs, and which outputs are input objects. With ``exact`` an fp64 run judges the rounding: at most twice eager's
    error, or ``floor`` units in the last place; without it, eager itself is the reference.
    """
    options.setdefault("dynamic", False)
    model, args = _built(build)
    eager = observe(model, args, model, backward=backward, calls=calls)
    model, args = _built(build)
    ours = observe(model, args, compile(model, **options), backward=backward, calls=calls)
    reference = eager
    if exact:
        model, args = _built(build)
        wide = doubled(model) if isinstance(model, nn.Module) else model
        with in_double():
            reference = observe(wide, copied(args, wide=True), wide, backward=backward, calls=calls)
    assert ours.plain == eager.plain, f"results that are no tensors: {ours.plain}, eager's are {eager.plain}"
    names = [name for name, _ in eager.named()]
    assert [name for name, _ in ours.named()] == names, "different results, or gradients that exist in one run only"
    complaints = [
        f"{name}: {complaint}"
        for (name, mine), (_, theirs), (_, true) in zip(ours.named(), eager.named(), reference.named(), strict=True)
        if (complaint := judge(mine, theirs, true, floor=floor, strides=strides and name.startswith("output")))
    ]
    assert not complaints, "\n".join(complaints)
    assert ours.aliases == eager.aliases, f"storage shared by {set(ours.aliases)}, in eager by {set(eager.aliases)}"
    assert ours.identical == eager.identical, "outputs that are input objects differ"


def raises_alike(
    compile: CompileFunction,
    build: Build,
    *,
    backward: bool = False,
    accepted: type[Exception] | None = None,
    **options: Any,
) -> None:
    """Check that the compiled program raises the class of exception that the eager one raises, or ``accepted``."""
    options.setdefault("dynamic", False)
    model, args = _built(build)
    theirs = _raised(lambda: observe(model, args, model, backward=backward))
    assert theirs is not None, "eager raises nothing: this test tests nothing"
    again, other = _built(build)
    ours = _raised(lambda: observe(again, other, compile(again, **options), backward=backward))
    assert ours is not None, f"eager raises {theirs!r}, the compiled program nothing"
    assert isinstance(ours, (type(theirs), accepted or type(theirs))), f"raised {ours!r}, eager {theirs!r}"


def same(ours: Any, eager: Any) -> None:
    """Check that two results are equal to the last bit, of one kind."""
    mine, theirs = tensors(ours), tensors(eager)
    assert len(mine) == len(theirs)
    for a, b in zip(mine, theirs, strict=True):
        complaint = mismatch(a, b)
        assert not complaint, complaint
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def _built(build: Build) -> tuple[Any, tuple[Any, ...]]:
    torch.manual_seed(SEED)
    model, args = build()
    torch.manual_seed(SEED + 1)
    return model, args


def _raised(call: Callable[[], Any]) -> Exception | None:
    try:
        call()
    except Exception as problem:
        return problem
    return None


def _plain(value: Any) -> tuple[Any, ...]:
    if isinstance(value, Tensor):
        return ("tensor",)
    if isinstance(value, dict):
        return ("dict", *((k, _plain(v)) for k, v in value.items()))
    if isinstance(value, (tuple, list)):
        return (type(value).__name__, *(_plain(v) for v in value))
    return (value,)


def _share(a: Tensor, b: Tensor) -> bool:
    if a.numel() == 0 or b.numel() == 0:
        return False
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
