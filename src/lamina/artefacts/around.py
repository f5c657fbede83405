"""What goes around a compiled graph, as it is captured, as documents of JSON, and made again of those."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from lamina.aot.engine.arrivals import called_with_gradients
from lamina.aot.engine.leading import Part, leading
from lamina.aot.engine.past import Past, leading_past
from lamina.aot.engine.relating import Family, Group, Relations
from lamina.aot.engine.results import with_numbers, with_places, with_views
from lamina.aot.engine.separated import separated
from lamina.aot.engine.serving import raising_as_captured, serving_apart, serving_same_places
from lamina.aot.engine.state import leaving, raising_again, within
from lamina.aot.engine.versions import counting_each
from lamina.aot.notes import Notes
from lamina.artefacts.constants import Unstorable, read_constant, written_constant
from lamina.artefacts.graphs import calls_again, written_calls
from lamina.artefacts.kernels import Files
from lamina.base.reasons import Reason
from lamina.base.recipes import captured_as
from lamina.base.torch_private import how_made_called, name_of_how_made
from lamina.capture.own.reuse.sized import Sized, function_of
from lamina.capture.own.writing import Pair, Writing
from lamina.record import Record

__all__ = ["AROUND", "StoredCalls", "written_around", "written_calls_of"]

Parts = Mapping[str, Any]
Compiled = Callable[..., Any]


def written_around(kind: str, parts: Parts, files: Files) -> dict[str, Any] | None:
    """A document of what goes around a compiled graph, but for that; None for another kind. Raises ``Unstorable``."""
    write = _WRITERS.get(kind)
    return None if write is None else write(parts, files)


# Parts of several.


def written_calls_of(calls: Compiled, files: Files) -> str:
    """The name of a file with the captured calls that are made one by one."""
    known = captured_as(calls)
    if known is None:
        raise Unstorable("a graph with calls of its own")
    return files.later(partial(written_calls, known[0]))


class StoredCalls:
    """Captured calls of a file, which is read when they are first made."""

    def __init__(self, name: str, files: Files) -> None:
        self.name, self.files = name, files
        self.made: Compiled | None = None

    def __call__(self, *inputs: Any) -> Any:
        if self.made is None:
            self.made = calls_again(self.files.read_json(self.name))
        return self.made(*inputs)


def _told(notes: Any) -> list[str]:
    """What a graph is called, and where it is: of notes, or of a method of theirs."""
    notes = getattr(notes, "__self__", notes)
    if not isinstance(notes, Notes):
        raise Unstorable("a graph that tells others what becomes of it")
    return [notes.name, notes.place]


def _notes(told: Sequence[str], record: Record) -> Notes:
    notes = Notes(record, told[0])
    notes.place = told[1]
    return notes


def _reason(reason: Reason | None) -> list[str] | None:
    return None if reason is None else [str(reason), reason.code, reason.remedy]


def _below(below: Any) -> list[Any]:
    return [[place, parent, name_of_how_made(how)] for place, parent, how in below]


def _read_below(below: Any) -> tuple[Any, ...]:
    return tuple((place, parent, how_made_called(how)) for place, parent, how in below)


def _pairs(pairs: Any) -> tuple[tuple[Any, ...], ...]:
    return tuple(tuple(pair) for pair in pairs)


# Results.


def _leading(parts: Parts, files: Files) -> dict[str, Any]:
    return {"parts": [_part(part, files) for part in parts["parts"]], "told": _told(parts["notes"])}


def _part(part: Part, files: Files) -> list[Any]:
    autocast = [[[key, written_constant(value)] for key, value in state.items()] for state in part.autocast]
    return [
        list(part.places), written_calls_of(part.calls, files), list(part.inputs), list(part.others), list(part.leads),
        _reason(part.limit), _below(part.below), list(part.unread), autocast,
        list(part.behind),
    ]  # fmt: skip


def _make_leading(compiled: Compiled, text: Parts, files: Files, record: Record) -> Compiled:
    return leading(compiled, [_read_part(part, files) for part in text["parts"]], _notes(text["told"], record))


def _read_part(part: Sequence[Any], files: Files) -> Part:
    places, calls, inputs, others, leads, limit, below, unread, autocast, behind = part
    return Part(
        tuple(places),
        StoredCalls(calls, files),
        tuple(inputs),
        tuple(others),
        tuple(leads),
        None if limit is None else Reason(*limit),
        _read_below(below),
        tuple(unread),
        tuple({key: read_constant(value) for key, value in state} for state in autocast),
        tuple(behind),
    )


def _leading_past(parts: Parts, files: Files) -> dict[str, Any]:
    pasts = [[past.place, list(past.others), _reason(past.limit)] for past in parts["pasts"]]
    return {"pasts": pasts, "told": _told(parts["notes"])}


def _make_leading_past(compiled: Compiled, text: Parts, files: Files, record: Record) -> Compiled:
    pasts = [Past(place, tuple(others), Reason(*limit)) for place, others, limit in text["pasts"]]
    return leading_past(compiled, pasts, _notes(text["told"], record))


def _related(parts: Parts, files: Files) -> dict[str, Any]:
    found: Relations = parts["relations"]
    groups = [
        [[*map(_family, one.trained)], [*map(_family, one.others)], one.input, one.known, one.apart]
        for one in found.groups
    ]
    made = [[place, name_of_how_made(how), trained] for place, how, trained in found.made]
    below, anew = _below(found.below), list(found.anew)
    return {"groups": groups, "same": list(found.same), "made": made, "below": below, "anew": anew}


def _family(family: Family) -> list[Any]:
    made = [*map(name_of_how_made, family.made)]
    return [family.root, list(family.views), made, list(family.parents), family.alike]


def _make_related(compiled: Compiled, text: Parts, files: Files, record: Record) -> Compiled:
    groups = [
        Group(tuple(map(_read_family, trained)), tuple(map(_read_family, others)), given, known, apart)
        for trained, others, given, known, apart in text["groups"]
    ]
    made = tuple((place, how_made_called(how), trained) for place, how, trained in text["made"])
    below, anew = _read_below(text["below"]), tuple(text["anew"])
    return Relations(tuple(groups), tuple(text["same"]), made, below, anew).applied(compiled)


def _read_family(family: Sequence[Any]) -> Family:
    root, views, made, parents, alike = family
    return Family(root, tuple(views), tuple(map(how_made_called, made)), tuple(parents), alike)


def _separated(parts: Parts, files: Files) -> dict[str, Any]:
    reach = parts["find"]()
    return {
        "candidates": list(parts["candidates"]),
        "differentiable": list(parts["differentiable"]),
        "reach": None if reach is None else [of if of is None else sorted(of) for of in reach],
        "told": _told(parts["notes"]),
    }


def _make_separated(compiled: Compiled, text: Parts, files: Files, record: Record) -> Compiled:
    given = text["reach"]
    reach = None if given is None else [of if of is None else frozenset(of) for of in given]
    notes = _notes(text["told"], record)
    return separated(compiled, text["candidates"], text["differentiable"], lambda: reach, notes)


def _make_arrivals(compiled: Compiled, text: Parts, files: Files, record: Record) -> Compiled:
    shared = frozenset(text["shared"])
    return called_with_gradients(compiled, text["places"], lambda: shared)


def _with_places(parts: Parts, files: Files) -> dict[str, Any]:
    return {key: list(parts[key]) for key in ("places", "twins", "detached")}


def _make_with_places(compiled: Compiled, text: Parts, files: Files, record: Record) -> Compiled:
    return with_places(compiled, tuple(text["places"]), _pairs(text["twins"]), tuple(text["detached"]))


def _with_views(parts: Parts, files: Files) -> dict[str, Any]:
    return {"views": written_calls_of(parts["views"], files), "places": list(parts["places"])}


def _make_with_views(compiled: Compiled, text: Parts, files: Files, record: Record) -> Compiled:
    return with_views(compiled, StoredCalls(text["views"], files), tuple(text["places"]))


def _with_numbers(parts: Parts, files: Files) -> dict[str, Any]:
    return {"values": [*map(int, parts["values"])]}


def _for_sizes(parts: Parts, files: Files) -> dict[str, Any]:
    known = [[*values] for values, stands in parts["known"].items() if stands]
    return {"tensors": parts["tensors"], "read": parts["read"], "known": known, "holds": parts["form"].told_as("holds")}


def _make_for_sizes(compiled: Compiled, text: Parts, files: Files, record: Record) -> Compiled:
    holds = None if text["holds"] is None else function_of(text["holds"], "holds")
    known = {tuple(values): True for values in text["known"]}
    return Sized(compiled, text["tensors"], function_of(text["read"], "read"), known, holds)


# The state of the thread.


def _raising_again(parts: Parts, files: Files) -> dict[str, Any]:
    return {"captured": written_calls_of(parts["captured"], files)}


def _make_raising_again(compiled: Compiled, text: Parts, files: Files, record: Record) -> Compiled:
    return raising_again(compiled, StoredCalls(text["captured"], files))


# Inputs that are written to.


def _serving_apart(parts: Parts, files: Files) -> dict[str, Any]:
    lengths = parts["lengths"]
    return {
        **_served(parts, files),
        "count": parts["count"],
        "lengths": None if lengths is None else [*map(int, lengths)],
        "written": list(parts["written"]),
        "tracks": parts["tracks"],
    }


def _served(parts: Parts, files: Files) -> dict[str, Any]:
    return {
        "eager": written_calls_of(parts["eager"], files),
        "tensors": list(parts["tensors"]),
        "told": _told(parts["tell"]),
    }


def _make_serving_apart(compiled: Compiled, text: Parts, files: Files, record: Record) -> Compiled:
    eager, tell = StoredCalls(text["eager"], files), _notes(text["told"], record).tell
    tensors, count, lengths = text["tensors"], text["count"], text["lengths"]
    return serving_apart(compiled, eager, tensors, count, lengths, text["written"], tell, text["tracks"])


def _serving_same_places(parts: Parts, files: Files) -> dict[str, Any]:
    made_for = parts["made_for"]
    if not all(type(place) is int for _, place in made_for):
        raise Unstorable("a graph of varying places")
    return {**_served(parts, files), "made_for": [list(one) for one in made_for]}


def _make_serving_same_places(compiled: Compiled, text: Parts, files: Files, record: Record) -> Compiled:
    eager, tell = StoredCalls(text["eager"], files), _notes(text["told"], record).tell
    return serving_same_places(compiled, eager, text["tensors"], _pairs(text["made_for"]), tell)


def _raising_as_captured(parts: Parts, files: Files) -> dict[str, Any]:
    return {
        "captured": written_calls_of(parts["captured"], files),
        "written": list(parts["written"]),
        "told": _told(parts["tell"]),
        "strict": parts["strict"],
    }


def _make_raising_as_captured(compiled: Compiled, text: Parts, files: Files, record: Record) -> Compiled:
    captured, tell = StoredCalls(text["captured"], files), _notes(text["told"], record).tell
    return raising_as_captured(compiled, captured, text["written"], tell, text["strict"])


def _writing(parts: Parts, files: Files) -> dict[str, Any]:
    pairs = [[pair.written, pair.read, list(pair.to), list(pair.of)] for pair in parts["pairs"]]
    apart = parts["apart_by_place"]
    return {
        "calls": written_calls_of(parts["calls"], files),
        "written": list(parts["written"]),
        "pairs": pairs,
        "apart": apart,
    }


def _make_writing(compiled: Compiled, text: Parts, files: Files, record: Record) -> Compiled:
    pairs = tuple(Pair(written, read, tuple(to), tuple(of)) for written, read, to, of in text["pairs"])
    return Writing(compiled, StoredCalls(text["calls"], files), tuple(text["written"]), pairs, text["apart"])


_WRITERS: dict[str, Callable[[Parts, Files], dict[str, Any]]] = {
    "leading": _leading,
    "leading past": _leading_past,
    "related": _related,
    "hooks of arrivals": lambda parts, files: {"places": list(parts["places"]), "shared": sorted(parts["shared"]())},
    "separated": _separated,
    "with places": _with_places,
    "with views": _with_views,
    "with numbers": _with_numbers,
    "for sizes": _for_sizes,
    "within": lambda parts, files: {"inference": parts["inference"]},
    "leaving": lambda parts, files: {"grad": parts["grad"], "at_once": parts["at_once"]},
    "raising again": _raising_again,
    "counting each": lambda parts, files: {"more": [[*one] for one in parts["more"].items()]},
    "serving apart": _serving_apart,
    "serving same places": _serving_same_places,
    "raising as captured": _raising_as_captured,
    "writing": _writing,
}
AROUND: dict[str, Callable[[Compiled, Parts, Files, Record], Compiled]] = {
    "leading": _make_leading,
    "leading past": _make_leading_past,
    "related": _make_related,
    "hooks of arrivals": _make_arrivals,
    "separated": _make_separated,
    "with places": _make_with_places,
    "with views": _make_with_views,
    "with numbers": lambda compiled, text, files, record: with_numbers(compiled, tuple(text["values"])),
    "for sizes": _make_for_sizes,
    "within": lambda compiled, text, files, record: within(compiled, text["inference"]),
    "leaving": lambda compiled, text, files, record: leaving(compiled, text["grad"], text["at_once"]),
    "raising again": _make_raising_again,
    "counting each": lambda compiled, text, files, record: counting_each(compiled, dict(text["more"])),
    "serving apart": _make_serving_apart,
    "serving same places": _make_serving_same_places,
    "raising as captured": _make_raising_as_captured,
    "writing": _make_writing,
}
"""What makes each kind of a compiled graph, the document, its files and the record of the process, by kind."""
