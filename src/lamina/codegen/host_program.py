"""Host programs for the CPU as values: their text, and the kernels that they launch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from lamina.base.text import SourceMap
from lamina.codegen.host_example import example_block
from lamina.ir.plan import Plan

__all__ = ["MARK", "HostKernel", "HostProgram"]

MARK = re.compile(r"^k_|_[0-9a-f]{10}$")
"""What sets kernels of one name apart; a host program numbers them instead."""

_WITH_KERNELS_BESIDE = """\
from pathlib import Path

from lamina.runtime.kernel_files import load_kernels
from lamina.runtime.kernel_times import print_times, timed

kernels = timed(load_kernels(Path(__file__).parent))
"""


@dataclass(frozen=True, slots=True)
class HostKernel:
    """A kernel that a host program launches: its name in the Plan, its parameters, whether it returns a code.

    ``parameters`` has a letter for each: ``p`` for the address of a buffer, ``q`` for a 64-bit size. A ``checked``
    kernel returns 0, or the 1-based number of the Check that failed.
    """

    name: str
    parameters: str
    checked: bool


@dataclass(frozen=True, slots=True)
class HostProgram:
    """Generated source that defines ``call(args: list) -> tuple``; ``args`` is emptied.

    Run ``text`` in a namespace where ``kernels`` maps each name in this program's ``kernels`` to an object with
    ``launch`` and ``pack``: ``launch(pack(address, ..., size, ...))`` runs the kernel.
    """

    name: str
    text: str
    kernels: tuple[HostKernel, ...]
    source_map: SourceMap
    plan: Plan

    def __str__(self) -> str:
        return self.text

    def files(self) -> dict[str, str]:
        """The program, running on random inputs with the kernels that lie beside it, which it times."""
        return {".py": f"{_WITH_KERNELS_BESIDE}{self.text}\n\n{example_block(self.plan, {}, times=True)}"}

    def standalone(self, kernels: str, sizes: Mapping[str, int] | None = None) -> str:
        """The program with a main block that runs it on random inputs.

        ``kernels`` is the source text of an expression that gives the kernels, or of lines that assign them to
        ``kernels``. Sizes without a value are 8.
        """
        setup = kernels if "\n" in kernels or kernels.startswith("kernels =") else f"kernels = {kernels}"
        return f"{setup.rstrip()}\n{self.text}\n\n{example_block(self.plan, dict(sizes or {}))}"
