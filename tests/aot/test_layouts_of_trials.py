"""Results that eager lays out in another order than tracing: copied into it, so that the graph stays compiled."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import lamina

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "one axis": lambda x: torch.roll(x.sin(), 1, 2) * 2,
    "two axes": lambda x: torch.roll(x.exp(), (-1, 1), (3, 1)) + x,
    "twice": lambda x: torch.roll(torch.roll(x.sin(), 1, 2) * 2, 1, 3),
    "returned": lambda x: torch.roll(x, 3, 1),
    "read as rows": lambda x: torch.roll(x.sin(), 1, 2).permute(0, 2, 3, 1).contiguous().sum(-1),
    "all elements": lambda x: torch.roll(x.sin(), 1) * 2,
}


def _refused(compiled: Callable[..., object]) -> list[str]:
    record = compiled.record  # type: ignore[attr-defined]
    return [str(d.reason) for d in record.decisions() if "strides" in str(d.reason)]


@pytest.mark.by_dynamo("counts Dynamo's graphs, or asks what it leaves to eager")
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("size", [(3, 40, 33, 5), (2, 3, 4, 5, 6)])
def test_rolled_images_with_channels_last_are_compiled(name: str, size: tuple[int, ...]) -> None:
    if name == "read as rows" and len(size) == 5:
        size = size[1:]
    function, last = FUNCTIONS[name], torch.channels_last if len(size) == 4 else torch.channels_last_3d
    x = torch.randn(size).to(memory_format=last)
    torch.compiler.reset()
    compiled = lamina.compile(function)
    found, eager = compiled(x), function(x)
    assert not _refused(compiled)
    assert compiled.stats().graphs == 1
    assert found.stride() == eager.stride()
    assert found._base is None
    torch.testing.assert_close(found, eager)


@pytest.mark.by_dynamo("counts Dynamo's graphs, or asks what it leaves to eager")
@pytest.mark.filterwarnings("ignore::lamina.errors.LaminaWarning")
def test_a_gradient_of_such_a_result_is_eagers() -> None:
    x = torch.randn(3, 40, 33, 5).to(memory_format=torch.channels_last).requires_grad_()
    function = FUNCTIONS["one axis"]
    torch.compiler.reset()
    compiled = lamina.compile(function)
    found, eager = compiled(x), function(x)
    assert _refused(compiled)
    assert found.stride() == eager.stride()
    ours, theirs = (torch.autograd.grad(y, x, torch.ones_like(eager))[0] for y in (found, eager))
    assert ours.stride() == theirs.stride()
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("size", [(3, 1, 8, 5), (3, 4, 1, 5), (3, 4, 8, 1)])
def test_axes_of_one_element_leave_the_layout_to_eager_or_agree(size: tuple[int, ...]) -> None:
    x = torch.randn(size).to(memory_format=torch.channels_last)
    for function in FUNCTIONS.values():
        torch.compiler.reset()
        assert lamina.compile(function)(x).stride() == function(x).stride()
