"""The command `lamina profile`: the time of each kernel of a script, beside what this machine can do."""

from __future__ import annotations

import json

import typer

from lamina.base.tables import plain_console
from lamina.cli.running import AsJson, Given, Target, finish, nothing_compiled, program, run
from lamina.profiling.kernels import profiled
from lamina.programs import Ended
from lamina.record import held_records

__all__ = ["profile_command"]


def profile_command(target: Target, arguments: Given = None, as_json: AsJson = False) -> None:
    """Run a program and print what each of its kernels took: time, bytes, shares of bandwidth and arithmetic.

    Bytes and operations are those of the plan, shares those of a copy and a product that are measured after the run.

    Example: lamina profile train.py --steps 20
    """
    to_run, ends = program(target, arguments, "profile"), list[Ended]()
    with held_records() as held:
        found = profiled(lambda: ends.append(run(to_run, held, as_json)))
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=1))
    else:
        plain_console(soft_wrap=True).print(str(found))
    if not any(record.stages for record in held):
        nothing_compiled(target, ends[0])
    finish(ends[0])
