"""Compiles generated Triton kernels for sm_90 on a machine without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from lamina.codegen.triton.source import TritonSource
from tests.codegen.triton.loading import load


def compiled(source: TritonSource, folder: Path, aligned: bool = True, capability: int = 90) -> Any:
    """The compiled kernel, with 16-byte alignment assumed where the source says it may be."""
    function = load(source.text, source.name, folder)
    signature = dict(zip(source.parameters, source.types, strict=True))
    attributes = {
        (source.parameters.index(name),): [["tt.divisibility", 16]] for name in (source.aligned if aligned else ())
    }
    made = ASTSource(fn=function, signature=signature, constexprs={}, attrs=attributes)
    options = {"num_warps": source.warps, "num_stages": source.stages}
    return triton.compile(made, target=GPUTarget("cuda", capability, 32), options=options)
