"""Programs that share steps are printed as each would be alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import lamina
from lamina.ir.loops_print import print_program
from lamina.ir.step_texts import StepTexts
from lamina.report import recording


def program(x: torch.Tensor, i0: torch.Tensor) -> torch.Tensor:
    y = torch.softmax(x @ i0, -1) * x.sum(-1, keepdim=True)
    return torch.cat([torch.nn.functional.layer_norm(y, (y.shape[-1],)).tanh(), y.cumsum(-1)], -1).sum(0)


@pytest.mark.parametrize("dynamic", [False, True])
def test_steps_of_fusion_print_alike_together_and_alone(
    dynamic: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "_waiting", recording._Waiting())
    torch.compiler.reset()
    options = {"report": str(tmp_path / "out.html"), "compare_eager": "off", "progress": False}
    compiled = lamina.compile(program, dynamic=dynamic, options=options)
    x, w = torch.randn(4, 5, requires_grad=True), torch.randn(5, 7, requires_grad=True)
    compiled(x, w).sum().backward()
    shared = 0
    for steps in compiled.record.fusions.values():
        texts = StepTexts(steps[0][1].sources)
        seen: set[int] = set()
        for _, found in steps:
            assert print_program(found, texts) == print_program(found)
            shared += sum(id(step) in seen for step in found.steps)
            seen.update(map(id, found.steps))
    assert shared
