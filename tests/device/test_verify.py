"""verify="first" on a GPU: a wrong kernel is found and named, and right ones are kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import lamina
from lamina.backends import cuda_region
from lamina.base.region_check import RegionCheck
from tests.testing.wrong_kernels import wrong_code

FIRST = {"verify": "first", "strict": False}


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Wrong kernels are kept from other tests."""
    monkeypatch.setenv("LAMINA_CACHE_DIR", str(tmp_path / "cache"))
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def layered(x: Tensor, w: Tensor, state: Tensor) -> Tensor:
    y = torch.nn.functional.layer_norm(x, (x.shape[-1],)).sigmoid()
    state.mul_(0.5).add_(y.sum(0))
    return (y @ w).tanh().sum(-1)


def given(rows: int = 64, training: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator("cuda").manual_seed(rows)
    x, w = (torch.randn(n, 96, generator=generator, device="cuda") for n in (rows, 96))
    return x.requires_grad_(training), w.requires_grad_(training), torch.ones(96, device="cuda")


def found(compiled: object) -> list[RegionCheck]:
    return [s.value for s in compiled.record.stages if isinstance(s.value, RegionCheck)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_right_kernels_are_kept(dynamic: bool, mode: str) -> None:
    compiled = lamina.compile(layered, dynamic=dynamic, mode=mode, options={"verify": "first", "strict": True})
    for rows in (64, 64, 33):
        x, w, state = given(rows)
        mine, eager = compiled(x, w, state), layered(x, w, again := torch.ones_like(state))
        torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(state, again, rtol=1e-4, atol=1e-4)
        torch.autograd.grad(mine.sum(), (x, w))
    assert len(found(compiled)) >= 2
    assert all(check.ok for check in found(compiled))


def test_a_wrong_kernel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    names = wrong_code(monkeypatch, "sigmoid", "exp", cuda_region)
    compiled = lamina.compile(layered, options=FIRST)
    x, w, state = given()
    with pytest.warns(lamina.LaminaWarning, match="lamina runs a region as ATen calls"):
        mine = compiled(x, w, state)
    eager = layered(x, w, again := torch.ones_like(state))
    torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(state, again, rtol=1e-4, atol=1e-4)
    (check,) = [c for c in found(compiled) if not c.ok]
    assert check.step is not None
    assert check.step.kernel in names
    assert check.step.stage == "code generation"
    assert "test_verify.py" in check.step.place
    assert "triton" in Path(check.step.file).read_text(encoding="utf-8")


def test_the_later_of_two_kernels_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    names = wrong_code(monkeypatch, "tanh", "exp", cuda_region)
    report = lamina.verify(layered, *given(training=False))
    assert not report
    assert report.first is not None
    assert report.first.step is not None
    assert report.first.step.kernel in names


def test_a_program_is_verified() -> None:
    report = lamina.verify(layered, *given())
    assert report, str(report)
    assert len(report.regions) == 2
