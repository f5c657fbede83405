"""The kernels for masked rows of attention in Triton's interpreter, beside their specification: run as a script."""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from lamina.masked_rows import kernels
from lamina.masked_rows.operations import fill_backward_, fill_forward_
from lamina.runtime.triton_build import TritonBuild, TritonUnit
from tests.codegen.triton import worker
from tests.codegen.triton.loading import load

__all__ = ["CASES", "FILLS"]

CASES = {
    "one mask, 24 features, keys and queries of no power of two": ((2, 3, 40, 80, 24), (1, 1, 40, 80)),
    "a mask for each batch": ((2, 2, 33, 50, 16), (2, 1, 33, 50)),
    "a mask for each head": ((2, 3, 17, 64, 16), (1, 3, 17, 64)),
    "one row of keys for each batch": ((3, 2, 33, 50, 16), (3, 1, 1, 50)),
    "more keys than are read at a time": ((1, 2, 16, 1100, 64), (1, 2, 16, 1100)),
}
FILLS = {"none": None, "-1e4": -1e4, "-1e9": -1e9, "the least": -3e38, "minus infinity": -math.inf, "several": -1e9}


class _Interpreted:
    """Stands for compiler, driver and GPU: launches by the interpreter on tensors of the CPU."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.given: dict[int, Tensor] = {}
        self.launched: list[str] = []
        assert worker.__name__  # imported for what it does to the interpreter

    def build(self, units: Sequence[TritonUnit]) -> TritonBuild:
        return TritonBuild({u.name: u for u in units}, {}, 0, len(units), 0.0)  # type: ignore[misc]

    def load(self, unit: Any, device: int) -> Any:
        function = load(unit.text, unit.function, self.folder)

        def launch(stream: int, x: int, y: int, z: int, *arguments: int) -> int:
            self.launched.append(unit.name)
            pointers = [t.startswith("*") for t in unit.types]
            function[(x, y, z)](*(self.given[a] if p else a for a, p in zip(arguments, pointers, strict=True)))
            return 0

        return SimpleNamespace(name=unit.name, launch=launch)

    def knows(self, *tensors: Tensor) -> None:
        self.given.update((t.data_ptr(), t) for t in tensors)


def _mask(shape: tuple[int, ...], name: str) -> Tensor:
    mask, number = torch.randn(shape), FILLS[name]
    if number is not None:
        masked = torch.rand(shape[:3]) < 0.4
        masked.view(-1)[0] = True
        mask[masked] = number
        if name == "several":
            mask[..., ::3][masked], mask[..., 1::5][masked] = -2e9, -math.inf
    return mask


def _check(interpreted: _Interpreted, sizes: tuple[int, ...], shape: tuple[int, ...], name: str) -> int:
    """Both kernels on one mask; how many rows of it are masked."""
    batch, heads, queries, keys, features = sizes
    mask = _mask(shape, name)
    result = torch.randn(batch, queries, heads, features).transpose(1, 2)
    logarithm, value = torch.randn(batch, heads, queries, 1), torch.randn(batch, heads, keys, features)
    out, changed, alone = result.clone(), logarithm.clone(), result.clone()
    interpreted.knows(out, changed, alone, mask, value)
    rows = kernels.fill_forward(out, changed, mask, value)
    kernels.fill(alone, mask, value)
    gradient, tangent = torch.randn(batch, heads, keys, features), torch.randn(batch, heads, queries, features)
    added = gradient.clone()
    assert rows is not None
    interpreted.knows(added, tangent, rows)
    kernels.fill_backward(added, mask, rows, tangent)
    mixed, infinite, summed = result.clone(), logarithm.clone(), gradient.clone()
    expected = fill_forward_(mixed, infinite, mask, value)
    fill_backward_(summed, mask, expected, tangent)
    pairs = {"result": (out, mixed), "alone": (alone, mixed), "logarithms": (changed, infinite)}
    pairs |= {"rows": (rows, expected), "gradient": (added, summed)}
    for what, (mine, theirs) in pairs.items():
        torch.testing.assert_close(
            mine, theirs, equal_nan=True, rtol=1e-4, atol=1e-5, msg=lambda m, w=what: f"{w}: {m}"
        )
    return int((expected[1] != 0).sum())


def main() -> None:
    """Check every case and print, for each, how many rows were masked and how many kernels ran."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        interpreted = _Interpreted(Path(folder))
        made = kernels.rows_of

        def rows_of(out: Tensor, mask: Tensor) -> Tensor:
            rows = made(out, mask)
            interpreted.knows(rows)
            return rows

        kernels.rows_of = rows_of  # type: ignore[attr-defined]
        kernels.current_stream = lambda device: 0  # type: ignore[attr-defined]
        kernels.serve_masked_rows(0, interpreted.build, lambda: interpreted)  # type: ignore[arg-type, return-value]
        for case, (sizes, shape) in CASES.items():
            for name in FILLS:
                interpreted.launched.clear()
                try:
                    count = _check(interpreted, sizes, shape, name)
                except AssertionError as error:
                    print(f"{case}; {name}; {error}".replace("\n", " "))
                else:
                    print(f"{case}; {name}; {count} {len(interpreted.launched)}")


if __name__ == "__main__":
    sys.exit(main())
