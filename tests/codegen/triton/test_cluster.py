"""Rows shared by clusters of programs, and operands that leave the cache first: where chosen, and their code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lamina.base.target import Target, nvidia
from lamina.codegen.triton.emit import emit
from lamina.codegen.triton.source import UnsupportedKernel
from lamina.ir.plan import Kernel
from lamina.runtime.triton_worker import Request, compile_request
from lamina.schedule.cluster import shared_rows
from lamina.schedule.gpu import choose
from lamina.schedule.gpu_facts import guess
from lamina.schedule.gpu_space import candidates
from tests.codegen.harness import dense
from tests.codegen.test_nests import softmax
from tests.codegen.triton.compiling import compiled
from tests.codegen.triton.harness import TARGET, case
from tests.codegen.writer import Body

H100 = nvidia("NVIDIA H100", 132, 90, 3030.0, 50 << 20)
A100 = nvidia("NVIDIA A100", 108, 80, 1555.0, 40 << 20)


def _kernel(rows: int, width: int, dtype: str = "bfloat16") -> Kernel:
    body, buffers, _, _ = softmax(rows, width, 1, dtype)
    return case("row", [body.nest()], buffers, H100).kernel


def _cluster(kernel: Kernel, target: Target = H100) -> Any:
    (nest,) = kernel.nests
    dtypes = {f"b{k}": d for k, d in enumerate(kernel.dtypes)}
    extents = {a.name: guess(a.extent) for a in nest.axes}
    return shared_rows(nest, dtypes, target, choose(nest, dtypes, target), extents)


@pytest.mark.parametrize(("rows", "width", "programs"), [(4096, 50257, 7), (512, 262144, 8), (64, 100_000, 7)])
def test_wide_rows_have_clusters(rows: int, width: int, programs: int) -> None:
    kernel = _kernel(rows, width)
    found = _cluster(kernel)
    block = found.blocks[-1]
    assert block.role == "cluster"
    source = emit(replace(kernel, schedules=(found,)), H100)
    assert f"meet({programs})" in source.text
    assert source.grid[0] == rows * programs
    assert [(int(n.evaluate({})), zero) for n, zero in source.workspace] == [(rows * 2 * 8 * 4, False)]


@pytest.mark.parametrize(
    ("rows", "width"),
    [
        (4096, 2048),  # held by one program
        (64, 300_000),  # more than a cluster holds
        (4095, 50257),  # the last aligned group around a row would end beyond the buffer
    ],
)
def test_other_rows_have_none(rows: int, width: int) -> None:
    assert _cluster(_kernel(rows, width)) is None


def test_older_gpus_have_no_clusters() -> None:
    assert _cluster(_kernel(4096, 50257), A100) is None


def test_clusters_are_candidates_of_kernels_of_one_nest() -> None:
    kernel = _kernel(4096, 50257)
    dtypes = {f"b{k}": d for k, d in enumerate(kernel.dtypes)}
    for alone in (True, False):
        found = [r.schedule for r in candidates(kernel.nests[0], dtypes, H100, alone=alone)]
        assert any(b.role == "cluster" for s in found for b in s.blocks) == alone
    shared = _cluster(kernel)
    with pytest.raises(UnsupportedKernel, match="group"):
        emit(Kernel("two", kernel.nests * 2, (shared, shared), kernel.dtypes), H100)


@pytest.mark.parametrize(("rows", "width", "cluster"), [(512, 262144, 8), (4096, 20480, 0), (4096, 50257, 0)])
def test_rows_that_the_cache_would_lose_are_looped_over_by_clusters(rows: int, width: int, cluster: int) -> None:
    """Not those of which the cache holds all that are under way, and those that begin at any element."""
    kernel = _kernel(rows, width)
    dtypes = {f"b{k}": d for k, d in enumerate(kernel.dtypes)}
    found = choose(kernel.nests[0], dtypes, H100, alone=True)
    assert found.cluster == cluster
    assert choose(kernel.nests[0], dtypes, H100).cluster == 0
    assert choose(kernel.nests[0], dtypes, A100, alone=True).cluster == 0
    source = emit(replace(kernel, schedules=(found,)), H100)
    assert source.grid[0] == rows * max(cluster, 1)
    assert bool(source.workspace) == bool(cluster)


def test_nothing_is_known_beforehand_of_what_clusters_wait_for() -> None:
    """So that a schedule with a cluster and one without are always both timed."""
    kernel = _kernel(512, 262144)
    dtypes = {f"b{k}": d for k, d in enumerate(kernel.dtypes)}
    found = candidates(kernel.nests[0], dtypes, H100, alone=True)
    assert [r.expected is None for r in found] == [bool(r.schedule.cluster) for r in found]
    assert found[0].schedule.cluster
    assert any(not r.schedule.cluster for r in found[1:3])


@pytest.mark.parametrize(
    ("rows", "width", "clusters"), [(4096, 50257, set()), (512, 262144, set()), (1024, 40960, {8}), (9, 8192, set())]
)
def test_rows_held_as_they_were_loaded_are_candidates(rows: int, width: int, clusters: set[int]) -> None:
    kernel = _kernel(rows, width)
    dtypes = {f"b{k}": d for k, d in enumerate(kernel.dtypes)}
    found = [r.schedule for r in candidates(kernel.nests[0], dtypes, H100, alone=True) if r.schedule.register_resident]
    assert {s.cluster for s in found} == clusters
    assert not any(r.schedule.register_resident for r in candidates(kernel.nests[0], dtypes, H100))


def test_held_rows_compile_without_spilling(tmp_path: Path) -> None:
    kernel = _kernel(1024, 40960)
    dtypes = {f"b{k}": d for k, d in enumerate(kernel.dtypes)}
    found = next(
        r.schedule for r in candidates(kernel.nests[0], dtypes, H100, alone=True) if r.schedule.register_resident
    )
    made = compiled(emit(replace(kernel, schedules=(found,)), H100), tmp_path)
    assert made.asm["ptx"].count("ld.global.v4.b32") * 8 * 32 * found.warps * max(found.cluster, 1) == 40960
    assert made.asm["ptx"].count("mov.b32") >= 40960 // (2 * 32 * found.warps * max(found.cluster, 1))


def test_a_cluster_is_compiled_as_a_cluster(tmp_path: Path) -> None:
    kernel = _kernel(64, 50257)
    source = emit(replace(kernel, schedules=(_cluster(kernel),)), H100)
    request = Request(
        name=source.name,
        text=source.text,
        parameters=list(source.parameters),
        types=list(source.types),
        aligned=[p for p, name in enumerate(source.parameters) if name in source.aligned],
        warps=source.warps,
        stages=source.stages,
        asserts=False,
        scratch=0,
        capability=90,
        folder=str(tmp_path),
    )
    assert compile_request(request)["threads"] == 32 * source.warps
    ptx = (tmp_path / "kernel.ptx").read_text()
    assert ".reqnctapercluster 7, 1, 1" in ptx
    assert "ld.global.v4.b32" in ptx  # rows that begin anywhere are read in wide accesses
    assert (tmp_path / "kernel.cubin").stat().st_size > 0


@pytest.mark.parametrize(
    ("rows", "stored", "evict_first"), [(16384, False, True), (16384, True, False), (64, False, False)]
)
def test_what_is_only_reduced_leaves_the_cache_first(rows: int, stored: bool, evict_first: bool) -> None:
    body = Body(rows, 8192)
    x = body.op("cast", body.load("X", *body.at, dtype="bfloat16"), dtype="float32")
    total = body.reduce("sum", x, 1)
    body.store("S", body.at[:1], total)
    buffers = [dense("X", "bfloat16", (rows, 8192)), dense("S", "float32", (rows,))]
    if stored:
        body.store("Y", body.at, body.op("sub", x, total))
        buffers.append(dense("Y", "float32", (rows, 8192)))
    made = case("sums", [body.nest()], buffers, TARGET)
    assert made.kernel.schedules[0].evict_first == evict_first
    assert ("evict_first" in made.source.text) == evict_first
