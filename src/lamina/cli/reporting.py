"""The commands `lamina report` and `lamina diff`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from lamina.cli.running import SETTINGS, Given, Target, check_file, finish, nothing_compiled, program, run
from lamina.record import held_records
from lamina.report.compare import differences
from lamina.report.page import page
from lamina.report.recording import check_report, everything_reported, write_waiting
from lamina.report.write import read_report

__all__ = ["add_commands"]


def add_commands(app: typer.Typer) -> None:
    """Put the commands of this file into the command line."""
    app.command(context_settings=SETTINGS)(report)
    app.command()(diff)


def report(
    target: Target,
    arguments: Given = None,
    to: Annotated[Path, typer.Option(help="File to write: .html or .json.")] = Path("report.html"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the names of the files as JSON.")] = False,
) -> None:
    """Run a program and write what was compiled in it as a page, with links from its lines to the machine code.

    Example: lamina report --to report.html train.py --steps 1
    """
    path = check_report(to)
    check_file(path)
    with everything_reported(path), held_records() as held:
        ended = run(program(target, arguments, "report", ("--json", "--to")), held, as_json)
    written: list[Path] = []
    write_waiting(written.append)
    if as_json:
        typer.echo(json.dumps([str(one) for one in written]))
    else:
        for one in written:
            typer.echo(str(one))
    if not any(record.stages for record in held):
        nothing_compiled(target, ended)
    finish(ended, int(not written))


def diff(
    before: Annotated[Path, typer.Argument(help="Data of a report, as .json.", exists=True, dir_okay=False)],
    after: Annotated[Path, typer.Argument(help="Data of another.", exists=True, dir_okay=False)],
    to: Annotated[Path | None, typer.Option(help="Write a page (.html) that compares them.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the differences as JSON.")] = False,
) -> None:
    """Say in what two reports differ: totals, kernels, decisions and texts.

    Example: lamina diff before.json after.json --to compared.html
    """
    old, new = read_report(before), read_report(after)
    found = differences(old, new)
    check_file(to)
    if to is not None:
        to.write_text(page(new, old), encoding="utf-8", errors="surrogatepass")
    if as_json:
        typer.echo(json.dumps(found))
        return
    for line in _lines(found):
        typer.echo(line)


def _lines(found: dict[str, Any]) -> list[str]:
    lines = [f"{name}: {old} -> {new}" for name, (old, new) in found["totals"].items() if old != new]
    for title in ("kernels", "decisions", "texts"):
        lines += [f"- {title[:-1]} {one}" for one in found[title]["gone"]]
        lines += [f"+ {title[:-1]} {one}" for one in found[title]["new"]]
        lines += [f"~ {title[:-1]} {one}" for one in found[title].get("changed", ())]
    return lines or ["no difference"]
