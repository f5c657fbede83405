"""The machine code of CPU kernels, with the kernel's line that each instruction came from."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lamina.options import compiler_variables
from lamina.report.machine import MachineCode, cpu_needs
from lamina.report.texts import Text, Texts
from lamina.runtime.kernel import KernelUnit, kernel_hash, label, source_unit
from lamina.runtime.toolchain import Compiler, compile_flags, host_isa, look_for_compiler

__all__ = ["Assembler", "listings", "shared_out"]

_SECONDS = 120
"""How long a compiler or objdump may take for one file."""
_PLACE = re.compile(r"(?:inlined by )?(\S.*):(\d+)(?: \(.*\))?$")
_LABEL = re.compile(r"([0-9a-f]+) <(.+)>:$")
_TARGET = re.compile(r"\b[0-9a-f]+ <([^<>+]*)(?:\+0x([0-9a-f]+))?>")
_OWNER = re.compile(r"_([0-9a-f]{16})(?![0-9a-f])")
_MACROS = re.compile(r"^\s*#\s*(?!pragma\b|line\b)", re.MULTILINE)


class Assembler:
    """Compiles kernels again with line tables, several a file, and reads what the compiler made of them.

    ``why`` says why there is none, where a program that this takes is missing.
    """

    def __init__(self) -> None:
        self.jobs = os.cpu_count() or 1
        found, self.objdump = look_for_compiler(told=compiler_variables()), shutil.which("objdump")
        self.compiler = found.path if isinstance(found, Compiler) else ""
        self.why = "" if self.compiler and self.objdump else "no C++ compiler" if self.objdump else "no objdump"
        self.flags = tuple(flag for flag in compile_flags(host_isa()) if flag not in ("-c", "-pipe"))

    def add(self, texts: Texts, units: Iterable[tuple[str, KernelUnit]]) -> MachineCode:
        """Link the machine code of kernels to their texts, which are given by key, and say what it needs."""
        given: dict[str, list[tuple[str, KernelUnit]]] = {}
        for key, unit in units:  # those that differ only in their sizes have one code
            given.setdefault(self._identity(unit), []).append((key, unit))
        if self.why:
            return MachineCode({key: self.why for same in given.values() for key, _ in same})
        made, own = MachineCode(), {identity: same[0][1] for identity, same in given.items()}
        files = shared_out(own, self.jobs)
        with tempfile.TemporaryDirectory(prefix="lamina-report-") as folder:
            for start in range(0, len(files), self.jobs):
                some = files[start : start + self.jobs]
                builds = [
                    self._build({identity: own[identity] for identity in members}, folder, start + number)
                    for number, members in enumerate(some)
                ]
                for number, (members, building) in enumerate(zip(some, builds, strict=True), start):
                    names = {identity[:16]: label(own[identity], identity) for identity in members}
                    kernels = [(identity, key, unit) for identity in members for key, unit in given[identity]]
                    try:
                        found = listings(self._read(building, folder, number), names)
                    except (OSError, subprocess.SubprocessError) as error:
                        made.failed |= {key: f"{type(error).__name__}: {error}" for _, key, _ in kernels}
                        continue
                    for identity, key, unit in kernels:
                        lines, origins = found[identity[:16]]
                        _add(texts, key, unit, lines, origins)
                        made.needs[key] = cpu_needs(lines)
        return made

    def _identity(self, unit: KernelUnit) -> str:
        return kernel_hash(unit, self.flags, platform.machine())

    def _build(self, units: Mapping[str, KernelUnit], folder: str, number: int) -> subprocess.Popen[bytes]:
        """A compiler at work; threads would not do, as none can be started when the interpreter ends."""
        (Path(folder) / f"{number}.cpp").write_text(source_unit(units.items()), encoding="utf-8")
        flags = (*self.flags, *next(iter(units.values())).flags)
        command = [self.compiler, *flags, "-g1", "-c", f"{number}.cpp", "-o", f"{number}.o"]
        return subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def _read(self, building: subprocess.Popen[bytes], folder: str, number: int) -> list[str]:
        try:
            status = building.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            building.kill()
            building.wait()
            raise
        if status:
            raise subprocess.CalledProcessError(building.returncode, self.compiler)
        how = ("-d", "-l", "--inlines", "-M", "intel", "--no-show-raw-insn", "-C", f"{number}.o")
        read = subprocess.run(
            [str(self.objdump), *how], cwd=folder, capture_output=True, text=True, timeout=_SECONDS, check=True
        )
        return read.stdout.splitlines()


def _add(texts: Texts, key: str, unit: KernelUnit, lines: Sequence[str], origins: Sequence[int]) -> None:
    own = key.replace("kernel:", "assembly:", 1)
    texts.add(Text(own, "assembly", unit.name, "asm", tuple(lines)))
    for number, line in enumerate(origins, 1):
        if line:
            texts.links.add(key, line, own, number)


def shared_out(units: Mapping[str, KernelUnit], jobs: int) -> list[list[str]]:
    """The kernels, by hash, in files: those that have the same header and flags together, ``jobs`` files of them."""
    groups: dict[tuple[object, ...], list[str]] = {}
    for identity, unit in units.items():
        alone = identity if _MACROS.search(unit.source) else ""  # a macro must not reach the next kernel
        groups.setdefault((unit.prelude, unit.flags, alone), []).append(identity)
    files: list[list[str]] = []
    for members in groups.values():
        largest = sorted(members, key=lambda identity: -len(units[identity].source))
        files += [largest[start::jobs] for start in range(min(jobs, len(largest)))]
    return files


@dataclass(slots=True)
class _Function:
    """A function of an object: its instructions, the kernel's lines that they came from, and what it calls."""

    name: str
    start: int
    lines: list[str] = field(default_factory=list)
    origins: list[dict[str, int]] = field(default_factory=list)
    calls: set[str] = field(default_factory=set)


