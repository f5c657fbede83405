"""Runs one program three ways, eager, compiled and in double precision, and compares all that it leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lamina.base.accuracy import FLOOR_ULPS, RATIO, Error, error, judge, mismatch, tensors
from lamina.base.reference import copied, doubled, in_double
from lamina.testing.sample import Sample

__all__ = ["DRAWS", "Comparison", "TensorComparison", "compare", "compare_draws"]

DRAWS = 8
"""So many draws decide, unless one tensor is above twice eager's error: then so many more, as long as there are any."""

HOPELESS = 10.0
"""No number of further draws brings an error so many times eager's down to twice."""


@dataclass(frozen=True, slots=True)
class TensorComparison:
    """One tensor of a comparison: errors relative to the reference's largest element, and what is wrong with it.

    Over several draws the errors are means, relative to the mean largest element.
    """

    name: str
    eager: Error
    compiled: Error
    complaint: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Every output, gradient, mutated input and buffer of one program, compiled against eager."""

    tensors: tuple[TensorComparison, ...]
    complaints: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """True if every tensor is eager's kind of result and at most twice eager's distance from the reference."""
        return not self.complaints

    @property
    def max_error_eager(self) -> float:
        """Eager's largest error among the tensors that hold more than rounding noise."""
        return max((t.eager.largest for t in self.tensors if not t.eager.is_noise), default=0.0)

    @property
    def max_error_compiled(self) -> float:
        """The compiled program's largest error among the same tensors."""
        return max((t.compiled.largest for t in self.tensors if not t.eager.is_noise), default=0.0)

    @property
    def where(self) -> str:
        """Name of the tensor with the first complaint, or else with the compiled program's largest error."""
        if self.complaints:
            return self.complaints[0].split(":")[0]
        sound = [t for t in self.tensors if not t.eager.is_noise]
        return max(sound, key=lambda t: t.compiled.largest).name if sound else ""

    def __str__(self) -> str:
        """One line if all is well, else one line per complaint."""
        if self.complaints:
            return "\n".join(self.complaints)
        return (
            f"{len(self.tensors)} tensors compared: largest error {self.max_error_compiled:.2g} at {self.where}, "
            f"eager's {self.max_error_eager:.2g}"
        )


@dataclass(slots=True)
class _Run:
    """What one execution left behind: named tensors, or the exception."""

    named: dict[str, Tensor]
    raised: Exception | None = None


def compare(
    eager: Callable[..., Any],
    compiled: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    grads: bool = True,
    strides: bool = True,
    floor: float = FLOOR_ULPS,
    seed: int = 0,
) -> Comparison:
    """Run ``eager``, ``compiled`` and a double-precision copy of ``eager`` once, on copies of the same arguments.

    With ``grads``, floating outputs are differentiated against random cotangents (a scalar against 1) and the gradients
    of arguments and parameters are compared too; without, all three run under ``torch.no_grad()``. Parameters, buffers
    and ``.grad`` of ``eager`` are as before afterwards, so ``compiled`` may share them. A program that raises must
    raise the same class compiled. ``floor`` is what one draw forgives, as in ``judge``.
    """
    three = _three(eager, compiled, args, dict(kwargs or {}), grads, doubled, seed)
    if isinstance(three, Comparison):
        return three
    rows = [
        TensorComparison(
            name, error(theirs, exact), error(ours, exact), judge(ours, theirs, exact, floor=floor, strides=layout)
        )
        for name, theirs, ours, exact, layout in three.tensors(strides)
    ]
    return Comparison(tuple(rows), tuple(f"{row.name}: {row.complaint}" for row in rows if row.complaint))


def compare_draws(
    eager: Callable[..., Any],
    compiled: Callable[..., Any],
    draws: Iterable[tuple[Sequence[Any], Mapping[str, Any]]],
    *,
    grads: bool = True,
    strides: bool = True,
    widened: Callable[[nn.Module], nn.Module] = doubled,
) -> Comparison:
    """The same over several draws of arguments and weights, and then without forgiving anything.

    ``draws`` yields the arguments of one call after another, and may set the weights of ``eager`` anew before each.
    A tensor's error in one draw is its distance from the double-precision result, of the worst element and rms over
    the elements. Its means over the draws must be at most twice eager's, or twice those of the exact result rounded to
    the tensor's dtype if eager is nearer than that. There is no floor and no scale: a gradient that is zero but for
    rounding is judged like any other. A single draw could not be judged so, as eager may be near the exact value by
    luck; by ``DRAWS`` draws luck is rare, and where a tensor is above, more are taken until none is or they run out.
    Any other difference (dtype, shape, strides, NaN, integers, exceptions) counts at its first appearance.
    ``widened`` makes the double-precision copy of a module.
    """
    samples: dict[str, Sample] = {}
    for number, (args, kwargs) in enumerate(draws, 1):
        three = _three(eager, compiled, args, dict(kwargs), grads, widened, number)
        if isinstance(three, Comparison):
            return three
        for name, theirs, ours, exact, layout in three.tensors(strides):
            different = mismatch(ours, theirs, exact, strides=layout)
            if different:
                return Comparison((), (f"{name}: {different}",))
            samples.setdefault(name, Sample()).add(theirs, ours, exact)
        worst = max((sample.excess for sample in samples.values()), default=0.0)
        if number % DRAWS == 0 and not RATIO < worst < HOPELESS:
            break
    rows = tuple(TensorComparison(n, s.eager, s.compiled, s.complaint) for n, s in samples.items())
    return Comparison(rows, tuple(f"{row.name}: {row.complaint}" for row in rows if row.complaint))


