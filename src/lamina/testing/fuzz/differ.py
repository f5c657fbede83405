"""What differs between two runs of a program, in words and by kind."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lamina.base.accuracy import judge
from lamina.testing.fuzz.observe import Raised, Seen, Trace
from lamina.testing.fuzz.values import WRITTEN_OVER

__all__ = ["KINDS", "Difference", "differences", "identical", "undecided", "unstable"]

KINDS = (
    "crash",
    "hang",
    "error",
    "requires_grad",
    "structure",
    "value",
    "zero sign",
    "layout",
    "sharing",
    "version",
    "state",
)
"""Kinds of differences, those first that explain others.

"rounding" is one more, for what only several draws can decide.
"""

_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers of as many bytes as an element has."""

_UNSTABLE = 0.05
"""Eager's distance from the double-precision result, of the largest element, that only a step in the program explains:
a comparison, a floor or an argmax that rounding turned."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that a compiled program shows differently."""

    kind: str
    where: str
    text: str
    large: bool = False
    """For rounding: not even half of the digits agree."""

    def __str__(self) -> str:
        return f"{self.kind} at {self.where}: {self.text}"


def differences(eager: Trace, ours: Trace, exact: Trace | None, *, random: bool = False) -> list[Difference]:
    """All differences of ``ours`` from ``eager``, judged against the double-precision run where there is one.

    ``random``: the two draw the same random numbers, so the generator must be left in the same state.
    """
    found: list[Difference] = []
    broken = False
    for path, theirs in eager.leaves.items():
        if path not in ours.leaves:
            raised = ours.leaves.get("end")
            found.append(Difference("error" if raised else "structure", path, f"is not there: {_text(raised)}"))
            break
        mine = ours.leaves[path]
        broken = broken or (_is_written_over(theirs) and _is_written_over(mine))
        if broken and (theirs is None) is not (mine is None):
            continue
        found += _leaf(path, theirs, mine, exact.leaves.get(path) if exact else None)
        if found and found[-1].kind in ("error", "structure"):
            break
    else:
        found += [
            Difference("error" if isinstance(v, Raised) else "structure", path, f"{_text(v)} is there in addition")
            for path, v in ours.leaves.items()
            if path not in eager.leaves
        ]
    if not any(d.kind in ("error", "structure") for d in found):
        found += _afterwards(eager, ours, exact)
    found += _states(eager, ours, random or not eager.draws_numbers)
    return found


def identical(one: Trace, other: Trace) -> bool:
    """Whether two runs show the same, bit by bit: what is known of one then holds of the other."""
    for mine, theirs in ((one.leaves, other.leaves), (one.late, other.late)):
        if mine.keys() != theirs.keys() or not all(_same_leaf(leaf, theirs[path]) for path, leaf in mine.items()):
            return False
    rest = [(t.written, t.sharing, t.same, t.states, t.failed, t.draws_numbers) for t in (one, other)]
    return rest[0] == rest[1]


def _same_leaf(one: Any, other: Any) -> bool:
    if not isinstance(one, Seen) or not isinstance(other, Seen):
        # The texts of two NaN are the same, those of two zeros are not.
        return type(one) is type(other) and repr(one) == repr(other)
    looks = [(s.kind, s.stride, s.requires_grad, s.leaf, s.inference, s.value.stride()) for s in (one, other)]
    return looks[0] == looks[1] and _same_bits(one.value, other.value)


