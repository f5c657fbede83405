"""Quotients and roots of float32 are exact, and a thread asks once for four of them whether they are in range."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lamina.base.target import nvidia
from lamina.ir.loops import Constant
from tests.codegen.test_nests import Body, dense
from tests.codegen.triton.harness import case

triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from tests.codegen.triton.compiling import compiled  # noqa: E402
from tests.codegen.triton.loading import load  # noqa: E402

TILES = """
import triton
import triton.language as tl
from lamina.runtime.triton_quotients import exact_inverse, exact_quotient, exact_root


@triton.jit
def tiles(a, b, n: tl.constexpr):
    x = tl.sum(tl.load(a + tl.arange(0, n)[:, None] * 64 + tl.arange(0, 64)[None, :]), axis=1, keep_dims=True)
    s = tl.load(a)
    made = exact_quotient(x, s) + exact_quotient(s, x) + exact_inverse(x) + exact_root(x) + exact_inverse(s)
    tl.store(b + tl.arange(0, n)[:, None], made + exact_root(s) + exact_quotient(s, s))
"""
EXACT = {"div": "div.rn.f32", "reciprocal": "rcp.rn.f32", "sigmoid": "rcp.rn.f32", "sqrt": "sqrt.rn.f32"}


@pytest.mark.parametrize("op", EXACT)
def test_one_branch_for_four(op: str, tmp_path: Path) -> None:
    body = Body(4096, 1024)
    a, b = body.load("X", *body.at), body.load("Y", *body.at)
    if op == "div":
        made = body.op("div", a, b)
    else:
        made = body.op("div", body.constant(1.0), b) if op == "reciprocal" else body.op(op, b)
    body.store("Z", body.at, made)
    shape = [4096, 1024]
    program = case(op, [body.nest()], [dense(n, "float32", shape) for n in "XYZ"], nvidia())
    text = compiled(program.source, tmp_path).asm["ptx"]
    exact = text.count(EXACT[op])
    assert exact >= 4
    assert exact % 4 == 0
    assert len(re.findall(r"@!\S+ bra DONE", text)) == exact // 4
    assert ".full.f32" not in text  # Triton's approximate division


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_tiles_of_fewer_than_four(rows: int, tmp_path: Path) -> None:
    """Triton packs tiles of whole fours; a row's own quotient is of a tile of one."""
    function = load(TILES, "tiles", tmp_path)
    made = ASTSource(fn=function, signature={"a": "*fp32", "b": "*fp32"}, constexprs={"n": rows})
    text = triton.compile(made, target=GPUTarget("cuda", 90, 32)).asm["ptx"]
    for instruction in ("div.rn.f32", "rcp.rn.f32", "sqrt.rn.f32"):
        assert instruction in text or rows < 4


def test_numbers_alone_are_divided() -> None:
    """Quotients of numbers, which no tile holds."""
    body = Body(128)
    made = body.op("div", body.constant(1.0), body.constant(3.0))
    body.store("Z", body.at, made)
    assert any(isinstance(e, Constant) for e in body.nest().body)
    program = case("numbers", [body.nest()], [dense("Z", "float32", [128])], nvidia())
    assert "exact_inverse(" in program.source.text
