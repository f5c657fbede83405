"""Dynamo's texts of guards that failed, as reasons with codes, both values, and what the caller can do."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from traceback import FrameSummary

import torch

from lamina.base.reasons import Reason
from lamina.capture.breaks import user_frame, user_place
from lamina.capture.conditions import spoken, whole_path
from lamina.capture.recompiles.guarded_call import GuardedCall
from lamina.capture.recompiles.reasons import GUARDS, OTHER_GUARD
from lamina.errors import RecompileRefused

__all__ = ["FailedGuard", "failed_guard", "is_of_another", "refusal"]


@dataclass(frozen=True, slots=True)
class FailedGuard:
    """A guard that did not hold: its text, the reason in words, both values and the user's lines that it is about.

    Values are texts; they, ``place``, which is the line that the guard comes from, and ``called_at``, where the user's
    own line calls the function, are empty where they are not known.
    """

    guard: str
    reason: Reason
    old: str = ""
    new: str = ""
    place: str = ""
    called_at: str = ""

    def facts(self) -> tuple[tuple[str, str | int | float], ...]:
        """What a decision says of it beside the reason."""
        told = (
            ("guard", self.guard),
            ("old", self.old),
            ("new", self.new),
            ("line", self.place),
            ("called at", self.called_at),
        )
        return tuple(one for one in told if one[1])


def refusal(failed: FailedGuard | None, place: str, name: str) -> RecompileRefused:
    """The error of a stance that forbids to compile ``name``, a function at ``place``; ``failed`` is the guard."""
    before = "call it with such arguments before the stance is set"
    if failed is None:
        what = f"the stance fail_on_recompile forbids to compile {name}, which was not compiled before"
        return RecompileRefused(what, where=place, remedy=before)
    return RecompileRefused(
        f"the stance fail_on_recompile forbids to compile {name} again: {failed.reason} [{failed.reason.code}]",
        where=failed.called_at or place,
        remedy="; ".join(filter(None, (failed.reason.remedy, before))),
    )


Told = tuple[str, dict[str, str]]
"""The kind of a guard, and the words that its code's sentences need."""

_VERSION = re.compile(r"^\d+/\d+(?:_\d+)?: ")
_STACK = re.compile(r'File "([^"]*)", line (\d+)')
_LOCAL = re.compile(r"\bL\[['\"](\w+)['\"]\]")
_NOTED = re.compile(r"# ([^#]*:\d+) in ")


def is_of_another(text: str) -> bool:
    """Whether Dynamo's ``text`` is about a version that another call of a compile function had made."""
    return "BACKEND_MATCH" in text


def failed_guard(text: str, call: GuardedCall) -> FailedGuard:
    """What Dynamo's ``text`` about a guard that did not hold for ``call`` says."""
    first, _, rest = _VERSION.sub("", text).partition("\n")
    guard, _, note = first.partition("  #")
    guard = _LOCAL.sub(r"\1", guard).strip()
    frames = [FrameSummary(name, int(line), "") for name, line in _STACK.findall(rest)]
    noted = _NOTED.search(note)
    where = user_place(user_frame(frames)) or (whole_path(noted.group(1).strip()) if noted else "")
    kind, words = _told(guard, note, call)
    reason = GUARDS.get(kind, OTHER_GUARD)(**{"guard": _spoken(guard), **words})
    at = call.after or where or (call.place if call.held else "")
    return FailedGuard(guard, reason, words.get("old", ""), words.get("new", ""), at, "" if call.held else call.place)


def _told(guard: str, note: str, call: GuardedCall) -> Told:
    for pattern, tell in _TEXTS:
        if match := pattern.search(guard):
            kind, words = tell(match, call)
            if "name" in words:
                words["name"] = _spoken(words["name"])
            return kind, words
    if ".size()[" in guard or ".stride()[" in guard:
        return _relation(guard, note, call)
    return "", {}


_STACKED = re.compile(r"\b___stack(\d+)")


def _spoken(name: str) -> str:
    """Dynamo's name of a value as a user would write it, or in words where it has no name."""
    return _STACKED.sub(r"value \1 held across the graph break", spoken(name))


def _size(match: re.Match[str], call: GuardedCall) -> Told:
    name, place, old, new = match.groups()
    words = {"name": name, "place": place, "old": old, "new": new, "marked": "tensor", "where": "", "before": ""}
    if f"{name}.size()[{place}]" in call.fixed:
        return "fixed size", words
    if new in ("0", "1") or old in ("0", "1"):
        return "small size", words
    if _is_parameter(name, call):
        return "parameter size", words
    if call.held:
        return "held size", {**words, "before": f" at {call.after}" if call.after else ""}
    if name.startswith("G[") or name in call.outer:
        return "outer size", {**words, "marked": _spoken(name)}
    if "." in name:
        return "outer size", words
    written = call.written(name)
    words["marked"] = written or "tensor"
    words["where"] = "" if written else f", where tensor is what the caller gives as {name}"
    return "size", words


