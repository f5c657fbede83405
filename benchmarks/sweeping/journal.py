"""Findings kept in a file of JSON lines, each with what it depends on, so that a sweep goes on where it was."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import torch

import lamina
from benchmarks.sweeping.measure import Finding

__all__ = ["Journal", "versions"]


@cache
def _source_digest() -> str:
    """Names Lamina's source as it is, committed or not."""
    root = Path(lamina.__file__).parent
    digest = hashlib.sha256()
    for path in sorted([*root.rglob("*.py"), *root.rglob("*.h")]):
        digest.update(path.relative_to(root).as_posix().encode() + b"\\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def versions(subject: str, rivals: Sequence[str], device: str, scale: float) -> dict[str, Any]:
    """What a finding depends on besides its program."""
    return {
        "torch": torch.__version__,
        "lamina": _source_digest(),
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "scale": scale,
        "subject": subject,
        "rivals": list(rivals),
    }


class Journal:
    """The findings of one file; those under ``versions`` and the same text of a program need not be made again.

    A row is noted before it begins too: one that never ended, because the process did not survive it, is a crash.
    """

    def __init__(self, path: Path, versions: dict[str, Any]) -> None:
        self.path, self.versions = path, versions
        self.key = hashlib.sha256(json.dumps(versions, sort_keys=True).encode()).hexdigest()[:12]
        self.findings: dict[str, Finding] = {}
        self.earlier: dict[str, Finding] = {}
        self.begun: dict[str, str] = {}
        self.read()

    def read(self, path: Path | None = None) -> None:
        """Take in what is in the file, or in another; a last line that was cut off counts as none."""
        path = path or self.path
        if not path.exists():
            return
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                continue
            if "begun" in entry or "stopped" in entry:
                if entry["key"] == self.key:
                    self._follow(entry)
                continue
            finding = _finding(entry["finding"])
            self.earlier[finding.name] = finding
            if entry["key"] == self.key:
                self.findings[finding.name] = finding

    def _follow(self, entry: dict[str, Any]) -> None:
        if "begun" in entry:
            self.begun[entry["begun"]] = entry["rival"]
        else:
            self.begun.pop(entry["stopped"], None)

    def has(self, name: str, text: str) -> bool:
        """Whether the program of that name and text is done."""
        return name in self.findings and self.findings[name].text in (text, "")

    def begin(self, name: str, rival: str = "eager") -> None:
        """The row is about to run a rival for the first time."""
        self.begun[name] = rival
        self._write({"key": self.key, "begun": name, "rival": rival})

    def stop(self, name: str) -> None:
        """A row that began is not measured after all, and may be some other time."""
        self.begun.pop(name, None)
        self._write({"key": self.key, "stopped": name})

    def note(self, finding: Finding) -> None:
        self.findings[finding.name] = finding
        self._write({"key": self.key, "versions": self.versions, "finding": asdict(finding)})

    def take(self, path: Path) -> None:
        """Move what is in another journal, if it is there, into this one."""
        if not path.exists():
            return
        self.read(path)
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in path.read_text(encoding="utf-8").splitlines())
        path.unlink()

    def bury(self) -> list[Finding]:
        """Note as crashes the rows that began and did not end; as skipped, where it was in eager that they ended."""
        lost = []
        for name, rival in self.begun.items():
            if name not in self.findings:
                status = "skipped" if rival == "eager" else "crash"
                lost.append(Finding(name, status, f"the process ended at {rival} in it"))
        for finding in lost:
            self.note(finding)
        return lost

    def _write(self, entry: dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


def _finding(values: dict[str, Any]) -> Finding:
    known = {key: value for key, value in values.items() if key in Finding.__dataclass_fields__}
    for name in ("kinds", "decisions"):
        known[name] = tuple(known.get(name, ()))
    return Finding(**known)