def _same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two dense tensors hold the same bits, NaN and signs of zeros included; False where it cannot be told."""
    if (one.dtype, one.shape, one.device) != (other.dtype, other.shape, other.device) or one.is_quantized:
        return False
    if not (one.is_floating_point() or one.is_complex()):
        return torch.equal(one, other)
    if one.is_complex():
        one, other = torch.view_as_real(one), torch.view_as_real(other)
    whole = _WHOLE[one.element_size()]
    return torch.equal(one.contiguous().view(whole), other.contiguous().view(whole))


def _is_written_over(leaf: Any) -> bool:
    """Whether a gradient failed. Which leaves had theirs by then is the order of the autograd engine."""
    return isinstance(leaf, Raised) and WRITTEN_OVER in leaf.text


def undecided(eager: Trace, exact: Trace | None) -> bool:
    """Whether rounding turned a step in eager itself, so that nothing certain can be said of the values."""
    if exact is None or exact.leaves.keys() - eager.leaves.keys():
        return True
    return any(unstable(eager.leaves[path], known) for path, known in exact.leaves.items())


def unstable(eager: Any, exact: Any) -> bool:
    """Whether eager is so far from the double-precision result that only a turned step explains it."""
    if isinstance(eager, Seen) and isinstance(exact, Seen):
        if eager.value.shape != exact.value.shape:
            return True
        if not (eager.value.is_floating_point() or eager.value.is_complex()):
            return not torch.equal(eager.value, exact.value.to(eager.value.dtype))
        wide = torch.complex128 if exact.value.is_complex() else torch.float64
        gap = (eager.value.to(wide) - exact.value.to(wide)).abs().nan_to_num(0.0, 0.0, 0.0)
        scale = exact.value.to(wide).abs().nan_to_num(0.0, 0.0, 0.0)
        return bool(gap.numel() and gap.max() > _UNSTABLE * scale.max())
    if isinstance(eager, float) and isinstance(exact, float):
        return abs(eager - exact) > _UNSTABLE * abs(exact)
    if isinstance(eager, Raised):
        return not isinstance(exact, Raised)
    return type(eager) is not type(exact) or (not isinstance(eager, (str, torch.dtype)) and eager != exact)


def _text(leaf: Any) -> str:
    if isinstance(leaf, Raised):
        return f"{leaf.kind}({leaf.text.strip().splitlines()[0][:200] if leaf.text.strip() else ''})"
    if isinstance(leaf, Seen):
        return f"{str(leaf.value.dtype)[6:]}{list(leaf.value.shape)} {leaf.value.flatten()[:6].tolist()}"
    return repr(leaf)[:200]


def _leaf(path: str, theirs: Any, mine: Any, exact: Any) -> list[Difference]:
    if isinstance(theirs, Raised) or isinstance(mine, Raised):
        alike = isinstance(theirs, Raised) and isinstance(mine, Raised) and theirs.kind in mine.bases
        # What catches eager's class catches one that is derived from it too.
        return [] if alike else [Difference("error", path, f"{_text(mine)}, eager's is {_text(theirs)}")]
    if type(theirs) is not type(mine):
        return [Difference("structure", path, f"{_text(mine)}, eager's is {_text(theirs)}")]
    if isinstance(theirs, Seen):
        return _tensor(path, theirs, mine, exact if isinstance(exact, Seen) else None)
    if isinstance(theirs, float):
        same = theirs == mine or (math.isnan(theirs) and math.isnan(mine))
        if not same:
            return _rounded(path, theirs, mine, exact if isinstance(exact, float) else theirs)
        signs = math.copysign(1.0, theirs) != math.copysign(1.0, mine) and theirs == 0.0
        return [Difference("zero sign", path, f"{mine}, eager's is {theirs}")] if signs else []
    return [] if theirs == mine else [Difference("structure", path, f"{_text(mine)}, eager's is {_text(theirs)}")]


def _rounded(path: str, theirs: float, mine: float, exact: float) -> list[Difference]:
    """Numbers that left a tensor, as float32: that is what most of them were."""
    as_tensor = [torch.tensor(number, dtype=torch.float64).float() for number in (mine, theirs)]
    complaint = judge(as_tensor[0], as_tensor[1], torch.tensor(exact, dtype=torch.float64))
    return [Difference("rounding", path, complaint)] if complaint else []


def _tensor(path: str, theirs: Seen, mine: Seen, exact: Seen | None) -> list[Difference]:
    found = []
    for kind, name in (
        ("structure", "kind"),
        ("requires_grad", "requires_grad"),
        ("requires_grad", "leaf"),
        ("requires_grad", "inference"),
    ):
        if getattr(theirs, name) != getattr(mine, name):
            found.append(Difference(kind, path, f"{name} is {getattr(mine, name)}, eager's is {getattr(theirs, name)}"))
    a, b = theirs.value, mine.value
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        text = f"{str(b.dtype)[6:]}{list(b.shape)}, eager's is {str(a.dtype)[6:]}{list(a.shape)}"
        return [*found, Difference("structure", path, text)]
    if a.numel() > 1 and _strides(theirs) != _strides(mine):
        found.append(Difference("layout", path, f"strides are {mine.stride}, eager's are {theirs.stride}"))
    return found + _values(path, a, b, exact.value if exact is not None else None)


def _strides(seen: Seen) -> tuple[int, ...]:
    # A stride along an axis of one element never reaches memory.
    return tuple(step for step, size in zip(seen.stride, seen.value.shape, strict=False) if size > 1)


def _values(path: str, theirs: Tensor, mine: Tensor, exact: Tensor | None) -> list[Difference]:
    if _same_bits(mine, theirs):
        return []
    if exact is None or exact.shape != theirs.shape or _says_nothing(theirs, exact):
        exact = theirs.to(torch.complex128 if theirs.is_complex() else torch.float64)
        complaint = judge(mine, theirs, exact)
        # With nothing to judge by, a result of which half of the digits agree is left alone.
        if complaint.startswith(("largest", "rms")) and not judge(mine, theirs, exact, floor=_half_the_digits(mine)):
            complaint = ""
    else:
        complaint = judge(mine, theirs, exact)
    if complaint:
        text = f"{complaint}: {_few(mine)}, eager's are {_few(theirs)}"
        if not complaint.startswith(("largest error", "rms error")):
            return [Difference("value", path, text)]
        return [Difference("rounding", path, text, bool(judge(mine, theirs, exact, floor=_half_the_digits(mine))))]
    if theirs.is_floating_point() and theirs.element_size() > 1:
        known = exact.signbit() if exact.dtype.is_floating_point else theirs.signbit()
        wrong = (mine == 0) & (theirs == 0) & (mine.signbit() != theirs.signbit()) & (theirs.signbit() == known)
        wrong = wrong & (exact == 0)
        if wrong.any():
            return [Difference("zero sign", path, f"{int(wrong.sum())} of {wrong.numel()} zeros have the other sign")]
    return []


def _says_nothing(theirs: Tensor, exact: Tensor) -> bool:
    """Whether the double-precision run is eager's own: of a float64 result it cannot tell how far eager is off."""
    return theirs.dtype in (torch.float64, torch.complex128) and torch.equal(theirs, exact)