def _is_parameter(name: str, call: GuardedCall) -> bool:
    if re.search(r"\._(?:parameters|buffers)\['\w+'\]$", name):
        return True
    found = call.value(name)
    return found is not None and isinstance(found[0], torch.nn.Parameter)


def _tensor(kind: str) -> Callable[[re.Match[str], GuardedCall], Told]:
    def tell(match: re.Match[str], call: GuardedCall) -> Told:
        name, place, old, new = match.groups()
        if kind == "dtype":
            old, new = _DTYPES.get(old, old), _DTYPES.get(new, new)
        return kind, {"name": name, "place": place or "", "old": old, "new": new}

    return tell


_DTYPES = {
    "BFloat16": "bfloat16",
    "Bool": "bool",
    "Byte": "uint8",
    "Char": "int8",
    "ComplexDouble": "complex128",
    "ComplexFloat": "complex64",
    "ComplexHalf": "complex32",
    "Double": "float64",
    "Float": "float32",
    "Half": "float16",
    "Int": "int32",
    "Long": "int64",
    "Short": "int16",
}
"""Dtypes by their names in C++, which guards have."""


def _gradient(match: re.Match[str], call: GuardedCall) -> Told:
    required = match.group(2) == "1"
    return "requires_grad", {"name": match.group(1), "old": str(required), "new": str(not required)}


_ALWAYS = {"BackendSelect", "ADInplaceOrView", "Functionalize"}


def _dispatch(match: re.Match[str], call: GuardedCall) -> Told:
    name, old_keys, new_keys = match.group(1), *(set(text.split(", ")) for text in match.groups()[1:])
    changed = old_keys ^ new_keys
    if changed <= {"Conjugate", "Negative"}:
        told = {True: "a lazy view", False: "an ordinary tensor"}
        old, new = (told[bool(keys & {"Conjugate", "Negative"})] for keys in (old_keys, new_keys))
        return "lazy", {"name": name, "old": old, "new": new}
    if all(key == "ADInplaceOrView" or key.startswith("Autograd") for key in changed):
        told = {True: "outside of inference mode", False: "under torch.inference_mode()"}
        old, new = (told[any(key.startswith("Autograd") for key in keys)] for keys in (old_keys, new_keys))
        return "inference", {"name": name, "old": old, "new": new}
    old, new = (
        ", ".join(sorted(key for key in keys - _ALWAYS if not key.startswith("Autograd")))
        for keys in (old_keys, new_keys)
    )
    return "dispatch", {"name": name, "old": old, "new": new}


def _state(match: re.Match[str], call: GuardedCall) -> Told:
    changed = match.group(1).split()
    what = ", ".join(changed).replace("num_", "number of ").replace("_", " ")
    if any("autocast" in one for one in changed):
        return "autocast", {"what": what}
    if set(changed) <= {"grad_mode", "inference_mode"}:
        return "grad mode", {"what": what}
    return "state", {"what": what}


def _identity(match: re.Match[str], call: GuardedCall) -> Told:
    return "identity", {"name": match.group(1)}


def _type(match: re.Match[str], call: GuardedCall) -> Told:
    name, found = match.group(1), call.value(match.group(1))
    new = "another" if found is None else type(found[0]).__name__
    old = match.groupdict().get("old") or "another"
    return "type", {"name": name, "old": old, "new": new}


def _alias(match: re.Match[str], call: GuardedCall) -> Told:
    return "alias", {}


def _none(match: re.Match[str], call: GuardedCall) -> Told:
    """A value that was None, or was something else."""
    found = call.value(match.group(1))
    new = "another value" if found is None else "None" if found[0] is None else f"a {type(found[0]).__name__}"
    old = "None" if match.group(2) == "is" else "not None"
    return "constant", {"name": match.group(1), "old": old, "new": new}


def _length(match: re.Match[str], call: GuardedCall) -> Told:
    name, old = match.groups()
    found = call.value(f"len({name})")
    new = "another length" if found is None else str(found[0])
    if name.endswith("._modules"):
        return "modules", {"name": name.removesuffix("._modules"), "old": old, "new": new}
    return "length", {"name": name, "old": old, "new": new}


def _keys(match: re.Match[str], call: GuardedCall) -> Told:
    name, old = match.groups()
    found = call.value(name)
    new = "others" if found is None else _brief(", ".join(map(repr, found[0])))
    return "keys", {"name": name, "old": old, "new": new}


