from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from lamina.base.target import nvidia
from lamina.codegen.origins import triton_with_origins
from lamina.codegen.triton.emit import emit
from lamina.codegen.triton.source import TritonSource
from lamina.ir.index import as_expr
from lamina.report.gpu_assembly import add_gpu_assembly, ptx_listing, sass_listing
from lamina.report.kernels import add_kernel
from lamina.report.machine import cpu_needs, gpu_needs
from lamina.report.texts import Texts
from lamina.schedule.plan import make_plan
from tests.report.programs import trained


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_instructions_of_a_gpu_lead_to_statements_of_their_kernel() -> None:
    target, texts = nvidia(), Texts()
    fused = next(stage.value for stage in trained().stages if stage.name == "fuse")
    plan = make_plan(fused, target)
    kernels = [kernel for kernel in plan.kernels if kernel.name.startswith(("gelu", "native_layer_norm"))][:2]
    sources = triton_with_origins({kernel.name: emit(kernel, target) for kernel in kernels}, plan)
    found = {}
    for kernel in kernels:
        key = f"kernel:{kernel.name}"
        found[key] = add_kernel(texts, key, kernel.name, "python", sources[kernel.name].text, kernel)
    made = add_gpu_assembly(texts, [(f"kernel:{name}", source) for name, source in sources.items()])
    assert made.failed == {}
    assert len(texts.of_level("ptx")) == len(texts.of_level("assembly")) == len(kernels)
    for needs in made.needs.values():
        assert 8 <= (needs.registers or 0) <= 255
        assert needs.spills == needs.local == 0
        assert needs.shared is not None
    for text in [*texts.of_level("ptx"), *texts.of_level("assembly")]:
        key = text.key.replace(f"{text.level}:", "kernel:")
        lines = texts.by_key[key].lines
        reached = {line for ups in texts.links.upward(text.key).values() for upper, line in ups if upper == key}
        statements = [n for n in found[key].equations if "tl.load(" in lines[n - 1] or "tl.store(" in lines[n - 1]]
        assert statements
        assert set(statements) <= reached
        assert any(("LDG" if text.level == "assembly" else "ld.global") in line for line in text.lines)
        assert not any(".loc" in line or ".section" in line or "$L__tmp" in line for line in text.lines)


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_a_cubin_that_cannot_be_read_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "kernel.cubin").write_bytes(b"no object")
    monkeypatch.setattr("lamina.report.gpu_assembly._compiled", lambda units, folder: [(tmp_path, {})])
    texts = Texts()
    made = add_gpu_assembly(texts, [("kernel:k", None)])  # type: ignore[list-item]
    assert made.failed["kernel:k"].startswith("nvdisasm ended with ")
    assert not texts.by_key
    assert not made.needs


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_a_compiler_that_ends_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamina.report.gpu_assembly.triton_worker.__file__", "/nowhere/worker.py")
    source = TritonSource("k", "", (), (), (), 4, 1, (as_expr(1),) * 3)
    made = add_gpu_assembly(Texts(), [("kernel:k", source)])
    assert made.failed["kernel:k"].startswith("the compiler ended with 2: ")
    assert "/nowhere/worker.py" in made.failed["kernel:k"]


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


def test_ptx_has_its_lines_and_nothing_for_debuggers() -> None:
    output = [
        ".version 8.7",
        "\t.loc\t1 8 0                           // k.py:8:0",
        "$L__func_begin0:",
        "\tmov.u32 \t%r1, %ctaid.x;",
        "$L__tmp0:",
        "\t.loc\t2 70 12, function_name $L__info_string0, inlined_at 1 12 9 // math.py:70:12 @[ k.py:12:9 ]",
        "\tex2.approx.f32 \t%r2, %r1;            // fast",
        "$L__BB0_2:",
        '\t.file\t1 "lamina/k.py"',
        '\t.file\t2 "/x/triton_math.py"',
        "\t.section\t.debug_abbrev",
    ]
    lines, origins = ptx_listing(output, "k.py")
    assert lines == [".version 8.7", "    mov.u32 %r1, %ctaid.x;", "    ex2.approx.f32 %r2, %r1;", "$L__BB0_2:"]
    assert origins == [0, 8, 12, 0]


def test_what_machine_code_needs_is_counted() -> None:
    cpu = cpu_needs(
        [
            "   0:  vmovups ymm3,YMMWORD PTR [rdi+0x20]",
            "   8:  vmovaps YMMWORD PTR [rsp+0x40],ymm3",
            "  10:  vaddps zmm31,zmm3,zmm4",
            "  18:  mov    QWORD PTR [rsp+0x8],rax",
            "  20:  vmovaps ymm5,YMMWORD PTR [rbp-0x50]",
        ]
    )
    assert (cpu.registers, cpu.spills) == (4, 2)
    used = "  REG:34 STACK:16 SHARED:4 LOCAL:8 CONSTANT[0]:568"
    gpu = gpu_needs(
        ["  0000:  STL [R1], R4", "  0010:  LDG.E R4, [R8]", "  0020:  LDL R4, [R1]"], used, {"shared": 1024}
    )
    assert gpu.data() == {"registers": 34, "spills": 2, "shared": 1028, "local": 24}
    assert gpu_needs([], "", {}).data() == {"spills": 0}
