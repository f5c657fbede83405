"""Which devices there are kernels for: the one place that names them for stages that ask where memory is."""

from __future__ import annotations

__all__ = ["CPU", "GPUS"]

CPU = "cpu"
"""The device that C++ kernels run on."""
GPUS = frozenset(("cuda",))
"""Types of devices that Triton kernels are generated for, as torch names them."""
