"""What a program's own ``__torch_function__``, of a mode or of a class of tensors, is shown."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from lamina.testing.fuzz import sample


class Seeing(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


class Shown(torch.Tensor):
    seen: ClassVar[list] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


def products(x):
    first, second = x.split(2)
    return first.reshape(-1) @ second.reshape(-1) + x.dim() + x.size(0)


def attributes(x):
    return x[:, 0] * x.shape[0] + x.ndim


def branches(x):
    return x * 2 if x.sum() > 0 else x.mean(0)


def views(x):
    y = x * 2
    print(end="")
    return y.view(-1) + 1


FUNCTIONS = (products, attributes, branches, views)


def modes_around_functions(compile):
    layers = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.ReLU())

    def layered(x):
        return F.dropout(layers(x), 0.0)

    for function in (*FUNCTIONS, layered):
        compiled = compile(function)
        for seed in range(2):
            with Seeing() as mode:
                given = compiled(sample(4, 4, seed=seed))
            yield given, mode.seen


def modes_within_functions(compile):
    mode = Seeing()

    def within(x):
        with mode:
            return torch.sin(x).reshape(-1) + x.shape[0] + x.numel()

    compiled = compile(within)
    for seed in range(2):
        yield compiled(sample(4, 4, seed=seed)), list(mode.seen)


def classes_of_tensors(compile):
    for function in FUNCTIONS:
        compiled = compile(function)
        compiled(sample(4, 4).as_subclass(Shown))  # while it compiles, AOTAutograd asks for more
        for seed in range(2):
            Shown.seen = []
            given = compiled(sample(4, 4, seed=seed).as_subclass(Shown))
            seen, Shown.seen = Shown.seen, []
            yield given.as_subclass(torch.Tensor), type(given).__name__, seen


class Named(torch.Tensor):
    pass


def results_are_given_a_class(compile):
    def last(x):
        return (x * 2).as_subclass(Named)

    def used(x):
        y = (x * 2).as_subclass(Named)
        return y.as_subclass(torch.Tensor), y + 1, type(y).__name__

    for function in (last, used):
        compiled = compile(function)
        for seed in range(2):
            yield compiled(sample(3, seed=seed)), type(compiled(sample(3))).__name__
