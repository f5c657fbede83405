"""Settings of torch that speed or results depend on, and whether a candidate leaves them alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

__all__ = ["TorchSettings", "ambient", "changed"]


@dataclass(frozen=True, slots=True)
class TorchSettings:
    """The process-wide settings of torch that speed or results depend on."""

    threads: int
    default_dtype: str
    matmul_precision: str
    cudnn_tf32: bool
    cudnn_benchmark: bool
    deterministic: bool

    @classmethod
    def here(cls) -> TorchSettings:
        """Those of this process."""
        return cls(
            torch.get_num_threads(),
            str(torch.get_default_dtype()).removeprefix("torch."),
            torch.get_float32_matmul_precision(),
            torch.backends.cudnn.allow_tf32,
            torch.backends.cudnn.benchmark,
            torch.are_deterministic_algorithms_enabled(),
        )

    def apply(self) -> None:
        """Make them those of this process."""
        torch.set_num_threads(self.threads)
        torch.set_default_dtype(getattr(torch, self.default_dtype))
        torch.set_float32_matmul_precision(self.matmul_precision)
        for name, wanted in (("allow_tf32", self.cudnn_tf32), ("benchmark", self.cudnn_benchmark)):
            if getattr(torch.backends.cudnn, name) != wanted:  # setting one raises where torch has frozen its flags
                setattr(torch.backends.cudnn, name, wanted)
        torch.use_deterministic_algorithms(self.deterministic)


def ambient() -> dict[str, Any]:
    """The settings of this process and the modes of this thread, by name."""
    return {
        **asdict(TorchSettings.here()),
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
