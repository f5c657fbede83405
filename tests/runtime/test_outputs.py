from __future__ import annotations

import copy
import gc
import io
import os
import pickle
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch

from lamina.runtime import outputs
from lamina.runtime.arena import Arena, release_workspaces
from lamina.runtime.outputs import LARGE, BlockPool, empty, empty_large, empty_small, release_blocks
from lamina.runtime.torch_private import CAN_COUNT_USES

N = 1 << 18
F = torch.float32


@pytest.fixture
def pool() -> BlockPool:
    return BlockPool(64 << 20)


@pytest.fixture(autouse=True)
def clean_up() -> Iterator[None]:
    yield
    release_blocks()


def take(pool: BlockPool, n: int = N, dtype: torch.dtype = F) -> torch.Tensor:
    return pool.take((n,), (1,), dtype, n * dtype.itemsize)


def test_this_torch_tells_how_a_storage_is_used() -> None:
    assert CAN_COUNT_USES


def test_memory_is_used_again_once_the_tensor_is_dead(pool: BlockPool) -> None:
    first = take(pool)
    address = first.data_ptr()
    second = take(pool)
    assert second.data_ptr() != address
    del first
    assert take(pool).data_ptr() == address


# Each takes the only tensor, keeps something that refers to its storage, and returns it with a way to read element 0.
Holder = Callable[[list[torch.Tensor]], tuple[Any, Callable[[Any], float]]]


def holds_view(box: list[torch.Tensor]) -> tuple[Any, Callable[[Any], float]]:
    return box.pop()[:10], lambda view: view[0].item()


def holds_view_of_view(box: list[torch.Tensor]) -> tuple[Any, Callable[[Any], float]]:
    return box.pop().view(2, -1).t()[0:1].detach(), lambda view: view[0, 0].item()


def holds_other_dtype(box: list[torch.Tensor]) -> tuple[Any, Callable[[Any], float]]:
    return box.pop().view(torch.int32), lambda view: view.view(F)[0].item()


def holds_untyped_storage(box: list[torch.Tensor]) -> tuple[Any, Callable[[Any], float]]:
    return box.pop().untyped_storage(), lambda storage: torch.empty(0).set_(storage, 0, (N,))[0].item()


@pytest.mark.filterwarnings("ignore:TypedStorage")
def holds_typed_storage(box: list[torch.Tensor]) -> tuple[Any, Callable[[Any], float]]:
    return box.pop().storage(), lambda storage: storage[0]


def holds_tensor_set_to_it(box: list[torch.Tensor]) -> tuple[Any, Callable[[Any], float]]:
    return torch.empty(0).set_(box.pop()), lambda tensor: tensor[0].item()


def holds_data(box: list[torch.Tensor]) -> tuple[Any, Callable[[Any], float]]:
    return box.pop().data, lambda tensor: tensor[0].item()


def holds_numpy(box: list[torch.Tensor]) -> tuple[Any, Callable[[Any], float]]:
    return box.pop().numpy()[3:], lambda array: float(array[0])


def holds_memoryview(box: list[torch.Tensor]) -> tuple[Any, Callable[[Any], float]]:
    return memoryview(box.pop().numpy()), lambda view: float(view[0])


def holds_dlpack(box: list[torch.Tensor]) -> tuple[Any, Callable[[Any], float]]:
    return torch.from_dlpack(box.pop()), lambda tensor: tensor[0].item()


def holds_dlpack_capsule(box: list[torch.Tensor]) -> tuple[Any, Callable[[Any], float]]:
    return torch.utils.dlpack.to_dlpack(box.pop()), lambda capsule: torch.from_dlpack(capsule)[0].item()


def holds_parameter(box: list[torch.Tensor]) -> tuple[Any, Callable[[Any], float]]:
    return torch.nn.Parameter(box.pop()), lambda parameter: parameter[0].item()


