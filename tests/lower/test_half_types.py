"""Results of half types: computed in float32 by kernels, rounded where a program compares them with what they hold."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import lamina

HALVES = [(torch.bfloat16, torch.float16), (torch.float16, torch.bfloat16)]

LOSSES: dict[str, Callable[[torch.Tensor, torch.dtype], torch.Tensor]] = {
    "at once": lambda y, other: F.mse_loss(y.float(), y.to(other).float()),
    "by a wider type": lambda y, other: F.mse_loss(y.float(), y.float().to(other)),
    "by views": lambda y, other: (y.double() - y[None].float().reshape(-1).to(other).double()).abs().max(),
    "detached": lambda y, other: F.huber_loss(y, y.detach().to(other)),
}


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("backend", ["lamina", "interp"])
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize(("made", "other"), HALVES, ids=["float16 of bfloat16", "bfloat16 of float16"])
def test_what_another_half_type_does_not_hold_is_asked_of_the_rounded_value(
    made: torch.dtype, other: torch.dtype, loss: Callable[[torch.Tensor, torch.dtype], torch.Tensor], backend: str
) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return loss(x.exp(), other)

    x = torch.linspace(-4, 4, 40).to(made)
    torch.testing.assert_close(lamina.compile(f, backend=backend)(x), f(x))


def test_results_that_are_not_cast_so_are_not_rounded() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.exp().float().sin().bfloat16().float() * 2

    compiled = lamina.compile(f, backend="interp")
    compiled(torch.linspace(-4, 4, 40).bfloat16())
    program = next(str(stage.value) for stage in compiled.record.stages if stage.name == "lower")
    assert program.count("maximum") == 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_float_of_an_integer_without_its_sign_reaches_its_region(dtype: str) -> None:
    """``abs(k)`` is no index expression: a region is given it, for what is computed with the float too."""

    def f(x: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sin() * float(abs(k)), F.pad(x, (abs(k), 1)) / (abs(k) + 0.5)

    compiled = lamina.compile(f, backend="interp", options={"strict": True, "numerics": "eager"})
    x = torch.linspace(-1, 1, 8, dtype=getattr(torch, dtype))
    for k in (1, -2, 3):
        torch.testing.assert_close(compiled(x, k), f(x, k))


ADDED: dict[str, Callable[..., torch.Tensor]] = {
    "scatter_add": lambda x, i, s: x.scatter_add(0, i, s),
    "scatter_reduce": lambda x, i, s: x.scatter_reduce(0, i, s, "sum"),
    "scatter_reduce of the source alone": lambda x, i, s: x.scatter_reduce(0, i, s, "sum", include_self=False),
    "index_add": lambda x, i, s: x.index_add(0, i[:, 0], s),
    "gradient of gather": lambda x, i, s: torch.autograd.grad(x.gather(0, i), x, s)[0],
    "gradient of index_select": lambda x, i, s: torch.autograd.grad(x.index_select(0, i[:, 0]), x, s)[0],
}


@pytest.mark.sampled(one_in=6)
@pytest.mark.parametrize("backend", ["lamina", "interp"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("function", ADDED.values(), ids=ADDED)
def test_sums_at_places_that_collide_are_rounded_once(
    function: Callable[..., torch.Tensor], dtype: torch.dtype, backend: str
) -> None:
    """As eager's are on CPUs: term by term in half precision they had five times the error."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 3, generator=generator).to(dtype).requires_grad_()
    index = torch.randint(0, 4, (400, 3), generator=generator)
    source = torch.randn(400, 3, generator=generator).to(dtype)
    ours, eager, exact = (
        one.detach().double()
        for one in (
            lamina.compile(function, backend=backend)(x, index, source),
            function(x, index, source),
            function(x.detach().double().requires_grad_(), index, source.double()),
        )
    )
    assert (ours - exact).abs().max() <= 1.1 * (eager - exact).abs().max()
