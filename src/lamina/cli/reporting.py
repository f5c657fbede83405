"""The commands `lamina report` and `lamina diff`."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from lamina.report.compare import differences
from lamina.report.page import page
from lamina.report.recording import report_everything, write_waiting
from lamina.report.write import read_report

__all__ = ["add_commands"]


def add_commands(app: typer.Typer) -> None:
    """Put the commands of this file into the command line."""
    app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})(report)
    app.command()(diff)


def report(
    script: Annotated[Path, typer.Argument(help="The Python program to run.", exists=True, dir_okay=False)],
    arguments: Annotated[list[str] | None, typer.Argument(help="What the program is given.")] = None,
    to: Annotated[Path, typer.Option(help="File to write: .html or .json.")] = Path("report.html"),
) -> None:
    """Run a program and write what was compiled in it as a page, with links from its lines to the machine code.

    Example: lamina report --to report.html train.py --steps 1
    """
    report_everything(to)
    sys.argv = [str(script), *(arguments or [])]
    sys.path.insert(0, str(script.absolute().parent))
    written: list[Path] = []
    try:
        runpy.run_path(str(script), run_name="__main__")
    finally:
        write_waiting(written.append)
    console = Console(soft_wrap=True, highlight=False)
    for path in written:
        console.print(str(path), markup=False)
    if not written:
        Console(stderr=True).print("nothing was compiled, so there is nothing to report", style="red")
        raise typer.Exit(1)


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
