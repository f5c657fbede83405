"""The device target of a GPU of this machine: what torch tells of its properties, as scheduling wants it."""

from __future__ import annotations

import torch

from lamina.schedule.gpu_target import GpuTarget

__all__ = ["gpu_target"]

_COPY_SHARE = 0.885
"""What a copy reaches of the memory's nominal bandwidth (measured on an H200: 4.25 of 4.8 TB/s)."""


def gpu_target(device: int, approximate: bool) -> GpuTarget:
    """What scheduling wants to know of a GPU of this machine."""
    about = torch.cuda.get_device_properties(device)
    # Double data rate; the clock is in kHz, the bus in bits.
    nominal = 2 * about.memory_clock_rate * about.memory_bus_width / 8 / 1e6
    return GpuTarget(
        name=about.name,
        processors=about.multi_processor_count,
        capability=10 * about.major + about.minor,
        copy_gbs=_COPY_SHARE * nominal,
        l2_bytes=about.L2_cache_size,
        shared_bytes=getattr(about, "shared_memory_per_block_optin", about.shared_memory_per_block),
        approximate=approximate,
    )
