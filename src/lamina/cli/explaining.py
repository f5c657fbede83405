"""The commands `lamina explain`, `kernels`, `guards`, `recompiles` and `why`: run a program and ask its records."""

from __future__ import annotations

import importlib
import json
import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from lamina.base.logs import decision_line
from lamina.capture.events.torch_private import Guards
from lamina.errors import BadArgument
from lamina.explain.explanation import Explanation
from lamina.explain.summary import library_work, user_kernels
from lamina.explain.why import why
from lamina.record import Record, held_records

__all__ = ["add_explaining"]

_Target = Annotated[
    str, typer.Argument(help="A Python program (file.py), or module:function, called without arguments.")
]
_Arguments = Annotated[list[str] | None, typer.Argument(help="What the program is given.")]
_AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def add_explaining(app: typer.Typer) -> None:
    """Put the commands of this file into the command line."""
    settings = {"ignore_unknown_options": True, "allow_interspersed_args": False}
    for command in (explain, kernels, guards, recompiles):
        app.command(context_settings=settings)(command)
    app.command("why")(why_command)


def explain(target: _Target, arguments: _Arguments = None, as_json: _AsJson = False) -> None:
    """Run a program and say what was made of each callable compiled in it, in at most 40 lines each.

    Example: lamina explain train.py --steps 1
    """
    with _records(target, arguments) as records:
        found = [Explanation(record) for record in records]
        _print([one.to_dict() for one in found], as_json, [f"{one}\n" for one in found])


def kernels(target: _Target, arguments: _Arguments = None, as_json: _AsJson = False) -> None:
    """Run a program and list its kernels and library calls: how often, bytes, name, how iterated, the user's lines.

    Example: lamina kernels --json train.py
    """
    with _records(target, arguments) as records:
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
        _print(rows, as_json, lines)


def guards(target: _Target, arguments: _Arguments = None, as_json: _AsJson = False) -> None:
    """Run a program and list what each compiled version rests on.

    Example: lamina guards train.py
    """
    with _records(target, arguments) as records:
        rows = [
            {"callable": record.name, "function": stage.value.function, "guards": list(stage.value.lines())}
            for record in records
            for stage in record.stages
            if isinstance(stage.value, Guards)
        ]
        lines = [line for row in rows for line in (str(row["function"]), *(f"    {guard}" for guard in row["guards"]))]
        _print(rows, as_json, lines)


def recompiles(target: _Target, arguments: _Arguments = None, as_json: _AsJson = False) -> None:
    """Run a program and say what was compiled more than once: the guard that failed, both values, what to do.

    Example: lamina recompiles serve.py
    """
    with _records(target, arguments) as records:
        found = [(record, d) for record in records for d in record.decisions() if d.kind in ("recompile", "specialise")]
        rows = [
            {
                "callable": record.name,
                "subject": list(d.subject),
                "code": d.code,
                "reason": str(d.reason),
                "remedy": d.remedy,
                "facts": dict(d.facts),
            }
            for record, d in found
        ]
        lines = [line for _, d in found for line in (decision_line(d), *([f"    do: {d.remedy}"] if d.remedy else []))]
        _print(rows, as_json, lines or ["nothing was compiled twice"])


def why_command(
    target: _Target,
    first: Annotated[str, typer.Argument(help="A kernel, an operation (softmax) or a line (model.py:12).")],
    second: Annotated[str, typer.Argument(help="Another one.")],
    as_json: _AsJson = False,
) -> None:
    """Run a program and say why two operations or kernels are not one kernel.

    Example: lamina why train.py softmax dropout
    """
    with _records(target, None) as records:
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
        _print(rows, as_json, lines or [f"no kernels or calls of {first!r} and {second!r} share a buffer"])


@contextmanager
def _records(target: str, arguments: Sequence[str] | None) -> Iterator[list[Record]]:
    """The records of what is compiled in a program that is run, while what it made is kept."""
    with held_records() as held:
        kept = _run(target, list(arguments or []))
        found = [record for record in held if record.stages]
        if not found:
            Console(stderr=True).print("nothing was compiled", style="red")
            raise typer.Exit(1)
        yield found
        del kept


def _run(target: str, arguments: list[str]) -> Any:
    """What a program made: its variables, or the result of a function."""
    module, colon, name = target.partition(":")
    if not target.endswith(".py") and colon:
        sys.path.insert(0, "")
        function = getattr(importlib.import_module(module), name, None)
        if not callable(function):
            raise BadArgument(
                f"{module} has no function {name!r}", remedy="give module:function, or the file of a program"
            )
        return function()
    path = Path(target)
    if not path.is_file():
        raise BadArgument(f"there is no program {target!r}", remedy="give the file of a program, or module:function")
    sys.argv = [target, *arguments]
    sys.path.insert(0, str(path.absolute().parent))
    return runpy.run_path(target, run_name="__main__")


def _print(rows: list[dict[str, Any]], as_json: bool, lines: Sequence[str]) -> None:
    if as_json:
        typer.echo(json.dumps(rows, default=str))
        return
    for line in lines:
        typer.echo(line)
