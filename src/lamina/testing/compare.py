"""Runs one program three ways, eager, compiled and in double precision, and compares all that it leaves behind."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lamina.testing.accuracy import FLOOR_ULPS, Error, error, judge, tensors
from lamina.testing.reference import copied, doubled, in_double

__all__ = ["Comparison", "TensorComparison", "compare"]


@dataclass(frozen=True, slots=True)
class TensorComparison:
    """One tensor of a comparison: errors relative to the reference's largest element, and what is wrong with it."""

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
    reference: Callable[..., Any] | None = None,
    strides: bool = True,
    floor: float = FLOOR_ULPS,
    seed: int = 0,
) -> Comparison:
    """Run ``eager``, ``compiled`` and a double-precision copy of ``eager`` on copies of the same arguments.

    With ``grads``, floating outputs are differentiated against random cotangents (a scalar against 1) and the gradients
    of arguments and parameters are compared too; without, all three run under ``torch.no_grad()``. Parameters, buffers
    and ``.grad`` of ``eager`` are as before afterwards, so ``compiled`` may share them. ``reference`` replaces the
    double-precision copy; it gets double-precision arguments. A program that raises must raise the same class compiled.
    """
    kwargs = dict(kwargs or {})
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
    exact_of = reference or (doubled(eager) if isinstance(eager, nn.Module) else eager)
    with in_double():
        exact = _run(exact_of, _module_of(exact_of), copied((tuple(args), kwargs), wide=True), grads, cotangents, seed)
    if exact.raised:
        raise exact.raised
    return _judged(plain.named, ours.named, exact.named, floor, strides)


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
                _backward(outputs, cotangents)
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


def _backward(outputs: list[Tensor], cotangents: list[Tensor]) -> None:
    """Differentiate the outputs; the first run draws the cotangents, the later ones use the same."""
    differentiable = [t for t in outputs if t.requires_grad]
    if not cotangents:
        generator = torch.Generator().manual_seed(1234)
        for t in differentiable:
            wide = torch.complex128 if t.is_complex() else torch.float64
            drawn = torch.randn(t.shape, dtype=wide, generator=generator) if t.dim() else torch.ones((), dtype=wide)
            cotangents.append(drawn.to(t.dtype).to(t.device))
    pairs = list(zip(differentiable, cotangents, strict=False))
    if pairs:
        torch.autograd.backward([t for t, _ in pairs], [c.to(t.dtype) for t, c in pairs])


def _judged(
    eager: dict[str, Tensor], ours: dict[str, Tensor], exact: dict[str, Tensor], floor: float, strides: bool
) -> Comparison:
    if eager.keys() != ours.keys():
        missing, extra = sorted(eager.keys() - ours.keys()), sorted(ours.keys() - eager.keys())
        return Comparison((), (f"results: compiled lacks {missing} and has {extra} more",))
    # A tensor that eager changed by less than double precision sees, or the other way round, has no reference.
    exact = {name: exact.get(name, tensor) for name, tensor in eager.items()}
    theirs = {name: error(t, exact[name]) for name, t in eager.items() if exact[name].shape == t.shape}
    rows = []
    for name, tensor in eager.items():
        if exact[name].shape != tensor.shape or ours[name].shape != tensor.shape:
            complaint = f"shape is {tuple(ours[name].shape)}, eager's is {tuple(tensor.shape)}"
            rows.append(TensorComparison(name, Error(0.0, 0.0), Error(0.0, 0.0), complaint))
            continue
        usual = _typical([theirs[other] for other in theirs if other.split()[0] == name.split()[0]])
        is_output = name.startswith("output")
        complaint = judge(ours[name], tensor, exact[name], floor=floor, strides=strides and is_output, typical=usual)
        rows.append(TensorComparison(name, theirs[name], error(ours[name], exact[name]), complaint))
    return Comparison(tuple(rows), tuple(f"{row.name}: {row.complaint}" for row in rows if row.complaint))


def _typical(errors: list[Error]) -> Error:
    sound = [e for e in errors if not e.is_noise]
    if not sound:
        return Error(0.0, 0.0)
    return Error(statistics.median(e.largest for e in sound), statistics.median(e.rms for e in sound))
