"""Candidates as callables: what each kind of recipe does to a model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from lamina.backends.adapters.optional import check_installed, optional
from lamina.base.reference import mapped
from lamina.base.user_warnings import warn_user
from lamina.compile import compile
from lamina.errors import BadArgument
from lamina.programs import named_object
from lamina.tuner.parts import modules_in, replaced, tensors_of
from lamina.tuner.programs import Built
from lamina.tuner.torch_private import slots_of, stamp_of, with_forward, without_hooks
from lamina.tuner.values import Candidate, parts_in

__all__ = ["DTYPES", "KINDS", "build"]

Model = Callable[..., Any]

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def build(candidate: Candidate, model: Model) -> Built:
    """Make a candidate of ``model``, which may be shared with it.

    Raises ``BadArgument`` for a recipe that is unknown or needs what is not installed, and whatever the backend raises.
    """
    builder = _BUILDERS.get(candidate.kind)
    if builder is None:
        raise BadArgument(
            f"no kind of candidate is called {candidate.kind!r}", remedy=f"use one of {', '.join(_BUILDERS)}"
        )
    return builder(model, **dict(candidate.settings))


def _eager(model: Model) -> Built:
    return Built(model)


def _lamina(model: Model, backend: str = "lamina", **settings: Any) -> Built:
    return Built(compile(model, backend=backend, **settings))


def _torch_compile(model: Model, channels_last: bool = False, **settings: Any) -> Built:
    if not channels_last:
        return Built(torch.compile(model, **settings))
    return _of_copy(model, lambda own: _contiguous(torch.compile(_innermost(own), **settings)))


def _channels_last(model: Model, compiled: str = "", own_weights: bool = True) -> Built:
    """Weights of convolutions and what comes in with channels innermost; outputs are given back contiguous.

    Without ``own_weights`` those of the model stay as they are, and convolutions rearrange them in each call: gradients
    reach the model's parameters.
    """
    if not own_weights:
        return Built(_contiguous(_rearranged(_compiled(model, compiled))))
    return _of_copy(model, lambda own: _contiguous(_compiled(_innermost(own), compiled)))


def _rearranged(call: Model) -> Model:
    def other(leaf: Any) -> Any:
        images = isinstance(leaf, Tensor) and leaf.dim() == 4 and leaf.layout is torch.strided
        return leaf.contiguous(memory_format=torch.channels_last) if images else leaf

    def run(*args: Any, **kwargs: Any) -> Any:
        return call(*mapped(args, other), **mapped(kwargs, other))

    return run


def _innermost(own: nn.Module) -> nn.Module:
    found: nn.Module = own.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return found


def _of_copy(model: Model, make: Callable[[nn.Module], Model]) -> Built:
    """What ``make`` makes of a copy of the model, which it may change."""
    if not isinstance(model, nn.Module):
        raise BadArgument(f"a {type(model).__name__} has no weights to copy", remedy="pass the module")
    made = _Copied(model, make)
    return Built(made, made.owner)


class _Copied:
    """A callable that is made of a copy of a model, and anew at the first call after its weights have changed.

    Calls that record gradients of the weights run the model itself: those of the copy would reach nobody.
    """

    def __init__(self, model: nn.Module, make: Callable[[nn.Module], Model]) -> None:
        self.model, self.make = model, make
        self._told = False
        self._renew()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() and any(p.requires_grad for p in self.model.parameters()):
            if not self._told:
                self._told = True
                what = (
                    "a call that records gradients runs as eager: what was chosen computes with a copy of the weights"
                )
                warn_user(what, "call it within torch.no_grad()")
            return self.model(*args, **kwargs)
        if self.stamp != stamp_of(self.slots):
            self._renew()
        return self.made(*args, **kwargs)

    def _renew(self) -> None:
        self.slots = slots_of(self.model)
        self.stamp = stamp_of(self.slots)
        self.owner = copy.deepcopy(self.model)
        self.made = self.make(self.owner)


def _compiled(model: Model, by: str, **settings: Any) -> Model:
    """The model compiled by Lamina or torch.compile, or as it is."""
    if by == "lamina":
        made: Model = compile(model, **settings)
        return made
    return torch.compile(model, **settings) if by == "torch" else model


def _contiguous(call: Model) -> Model:
    def run(*args: Any, **kwargs: Any) -> Any:
        return mapped(call(*args, **kwargs), lambda t: t.contiguous() if isinstance(t, Tensor) else t)

    return run


def _autocast(model: Model, dtype: str, compiled: str = "", **settings: Any) -> Built:
    """The model under autocast; floating results are given back in the parameters' dtype."""
    first = next(iter(tensors_of(model)), None)
    given, device = (torch.float32, "cpu") if first is None else (first.dtype, first.device.type)
    call = _compiled(model, compiled, **settings)
    narrow = DTYPES[dtype] if dtype else torch.get_autocast_dtype(device)

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device, narrow):
            output = call(*args, **kwargs)
        return mapped(output, lambda t: t.to(given) if isinstance(t, Tensor) and t.dtype == narrow else t)

    return Built(run)


def _tf32(model: Model, compiled: str = "") -> Built:
    """Products and convolutions of float32 in TF32, during the call only."""
    call = _compiled(model, compiled)

    def run(*args: Any, **kwargs: Any) -> Any:
        before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        try:
            return call(*args, **kwargs)
        finally:
            torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before

    return Built(run)


def _torchao(model: Model, config: str, compiled: str = "") -> Built:
    """A copy with the weights of its linear layers quantised by TorchAO's configuration of that name."""
    check_installed("torchao", ("torchao",))
    quantization = optional("torchao.quantization")

    def quantised(own: nn.Module) -> Model:
        quantization.quantize_(own, getattr(quantization, config)())
        return _compiled(own, compiled)

    return _of_copy(model, quantised)


def _mix(model: Model, **settings: Any) -> Built:
    """The model with some of its modules as candidates of their own; hooks of the modules are called as before."""
    held = modules_in(model)
    new: dict[int, nn.Module] = {}
    own = False
    for paths, candidate in parts_in(Candidate("", "mix", settings)):
        for path in paths:
            if path not in held:
                raise BadArgument(f"the model holds no module {path!r}", remedy="tune this model")
            built = build(candidate, without_hooks(held[path]))
            own = own or built.owner is not None
            new[id(held[path])] = with_forward(built.owner or held[path], built.call, held[path])
    whole = replaced(model, new)
    return Built(whole, whole if own else None)


def _imported(model: Model, target: str, **settings: Any) -> Built:
    """A builder of the user's, ``module:function`` of the model; what it returns is called."""
    made = named_object(target)(model, **settings)
    return made if isinstance(made, Built) else Built(made)


_BUILDERS: Mapping[str, Callable[..., Built]] = MappingProxyType(
    {
        "eager": _eager,
        "lamina": _lamina,
        "torch.compile": _torch_compile,
        "channels-last": _channels_last,
        "autocast": _autocast,
        "tf32": _tf32,
        "torchao": _torchao,
        "import": _imported,
        "mix": _mix,
    }
)

KINDS = tuple(_BUILDERS)
"""What ``Candidate.kind`` may be."""
