"""Who holds a tensor's memory."""

from __future__ import annotations

from sys import getrefcount

import numpy as np
import torch

from lamina.runtime import outputs
from lamina.runtime.torch_private import only_owner


def asked(args: list[torch.Tensor]) -> bool:
    (tensor,) = args
    args.clear()
    return only_owner(getrefcount(tensor), tensor)


def test_a_tensor_of_its_own() -> None:
    assert asked([torch.empty(8)])


def test_whatever_else_holds_the_memory() -> None:
    tensor = torch.empty(8)
    assert not asked([tensor])
    assert not asked([tensor.detach()])
    assert not asked([torch.empty(8)[2:]])
    tensor = torch.empty(8)
    storage, exported = tensor.untyped_storage(), tensor.numpy()
    given = [tensor]
    del tensor
    assert not asked(given)
    del storage
    assert exported.shape == (8,)


def test_memory_that_is_borrowed() -> None:
    assert not asked([torch.from_numpy(np.zeros(3))])


def test_a_tensor_that_a_graph_keeps() -> None:
    x = torch.ones(8, requires_grad=True)

    class Square(torch.autograd.Function):
        found: list[bool] = []  # noqa: RUF012

        @staticmethod
        def forward(ctx, x):  # type: ignore[no-untyped-def]
            ctx.save_for_backward(x.detach() * 2)
            return x.detach() ** 2

        @staticmethod
        def backward(ctx, gradient):  # type: ignore[no-untyped-def]
            saved = list(ctx.saved_tensors)
            ctx.maybe_clear_saved_tensors()
            Square.found.append(asked(saved))
            return gradient

    y = Square.apply(x).sum()
    y.backward(retain_graph=True)
    y.backward()
    assert Square.found == [False, True]


def asked_of_pool(args: list[torch.Tensor]) -> bool:
    (tensor,) = args
    args.clear()
    return outputs.only_owner(getrefcount(tensor), tensor)


def pooled() -> torch.Tensor:
    return outputs.empty_large((1 << 18,), (1,), torch.float32, 1 << 20)


def test_memory_of_the_pool() -> None:
    assert asked_of_pool([pooled()])
    assert asked_of_pool([torch.empty(8)])
    tensor = pooled()
    assert not asked_of_pool([tensor])
    assert not asked_of_pool([tensor.detach()])
    assert not asked_of_pool([torch.empty(8)[2:]])
    storage = tensor.untyped_storage()
    given = [tensor]
    del tensor
    assert not asked_of_pool(given)
    del storage
    kept = pooled()
    exported = kept.numpy()
    given = [kept]
    del kept
    assert not asked_of_pool(given)
    assert exported.shape == (1 << 18,)
    moved = pooled().resize_(1 << 19)
    given = [moved[: 1 << 18]]
    del moved
    assert not asked_of_pool(given)
