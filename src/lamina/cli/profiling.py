"""The command `lamina profile`: the time of each kernel of a script, beside what this machine can do."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console

from lamina.blame.scripts import runner
from lamina.profiling.kernels import profiled

__all__ = ["profile_command"]


def profile_command(
    target: Annotated[str, typer.Argument(help="A Python script, or package.module:function of no arguments.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="What the script finds in sys.argv.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the kernels as JSON.")] = False,
) -> None:
    """Run a script and print what each of its CPU kernels took: time, bytes, shares of bandwidth and arithmetic.

    Bytes and operations are those of the plan, shares those of a copy and a product that are measured after the run.

    Example: lamina profile train.py -- --steps 20
    """
    found = profiled(runner(target, tuple(arguments or ())))
    out = Console(soft_wrap=True, highlight=False)
    out.print(json.dumps(found.to_json(), indent=1) if as_json else str(found), markup=False)
