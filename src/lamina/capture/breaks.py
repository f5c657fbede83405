"""What ended a graph, in our words: Dynamo's exceptions as reasons with codes, and the user's line they tell of."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from traceback import FrameSummary

import torch

from lamina.base.reasons import Reason
from lamina.base.user_warnings import OWN_FOLDERS, is_pythons
from lamina.capture.reasons import (
    ASKED,
    ASKED_BY_TORCH,
    BREAKS,
    IN_PASSED_FILE,
    LOOP_BROKEN,
    NO_FORMULA,
    NOT_IN_A_GRAPH,
    OPERATOR,
    OTHER_BREAK,
    OWN_BREAKS,
    OWN_CAUSES,
    QUANTISED,
    WRITTEN_IN_C,
)

__all__ = ["break_reason", "failure_reason", "is_torchs", "own_break_reason", "user_frame", "user_place"]

_NO_FORMULA = re.compile(r"no fake impl registered for <CustomOpDef\(([\w:.]+)\)>")
_TORCH = os.path.dirname(torch.__file__) + os.sep
_PART = re.compile(r"^ *(Explanation|Hint|Developer debug context): *(.*)$", re.MULTILINE)
_NO_ADVICE = (
    "It may be possible to write Dynamo",
    "This graph break is fundamental",
    "This graph break may be difficult",
    "This is likely to be a Dynamo bug",
)
"""How hints of Dynamo's begin that are for those who write Dynamo."""
_OF_A_FILE = "intentionally marked that the function"
"""What Dynamo explains of functions that have Python code."""
_OF_QUANTISED = "quantized nyi in meta tensors"
"""What Dynamo's messages hold where a tensor is quantised."""
_CALL_OF = "the call of "
_BEHIND_OPERATORS = "pybind11_detail_"
"""How the class of the functions behind operators begins."""
_OF_DYNAMO = ", or set "
"""What begins the part of a remedy that is about a setting of Dynamo's."""
_LONGEST = 160
"""Characters of Dynamo's texts in a reason."""


def break_reason(kind: str, message: str, caller: FrameSummary | None = None) -> Reason:
    """Why the graph ends: ``kind`` is Dynamo's name of the case ("" if it has none), ``message`` its whole text.

    ``caller`` is the frame of the call that ends it.
    """
    if BREAKS.get(kind) is LOOP_BROKEN:
        first = message.partition("\n")[0].strip()
        within = break_reason("" if BREAKS.get(first) is LOOP_BROKEN else first, message, caller)
        return LOOP_BROKEN(why=within, also=f"; {within.remedy}" if within.remedy else "")
    parts: dict[str, str] = {}
    for name, text in _PART.findall(message):
        if name != "Hint" or not text.startswith(_NO_ADVICE):
            parts.setdefault(name, _brief(text))
    first = _brief(message.partition("\n")[0])
    context = parts.get("Developer debug context") or parts.get("Explanation") or first
    code = BREAKS.get(kind, OTHER_BREAK)
    if code is WRITTEN_IN_C and _OF_A_FILE in parts.get("Explanation", ""):
        code = IN_PASSED_FILE
    elif code is ASKED and caller is not None and is_torchs(caller.filename):
        code, context = ASKED_BY_TORCH, f"{caller.name} of {os.path.basename(caller.filename)}"
    elif _OF_QUANTISED in message:
        code = QUANTISED
    return code(
        what=_joined(kind or first, parts.get("Explanation", first)),
        context=_readable(context),
        hint=parts.get("Hint", "move it out of the compiled function"),
    )


def _joined(case: str, why: str) -> str:
    """Dynamo's name of a case and its explanation as one text, where the one does not say the other."""
    case, why = case.rstrip(" .:"), why.rstrip(" .:")
    if not why or why in case:
        return case
    return why if case in why else f"{case}: {why}"


def failure_reason(error: Exception) -> str:
    """Why the capture of a function failed: the operator without a formula for shapes, or the error's first lines."""
    match = _NO_FORMULA.search(str(error))
    if match:
        return NO_FORMULA(context=match.group(1))
    return f"{type(error).__name__}: {_first_lines(error)}"


def _first_lines(error: Exception) -> str:
    """What happened, without the user's frames and the addresses that follow it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])[:400]


def own_break_reason(what: str, cause: str = "") -> Reason:
    """Why a graph of our own front end ends; ``what`` names the call that is not recorded, maybe as "the call of".

    ``cause`` is why the call is not recorded, where that is known and not by its name (``OWN_CAUSES``).
    """
    name = what.removeprefix(_CALL_OF).rpartition(".")[2]
    if what.removeprefix(_CALL_OF).startswith(_BEHIND_OPERATORS):
        name = OPERATOR
    code = OWN_BREAKS.get(name) or OWN_CAUSES.get(cause, NOT_IN_A_GRAPH)
    made = code(what=what, context=name, name=name)
    return Reason(made, made.code, made.remedy.partition(_OF_DYNAMO)[0])


def _brief(text: str) -> str:
    found = " ".join(text.split())
    return found if len(found) <= _LONGEST else f"{found[:_LONGEST]}..."


_QUALIFIED = re.compile(r"^module: ([\w.]+|<unknown module>), qualname: ([\w.<>]+)")
_BUILTIN = re.compile(r"^builtin (\w+) ")
_METHOD = re.compile(r"^call_method \w+\((?:<class ')?([^()']*)(?:'>)?\) (\w+)")
_OF_A_FUNCTION = re.compile(r"^qualname: ([\w.<>]+), name: ")
_HELD = re.compile(r"UserDefinedObjectVariable\((\w+)\)")
_CALL = re.compile(r"^call_(?:function|method) (?:\w+Variable\()?(.*)$")


def _readable(context: str) -> str:
    """Dynamo's description of a call, without the classes that it stands for."""
    if match := _QUALIFIED.match(context):
        return ".".join(part for part in match.groups() if part != "<unknown module>")
    if match := _METHOD.match(context):
        return ".".join(match.groups())
    if match := _BUILTIN.match(context):
        return match.group(1)
    if match := _OF_A_FUNCTION.match(context):
        return match.group(1)
    if "args: " in context and (held := dict.fromkeys(_HELD.findall(context))):
        return ", ".join(held)
    match = _CALL.match(context)
    return match.group(1) if match else context


def is_torchs(filename: str) -> bool:
    """Whether a file is one of torch's own."""
    return filename.startswith(_TORCH)


def user_frame(stack: Iterable[FrameSummary]) -> FrameSummary | None:
    """The innermost frame of the user's own code; the innermost of all where there is none; nothing of no frames.

    Packages that are installed, other than torch and this one, count as the user's own code; Python's library does not.
    """
    frames = list(stack)
    own = [frame for frame in frames if not frame.filename.startswith(OWN_FOLDERS) and not is_pythons(frame.filename)]
    found = own or frames
    return found[-1] if found else None


def user_place(frame: FrameSummary | None) -> str:
    """A frame as "file:line"."""
    return "" if frame is None else f"{frame.filename}:{frame.lineno}"
