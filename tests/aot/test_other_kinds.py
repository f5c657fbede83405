"""Calls of which torch tells another type, rank, layout or memory without data than they give: all are noticed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.fx import Graph, Node
from torch.fx.node import map_aggregate

from lamina.aot.torch_private import is_torch_function
from lamina.aot.trial_calls import other_kind_in_eager
from lamina.base.torch_private import storage_of
from tests.lower.torch_private import FakeTensorMode, op_db

KNOWN = (
    "nn_functional_huber_loss",
    "nn_functional_soft_margin_loss",
    "nn_functional_binary_cross_entropy",
    "normal",
)
"""Those of which torch 2.13 tells another type, for operands of several types."""
TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.bool)
BY_NAME = {op.formatted_name: op for op in op_db}


def tensors(value: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    map_aggregate(value, lambda one: found.append(one) if isinstance(one, torch.Tensor) else None)
    return found


def changed(value: Any, change: Any) -> Any:
    return map_aggregate(value, lambda one: change(one) if isinstance(one, torch.Tensor) else one)


def mixed(given: Any, draw: random.Random) -> Any:
    """The arguments of a call with one floating-point operand behind the first in another type."""
    floats = [one for one in tensors(given) if one.is_floating_point()][1:]
    if not floats:
        return None
    picked = draw.choice(floats)
    dtype = draw.choice([one for one in TYPES[:4] if one != picked.dtype])
    other = picked.detach().to(dtype).requires_grad_(picked.requires_grad)
    return changed(given, lambda one: other if one is picked else one)


def looks(results: list[torch.Tensor], operands: list[torch.Tensor]) -> list[Any]:
    """What results are like, and whose memory they lie in."""
    memories = {storage_of(one): at for at, one in reversed([*enumerate(operands)])}
    found = []
    for at, one in enumerate(results):
        memory = memories.setdefault(storage_of(one), -1 - at)
        same = [one is operand for operand in operands]
        found.append((one.dtype, one.dim(), one.requires_grad, one.is_leaf, memory, same, one.is_conj(), one.is_neg()))
    return found


def calls(name: str, most: int) -> Iterator[tuple[Any, Any]]:
    """An operation with arguments: torch's samples in several types, and such with operands of different types."""
    op, draw = BY_NAME[name], random.Random(name)
    function = op.op if is_torch_function(op.op) else getattr(torch, op.name, None)
    if function is None:
        return  # a function of Python's own around torch's
    for dtype in TYPES:
        if dtype not in op.dtypes:
            continue
        samples = list(op.sample_inputs("cpu", dtype, requires_grad=dtype.is_floating_point and op.supports_autograd))
        for sample in draw.sample(samples, min(most, len(samples))):
            given = (sample.input, *sample.args), sample.kwargs
            yield function, given
            if (other := mixed(given, draw)) is not None:
                yield function, other


def told_otherwise(function: Any, given: Any) -> Node | None:
    """The call as a captured one where torch tells its results otherwise than it gives; None where it does not."""
    args, kwargs = given
    operands = tensors(given)
    try:
        results = tensors(function(*args, **kwargs))
    except Exception:
        return None  # what eager refuses is asked elsewhere
    plain = [one.detach() for one in operands]
    with FakeTensorMode() as mode:
        fakes = [
            mode.from_tensor(one).requires_grad_(own.requires_grad) for one, own in zip(plain, operands, strict=True)
        ]
        of = {id(own): fake for own, fake in zip(operands, fakes, strict=True)}
        fake_args, fake_kwargs = changed(given, lambda one: of[id(one)])
        try:
            traced = function(*fake_args, **fake_kwargs)
        except Exception:
            return None  # such a call is in no graph
    told = tensors(traced)
    strided = all(one.layout is torch.strided for one in (*results, *operands))
    if not strided or looks(told, fakes) == looks(results, operands):
        return None
    graph = Graph()
    nodes = {id(fake): graph.placeholder(f"x{at}") for at, fake in enumerate(fakes)}
    for fake in fakes:
        nodes[id(fake)].meta["example_value"] = fake
    fake_args, fake_kwargs = changed(given, lambda one: nodes[id(of[id(one)])])
    node = graph.call_function(function, fake_args, fake_kwargs)
    node.meta["example_value"] = traced
    return node


def check(name: str, most: int) -> int:
    """How many calls of an operation are told otherwise; fails for one that is not noticed."""
    found = 0
    for function, given in calls(name, most):
        node = told_otherwise(function, given)
        if node is not None:
            found += 1
            assert other_kind_in_eager(node, True), (name, given)
    return found


@pytest.mark.parametrize("name", KNOWN)
def test_known_calls_of_other_kinds_are_noticed(name):
    assert check(name, 12)


@pytest.mark.parametrize("part", range(2))
def test_a_sample_of_operations(part):
    names = random.Random(part).sample(sorted(BY_NAME), 20)
    for name in names:
        check(name, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_all_operations(name):
    check(name, 40)
