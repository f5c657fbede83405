from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from lamina.codegen.origins import triton_with_origins
from lamina.codegen.triton.emit import emit
from lamina.report.gpu_assembly import add_gpu_assembly, sass_listing
from lamina.report.kernels import add_kernel
from lamina.report.texts import Texts
from lamina.schedule.gpu_target import GpuTarget
from lamina.schedule.plan import make_plan
from tests.report.programs import trained


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_instructions_of_a_gpu_lead_to_statements_of_their_kernel() -> None:
    target, texts = GpuTarget(), Texts()
    fused = next(stage.value for stage in trained().stages if stage.name == "fuse")
    plan = make_plan(fused, target)
    kernels = [kernel for kernel in plan.kernels if kernel.name.startswith(("gelu", "native_layer_norm"))][:2]
    sources = triton_with_origins({kernel.name: emit(kernel, target) for kernel in kernels}, plan)
    found = {}
    for kernel in kernels:
        key = f"kernel:{kernel.name}"
        found[key] = add_kernel(texts, key, kernel.name, "python", sources[kernel.name].text, kernel)
    failed = add_gpu_assembly(texts, [(f"kernel:{name}", source) for name, source in sources.items()])
    assert failed == {}
    for text in texts.of_level("assembly"):
        key = text.key.replace("assembly:", "kernel:")
        lines = texts.by_key[key].lines
        reached = {line for ups in texts.links.upward(text.key).values() for upper, line in ups if upper == key}
        statements = [n for n in found[key].equations if "tl.load(" in lines[n - 1] or "tl.store(" in lines[n - 1]]
        assert statements
        assert set(statements) <= reached
        assert any("LDG" in line for line in text.lines)


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_a_cubin_that_cannot_be_read_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "kernel.cubin").write_bytes(b"no object")
    monkeypatch.setattr("lamina.report.gpu_assembly._compiled", lambda units, folder: [(tmp_path, "")])
    texts = Texts()
    failed = add_gpu_assembly(texts, [("kernel:k", None)])  # type: ignore[list-item]
    assert failed["kernel:k"].startswith("nvdisasm ended with ")
    assert not texts.by_key


def test_what_was_inlined_belongs_to_where_it_was() -> None:
    output = [
        "k:",
        '\t//## File "lamina/k.py", line 8',
        "        /*0000*/                   LDC R1, c[0x0][0x28] ;",
        '\t//## File "/x/triton_math.py", line 70 inlined at "lamina/k.py", line 12',
        "        /*0010*/              @!P0 LDG.E.128 R4, desc[UR4][R8.64] ;",
        ".L_x_0:",
    ]
    lines, origins = sass_listing(output, "k.py")
    assert lines == ["  0000:  LDC R1, c[0x0][0x28]", "  0010:  @!P0 LDG.E.128 R4, desc[UR4][R8.64]", ".L_x_0:"]
    assert origins == [8, 12, 0]
