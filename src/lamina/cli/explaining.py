"""The commands `lamina explain`, `kernels`, `guards`, `recompiles` and `why`: run a program and ask its records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from lamina.base.logs import decision_line
from lamina.capture.conditions import Conditions
from lamina.cli.running import SETTINGS, AsJson, Given, Target, finish, nothing_compiled, program, run
from lamina.errors import BadArgument
from lamina.explain.explanation import Explanation
from lamina.explain.why import missing, why
from lamina.programs import Ended
from lamina.record import Record, held_records
from lamina.summary import library_work, user_kernels

__all__ = ["add_explaining"]


def add_explaining(app: typer.Typer) -> None:
    """Put the commands of this file into the command line."""
    for command in (explain, kernels, guards, recompiles):
        app.command(context_settings=SETTINGS)(command)
    app.command("why")(why_command)


def explain(target: Target, arguments: Given = None, as_json: AsJson = False) -> None:
    """Run a program and say what was made of each callable compiled in it, in at most 40 lines each.

    Example: lamina explain train.py --steps 1
    """
    records, ended = _records(target, arguments, "explain", as_json)
    found = [Explanation(record) for record in records]
    _print([one.to_dict() for one in found], as_json, [f"{one}\n" for one in found])
    finish(ended)


def kernels(target: Target, arguments: Given = None, as_json: AsJson = False) -> None:
    """Run a program and list its kernels and library calls: how often, bytes, name, how iterated, the user's lines.

    Example: lamina kernels --json train.py
    """
    records, ended = _records(target, arguments, "kernels", as_json)
    rows = [
        {"callable": record.name, "kind": kind, **asdict(work)}
        for record in records
        for kind, works in (("kernel", user_kernels(record)), ("library call", library_work(record)))
        for work in works
    ]
    lines = [
        f"{row['callable']}  {row['kind']} {row['name']} x {row['count']}, {row['nbytes']} bytes"
        f"{', ' + row['how'] if row['how'] else ''}: {'; '.join(row['places'])}"
        for row in rows
    ]
    _print(rows, as_json, lines or ["no kernel and no library call was made; lamina explain says why"])
    finish(ended)


def guards(
    target: Target,
    arguments: Given = None,
    as_json: AsJson = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Also the conditions on classes, functions, parameters and hooks.")
    ] = False,
) -> None:
    """Run a program and list what each compiled version rests on: what must hold for a call, and the line that asked.

    With --json "raw" has the same in the front end's own words.

    Example: lamina guards train.py
    """
    records, ended = _records(target, arguments, "guards", as_json)
    found = [
        (record, stage.value) for record in records for stage in record.stages if isinstance(stage.value, Conditions)
    ]
    rows = [
        {
            "callable": record.name,
            "function": one.function,
            "guards": [guard.data() for guard in one.conditions()],
            "raw": list(one.raw()),
        }
        for record, one in found
        if as_json
    ]
    lines = [line for _, one in found for line in (one.function, *(f"    {text}" for text in one.lines(everything)))]
    _print(rows, as_json, lines or ["no version of anything is kept for later calls; lamina explain says why"])
    finish(ended)


def recompiles(target: Target, arguments: Given = None, as_json: AsJson = False) -> None:
    """Run a program and say what was compiled more than once: the guard that failed, both values, what to do.

    Example: lamina recompiles serve.py
    """
    records, ended = _records(target, arguments, "recompiles", as_json)
    found = [(record, d) for record in records for d in record.decisions() if d.kind in ("recompile", "specialise")]
    rows = [{"callable": record.name, **d.as_dict()} for record, d in found]
    lines = [line for _, d in found for line in (decision_line(d), *([f"    do: {d.remedy}"] if d.remedy else []))]
    _print(rows, as_json, lines or ["nothing was compiled twice"])
    finish(ended)


def why_command(
    target: Target,
    first: Annotated[str, typer.Argument(help="A kernel, an operation (softmax) or a line (model.py:12).")],
    second: Annotated[str, typer.Argument(help="Another one.")],
    as_json: AsJson = False,
) -> None:
    """Run a program and say why two operations or kernels are not one kernel.

    Example: lamina why train.py softmax dropout
    """
    if not (first.strip() and second.strip()):
        raise BadArgument("the name of a kernel, call or line is empty", remedy="lamina kernels PROGRAM lists all")
    records, ended = _records(target, None, "why", as_json)
    found = [(record, answer) for record in records for answer in why(record, first, second)]
    rows = [{"callable": record.name, **asdict(answer)} for record, answer in found]
    lines = [
        line
        for _, a in found
        for line in (
            f"{a.region} x {a.count}: {a.first}" + ("" if a.joined else f" and {a.second}"),
            f"    {a.reason}{f' [{a.code}]' if a.code else ''}",
            *([f"    do: {a.remedy}"] if a.remedy else []),
        )
    ]
    unknown = missing(records, first, second)
    if unknown:
        said = " and of ".join(map(repr, unknown))
        _print([], as_json, [])
        finish(ended)
        raise BadArgument(f"there is no kernel, call or line of {said}", remedy=f"lamina kernels {target} lists all")
    _print(rows, as_json, lines or [f"no kernels or calls of {first!r} and {second!r} share a buffer"])
    finish(ended)


def _records(target: str, given: Sequence[str] | None, command: str, as_json: bool) -> tuple[list[Record], Ended]:
    """The records of what is compiled in a program that is run, and how it ended, with what it made."""
    with held_records() as held:
        ended = run(program(target, given, command), held, as_json)  # a module compiles where it is imported
        found = [record for record in held if record.stages]
    if not found:
        _print([], as_json, [])
        nothing_compiled(target, ended)
    return found, ended


def _print(rows: list[dict[str, Any]], as_json: bool, lines: Sequence[str]) -> None:
    if as_json:
        typer.echo(json.dumps(rows, default=str))
        return
    for line in lines:
        typer.echo(line)