def listings(output: Sequence[str], files: Mapping[str, str]) -> dict[str, tuple[list[str], list[int]]]:
    """What ``objdump -d -l --inlines`` printed of an object with several kernels, by kernel.

    ``files`` gives, for the word that all functions of a kernel have in their names, the file that its lines are of.
    Each kernel gets its instructions and the line that each came from (0: none); of the places that one was inlined
    through, the innermost in that file counts. Functions that have no kernel's word are given to those that call them.
    """
    functions = {function.name: function for function in _functions(output)}
    found: dict[str, tuple[list[str], list[int]]] = {}
    for word, file in files.items():
        own = [f for f in functions.values() if word in _OWNER.findall(f.name)]
        for function in own:  # grows while it is read: what is called may call more
            own += [f for n in function.calls if (f := functions.get(n)) and f not in own and not _OWNER.search(n)]
        lines, origins = [], list[int]()
        for function in own:
            lines += [f"{_plain(function.name)}:", *function.lines]
            origins += [0, *(places.get(file, 0) for places in function.origins)]
        found[word] = lines, origins
    return found


def _functions(output: Sequence[str]) -> Iterator[_Function]:
    function: _Function | None = None
    places: dict[str, int] = {}
    fresh = True
    for line in output:
        named = _LABEL.match(line)
        if named:
            if function is not None:
                yield function
            function, places, fresh = _Function(named[2], int(named[1], 16)), {}, True
        elif function is None:
            continue
        elif line.startswith((" ", "\t")):
            address, _, text = line.partition(":")
            function.calls.update(name for name, _ in _TARGET.findall(text))
            function.lines.append(f"{int(address, 16) - function.start:>6x}:  {_instruction(text)}")
            function.origins.append(places)
            fresh = True
        elif match := _PLACE.match(line):
            if fresh:
                places = {}
            fresh = False
            places.setdefault(match[1].rpartition("/")[2], int(match[2]))
    if function is not None:
        yield function


def _instruction(text: str) -> str:
    """An instruction without the comment that repeats where it jumps to; places are those within their function."""
    plain = text.strip().expandtabs(8).partition("        #")[0].rstrip()
    return _TARGET.sub(lambda found: found[2] or f"<{_plain(found[1])}>", plain)


def _plain(name: str) -> str:
    """The name of a function without the words that tell kernels of one file apart."""
    return _OWNER.sub("", re.sub(r"\bkernel_[0-9a-f]{16}::", "", name))
