"""Saved tensors and gradients on their way from AOTAutograd to a compiled backward."""

import weakref

import torch

from lamina.aot.saved import with_planned_strides


def test_a_tensor_that_the_backward_lets_go_is_freed() -> None:
    freed = []

    def compiled(args):
        saved = weakref.ref(args[-1])
        args.clear()
        freed.append(saved() is None)
        return ()

    run = with_planned_strides(compiled, [torch.empty(2, 3), torch.empty(4, 5)])
    run([torch.ones(2, 3), torch.ones(4, 5)])
    assert freed == [True]


def test_a_tensor_laid_out_otherwise_is_copied() -> None:
    seen = []

    def compiled(args):
        seen.extend(args)
        return ()

    given = torch.arange(6.0).view(2, 3)
    with_planned_strides(compiled, [torch.empty(3, 2).t()])([given])
    assert seen[0].stride() == (1, 2)
    assert torch.equal(seen[0], given)
