"""What a profile says of kernels."""

from __future__ import annotations

import io
from dataclasses import asdict, dataclass
from typing import Any

from lamina.base.tables import Table, plain_console
from lamina.peaks import Peaks

__all__ = ["KernelTime", "Profile"]

_WIDTH = 160
"""Characters of a line of a table that no terminal shows."""


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One launch of a region, over all calls: ``median`` and ``total`` in seconds, ``nbytes`` and ``flops`` of one.

    ``place`` are the user's lines with the operations. ``bandwidth_share`` and ``flops_share`` are of the peaks of its
    ``device``, "cpu" or "gpu".
    """

    kernel: str
    region: str
    place: str
    calls: int
    median: float
    total: float
    nbytes: int
    flops: int
    bandwidth_share: float
    flops_share: float
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class Profile:
    """The kernels that ran, the longest first; ``seconds`` is the whole run, ``regions`` the time in regions of CPUs.

    ``gpu_peaks`` are those of the GPU, if its kernels ran, and ``other_gpu_seconds`` what it spent on kernels of
    libraries, copies and fills.
    """

    kernels: tuple[KernelTime, ...]
    seconds: float
    regions: float
    peaks: Peaks
    gpu_peaks: Peaks | None = None
    other_gpu_seconds: float = 0.0

    def __str__(self) -> str:
        out = plain_console(file=io.StringIO(), width=_WIDTH)
        out.print(self.table())
        text: str = out.file.getvalue()  # type: ignore[attr-defined]
        lines = [line.rstrip() for line in text.splitlines()]
        lines.append(
            f"{self.seconds:.3f} s in all, {self.regions:.3f} s in compiled regions, {self._inside('cpu'):.3f} s in "
            f"their kernels; peaks: {_said(self.peaks)}"
        )
        if self.gpu_peaks is not None:
            lines.append(
                f"on the GPU {self._inside('gpu'):.3f} s in kernels of compiled regions, "
                f"{self.other_gpu_seconds:.3f} s in others and copies; peaks: {_said(self.gpu_peaks)}"
            )
        return "\n".join(lines)

    def _inside(self, device: str) -> float:
        return sum(kernel.total for kernel in self.kernels if kernel.device == device)

    def table(self) -> Table:
        """A row for each kernel."""
        table = Table(title="kernels", title_justify="left")
        for column in ("kernel", "lines", "calls", "median us", "total ms", "MB", "of bandwidth", "of arithmetic"):
            table.add_column(column, overflow="fold", justify="left" if column in ("kernel", "lines") else "right")
        for k in self.kernels:
            shares = (f"{100 * k.bandwidth_share:.0f} %", f"{100 * k.flops_share:.1f} %")
            times = (f"{k.median * 1e6:.1f}", f"{k.total * 1e3:.2f}")
            table.add_row(k.kernel, k.place, str(k.calls), *times, f"{k.nbytes / 1e6:.2f}", *shares)
        return table

    def to_json(self) -> dict[str, Any]:
        """The same as plain values."""
        return asdict(self)


def _said(peaks: Peaks) -> str:
    return f"{peaks.bytes_per_second / 1e9:.1f} GB/s, {peaks.flops_per_second / 1e9:.0f} GFLOP/s"
