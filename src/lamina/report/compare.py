"""In what the data of two reports differs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["differences"]


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Totals of both, kernels and decisions that one alone has, texts that differ; no times, which always do."""
    old, new = _texts(before), _texts(after)
    return {
        "totals": {name: [count, _totals(after)[name]] for name, count in _totals(before).items()},
        "kernels": _sets((k["name"] for k in before["kernels"]), (k["name"] for k in after["kernels"])),
        "decisions": _sets(map(_decision(before), before["decisions"]), map(_decision(after), after["decisions"])),
        "texts": {
            **_sets(old, new),
            "changed": [key for key, text in old.items() if key in new and new[key] != text],
        },
    }


def _texts(report: Mapping[str, Any]) -> dict[str, str]:
    return {text["key"]: text["text"] for text in report["texts"] if text["level"] not in ("kernel", "ptx", "assembly")}


def _totals(report: Mapping[str, Any]) -> dict[str, int]:
    steps = [step for region in report["regions"] for step in region.get("steps", ())]
    return {
        "regions": len(report["regions"]),
        "kernels": len(report["kernels"]),
        "launches": sum(step["kind"] == "kernel" for step in steps),
        "library calls": sum(step["kind"] == "library" for step in steps),
        "bytes": sum(step["bytes_read"] + step["bytes_written"] for step in steps),
        "flops": sum(step["flops"] for step in steps),
    }


def _decision(report: Mapping[str, Any]) -> Any:
    stages = report["stages"]

    def text(d: Mapping[str, Any]) -> str:
        answer = "yes" if d["taken"] else "no"
        return f"{stages[d['stage']]['region']}: {d['kind']} {', '.join(d['subject'])}: {answer}, {d['reason']}".strip()

    return text


def _sets(before: Iterable[str], after: Iterable[str]) -> dict[str, list[str]]:
    old, new = dict.fromkeys(before), dict.fromkeys(after)
    return {"gone": [one for one in old if one not in new], "new": [one for one in new if one not in old]}
