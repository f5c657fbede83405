"""The names of torch that are not public, and what stands in for them where a torch lacks one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from sys import getrefcount
from typing import Any

import torch
from torch._library.custom_ops import OPDEFS
from torch.autograd import profiler

__all__ = [
    *(
        "CAN_COUNT_USES",
        "current_device",
        "current_stream",
        "empty_strided_cpu",
        "empty_strided_cuda",
        "exchange_device",
        "gpu_delay",
    ),
    *("is_capturing", "one_variable", "only_owner", "reinterpret", "storage_uses"),
    *("below_autograd", "dispatch_is_watched", "python_functions", "shares_memory"),
    *("version_of", "without_autocast"),
]

_guards = getattr(torch._C, "_dynamo").guards  # noqa: B009  the stub file does not declare it

_COUNTS_TENSORS: bool = hasattr(torch._C, "_storage_Use_Count") and hasattr(torch.Tensor, "_use_count")

CAN_COUNT_USES: bool = hasattr(torch._C, "_storage_Use_Count") and hasattr(_guards, "_reinterpret_tensor")


def _empty_strided(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype, device="cpu")


def _empty_strided_gpu(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Fresh memory of the current GPU."""
    return torch.empty_strided(shape, strides, dtype=dtype, device="cuda")


def _reinterpret(tensor: torch.Tensor, shape: Sequence[int], strides: Sequence[int], offset: int) -> torch.Tensor:
    return tensor.as_strided(shape, strides, tensor.storage_offset() + offset)


def storage_uses(storage: torch.UntypedStorage) -> int:
    """How many tensors and other owners hold a storage."""
    return torch._C._storage_Use_Count(storage._cdata)


def only_owner(references: int, tensor: torch.Tensor) -> bool:
    """Whether nothing holds the tensor but one variable of the caller, nor anything else any of its memory.

    ``references`` is what the caller's ``sys.getrefcount`` says of the variable; counted here it would depend on how
    the interpreter calls. The memory must be all the tensor's, and an allocator's of torch: what is borrowed from
    elsewhere may be in use there.
    """
    if not one_variable(references, tensor):
        return False
    storage = tensor.untyped_storage()
    if not storage.resizable() or storage.nbytes() != tensor.nbytes:
        return False
    return (getrefcount(storage), storage_uses(storage)) == _uses_of_one()[1:]


def one_variable(references: int, tensor: torch.Tensor) -> bool:
    """Whether nothing holds the tensor itself but one variable of the caller, of which ``sys.getrefcount`` says
    ``references``.
    """
    if references != 2 or not _COUNTS_TENSORS:
        return False
    uses: int = tensor._use_count()  # type: ignore[attr-defined]
    return uses == _uses_of_one()[0]


@functools.cache
def _uses_of_one() -> tuple[int, int, int]:
    """What is counted above for a tensor that one variable holds, which differs between versions of torch."""
    tensor = torch.empty(1, device="cpu")
    storage = tensor.untyped_storage()
    uses: int = tensor._use_count()  # type: ignore[attr-defined]
    return uses, getrefcount(storage), storage_uses(storage)


# empty_strided(shape, strides, dtype) of the CPU without the cost of torch's argument parser.
empty_strided_cpu: Callable[[Sequence[int], Sequence[int], torch.dtype], torch.Tensor] = getattr(
    _guards, "_empty_strided_cpu", _empty_strided
)

# reinterpret(tensor, shape, strides, offset), the offset from the tensor's first element: another tensor on the same
# storage that autograd does not see as a view.
reinterpret: Callable[[torch.Tensor, Sequence[int], Sequence[int], int], torch.Tensor] = getattr(
    _guards, "_reinterpret_tensor", _reinterpret
)

# empty_strided_cuda(shape, strides, dtype) of the current GPU, likewise.
empty_strided_cuda: Callable[[Sequence[int], Sequence[int], torch.dtype], torch.Tensor] = getattr(
    _guards, "_empty_strided_cuda", _empty_strided_gpu
)


def _current_stream(device: int) -> int:
    """The driver's handle of the calling thread's stream on the device."""
    return int(torch.cuda.current_stream(device).cuda_stream)


def _exchange_device(device: int) -> int:
    """Make another GPU the current one; the number of the one before."""
    before = torch.cuda.current_device()
    torch.cuda.set_device(device)
    return before


# The number of the calling thread's GPU; current_stream(device): the driver's handle of its stream there;
# exchange_device(device) makes another GPU the current one and returns the one before. The public functions that do the
# same take 0.5 to 2 microseconds more, in every call of a compiled region.
current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
current_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", _current_stream)
exchange_device: Callable[[int], int] = getattr(torch._C, "_cuda_exchangeDevice", _exchange_device)

# Whether the calling thread's current stream is recording a CUDA graph.
is_capturing: Callable[[], bool] = getattr(
    torch._C, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing
)


def gpu_delay(cycles: int) -> None:
    """Keep the current stream of the current GPU busy for so many cycles of its clock."""
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]


def python_functions(overload: Any) -> Mapping[str | None, Callable[..., Any]] | None:
    """The functions, by device type, of an operation made with ``torch.library.custom_op``; None marks "any device".

    ``None`` for any other operation, and for one that returns what it writes to.
    """
    schema = overload._schema
    found = OPDEFS.get(schema.name)
    if found is None or found._opoverload is not overload or any(r.alias_info is not None for r in schema.returns):
        return None
    functions: Mapping[str | None, Callable[..., Any]] = found._backend_fns
    return functions


def shares_memory(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> bool:
    """Whether a tensor of ``result`` shares memory with an argument or with another of them."""
    results = result if isinstance(result, tuple) else (result,)
    return torch._C._any_output_is_alias_to_input_or_output(args, kwargs, results)


def below_autograd() -> Callable[[], Any]:
    """A context manager's class: within it operations are not recorded for gradients."""
    return torch._C._AutoDispatchBelowAutograd


def dispatch_is_watched() -> bool:
    """Whether a dispatch mode or the profiler wants to see every operation."""
    return profiler._is_profiler_enabled or torch._C._len_torch_dispatch_stack() > 0


# version_of(tensor): how often it has been written to. ``RuntimeError`` for one made in inference mode.
version_of: Callable[[torch.Tensor], int] = torch.Tensor._version.__get__  # type: ignore[attr-defined]  # a descriptor; the stub has an int


def without_autocast() -> Any:
    """Inside, autocast is off for every device."""
    return torch._C._DisableAutocast()
