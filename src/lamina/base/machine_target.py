"""Targets of this machine's devices: the one place that makes them, of what torch tells of each."""

from __future__ import annotations

import torch

from lamina.base.devices import kind_of
from lamina.base.target import Target, cpu, nvidia

__all__ = ["target_of"]

_COPY_SHARE = 0.885
"""What a copy reaches of the memory's nominal bandwidth (measured on an H200: 4.25 of 4.8 TB/s)."""


def target_of(device: torch.device, *, isa: str = "", approximate: bool = True) -> Target:
    """The target of a device of this machine. ``isa``: the instruction set that kernels for a CPU are to use;
    ``approximate``: approximations of the hardware are allowed.
    """
    kind = kind_of(device)
    if kind.host:
        return cpu(isa, torch.get_num_threads())
    if not kind.grids:
        raise ValueError(f"there are no kernels for {device}")
    about = torch.cuda.get_device_properties(device.index or 0)
    # Double data rate; the clock is in kHz, the bus in bits.
    nominal = 2 * about.memory_clock_rate * about.memory_bus_width / 8 / 1e6
    return nvidia(
        name=about.name,
        processors=about.multi_processor_count,
        capability=10 * about.major + about.minor,
        copy_gbs=_COPY_SHARE * nominal,
        l2_bytes=about.L2_cache_size,
        shared_bytes=getattr(about, "shared_memory_per_block_optin", about.shared_memory_per_block),
        approximate=approximate,
    )