@dataclass(slots=True)
class _Three:
    """What eager, the compiled program and the double-precision copy left behind, by the same names."""

    eager: dict[str, Tensor]
    ours: dict[str, Tensor]
    exact: dict[str, Tensor]

    def tensors(self, strides: bool) -> list[tuple[str, Tensor, Tensor, Tensor, bool]]:
        """Name, eager's tensor, ours, the exact one, and whether strides count."""
        # A tensor that eager changed by less than double precision sees, or the other way round, has no reference.
        return [
            (name, theirs, self.ours[name], self.exact.get(name, theirs), strides and name.startswith("output"))
            for name, theirs in self.eager.items()
        ]


def _three(
    eager: Callable[..., Any],
    compiled: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    grads: bool,
    widened: Callable[[nn.Module], nn.Module],
    seed: int,
) -> _Three | Comparison:
    """The three runs, or the comparison that is decided without looking at values."""
    base = _module_of(eager)
    saved = _state(base)
    cotangents: list[Tensor] = []
    plain = _run(eager, base, copied((tuple(args), kwargs)), grads, cotangents, seed)
    _restore(base, saved)
    own = _module_of(compiled)  # a module wrapper may have no truth value
    own = base if own is None else own
    ours = _run(compiled, own, copied((tuple(args), kwargs)), grads, cotangents, seed)
    _restore(base, saved)
    if plain.raised or ours.raised:
        return Comparison((), _raised_differently(plain.raised, ours.raised))
    exact_of = widened(eager) if isinstance(eager, nn.Module) else eager
    with in_double():
        exact = _run(exact_of, _module_of(exact_of), copied((tuple(args), kwargs), wide=True), grads, cotangents, seed)
    if exact.raised:
        raise exact.raised
    if plain.named.keys() != ours.named.keys():
        missing, extra = sorted(plain.named.keys() - ours.named.keys()), sorted(ours.named.keys() - plain.named.keys())
        return Comparison((), (f"results: compiled lacks {missing} and has {extra} more",))
    for name, tensor in exact.named.items():
        if name in plain.named and tensor.shape != plain.named[name].shape:
            raise ValueError(f"{name} has another shape in double precision: {tuple(tensor.shape)}")
    return _Three(plain.named, ours.named, exact.named)


def _raised_differently(eager: Exception | None, ours: Exception | None) -> tuple[str, ...]:
    if type(eager) is type(ours):
        return ()
    return (f"exception: compiled raised {ours!r}, eager raised {eager!r}",)


def _module_of(function: Callable[..., Any]) -> nn.Module | None:
    if isinstance(function, nn.Module):
        return function
    owner = getattr(function, "__self__", None)
    return owner if isinstance(owner, nn.Module) else None


def _named(module: nn.Module | None) -> dict[str, Tensor]:
    if module is None:
        return {}
    pairs = [*module.named_parameters(), *module.named_buffers()]
    return {name.replace("_orig_mod.", ""): tensor for name, tensor in pairs}


def _state(module: nn.Module | None) -> dict[str, tuple[Tensor, Tensor | None]]:
    return {name: (t.detach().clone(), t.grad) for name, t in _named(module).items()}


def _restore(module: nn.Module | None, saved: dict[str, tuple[Tensor, Tensor | None]]) -> None:
    with torch.no_grad():
        for name, tensor in _named(module).items():
            value, grad = saved[name]
            tensor.copy_(value)
            if tensor.is_leaf:
                tensor.grad = grad


def _run(
    function: Callable[..., Any],
    module: nn.Module | None,
    arguments: tuple[tuple[Any, ...], dict[str, Any]],
    grads: bool,
    cotangents: list[Tensor],
    seed: int,
) -> _Run:
    for tensor in _named(module).values():
        if tensor.is_leaf:
            tensor.grad = None
    args, kwargs = arguments
    before = [t.detach().clone() for t in tensors(arguments)]
    torch.manual_seed(seed)
    try:
        with torch.set_grad_enabled(grads):
            outputs = tensors(function(*args, **kwargs))
            if grads:
                _backward(outputs, cotangents, seed)
    except Exception as raised:
        return _Run({}, raised)
    named = {f"output {number}": t for number, t in enumerate(outputs)}
    for number, (tensor, old) in enumerate(zip(tensors(arguments), before, strict=True)):
        if tensor.is_leaf and tensor.grad is not None:
            named[f"gradient of argument {number}"] = tensor.grad
        if not torch.equal(tensor.detach().nan_to_num(), old.nan_to_num()):
            named[f"argument {number} afterwards"] = tensor
    parameters = set(dict(module.named_parameters())) if module is not None else set()
    for name, tensor in _named(module).items():
        if name not in parameters and f"_orig_mod.{name}" not in parameters:
            named[f"buffer {name}"] = tensor.detach().clone()
        if tensor.is_leaf and tensor.grad is not None:
            named[f"gradient of {name}"] = tensor.grad
    return _Run(named)


def _backward(outputs: list[Tensor], cotangents: list[Tensor], seed: int) -> None:
    """Differentiate the outputs; the first run draws the cotangents, the later ones use the same."""
    differentiable = [t for t in outputs if t.requires_grad]
    if not cotangents:
        generator = torch.Generator().manual_seed(1234 + seed)
        for t in differentiable:
            wide = torch.complex128 if t.is_complex() else torch.float64
            drawn = torch.randn(t.shape, dtype=wide, generator=generator) if t.dim() else torch.ones((), dtype=wide)
            cotangents.append(drawn.to(t.dtype).to(t.device))
    pairs = list(zip(differentiable, cotangents, strict=False))
    if pairs:
        torch.autograd.backward([t for t, _ in pairs], [c.to(t.dtype) for t, c in pairs])
