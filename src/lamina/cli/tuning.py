"""The command `lamina tune`: the fastest right way to run what a function returns."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from torch import nn

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
    for path, endings in ((save, ()), (report, PAGES)):
        _check_written(path, endings)
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
    out = Console(soft_wrap=True, highlight=False)
    out.print(json.dumps(result.to_json(), indent=1) if as_json else str(result), markup=False)
    if report is not None:
        result.report(report)
    if save is not None:
        result.save(save)


def _check_written(path: Path | None, endings: tuple[str, ...]) -> None:
    """Say before anything runs that a file cannot be written in the end."""
    if path is None:
        return
    there = next((parent for parent in path.absolute().parents if parent.exists()), path)
    if path.is_dir() or not there.is_dir():
        raise BadArgument(f"{path} is {'a folder' if path.is_dir() else 'in no folder'}", remedy="name a file")
    if endings and path.suffix not in endings:
        raise BadArgument(f"{path} does not end in {endings[0]}", remedy=f"name a file that ends in {endings[0]}")


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
