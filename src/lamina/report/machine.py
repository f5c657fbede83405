"""What the machine code of kernels takes of a processor, as their compilers and disassemblers say it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["MachineCode", "Needs", "cpu_needs", "gpu_needs"]

_VECTOR = re.compile(r"\b[xyz]mm(\d+)\b")
_STACK = re.compile(r"\[rsp\b|\[rbp-")
_LOCAL = re.compile(r"\b(?:LDL|STL)\b")
_USED = re.compile(r"\bREG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")


@dataclass(frozen=True, slots=True)
class Needs:
    """What one kernel takes: ``registers`` of a GPU's thread, or vector registers of a CPU; ``spills``, instructions
    that keep or fetch one of them in memory; ``shared`` and ``local`` bytes, of a GPU's program and of its thread.

    None where it is not known.
    """

    registers: int | None
    spills: int
    shared: int | None = None
    local: int | None = None

    def data(self) -> dict[str, Any]:
        """What is known, as JSON."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(slots=True)
class MachineCode:
    """What became of the kernels of a report, by the key of their text: why there is no code, or what that needs."""

    failed: dict[str, str] = field(default_factory=dict)
    needs: dict[str, Needs] = field(default_factory=dict)

    def join(self, other: MachineCode) -> None:
        """Take what ``other`` says, too."""
        self.failed |= other.failed
        self.needs |= other.needs


def cpu_needs(lines: Sequence[str]) -> Needs:
    """Of a listing for x86: how many vector registers it names, and how often one goes to the stack or comes back."""
    registers = {number for line in lines for number in _VECTOR.findall(line)}
    return Needs(len(registers), sum(1 for line in lines if _STACK.search(line) and _VECTOR.search(line)))


def gpu_needs(lines: Sequence[str], resources: str, answer: Mapping[str, Any]) -> Needs:
    """Of a listing in SASS, with what ``cuobjdump -res-usage`` printed and what the compiler answered."""
    spills = sum(1 for line in lines if _LOCAL.search(line))
    used = _USED.search(resources)
    shared = answer.get("shared")
    if used is None:
        return Needs(None, spills, shared)
    registers, stack, fixed, local = map(int, used.groups())
    return Needs(registers, spills, fixed + (shared or 0), stack + local)