def _half_the_digits(tensor: Tensor) -> float:
    return float(torch.finfo(tensor.dtype).eps ** -0.5)


def _few(tensor: Tensor) -> str:
    shown = tensor.flatten()[:5].tolist()
    return f"{shown}{' ...' if tensor.numel() > 5 else ''}"


def _afterwards(eager: Trace, ours: Trace, exact: Trace | None) -> list[Difference]:
    """What became of the tensors that were shown: written later, the same object, in the same memory."""
    found = []
    for path, theirs in eager.late.items():
        mine = ours.late.get(path)
        if mine is None:
            continue
        reference = exact.late.get(path) if exact else None
        if not torch.equal(theirs.value, eager.leaves[path].value) or not torch.equal(
            mine.value, ours.leaves[path].value
        ):
            found += [
                Difference(d.kind, f"{path} at the end", d.text, d.large)
                for d in _tensor(path, theirs, mine, reference)
            ]
        if eager.written[path] != ours.written[path]:
            raised = ["raised" if trace.written[path] else "not raised" for trace in (ours, eager)]
            text = f"version was {raised[0]}, eager's was {raised[1]}"
            found.append(Difference("version", path, text))
        if eager.same[path] != ours.same.get(path):
            text = f"is the object at {ours.same.get(path)}, eager's is that at {eager.same[path]}"
            found.append(Difference("sharing", path, text))
        elif eager.sharing.get(path) != ours.sharing.get(path):
            text = f"memory is {ours.sharing.get(path)}, eager's is {eager.sharing.get(path)}"
            found.append(Difference("sharing", path, text))
    return found


def _states(eager: Trace, ours: Trace, random: bool) -> list[Difference]:
    for number, (theirs, mine) in enumerate(zip(eager.states, ours.states, strict=False)):
        for name, value in theirs.items():
            if mine[name] != value and (random or name != "random state"):
                return [Difference("state", f"yield {number}", f"{name} is {mine[name]}, eager's is {value}")]
    return []
