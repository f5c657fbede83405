"""The names of torch that are not public, and what stands in for them where a torch lacks one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

__all__ = [
    *(
        "CAN_COUNT_USES",
        "current_device",
        "current_stream",
        "empty_strided_cpu",
        "empty_strided_cuda",
        "exchange_device",
    ),
    *("is_capturing", "reinterpret", "storage_uses"),
]

_guards = getattr(torch._C, "_dynamo").guards  # noqa: B009  the stub file does not declare it

CAN_COUNT_USES: bool = hasattr(torch._C, "_storage_Use_Count") and hasattr(_guards, "_reinterpret_tensor")


def _empty_strided(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype)


def _empty_strided_gpu(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Fresh memory of the current GPU."""
    return torch.empty_strided(shape, strides, dtype=dtype, device="cuda")


def _reinterpret(tensor: torch.Tensor, shape: Sequence[int], strides: Sequence[int], offset: int) -> torch.Tensor:
    return tensor.as_strided(shape, strides, tensor.storage_offset() + offset)


def storage_uses(address: int) -> int:
    """How many tensors and other owners hold the storage whose ``_cdata`` is ``address``. It must be alive."""
    return torch._C._storage_Use_Count(address)


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
