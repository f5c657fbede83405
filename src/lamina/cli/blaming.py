"""The command `lamina bisect`: which stage, rule, fusion or kernel makes a script's results differ from eager."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from lamina.base.tables import plain_console
from lamina.blame.bisection import bisect
from lamina.blame.found import Bisection
from lamina.blame.scripts import Call, Stop, run_target
from lamina.cli.running import AsJson, Given, Target, check_folder, finish, nothing_compiled, program

__all__ = ["bisect_command"]


def bisect_command(
    target: Target,
    arguments: Given = None,
    calls: Annotated[int, typer.Option(help="How many calls of each compiled callable are looked at.", min=1)] = 1,
    to: Annotated[Path | None, typer.Option(help="Folder for the source of a wrong kernel.")] = None,
    as_json: AsJson = False,
) -> None:
    """Find the stage, rule, fusion or kernel that makes a script's results differ from eager's.

    The script runs in eager. The first call of each function and module that it compiles with Lamina is compared,
    and the first that differs is blamed on what makes it differ; then the script ends with status 1.

    Example: lamina bisect train.py --steps 1
    """
    found: list[Bisection] = []
    out = plain_console(soft_wrap=True)

    def look(call: Call) -> None:
        result = bisect(call.fn, *call.args, options=call.options, to=str(to or ""), **call.kwargs)
        found.append(result)
        if not as_json:
            out.print(f"call {call.number} of {result}")
        if not result.ok:
            raise Stop

    check_folder(to)
    to_run = program(target, arguments, "bisect", ("--json", "--calls", "--to"))
    looked_at, ended = run_target(to_run, look, calls, as_json)
    if as_json:
        typer.echo(json.dumps([result.to_json() for result in found], indent=1))
    if not looked_at:
        nothing_compiled(target, ended)
    finish(ended, int(not all(found)))
