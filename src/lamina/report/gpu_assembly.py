"""The machine code of GPU kernels (SASS), with the kernel's line that each instruction came from; no GPU is needed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

import torch

from lamina.codegen.triton.source import TritonSource
from lamina.report.texts import Text, Texts
from lamina.runtime import triton_worker
from lamina.runtime.triton_build import TritonUnit

__all__ = ["add_gpu_assembly", "sass_listing"]

_SECONDS = 300
"""How long all kernels of a report may take to compile once more."""
_CAPABILITY = 90
"""The GPU that is compiled for where this machine has none: an H100."""
_PLACE = re.compile(r'//## File "([^"]*)", line (\d+)(?: inlined at "([^"]*)", line (\d+))?')
_INSTRUCTION = re.compile(r"\s*/\*([0-9a-f]+)\*/\s+(.*?)\s*;?\s*$")


def add_gpu_assembly(texts: Texts, units: Iterable[tuple[str, TritonSource]]) -> dict[str, str]:
    """Link the machine code of kernels to their texts, which are given by key; what failed, by key.

    They are compiled once more in a process of their own, and read by the ``nvdisasm`` that comes with Triton.
    """
    given = list(units)
    found = find_spec("triton")
    program = (
        None if found is None or found.origin is None else Path(found.origin).parent / "backends/nvidia/bin/nvdisasm"
    )
    if program is None or not program.exists():
        return dict.fromkeys((key for key, _ in given), "Triton with nvdisasm is not installed")
    failed: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="lamina-report-") as folder:
        answers = _compiled([unit for _, unit in given], Path(folder))
        for (key, unit), (where, why) in zip(given, answers, strict=True):
            if why:
                failed[key] = why
                continue
            read = subprocess.run(
                [str(program), "-g", "-c", str(where / "kernel.cubin")],
                capture_output=True,
                text=True,
                timeout=_SECONDS,
            )
            if read.returncode:
                failed[key] = f"nvdisasm ended with {read.returncode}: {read.stderr.strip()[:200]}"
                continue
            lines, origins = sass_listing(read.stdout.splitlines(), f"{unit.name}.py")
            own = key.replace("kernel:", "assembly:", 1)
            texts.add(Text(own, "assembly", unit.name, "asm", tuple(lines)))
            for number, line in enumerate(origins, 1):
                if line:
                    texts.links.add(key, line, own, number)
    return failed


def _compiled(sources: Sequence[TritonSource], folder: Path) -> list[tuple[Path, str]]:
    """For each kernel the folder that its machine code is in, and why it is not."""
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
    except subprocess.TimeoutExpired as error:
        return [(place, f"{type(error).__name__}: {error}") for place in places]
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    answers += [{"error": "the compiler ended"}] * (len(sources) - len(answers))
    return [(place, str(answer.get("error", ""))) for place, answer in zip(places, answers, strict=True)]


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
