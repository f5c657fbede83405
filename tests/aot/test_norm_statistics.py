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
