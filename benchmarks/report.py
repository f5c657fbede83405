"""Tables on the terminal and JSON files with everything needed to repeat a measurement."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

__all__ = ["RESULTS", "geometric_mean", "machine", "print_table", "write_results"]

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    """Processor, threads, load, versions, commit and Lamina's environment variables: what a figure depends on."""
    names = ("torch", "triton", "transformers", "lamina")
    return {
        "cpu": _processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_1min": os.getloadavg()[0],
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in names},
        "compiler": _first_line(["g++", "--version"]),
        "commit": _first_line(["git", "-C", str(RESULTS.parent), "rev-parse", "--short", "HEAD"]),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": _environment(),
    }


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean; NaN for no values."""
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table; the first column to the left, the others to the right."""
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console(width=None if os.isatty(1) else 180, highlight=False)
    console.print(table)


def write_results(path: Path, content: dict[str, Any]) -> None:
    """Write one JSON file, with the machine's description, and say where."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine(), **content}, indent=1) + "\n", encoding="utf-8")
    print(f"written: {path}")


def _environment() -> dict[str, str]:
    """Lamina's variables that are set; folders change no figure but those of first calls, and name a machine's user."""
    names = sorted(name for name in os.environ if name.startswith("LAMINA_") and not name.endswith("_DIR"))
    return {name: os.environ[name] for name in names}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _first_line(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip().splitlines()[0]
