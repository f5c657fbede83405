"""Hooks on saved tensors see what is computed within them, and nothing else, when the own front end captures."""

import pytest
import torch

import lamina


def run(compile, program, outer=None):
    packed: list[str] = []

    def hooks(name):
        return torch.autograd.graph.saved_tensors_hooks(
            lambda t: packed.append(name) or t.detach().half(), lambda t: t.float()
        )

    x = torch.linspace(-1, 1, 5, requires_grad=True)
    f = compile(lambda x: program(x, hooks, packed))
    seen = []
    for _ in range(2):
        if outer:
            with hooks(outer):
                found = f(x)
        else:
            found = f(x)
        found[0].sum().backward()
        seen.append((list(packed), found[1], x.grad.clone()))
        x.grad = None
        packed.clear()
    return seen


def within(x, hooks, packed):
    with hooks("inner"):
        y = x.exp() * x
    return y, len(packed)


def before_and_after(x, hooks, packed):
    y = x.sin() * x
    with hooks("inner"):
        z = y.exp() * x
    return z.cos() * y, len(packed)


def nested(x, hooks, packed):
    with hooks("first"):
        y = x.sin() * x
        with hooks("second"):
            z = y.exp() * x
        y = z.cos() * y
    return y * z, len(packed)


def raised(x, hooks, packed):
    y = x.sin() * x
    try:
        with hooks("inner"):
            y = y.exp() * x
            raise ValueError
    except ValueError:
        y = y.cos() * y
    return y, len(packed)


@pytest.mark.parametrize(
    ("program", "outer"), [(within, None), (within, "outer"), (before_and_after, None), (nested, None), (raised, None)]
)
def test_which_hooks_see_what(program, outer):
    wanted = run(lambda f: f, program, outer)
    found = run(lambda f: lamina.compile(f, options={"capture": "own"}), program, outer)
    for (packed, count, grad), (ours, our_count, our_grad) in zip(wanted, found, strict=True):
        assert [p for p in ours if p != "outer"] == [p for p in packed if p != "outer"]
        if outer is None:  # what a compiled region saves, and when, is its own
            assert our_count == count
        torch.testing.assert_close(our_grad, grad, rtol=1e-5, atol=1e-6)
