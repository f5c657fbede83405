from __future__ import annotations

import mmap
import os
import threading
from collections import deque
from typing import Any

import pytest
import torch

from lamina.runtime import arena as arena_module
from lamina.runtime.arena import ALIGNMENT, Arena, Workspace, allocate_pages, release_workspaces


@pytest.fixture(autouse=True)
def no_idle_workspaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena_module, "_IDLE", deque())


@pytest.mark.parametrize("nbytes", [0, 1, 100, 4096, 1 << 20, (5 << 20) + 3])
def test_workspaces_are_aligned_and_large_enough(nbytes: int) -> None:
    workspace = Arena().take(nbytes)
    assert workspace.address % ALIGNMENT == 0
    assert workspace.nbytes >= nbytes
    whole = workspace.tensor(0, (workspace.nbytes,), (1,), torch.uint8)
    assert whole.data_ptr() == workspace.address
    whole.fill_(7)
    assert int(whole[-1]) == 7


def test_large_workspaces_begin_on_a_huge_page() -> None:
    assert Arena().take(3 << 20).address % (2 << 20) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_tensors_lie_where_they_were_planned(dtype: torch.dtype) -> None:
    workspace = Arena().take(1 << 16)
    tensor = workspace.tensor(640, (3, 5), (1, 8), dtype)
    assert (tensor.dtype, tensor.shape, tensor.stride()) == (dtype, (3, 5), (1, 8))
    assert tensor.data_ptr() == workspace.address + 640
    tensor.zero_()
    tensor[2, 4] = 1
    raw = workspace.tensor(640 + 34 * dtype.itemsize, (1,), (1,), dtype)
    assert raw.item() == 1
    with pytest.raises(RuntimeError, match="out of bounds"):
        workspace.tensor(0, (1 << 16,), (1,), torch.float64)


def test_a_workspace_is_used_again_and_by_other_regions() -> None:
    one, other = Arena(), Arena()
    first = one.take(1000)
    one.give(first)
    assert other.take(2000) is first


def test_one_that_is_too_small_is_replaced() -> None:
    arena = Arena()
    small = arena.take(100)
    arena.give(small)
    large = arena.take(1 << 20)
    assert large is not small
    arena.give(large)
    assert list(arena_module._IDLE) == [large]
    assert arena.take(100) is large


def test_calls_at_the_same_time_have_a_workspace_each() -> None:
    arena = Arena()
    failures: list[str] = []

    def call(number: int) -> None:
        for _ in range(300):
            workspace = arena.take(4096)
            mine = workspace.tensor(0, (1024,), (1,), torch.int32).fill_(number)
            if not bool((mine == number).all()):
                failures.append("two calls wrote to one workspace")
            arena.give(workspace)

    threads = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(arena_module._IDLE) <= 4


def test_idle_workspaces_are_few_and_can_be_released() -> None:
    arena = Arena()
    taken = [arena.take(100) for _ in range(10)]
    for workspace in taken:
        arena.give(workspace)
    assert len(arena_module._IDLE) == 4
    release_workspaces()
    assert not arena_module._IDLE


def test_a_workspace_holds_what_programs_made_of_it_but_not_without_end() -> None:
    workspace = Workspace(4096)
    tensor = workspace.tensor(0, (4,), (1,), torch.float32)
    workspace.held["program"] = (tensor, b"packed")
    assert workspace.held["program"][0] is tensor
    for i in range(5000):
        workspace.held[i] = (i,)
    assert workspace.held[4999] == (4999,)
    assert len(workspace.held) < 1000


def test_tensors_made_in_inference_mode_can_be_used_after_it() -> None:
    with torch.inference_mode():
        workspace = Workspace(4096)
        tensor = workspace.tensor(0, (4,), (1,), torch.float32)
        halves = workspace.tensor(0, (4,), (1,), torch.float16)
    assert not tensor.is_inference()
    assert not halves.is_inference()
    torch.add(torch.ones(4), 1, out=tensor)
    assert tensor.tolist() == [2.0] * 4


def test_a_tensor_keeps_the_memory_of_a_workspace_that_is_gone() -> None:
    workspace = Workspace(8 << 20)
    tensor = workspace.tensor(0, (1 << 20,), (1,), torch.float32).fill_(3)
    del workspace
    others = [Workspace(8 << 20) for _ in range(4)]
    for other in others:
        other.tensor(0, (1 << 20,), (1,), torch.float32).fill_(9)
    assert bool((tensor == 3).all())


def test_memory_comes_from_the_allocator_where_mapping_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    pages = allocate_pages(5000)
    assert pages.numel() == 5000
    assert pages.data_ptr() % ALIGNMENT == 0
    pages.fill_(1)


def test_a_forked_child_has_its_own_memory() -> None:
    arena = Arena()
    workspace = arena.take(4096)
    tensor = workspace.tensor(0, (4,), (1,), torch.int32).fill_(1)
    arena.give(workspace)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            mine = Arena().take(4096)
            mine.tensor(0, (4,), (1,), torch.int32).fill_(2)
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert tensor.tolist() == [1] * 4


def test_views_that_are_made_in_inference_mode_outlive_it() -> None:
    workspace = Workspace(256)
    with torch.inference_mode():
        made = workspace.typed(torch.float32)
    assert not made.is_inference()
    assert not workspace.tensor(0, (2,), (1,), torch.float32).is_inference()