def _value(match: re.Match[str], call: GuardedCall) -> Told:
    """A value that is compared with a constant."""
    name, old = (part.strip() for part in match.groups())
    found = call.value(name)
    words = {"name": name, "old": old, "new": "another value" if found is None else _brief(repr(found[0]))}
    if name.endswith(".training"):
        return "training", {**words, "name": name.removesuffix(".training")}
    if not re.fullmatch(r"-?[\d.]+(e[-+]?\d+)?", old) or (found is not None and isinstance(found[0], bool)):
        return "constant", words
    return _number(name, call, words)


def _number(name: str, call: GuardedCall, words: dict[str, str]) -> Told:
    if name in call.fixed:
        return "fixed number", words
    whole = words["old"].lstrip("-").isdigit()
    if whole and (name.startswith("G[") or "__defaults__" in name or "__kwdefaults__" in name):
        return "outer number", words
    owner = call.value(name.rpartition(".")[0]) if "." in name else None
    if whole and owner is not None and isinstance(owner[0], torch.nn.Module):
        return "module number", words
    return "number", words


_SIZE_OF = re.compile(r"[\w.\[\]'\"]+\.(?:size|stride)\(\)\[\d+\]")


def _relation(guard: str, note: str, call: GuardedCall) -> Told:
    """A guard on sizes of tensors, with what they are now."""
    values = {name: found[0] for name in _SIZE_OF.findall(guard) if (found := call.value(name)) is not None}
    alone = re.fullmatch(rf"2 <= ({_SIZE_OF.pattern})", guard)
    if alone and values.get(alone.group(1)) in (0, 1):
        name, _, place = alone.group(1).removesuffix("]").rpartition(".size()[")
        return "small size", {
            "name": _spoken(name),
            "place": place,
            "old": "2 or more",
            "new": str(values[alone.group(1)]),
        }
    said = ", ".join(f"{_spoken(name)} is {value}" for name, value in values.items())
    kind = "equal sizes" if "duck sizing" in note else "relation"
    return kind, {"values": f" ({said})" if said else "", "old": "", "new": said}


def _brief(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:80]}..."


_FAILED = r"(?:\. Guard failed on.*)?$"
_TEXTS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str], GuardedCall], Told]], ...] = (
    (re.compile(rf"^tensor '(.*)' size mismatch at index (\d+)\. expected (\d+), actual (\d+){_FAILED}"), _size),
    (
        re.compile(rf"^tensor '(.*)' stride mismatch at index (\d+)\. expected (-?\d+), actual (-?\d+){_FAILED}"),
        _tensor("stride"),
    ),
    (re.compile(rf"^tensor '(.*)' rank mismatch()\. expected (\d+), actual (\d+){_FAILED}"), _tensor("rank")),
    (re.compile(rf"^tensor '(.*)' dtype mismatch()\. expected (\w+), actual (\w+){_FAILED}"), _tensor("dtype")),
    (re.compile(r"^tensor '(.*)' requires_grad mismatch\. expected requires_grad=(\d)"), _gradient),
    (
        re.compile(
            r"^tensor '(.*)' dispatch key set mismatch\. "
            r"expected DispatchKeySet\((.*?)\), actual DispatchKeySet\((.*?)\)"
        ),
        _dispatch,
    ),
    (
        re.compile(
            rf"^tensor '(.*)' \w* ?device.* mismatch()\. "
            rf"[Ee]xpected (?:device index to be )?(\S+), actual (\S+?){_FAILED}"
        ),
        _tensor("dispatch"),
    ),
    (re.compile(r"^GLOBAL_STATE changed: (.+)$"), _state),
    (re.compile(r"(default_dtype|inference_mode)"), _state),
    (re.compile(r"^___check_obj_id\((.*?),"), _identity),
    (re.compile(r"^___check_type_id\((.*?),(?:.*type=<class '(?P<old>[\w.]+)'>)?"), _type),
    (re.compile(r"^expected type of '(.*)' to be (?:a )?(?P<old>tensor)"), _type),
    (re.compile(r"^expected type of '(.*?)'"), _type),
    (re.compile(r"^(\S+) (is|is not) None$"), _none),
    (re.compile(r"Duplicate tensors| is |overlapping"), _alias),
    (re.compile(r"^list\(dict\.keys\((.*)\)\)(?:\[\d+\])? == (.*)$"), _keys),
    (re.compile(r"^len\((.*)\) (?:==|!=) (\d+)$"), _length),
    (re.compile(r"^((?:(?!\.size\(\)\[|\.stride\(\)\[).)*?) == ((?:(?!\.size\(\)\[|\.stride\(\)\[).)*)$"), _value),
)
"""How Dynamo's texts begin, with what reads them; the first that fits is taken."""
