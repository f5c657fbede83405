"""PTX and machine code (SASS) of GPU kernels, with the kernel's line of each instruction; no GPU is needed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from lamina.codegen.triton.source import TritonSource
from lamina.report.machine import MachineCode, Needs, gpu_needs
from lamina.report.texts import Text, Texts
from lamina.runtime import triton_worker
from lamina.runtime.triton_build import TritonUnit

__all__ = ["add_gpu_assembly", "ptx_listing", "sass_listing"]

_SECONDS = 300
"""How long all kernels of a report may take to compile once more."""
_CAPABILITY = 90
"""The GPU that is compiled for where this machine has none: an H100."""
_PLACE = re.compile(r'//## File "([^"]*)", line (\d+)(?: inlined at "([^"]*)", line (\d+))?')
_INSTRUCTION = re.compile(r"\s*/\*([0-9a-f]+)\*/\s+(.*?)\s*;?\s*$")
_LOCATION = re.compile(r"\s*\.loc\s+(\d+) (\d+) \d+(?:,.*inlined_at (\d+) (\d+) \d+)?")
_FILE = re.compile(r'\s*\.file\s+(\d+) "([^"]*)"')
_MARK = re.compile(r"\$L__(?:tmp|func_)\w+:|\s*// (?:--|%bb|begin inline|end inline|@)")
"""Lines of PTX that only tell a debugger or a reader where something begins."""


def add_gpu_assembly(texts: Texts, units: Iterable[tuple[str, TritonSource]]) -> MachineCode:
    """Link the PTX and the machine code of kernels to their texts, which are given by key, and say what these need.

    They are compiled once more in a process of their own, and read by the ``nvdisasm`` that comes with Triton.
    """
    given = list(units)
    found = find_spec("triton")
    tools = None if found is None or found.origin is None else Path(found.origin).parent / "backends/nvidia/bin"
    if tools is None or not (tools / "nvdisasm").exists():
        return MachineCode(dict.fromkeys((key for key, _ in given), "Triton with nvdisasm is not installed"))
    made = MachineCode()
    with tempfile.TemporaryDirectory(prefix="lamina-report-") as folder:
        answers = _compiled([unit for _, unit in given], Path(folder))
        for (key, unit), (where, answer) in zip(given, answers, strict=True):
            try:
                made.needs[key] = _add(texts, key, unit, _read(tools, where), answer)
            except _NotReadError as error:
                made.failed[key] = str(answer.get("error") or error)
    return made


class _NotReadError(Exception):
    """There is no machine code that can be read; the message says why."""


@dataclass(frozen=True, slots=True)
class _Code:
    """A compiled kernel as text: its PTX, its listing, and how many resources it takes."""

    ptx: str
    sass: str
    resources: str


def _read(tools: Path, where: Path) -> _Code:
    cubin = where / "kernel.cubin"
    if not cubin.exists():
        raise _NotReadError("the compiler left no machine code")
    sass = _printed(tools / "nvdisasm", "-g", "-c", str(cubin))
    try:
        resources = _printed(tools / "cuobjdump", "-res-usage", str(cubin))
    except (OSError, _NotReadError):  # the code is read all the same
        resources = ""
    ptx = where / "kernel.ptx"
    return _Code(ptx.read_text(encoding="utf-8") if ptx.exists() else "", sass, resources)


def _printed(program: Path, *arguments: str) -> str:
    """What a program printed. Raises ``_NotReadError`` where it failed."""
    try:
        done = subprocess.run([str(program), *arguments], capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise _NotReadError(f"{program.name} takes more than {_SECONDS} s") from error
    if done.returncode:
        raise _NotReadError(f"{program.name} ended with {done.returncode}: {done.stderr.strip()[:200]}")
    return done.stdout


def _add(texts: Texts, key: str, unit: TritonSource, code: _Code, answer: Mapping[str, Any]) -> Needs:
    """Add both texts of a kernel with their links."""
    lines: list[str] = []
    for level, (lines, origins) in (
        ("ptx", ptx_listing(code.ptx.splitlines(), f"{unit.name}.py")),
        ("assembly", sass_listing(code.sass.splitlines(), f"{unit.name}.py")),
    ):
        if not lines:
            continue
        own = key.replace("kernel:", f"{level}:", 1)
        texts.add(Text(own, level, unit.name, "asm", tuple(lines)))
        for number, line in enumerate(origins, 1):
            if line:
                texts.links.add(key, line, own, number)
    return gpu_needs(lines, code.resources, answer)


def _compiled(sources: Sequence[TritonSource], folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    """For each kernel the folder that its machine code is in, and what the compiler answered: "error" says why not."""
    capability = _CAPABILITY
    if torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        capability = 10 * major + minor
    places = [folder / str(number) for number in range(len(sources))]
    requests = [json.dumps({"path": sys.path, "folder": str(folder / "cache")})]
    for source, place in zip(sources, places, strict=True):
        place.mkdir()
        requests.append(json.dumps(_unit(source).request(capability, place)))
    try:
        done = subprocess.run(
            [sys.executable, triton_worker.__file__],
            input="\n".join([*requests, ""]),
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return [(place, {"error": f"the compiler takes more than {_SECONDS} s"}) for place in places]
    answers: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    ended = f"the compiler ended with {done.returncode}: {done.stderr.strip()[-200:]}"
    answers += [{"error": ended}] * (len(sources) - len(answers))
    return list(zip(places, answers, strict=True))


def _unit(source: TritonSource) -> TritonUnit:
    aligned = tuple(i for i, name in enumerate(source.parameters) if name in source.aligned)
    return TritonUnit(
        source.name,
        source.name,
        source.text,
        source.parameters,
        source.types,
        aligned,
        source.warps,
        source.stages,
        source.checks,
        source.scratch,
    )


def sass_listing(output: Sequence[str], file: str) -> tuple[list[str], list[int]]:
    """What ``nvdisasm -g -c`` printed, as instructions with the line of ``file`` that each came from (0: none)."""
    lines: list[str] = []
    origins: list[int] = []
    place = 0
    for line in output:
        if match := _PLACE.search(line):
            pairs = ((match[1], match[2]), (match[3], match[4]))
            place = next((int(number) for name, number in pairs if name and name.endswith(file)), place)
        elif match := _INSTRUCTION.match(line):
            lines.append(f"{match[1]:>6}:  {match[2]}")
            origins.append(place)
        elif line.startswith(".L") and line.endswith(":"):
            lines.append(line)
            origins.append(0)
    return lines, origins


def ptx_listing(output: Sequence[str], file: str) -> tuple[list[str], list[int]]:
    """The code of a file of PTX without what is for debuggers, with the line of ``file`` of each (0: none)."""
    names = {match[1]: match[2] for line in output if (match := _FILE.match(line))}
    lines: list[str] = []
    origins: list[int] = []
    place = 0
    for line in output:
        if line.lstrip().startswith((".section", ".file")):
            break  # tables for debuggers follow
        if match := _LOCATION.match(line):
            pairs = ((match[1], match[2]), (match[3], match[4]))
            place = next((int(number) for at, number in pairs if names.get(at, "").endswith(file)), place)
        elif line.strip() and not _MARK.match(line):
            indent = "    " if line.startswith(("\t", " ")) else ""
            plain = indent + " ".join(line.partition("  //")[0].split())
            lines.append(plain)
            origins.append(place if plain.endswith(";") and not plain.lstrip().startswith(".") else 0)
    return lines, origins
