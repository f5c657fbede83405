"""Settings of torch that speed or results depend on, and whether a candidate leaves them alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

__all__ = ["TorchSettings", "ambient", "changed"]


_CUDNN: Any = torch.backends.cudnn
_CUDA: Any = torch.backends.cuda
_Switch = tuple[Callable[[], Any], Callable[[Any], Any]]


def _attribute(owner: Any, name: str) -> _Switch:
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


_SWITCHES: Mapping[str, _Switch] = {
    "cudnn_tf32": _attribute(_CUDNN, "allow_tf32"),
    "cudnn_benchmark": _attribute(_CUDNN, "benchmark"),
    "cudnn_deterministic": _attribute(_CUDNN, "deterministic"),
    "fp16_reduced_precision": _attribute(_CUDA.matmul, "allow_fp16_reduced_precision_reduction"),
    "bf16_reduced_precision": _attribute(_CUDA.matmul, "allow_bf16_reduced_precision_reduction"),
    "flash_attention": (_CUDA.flash_sdp_enabled, _CUDA.enable_flash_sdp),
    "memory_efficient_attention": (_CUDA.mem_efficient_sdp_enabled, _CUDA.enable_mem_efficient_sdp),
    "math_attention": (_CUDA.math_sdp_enabled, _CUDA.enable_math_sdp),
    "cudnn_attention": (_CUDA.cudnn_sdp_enabled, _CUDA.enable_cudnn_sdp),
}
"""How settings of libraries are read and set."""


@dataclass(frozen=True, slots=True)
class TorchSettings:
    """The process-wide settings of torch that speed or results depend on; ``switches`` are those of libraries."""

    threads: int
    default_dtype: str
    matmul_precision: str
    deterministic: bool
    only_warns: bool
    switches: tuple[tuple[str, Any], ...]

    @classmethod
    def here(cls) -> TorchSettings:
        """Those of this process."""
        return cls(
            torch.get_num_threads(),
            str(torch.get_default_dtype()).removeprefix("torch."),
            torch.get_float32_matmul_precision(),
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            tuple((name, read()) for name, (read, _) in _SWITCHES.items()),
        )

    def apply(self) -> None:
        """Make them those of this process."""
        torch.set_num_threads(self.threads)
        torch.set_default_dtype(getattr(torch, self.default_dtype))
        torch.set_float32_matmul_precision(self.matmul_precision)
        for name, wanted in self.switches:
            read, write = _SWITCHES[name]
            if read() != wanted:  # setting one raises where torch has frozen its flags
                write(wanted)
        torch.use_deterministic_algorithms(self.deterministic, warn_only=self.only_warns)


def ambient() -> dict[str, Any]:
    """The settings of this process and the modes of this thread, by name."""
    settings = asdict(TorchSettings.here())
    return {
        **dict(settings.pop("switches")),
        **settings,
        "grad_mode": torch.is_grad_enabled(),
        "inference_mode": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"),
    }


def changed(before: Mapping[str, Any]) -> str:
    """What is otherwise now than ``before``, which ``ambient`` gave, in words; "" if nothing is."""
    now = ambient()
    found = [name for name in before if before[name] != now[name]]
    if not found:
        return ""
    name = found[0]
    return f"it changes a setting of torch: {name.replace('_', ' ')} was {before[name]!r} and is {now[name]!r} after it"
