"""Programs of recurrent layers, autocast and their like: they give what eager gives, few calls are interpreted."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import lamina
from tests.capture.own.layered_programs import PROGRAMS, found_of, same

EXPECTED = {
    "autocast_region": (6, 24),
    "autocast_by_a_variable": (9, 56),
    "autocast_off_within": (6, 32),
    "autocast_decorates": (6, 27),
    "autocast_kept_outside": (6, 28),
    "autocast_and_an_exception": (6, 38),
    "autocast_with_a_break": (6, 50),
    "autocast_left_open": (18, 20),
    "lstm": (7, 24),
    "lstm_of_two_layers_both_ways": (7, 24),
    "lstm_with_dropout": (7, 24),
    "lstm_projected": (7, 24),
    "gru": (7, 55),
    "gru_of_many_steps": (7, 20),
    "rnn_with_relu": (7, 55),
    "lstm_and_its_state": (9, 17),
    "lstm_and_linear": (7, 29),
    "lstm_under_autocast": (7, 18),
    "lstm_without_gradients": (7, 15),
    "cells": (3, 84),
    "data": (6, 21),
    "data_is_written_to": (6, 23),
    "nonzero": (11, 46),
    "function_that_saves": (7, 51),
    "function_that_saves_its_result": (5, 34),
    "function_with_a_number": (9, 58),
    "function_of_several": (6, 62),
    "function_that_passes_on": (5, 29),
    "function_that_gives_a_view": (5, 34),
    "function_that_writes": (18, 34),
    "function_that_counts": (5, 34),
    "function_under_autocast": (5, 24),
    "function_within_a_function": (5, 49),
    "function_with_a_decision": (5, 45),
    "function_with_random_numbers": (5, 44),
    "checkpoint_of_a_module": (5, 35),
    "checkpoint_with_dropout": (5, 35),
    "checkpoint_with_other_random_numbers": (18, 14),
    "checkpoint_with_a_norm": (18, 14),
    "checkpoint_reentrant": (18, 14),
    "checkpoint_of_a_function": (6, 82),
    "checkpoint_that_counts": (18, 5),
    "checkpoint_that_counts_here": (18, 5),
    "checkpoint_with_a_decision": (18, 5),
    "checkpoint_given_up_within_contexts": (18, 13),
    "checkpoint_given_up_at_a_device": (18, 5),
    "checkpoint_of_layers": (7, 121),
    "checkpoint_under_autocast": (6, 27),
    "training_of_an_lstm": (4, 22),
    "training_with_autocast_and_checkpoints": (4, 23),
    "training_with_a_function": (10, 30),
}
"""For each program: calls that are interpreted, at most, and calls of torch's in graphs, at least."""


def test_what_is_checkpointed_is_computed_again_in_the_backward() -> None:
    """Fewer bytes are saved; gradients are eager's."""
    saved = []
    for asked in (False, True):
        torch.manual_seed(0)
        layers = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.GELU()) for _ in range(3))

        def function(x, layers=layers, asked=asked):
            for layer in layers:
                x = (checkpoint(layer, x, use_reentrant=False) if asked else layer(x)).unflatten(-1, (8, 8)).sum(-1)
            return x.square().mean()

        call = lamina.compile(function, options={"capture": "own", "compare_eager": "off"})
        x, found = torch.linspace(-1, 1, 256).view(32, 8), []
        for one in (function, call):
            result = one(x)
            if one is call:
                saved.append(_saved_bytes(result))
            found.append(torch.autograd.grad(result, [*layers.parameters()]))
        torch.testing.assert_close(*found)
    assert saved[1] < saved[0] / 2


def _saved_bytes(result: torch.Tensor) -> int:
    memory, waiting, seen = dict[int, int](), [result.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            for tensor in getattr(node, "saved_tensors", ()):
                if tensor is not None:
                    memory[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            waiting.extend(one for one, _ in node.next_functions)
    return sum(memory.values())


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_calls_give_what_eager_gives_and_few_are_interpreted(name) -> None:
    eager, found = found_of(PROGRAMS[name], False), found_of(PROGRAMS[name], True)
    for (at, expected), (_, got) in zip(eager.outcomes, found.outcomes, strict=True):
        assert same(got, expected, found.rounding), at
    most, least = EXPECTED[name]
    assert len(found.interpreted) <= most, (found.interpreted, found.why)
    assert found.in_graphs >= least


class _Named(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def, override]
        ctx.called = ctx.name()
        return x * len(ctx.called)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def, override]
        return grad * len(ctx.called)


class _Seen(torch.autograd.Function):
    @staticmethod
    def forward(x):  # type: ignore[no-untyped-def, override]
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def, override]
        ctx.metadata["count"] = len(inputs)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def, override]
        return grad * (2 + ctx.metadata["count"])


@pytest.mark.parametrize("kind", [_Named, _Seen])
def test_a_forward_may_ask_its_node(kind: type[torch.autograd.Function]) -> None:
    """What only the node of a history has is there: autograd itself makes such calls."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return kind.apply(x.sin()).cos()  # type: ignore[no-any-return, no-untyped-call]

    compiled = lamina.compile(function, options={"capture": "own"})
    for seed in range(3):
        x = torch.randn(5, generator=torch.Generator().manual_seed(seed))
        mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        compiled(mine).sum().backward()
        function(theirs).sum().backward()
        torch.testing.assert_close(mine.grad, theirs.grad)
