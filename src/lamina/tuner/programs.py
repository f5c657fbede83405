"""What is verified and timed: a call of the model, or a training step of it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lamina.base.reference import copied
from lamina.errors import BadArgument
from lamina.tuner.attributes import Attributes, changed_containers
from lamina.tuner.objects import Unseen, has_iterators, opened, shown, tensors_in
from lamina.tuner.parts import tensors_of
from lamina.tuner.samples import Sample

__all__ = [
    "Arguments",
    "Built",
    "Subject",
    "arguments_of",
    "program",
    "timed_call",
    "unlike_the_sample",
    "whole_program",
]

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of a call."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is tuned. ``loss`` of the output is a number to differentiate; without it, inference. ``metric`` of a
    callable is a number that is better when larger.
    """

    model: Callable[..., Any]
    samples: tuple[Sample, ...]
    loss: Callable[[Any], Tensor] | None = None
    metric: Callable[[Callable[..., Any]], float] | None = None

    @property
    def training(self) -> bool:
        """Whether gradients are part of it."""
        return self.loss is not None


@dataclass(frozen=True, slots=True)
class Built:
    """A candidate that can be called. ``owner`` holds its parameters, where it has its own, else None."""

    call: Callable[..., Any]
    owner: nn.Module | None = None


def program(call: Callable[..., Any], loss: Callable[[Any], Tensor] | None) -> Callable[..., Any]:
    """What one call gives: the outputs, objects opened up, and in training the loss, to be differentiated."""

    def outputs(*args: Any, **kwargs: Any) -> Any:
        return shown(call(*args, **kwargs))

    def step(*args: Any, **kwargs: Any) -> Any:
        assert loss is not None
        output = call(*args, **kwargs)
        return {"output": shown(_detached(output)), "loss": _loss(loss, output)}

    return outputs if loss is None else step


def whole_program(
    call: Callable[..., Any], loss: Callable[[Any], Tensor] | None, model: Callable[..., Any]
) -> Callable[..., Any]:
    """What one call shows: what ``program`` gives, with attributes of ``model`` that it sets, and lists and mappings of
    the arguments that it changes, if there are such; the attributes are afterwards what they were.
    """
    inner = program(call, loss)

    def run(*args: Any, **kwargs: Any) -> Any:
        attributes, before = Attributes(model), opened([args, kwargs])
        with attributes.kept():
            output = inner(*args, **kwargs)
            left = {}
            if changed := attributes.changed():
                left["attributes"] = opened(_detached(changed))
            if changed_containers(before, after := opened([args, kwargs])):
                left["arguments"] = _detached(after)
        return {"output": output, **left} if left else output

    return run


def _loss(loss: Callable[[Any], Tensor], output: Any) -> Tensor:
    found: Any = loss(output)
    if not isinstance(found, Tensor) or found.numel() != 1:
        what = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise BadArgument(
            f"the loss of an output is {what}", remedy="give a function that returns one number, a tensor"
        )
    return found


def _detached(value: Any) -> Any:
    """The output as values only: gradients flow through the loss."""
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, Iterator):
        raise Unseen("an iterator, which the loss takes")
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_detached, value))
    if isinstance(value, (tuple, list)):
        return type(value)(map(_detached, value))
    if isinstance(value, Mapping):
        return {key: _detached(item) for key, item in value.items()}
    try:
        return copy.copy(value)
    except TypeError:  # which ``shown`` tells of
        return value


def arguments_of(subject: Subject) -> Arguments:
    """Fresh arguments of the call that is timed, the first sample's."""
    sample = subject.samples[0]
    found: Arguments = copied((sample.args, dict(sample.kwargs)))
    return found


def unlike_the_sample(given: Arguments, subject: Subject) -> bool:
    """Whether arguments that ``arguments_of`` gave have had tensors written to, added or taken away since."""
    now, first = (list(tensors_in(arguments)) for arguments in (given, arguments_of(subject)))
    if len(now) != len(first):
        return True
    return any(a.layout is torch.strided and not _equal(a, b) for a, b in zip(now, first, strict=True))


def _equal(one: Tensor, other: Tensor) -> bool:
    try:
        return torch.equal(one, other) or bool(torch.isclose(one.detach(), other, 0.0, 0.0, equal_nan=True).all())
    except RuntimeError:  # of another shape, or of a dtype that is not compared
        return one.shape == other.shape


def timed_call(
    call: Callable[..., Any], subject: Subject, owner: Callable[..., Any], given: Arguments | None = None
) -> Callable[[], Any]:
    """A call of the first sample, or a training step: forward, loss and backward; what ``owner`` holds has no gradients
    before it. ``given``: the arguments themselves, where calls that are compared are to read the same memory.
    """
    args, kwargs = arguments_of(subject) if given is None else given
    loss = subject.loss
    if loss is None:
        lazy: bool | None = None  # whether calls leave work to iterators

        def infer() -> Any:
            nonlocal lazy
            with torch.no_grad():
                output = call(*args, **kwargs)
                if lazy is False:
                    return output
                output = shown(output)
                lazy = has_iterators(output)
                return output

        return infer
    parameters = tensors_of(owner)

    def train() -> Any:
        for parameter in parameters:
            parameter.grad = None
        torch.autograd.backward(_loss(loss, call(*args, **kwargs)))

    return train
