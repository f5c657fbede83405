"""Why a function is compiled again: the texts of guards that failed, as reasons with codes and both values."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from traceback import FrameSummary
from typing import Any

from lamina.base.reasons import Reason
from lamina.capture.breaks import user_frame, user_place
from lamina.capture.reasons import GUARDS, OTHER_GUARD

__all__ = ["FailedGuard", "failed_guard", "is_of_another"]


@dataclass(frozen=True, slots=True)
class FailedGuard:
    """A guard that did not hold: its text, the reason in words, both values and the user's line that it comes from.

    Values are texts; they and ``place`` are empty where they are not known.
    """

    guard: str
    reason: Reason
    old: str = ""
    new: str = ""
    place: str = ""


_VERSION = re.compile(r"^\d+/\d+(?:_\d+)?: ")
_STACK = re.compile(r'File "([^"]*)", line (\d+)')
_TENSOR = re.compile(r"^tensor '(.*?)' (\w+) mismatch(?: at index (\d+))?\. expected (.*?)(?:, actual (.*))?$")
_SAME = re.compile(r"^(.*?) == (.*)$")
_OBJECT = re.compile(r"^___check_obj_id\((.*?),")
_KIND = re.compile(r"^___check_type_id\((.*?),|^expected type of '(.*?)'")
_LOCAL = re.compile(r"\bL\[['\"](\w+)['\"]\]")


def is_of_another(text: str) -> bool:
    """Whether Dynamo's ``text`` is about a version that another call of a compile function had made."""
    return "BACKEND_MATCH" in text


def failed_guard(text: str, scope: Mapping[str, Any], names: Mapping[str, Any]) -> FailedGuard:
    """What Dynamo's ``text`` about a guard says.

    ``scope`` holds the local variables and ``names`` the global ones of the call that the guard failed for.
    """
    first, _, rest = _VERSION.sub("", text).partition("\n")
    place, _, note = first.partition("  #")
    guard = _LOCAL.sub(r"\1", place).strip()
    frames = [FrameSummary(name, int(line), "") for name, line in _STACK.findall(rest)]
    where = user_place(user_frame(frames)) or _noted_place(note)
    kind, facts = _told(guard, scope, names)
    code = GUARDS.get(kind, OTHER_GUARD)
    reason = code(guard=guard, **facts)
    return FailedGuard(guard, reason, facts.get("old", ""), facts.get("new", ""), where)


def _noted_place(note: str) -> str:
    match = re.search(r"# ([^#]*:\d+) in ", note)
    return match.group(1).strip() if match else ""


def _told(guard: str, scope: Mapping[str, Any], names: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """The kind of a guard, and what its code's sentence needs."""
    if match := _TENSOR.match(guard):
        name, kind, place, old, new = (part or "" for part in match.groups())
        if kind == "requires_grad":
            old = str(old.endswith("1"))
            new = new or str(old == "False")
        kind = "dispatch" if kind not in GUARDS else kind
        return kind, {"name": name, "place": place, "old": old, "new": new or "another"}
    if guard.startswith("GLOBAL_STATE") or "default_dtype" in guard or "inference_mode" in guard:
        return "state", {}
    if match := _OBJECT.match(guard):
        return "identity", {"name": match.group(1)}
    if match := _KIND.match(guard):
        return "type", {"name": match.group(1) or match.group(2)}
    if "Duplicate tensors" in guard or " is " in guard or "overlapping" in guard:
        return "alias", {}
    return _compared(guard, scope, names)


def _compared(guard: str, scope: Mapping[str, Any], names: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """A guard that is a comparison: of sizes with each other, or of a value with a constant."""
    if ".size()[" in guard or ".stride()[" in guard:
        return "relation", {}
    match = _SAME.match(guard)
    if match is None:
        return "", {}
    left, old = match.group(1).strip(), match.group(2).strip()
    found = _value(left, scope, names)
    facts = {"name": left, "old": old, "new": "another value" if found is None else _brief(repr(found[0]))}
    if left.startswith("len("):
        return "length", {**facts, "name": left[4:-1]}
    if left.endswith(".training"):
        return "training", {**facts, "name": left.removesuffix(".training")}
    return "number" if re.fullmatch(r"-?[\d.]+(e[-+]?\d+)?", old) else "constant", facts


def _brief(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:80]}..."


_READS = (ast.Expression, ast.Name, ast.Load, ast.Attribute, ast.Subscript, ast.Constant, ast.Call)


def _value(expression: str, scope: Mapping[str, Any], names: Mapping[str, Any]) -> tuple[Any] | None:
    """What an expression of names, attributes, items and lengths gives now; nothing if it is more, or raises."""
    try:
        tree = ast.parse(expression, mode="eval")
        calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
        if not all(isinstance(n, _READS) for n in ast.walk(tree)):
            return None
        if any(not isinstance(n.func, ast.Name) or n.func.id != "len" for n in calls):
            return None
        return (eval(compile(tree, "<guard>", "eval"), {"__builtins__": {"len": len}, "G": names}, dict(scope)),)
    except Exception:  # told for the user's sake only
        return None
