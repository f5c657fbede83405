"""The command `lamina tune`: the fastest right way to run what a function returns."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from torch import nn

from lamina.base.tables import plain_console
from lamina.cli.running import check_file
from lamina.errors import BadArgument
from lamina.programs import named_object
from lamina.tuner.page import PAGES
from lamina.tuner.search import tune
from lamina.tuner.values import Candidate

__all__ = ["tune_command"]


def tune_command(
    target: Annotated[str, typer.Argument(help="package.module:name, a module or a function that returns one.")],
    inputs: Annotated[str, typer.Option(help="package.module:name, the inputs or a function that returns them.")],
    objective: Annotated[str, typer.Option(help="latency, throughput or memory, and limits.")] = "latency",
    budget: Annotated[str, typer.Option(help="Time for all candidates: 90s, 10min, 2h.")] = "10min",
    loss: Annotated[str, typer.Option(help="package.module:name, a loss of the output, to tune training.")] = "",
    journal: Annotated[Path | None, typer.Option(help="File of rows; one in the cache folder if not given.")] = None,
    resume: Annotated[bool, typer.Option(help="Take rows that the journal has.")] = True,
    save: Annotated[Path | None, typer.Option(help="File that takes the result, for lamina.load.")] = None,
    report: Annotated[Path | None, typer.Option(help="Page that shows all rows, an .html file.")] = None,
    candidate: Annotated[str, typer.Option(help="Try this one alone: a candidate as JSON, as pages show it.")] = "",
    executor: Annotated[
        str, typer.Option(help="local; local:4, four at a time (on four GPUs for a GPU); or ray: a Ray cluster.")
    ] = "local",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Try ways to run a model, each in a process of its own, and print what became of each.

    Example: lamina tune models:encoder --inputs models:batch --objective "throughput, error<=1e-3"
    """
    if report is not None and report.suffix not in PAGES:
        raise BadArgument(f"{report} does not end in {PAGES[0]}", remedy=f"name a file that ends in {PAGES[0]}")
    for path, option in ((save, "--save"), (report, "--report"), (journal, "--journal")):
        check_file(path, option)
    sys.path.insert(0, "")  # modules of the folder at hand, in the processes of candidates as well
    result = tune(
        _made(target),
        _made(inputs),
        objective=objective,
        budget=budget,
        loss=named_object(loss) if loss else None,
        journal=True if journal is None else journal,
        resume=resume,
        candidates=_candidates(candidate),
        executor=executor,
        progress=not as_json,
    )
    line = ["lamina", "tune", target, "--inputs", inputs, "--objective", objective]
    result.command = shlex.join([*line, *(["--loss", loss] if loss else [])])
    out = plain_console(soft_wrap=True)
    out.print(json.dumps(result.to_json(), indent=1) if as_json else str(result))
    if report is not None:
        result.report(report)
    if save is not None:
        result.save(save)


def _candidates(text: str) -> list[Candidate] | None:
    """The candidate that a text stands for, besides eager; None for no text."""
    if not text:
        return None
    try:
        found = Candidate.from_json(json.loads(text))
    except (ValueError, KeyError, TypeError) as error:
        raise BadArgument(f"no candidate is written {text!r}", remedy="copy one from a page or from --json") from error
    return [] if found.kind == "eager" else [found]


def _made(name: str) -> Any:
    """What a name stands for: a module or value itself, or what a function returns."""
    found = named_object(name)
    return found() if callable(found) and not isinstance(found, nn.Module) else found