def holds_saved_for_backward(box: list[torch.Tensor]) -> tuple[Any, Callable[[Any], float]]:
    scale = torch.ones(N, requires_grad=True)
    product = scale * box.pop()

    def read(result: torch.Tensor) -> float:
        result.sum().backward()
        assert scale.grad is not None
        return scale.grad[0].item()

    return product, read


def holds_cycle(box: list[torch.Tensor]) -> tuple[Any, Callable[[Any], float]]:
    cycle: list[Any] = [box.pop()]
    cycle.append(cycle)
    return cycle, lambda kept: kept[0][0].item()


HOLDERS: list[Holder] = [
    holds_view,
    holds_view_of_view,
    holds_other_dtype,
    holds_untyped_storage,
    holds_typed_storage,
    holds_tensor_set_to_it,
    holds_data,
    holds_numpy,
    holds_memoryview,
    holds_dlpack,
    holds_dlpack_capsule,
    holds_parameter,
    holds_saved_for_backward,
    holds_cycle,
]
READ_ONCE = (holds_saved_for_backward, holds_dlpack_capsule)  # reading lets go of the memory


@pytest.mark.filterwarnings("ignore:TypedStorage")
@pytest.mark.parametrize("hold", HOLDERS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("pressure", [False, True], ids=["room", "no room"])
def test_memory_that_anything_refers_to_is_not_used_again(pool: BlockPool, hold: Holder, pressure: bool) -> None:
    box = [take(pool).fill_(5)]
    address = box[0].data_ptr()
    kept, read = hold(box)
    others = [take(pool).fill_(9) for _ in range(3)]
    if pressure:
        others += [take(pool, (62 << 20) // 4).fill_(9)]  # the pool has to let go of what is in use
        others += [take(pool).fill_(9) for _ in range(3)]
    assert address not in [other.data_ptr() for other in others]
    if hold in READ_ONCE:
        others += [take(pool).fill_(9) for _ in range(3)]
        assert address not in [other.data_ptr() for other in others]
        assert read(kept) == 5.0
        return
    assert read(kept) == 5.0
    del others
    gc.collect()
    more = [take(pool).fill_(9) for _ in range(5)]
    assert address not in [other.data_ptr() for other in more]
    assert read(kept) == 5.0


def test_asking_for_the_storage_does_not_make_memory_unusable(pool: BlockPool) -> None:
    tensor = take(pool)
    address, storage = tensor.data_ptr(), tensor.untyped_storage()
    del tensor
    assert take(pool).data_ptr() != address
    del storage
    assert address in [t.data_ptr() for t in [take(pool), take(pool)]]


@pytest.fixture
def pair() -> tuple[torch.Tensor, torch.Tensor]:
    """A pooled and an ordinary tensor that should behave alike."""
    ordinary = torch.empty_strided((4, N // 4), (N // 4, 1), dtype=F)
    pooled = empty_large((4, N // 4), (N // 4, 1), F, N * 4)
    values = torch.arange(N, dtype=F).view(4, -1)
    return pooled.copy_(values), ordinary.copy_(values)


def facts(tensor: torch.Tensor) -> tuple[object, ...]:
    storage = tensor.untyped_storage()
    return (
        tensor.shape,
        tensor.stride(),
        tensor.storage_offset(),
        tensor.dtype,
        tensor.device,
        None if tensor.is_inference() else tensor._version,
        tensor._base is None,
        tensor._is_view(),
        tensor.is_leaf,
        tensor.requires_grad,
        tensor.is_inference(),
        tensor.is_shared(),
        tensor.is_contiguous(),
        storage.nbytes(),
        storage.resizable(),
        tensor.data_ptr() % 64,
    )


def test_a_pooled_result_has_the_attributes_of_any_other() -> None:
    assert facts(take(BlockPool(1 << 30))) == facts(torch.empty(N))
    with torch.inference_mode():
        made_inside, ordinary = empty_large((N,), (1,), F, N * 4), torch.empty(N)
        assert facts(made_inside) == facts(ordinary)
    del made_inside
    again = empty_large((N,), (1,), F, N * 4)  # the block was made in inference mode
    assert not again.is_inference()
    again.requires_grad_()


def test_resizing_works_and_takes_the_memory_out_of_the_pool(pool: BlockPool) -> None:
    tensor = take(pool).fill_(1)
    old = tensor.data_ptr()
    tensor.resize_(3 * N)
    assert tensor.numel() == 3 * N
    assert tensor[:N].eq(1).all()
    del tensor
    fresh = [take(pool).fill_(2) for _ in range(3)]
    assert len({t.data_ptr() for t in fresh}) == 3
    assert old >= 0
    assert all(t.untyped_storage().nbytes() == N * 4 for t in fresh)
    assert pool.nbytes == 3 * N * 4


def test_freeing_the_storage_by_hand_takes_the_memory_out_of_the_pool(pool: BlockPool) -> None:
    tensor = take(pool)
    tensor.untyped_storage().resize_(0)  # as sharded training does
    del tensor
    again = take(pool).fill_(3)
    assert again.untyped_storage().nbytes() == N * 4
    assert bool((again == 3).all())


@pytest.fixture(params=sorted(torch.multiprocessing.get_all_sharing_strategies()))
def shared_by(request: pytest.FixtureRequest) -> Iterator[str]:
    """Ways in which torch shares memory between processes."""
    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy(request.param)
    yield request.param
    torch.multiprocessing.set_sharing_strategy(before)


@pytest.mark.usefixtures("shared_by")
@pytest.mark.parametrize("share", [torch.Tensor.share_memory_, ForkingPickler.dumps], ids=["share_memory_", "sent"])
def test_shared_memory_is_never_used_again(pool: BlockPool, share: Callable[[torch.Tensor], Any]) -> None:
    tensor = take(pool).fill_(1)
    share(tensor)
    assert tensor.is_shared()
    address = tensor.data_ptr()
    del tensor
    fresh = [take(pool) for _ in range(3)]
    assert address not in [t.data_ptr() for t in fresh]
    assert not any(t.is_shared() for t in fresh)


def test_pickling_copying_and_saving_give_what_they_give_of_any_tensor(
    pair: tuple[torch.Tensor, torch.Tensor],
) -> None:
    saved = []
    for tensor in pair:
        assert torch.equal(pickle.loads(pickle.dumps(tensor)), tensor)
        assert torch.equal(copy.deepcopy(tensor), tensor)
        file = io.BytesIO()
        torch.save(tensor, file)
        saved.append(len(file.getvalue()))
        file.seek(0)
        assert torch.equal(torch.load(file), tensor)
    assert saved[0] == saved[1]


def test_set_numpy_and_in_place_gradients_work(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    for tensor in pair:
        assert tensor.numpy().sum() == pytest.approx(tensor.sum().item(), rel=1e-3)
        weight = torch.ones(N // 4, requires_grad=True)
        product = tensor.mul_(1.0).view(4, -1) * weight
        product.sum().backward()
        assert weight.grad is not None
        assert torch.equal(weight.grad, tensor.sum(0))
        other = torch.zeros(7)
        tensor.set_(other)
        assert tensor.shape == (7,)


def test_python_attributes_and_weak_references_do_not_leak_into_the_next_tensor(pool: BlockPool) -> None:
    tensor: Any = take(pool)
    address = tensor.data_ptr()
    tensor.mark = "mine"
    seen = weakref.ref(tensor)
    del tensor
    assert seen() is None
    again = take(pool)
    assert again.data_ptr() == address
    assert not hasattr(again, "mark")
    assert again.grad_fn is None


def test_the_pool_keeps_within_its_limit_and_prefers_to_drop_what_is_free_and_old() -> None:
    pool = BlockPool(10 << 20)
    sizes = [1 << 18, 2 << 18, 3 << 18]  # 1, 2 and 3 MB
    held = take(pool, sizes[0]).fill_(1)
    for n in sizes[1:]:
        take(pool, n)
    assert pool.nbytes == 6 << 20
    take(pool, 6 << 18)  # 6 MB: the free 2 MB go, and suffice
    assert pool.nbytes == 10 << 20
    assert set(pool._blocks) == {n * 4 for n in (1 << 18, 3 << 18, 6 << 18)}
    take(pool, 10 << 18)  # all must go, also what is in use
    assert set(pool._blocks) == {10 << 20}
    assert bool((held == 1).all())
    large = take(pool, 11 << 18)
    assert large.numel() == 11 << 18
    assert pool.nbytes == 10 << 20
    pool.release()
    assert pool.nbytes == 0
    assert take(pool).numel() == N


def test_what_was_used_at_another_time_in_another_size_is_not_kept_beside_what_is_used_now() -> None:
    pool = BlockPool(1 << 30, spare=2 << 20)
    held = [take(pool, 1 << 18) for _ in range(40)]  # 1 MB each
    del held[:30]
    assert pool.nbytes == 40 << 20
    larger = take(pool, 5 << 18)  # the oldest go: 10 MB are in use, 2 MB are the spare ones
    assert pool.nbytes == (10 + 2 + 5) << 20
    assert larger.data_ptr() not in [t.data_ptr() for t in held]
    held.clear()
    held = [take(pool, 1 << 18) for _ in range(12)]  # what is left is used again
    assert pool.nbytes == (12 + 5) << 20


def test_another_limit_holds_at_once(pool: BlockPool) -> None:
    held = take(pool).fill_(3)
    for n in (2 * N, 3 * N):
        take(pool, n)
    assert pool.nbytes == 6 * N * 4
    pool.keep_at_most(4 * N * 4)
    assert set(pool._blocks) == {N * 4, 3 * N * 4}
    pool.keep_at_most(0)
    assert pool.nbytes == 0
    assert not pool._blocks
    assert bool((held == 3).all())
    assert take(pool).numel() == N
    assert pool.nbytes == 0


def test_workspaces_above_the_limit_are_not_kept() -> None:
    arena = Arena()
    try:
        outputs.keep_at_most(3 << 20)
        for megabytes, kept in ((2, True), (4, False)):
            release_workspaces()
            workspace = arena.take(megabytes << 20)
            address = workspace.address
            arena.give(workspace)
            again = arena.take(1)
            assert (again.address == address and again is workspace) == kept
    finally:
        outputs.keep_at_most(2 << 30)
    release_workspaces()
    workspace = arena.take(8 << 20)
    arena.give(workspace)
    outputs.keep_at_most(3 << 20)
    try:
        assert arena.take(1) is not workspace
    finally:
        outputs.keep_at_most(2 << 30)


def test_a_share_of_what_is_in_use_is_spare() -> None:
    pool = BlockPool(1 << 30, spare=0)
    held = [take(pool, 1 << 18) for _ in range(40)]
    del held[16:]
    held.append(take(pool, 2 << 18))
    assert pool.nbytes == (16 + 2 + 2) << 20


def test_temporaries_take_memory_of_other_types_and_up_to_twice_their_size(pool: BlockPool) -> None:
    addresses = {n: take(pool, n * N).data_ptr() for n in (1, 2, 4)}
    spans = [(5 * N // 4, 2), (2 * N, 2), (2 * N + 8, 4), (N - 8, 1)]
    for elements, block in spans:
        for dtype in (torch.float32, torch.int32, torch.float64, torch.complex128, torch.bool):
            nbytes = elements * 4
            count = nbytes // dtype.itemsize
            found = pool.take_temporary((count,), (1,), dtype, nbytes)
            assert (found.data_ptr(), found.numel(), found.dtype) == (addresses[block], count, dtype)
            assert not found.is_inference()
            found.zero_()
            del found
    assert pool.nbytes == 7 * N * 4
    assert pool.take_temporary((N // 4,), (1,), F, N).data_ptr() not in addresses.values()  # four times is too much
    assert take(pool, 3 * N // 2).untyped_storage().nbytes() == 6 * N  # a result has a storage of its size


def test_memory_of_a_temporary_in_use_is_not_handed_out(pool: BlockPool) -> None:
    block = take(pool, 2 * N).data_ptr()
    first = pool.take_temporary((N,), (1,), torch.int32, N * 4)
    second = pool.take_temporary((N,), (1,), torch.int32, N * 4)
    assert first.data_ptr() == block
    assert second.data_ptr() != block
    assert take(pool, 2 * N).data_ptr() != block


def test_results_of_another_type_of_the_same_size_take_the_memory(pool: BlockPool) -> None:
    address = take(pool).data_ptr()
    for dtype in (torch.int32, torch.bfloat16, torch.complex64, F):
        result = take(pool, N * 4 // dtype.itemsize, dtype)
        assert result.data_ptr() == address
        assert facts(result)[:-1] == facts(torch.empty(N * 4 // dtype.itemsize, dtype=dtype))[:-1]
        del result


def test_threads_never_share_memory(pool: BlockPool) -> None:
    failures: list[int] = []

    def call(number: int) -> None:
        for _ in range(200):
            mine = take(pool).fill_(number)
            if not bool((mine[:: N // 16] == number).all()):
                failures.append(number)
            del mine

    threads = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not failures
    assert pool.nbytes <= 8 * N * 4


def test_code_run_by_the_garbage_collector_inside_the_pool_gets_memory_of_its_own(pool: BlockPool) -> None:
    made: list[torch.Tensor] = []

    class Dying:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            made.append(take(pool).fill_(len(made)))

    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(50):
            Dying()
            made.append(take(pool).fill_(len(made)))
    finally:
        gc.set_threshold(*threshold)
    assert len(made) > 60
    assert len({t.data_ptr() for t in made}) == len(made)
    assert [int(t[0]) for t in made] == [int(t[-1]) for t in made]


def test_a_forked_child_can_take_memory_while_another_thread_held_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    held, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with outputs._POOL._guard:
            held.set()
            leave.wait()

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if outputs._POOL._guard.acquire(timeout=60) and empty((N,), (1,), F).numel() == N else 2
        finally:
            os._exit(status)
    leave.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((), ()),
        ((0, 5), (5, 1)),
        ((N,), (1,)),
        ((4, N), (1, 4)),
        ((4, 1 << 20), (0, 1)),
        ((3, 1 << 18), (1 << 19, 2)),
        ((2, 3), (3, 1)),
        ((1, N), (7, 1)),
    ],
)
@pytest.mark.parametrize("dtype", [F, torch.bfloat16, torch.bool, torch.complex128])
def test_empty_is_torchs_empty_strided(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> None:
    for _ in range(2):
        ours, theirs = empty(shape, strides, dtype), torch.empty_strided(shape, strides, dtype=dtype)
        assert facts(ours)[:-1] == facts(theirs)[:-1]
        assert ours.numel() == 0 or ours.data_ptr() % 64 == 0
        del ours


def test_small_results_do_not_come_from_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = BlockPool(1 << 30)
    monkeypatch.setattr(outputs, "_POOL", pool)
    assert empty((LARGE // 4 - 1,), (1,), F).numel() == LARGE // 4 - 1
    assert pool.nbytes == 0
    assert empty((LARGE // 4,), (1,), F).numel() == LARGE // 4
    assert pool.nbytes == LARGE
    assert facts(empty_small((2, 3), (3, 1), F)) == facts(torch.empty(2, 3))


def test_without_the_private_names_results_are_ordinary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "CAN_COUNT_USES", False)
    monkeypatch.setattr(outputs, "_POOL", BlockPool(0))
    assert facts(empty((N,), (1,), F)) == facts(torch.empty(N))
