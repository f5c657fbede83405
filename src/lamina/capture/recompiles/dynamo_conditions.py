"""Dynamo's text of the guards of a compiled version, as sentences."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator

from lamina.capture.conditions import CODE, HOOKS, PARAMETERS, SIZES, Condition, spoken, state_sentence, whole_path

__all__ = ["conditions_of"]

_GUARD = re.compile(r"^(?:(?:Key|Value)Manager: )?([A-Z][A-Z_]+): (.*)$")
_NOTE = re.compile(r"  # (?:.*?  # )?([^#]*?:\d+) in ")
_HINT = re.compile(r" \((?:HINT: |user code shown ).*$")
_STRUCTURE = ("TREE_GUARD_MANAGER",)
_MARKS = re.compile(r"^hasattr\((.*), '_dynamo_\w+'\) == False|^(?:not )?hasattr\((.*), '_dynamo_\w+'\)")
_TENSOR = re.compile(
    r"^check_tensor\((.*), (\w+), DispatchKeySet\((.*?)\), torch\.(\w+), device=(\w+), requires_grad=(\w+), "
    r"size=\[(.*?)\], stride=\[(.*?)\]\)"
)
_TYPE = re.compile(r"^___check_type_id\((.*), \d+\)(?:, type=<class '([^']*)'>)?")
_SAME = re.compile(r"^___check_obj_id\((.*), \d+\)")
_HOOKS = re.compile(r"^not (.*?)\.?_(?:global_)?(?:forward|backward)\w*_hooks\w*$")
_EMPTY = re.compile(r"^not ([\w.\[\]'\"()]+)$")
_MISSING = re.compile(r"^not ___dict_contains\((.*?), (.*)\)$")
_HELD = re.compile(r"^___dict_contains\((.*?), (.*)\)$")
_NO_ATTRIBUTE = re.compile(r"^not hasattr\((.*), '(\w+)'\)$")
_EQUAL = re.compile(r"^((?:(?!\.size\(\)|\.stride\(\)).)*?) == (True|False|None|[^=]*)$")
_KEY = re.compile(r"^list\(dict\.keys\((.*)\)\)\[(\d+)\] == (.*)$")
_RELATION = re.compile(r"[=<>(]| is | in |^not ")
_IN_MODULE = re.compile(r"\._(?:parameters|buffers)\['\w+'\]$")


def conditions_of(lines: Iterable[str], file: str) -> Iterator[Condition]:
    """The conditions that ``lines`` of Dynamo's text say of a function of ``file``, in their order.

    Lines about Dynamo's own structure say none.
    """
    for line in lines:
        match = _GUARD.match(line)
        if match is None or match[1] in _STRUCTURE:
            continue
        kind, text = match.groups()
        note = _NOTE.search(text)
        guard = _HINT.sub("", text.partition("  #")[0]).strip()
        what, about = _said(kind, guard)
        if what:
            yield Condition(what, whole_path(note[1].strip(), file) if note and about != HOOKS else "", about)


def _said(kind: str, guard: str) -> tuple[str, str]:
    if kind in _KINDS:
        return _KINDS[kind](guard)
    for pattern, tell in _TEXTS:
        if match := pattern.match(guard):
            return tell(match)
    if kind == "LAMBDA_GUARD" and not _RELATION.search(guard):
        return f"as they were: {guard}", CODE
    return spoken(guard), ""


def _state(guard: str) -> tuple[str, str]:
    _, _, text = guard.partition(" against ")
    try:
        known = json.loads(text)
        autocast = any(known["autocast_state"]["enabled"])
        return state_sentence(known["grad_mode"], autocast, known["num_threads"]), ""
    except (ValueError, KeyError, TypeError):  # another version of torch says it in another way
        return "the state of torch is as it was", ""


def _tensor(match: re.Match[str]) -> tuple[str, str]:
    place, kind, keys, dtype, index, gradient, size, stride = match.groups()
    device = keys.partition(",")[0].lower() + ("" if index == "None" else f":{index}")
    known = size.replace("None", "any")
    strides = stride.replace("None", "any")
    grown = "with" if gradient == "True" else "without"
    said = f"{spoken(place)} is a {kind} of {dtype} on {device}, sizes [{known}], strides [{strides}], {grown} gradient"
    return said, PARAMETERS if _IN_MODULE.search(place) else ""


def _type(match: re.Match[str]) -> tuple[str, str]:
    place, kind = match.groups()
    return f"the type of {spoken(place)} is {kind or 'the same'}", CODE


def _alike(guard: str) -> tuple[str, str]:
    inner = guard.partition("check_no_aliasing(")[2].rpartition(")")[0]
    return (f"no two of {spoken(inner)} are one tensor" if inner else ""), ""


def _key(match: re.Match[str]) -> tuple[str, str]:
    place, number, key = match.groups()
    return f"key {number} of {spoken(place)} is {key}", CODE if "._modules" in place else ""


def _equal(match: re.Match[str]) -> tuple[str, str]:
    place, value = match.groups()
    return f"{spoken(place)} is {value}", CODE if "__" in spoken(place) else ""


def _kept(match: re.Match[str]) -> tuple[str, str]:
    key, place = match.groups()
    return f"{spoken(place)} has {key}", CODE if "__dict__" in place else ""


def _missing(match: re.Match[str]) -> tuple[str, str]:
    key, place = match.groups()
    return f"{spoken(place)} has no {key}", CODE if "__dict__" in place else ""


_KINDS: dict[str, Callable[[str], tuple[str, str]]] = {
    "GLOBAL_STATE": _state,
    "NO_TENSOR_ALIASING": _alike,
    "TORCH_FUNCTION_MODE_STACK": lambda guard: ("no mode of torch functions is on, or the same one", CODE),
    "DEFAULT_DEVICE": lambda guard: ("torch's default device is as it was", CODE),
}
_TEXTS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], tuple[str, str]]], ...] = (
    (_TENSOR, _tensor),
    (_TYPE, _type),
    (_SAME, lambda match: (f"{spoken(match[1])} is the same object", CODE)),
    (_MARKS, lambda match: (f"no size of {spoken(match[1] or match[2])} is marked as dynamic or static", SIZES)),
    (_HOOKS, lambda match: (f"{spoken(match[1])} has no hooks", HOOKS)),
    (_EMPTY, lambda match: (f"{spoken(match[1])} is empty", "")),
    (_MISSING, _missing),
    (_HELD, _kept),
    (_NO_ATTRIBUTE, lambda match: (f"{spoken(match[1])} has no {match[2]!r}", "")),
    (_KEY, _key),
    (_EQUAL, _equal),
)
"""How Dynamo's texts are read; the first that fits is taken."""
