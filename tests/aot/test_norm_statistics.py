"""Running statistics of a batch norm are written to without a rise of their version, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import lamina


def _versions(compile: Callable[[Any], Any]) -> list[Any]:
    """Versions after each call, and whether a backward through statistics that changed since is taken."""
    norm, x = nn.BatchNorm1d(3), torch.randn(4, 3, requires_grad=True)
    compiled, found = compile(norm), []
    compiled(x).sum().backward()
    found.append([buffer._version for buffer in norm.buffers()])
    with torch.no_grad():
        compiled(x)
    found.append([buffer._version for buffer in norm.buffers()])
    norm.eval()
    result = compiled(x)
    norm.train()
    compiled(x * 2)
    result.sum().backward()
    mean, variance = torch.zeros(3), torch.ones(3)

    def written_too(x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
        result = nn.functional.batch_norm(x, mean, variance, training=True)
        mean.mul_(2)
        return result

    compile(written_too)(x.detach(), mean, variance)
    found.append([mean._version, variance._version])
    return found


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("backend", ["kernels", "interp"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_versions_are_eagers(dynamic: bool | None, backend: str) -> None:
    torch._dynamo.reset()
    named: dict[str, Any] = {} if backend == "kernels" else {"backend": backend}
    assert _versions(lambda f: lamina.compile(f, dynamic=dynamic, **named)) == _versions(lambda f: f)


@pytest.mark.parametrize("capture", ["dynamo", "own"])
@pytest.mark.parametrize("shared", ["each other", "the input", "the weight", "the weight of torch's own function"])
def test_statistics_that_share_memory_with_another_operand_are_eagers(shared: str, capture: str) -> None:
    def program(x: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> Any:
        if shared == "each other":
            return nn.functional.batch_norm(x, one, one, training=True)
        if shared == "the input":
            return nn.functional.batch_norm(x, x[0], one, training=True)
        if shared == "the weight":
            return nn.functional.batch_norm(x, one, other, weight=one.view(3), training=True)
        return torch.batch_norm(x, one, other, one, other, True, 0.1, 1e-5, True)

    def found(function: Callable[..., Any]) -> list[torch.Tensor]:
        x, one, other = torch.arange(12.0).view(4, 3).sin(), torch.tensor([1.0, 2, 3]), torch.tensor([3.0, 5, 4])
        return [function(x, one, other), x, one, other]

    torch._dynamo.reset()
    compiled = lamina.compile(program, options={"capture": capture})
    for _ in range(2):
        torch.testing.assert_close(found(compiled), found(program))
