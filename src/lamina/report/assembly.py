"""The machine code of CPU kernels, with the kernel's line that each instruction came from."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from lamina.report.texts import Text, Texts
from lamina.runtime.kernel import KernelUnit
from lamina.runtime.toolchain import compile_flags, find_compiler, host_isa

__all__ = ["Assembler", "listing"]

_SECONDS = 120
"""How long a compiler or objdump may take for one kernel."""
_PLACE = re.compile(r"(?:inlined by )?(\S.*):(\d+)(?: \(.*\))?$")
_LABEL = re.compile(r"(?:[0-9a-f]+ )?<(.+)>:$")
_TARGET = re.compile(r"\b([0-9a-f]+) <([^>]*)>")


class Assembler:
    """Compiles kernels again with line tables, and reads what the compiler made of them.

    ``why`` says why there is none, where a program that this takes is missing.
    """

    def __init__(self) -> None:
        self.jobs = os.cpu_count() or 1
        compiler, self.objdump = find_compiler(), shutil.which("objdump")
        self.compiler = "" if compiler is None else compiler.path
        self.why = "" if self.compiler and self.objdump else "no C++ compiler" if self.objdump else "no objdump"

    def add(self, texts: Texts, units: Iterable[tuple[str, KernelUnit]]) -> dict[str, str]:
        """Link the machine code of kernels to their texts, which are given by key; what failed, by key."""
        given = list(units)
        failed = dict.fromkeys((key for key, _ in given), self.why) if self.why else {}
        with tempfile.TemporaryDirectory(prefix="lamina-report-") as folder:
            for start in range(0, 0 if self.why else len(given), self.jobs):
                some = given[start : start + self.jobs]
                for (key, unit), building in zip(some, [self._build(unit, folder) for _, unit in some], strict=True):
                    try:
                        lines, origins = self._read(unit, building, folder)
                    except (OSError, subprocess.SubprocessError) as error:
                        failed[key] = f"{type(error).__name__}: {error}"
                        continue
                    own = key.replace("kernel:", "assembly:", 1)
                    texts.add(Text(own, "assembly", unit.name, "asm", tuple(lines)))
                    for number, line in enumerate(origins, 1):
                        if line:
                            texts.links.add(key, line, own, number)
        return failed

    def _build(self, unit: KernelUnit, folder: str) -> subprocess.Popen[bytes]:
        """A compiler at work; threads would not do, as none can be started when the interpreter ends."""
        for end, text in unit.files().items():
            path = Path(folder) / (f"{unit.name}{end}" if end.startswith(".") else end[1:])
            if not path.exists():  # a header of its name is the same for all, and another compiler may be reading it
                path.write_text(text, encoding="utf-8")
        flags = [flag for flag in compile_flags(host_isa()) if flag not in ("-c", "-pipe")]
        command = [self.compiler, *flags, *unit.flags, "-g1", "-c", f"{unit.name}.cpp", "-o", f"{unit.name}.o"]
        return subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def _read(self, unit: KernelUnit, building: subprocess.Popen[bytes], folder: str) -> tuple[list[str], list[int]]:
        """Instructions, and for each the line of the kernel's text that it came from (0: none)."""
        if building.wait(_SECONDS):
            raise subprocess.CalledProcessError(building.returncode, self.compiler)
        how = ("-d", "-l", "--inlines", "-M", "intel", "--no-show-raw-insn", "-C", f"{unit.name}.o")
        read = subprocess.run(
            [str(self.objdump), *how], cwd=folder, capture_output=True, text=True, timeout=_SECONDS, check=True
        )
        lines, origins = listing(read.stdout.splitlines(), f"{unit.name}.cpp")
        file = unit.files()[".cpp"]
        before = file[: file.rindex(unit.source)].count("\n")
        return lines, [max(0, line - before) for line in origins]


def listing(output: Sequence[str], file: str) -> tuple[list[str], list[int]]:
    """What ``objdump -d -l --inlines`` printed, as instructions with the line of ``file`` that each came from.

    Of the places that an instruction was inlined through, the innermost in ``file`` counts.
    """
    lines: list[str] = []
    origins: list[int] = []
    place, fresh = 0, True
    for line in output:
        label = _LABEL.match(line)
        if label:
            lines.append(f"{label[1]}:")
            origins.append(0)
            place, fresh = 0, True
        elif line.startswith((" ", "\t")):
            address, _, text = line.partition(":")
            lines.append(f"{address.strip():>6}:  {_instruction(text)}")
            origins.append(place)
            fresh = True
        elif match := _PLACE.match(line):
            if fresh:
                place = 0
            fresh = False
            if not place and match[1].endswith(file):
                place = int(match[2])
    return lines, origins


def _instruction(text: str) -> str:
    """An instruction without the comment that repeats where it jumps to."""
    plain = text.strip().expandtabs(8).partition("        #")[0].rstrip()
    return _TARGET.sub(lambda found: f"{found[1]} <{found[2].rpartition('+')[2] or found[2]}>", plain)
