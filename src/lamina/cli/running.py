"""What the commands that run a user's program have in common: which arguments are whose, and how its end is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from lamina.programs import Ended, Program, found_program

__all__ = ["SETTINGS", "AsJson", "Given", "Target", "finish", "program"]

Target = Annotated[str, typer.Argument(help="A Python program (train.py), or package.module:function of no arguments.")]
Given = Annotated[list[str] | None, typer.Argument(help="What the program finds in sys.argv.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON alone; what the program prints goes to stderr.")]

SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": False}
"""What stands after the program is the program's."""


def program(target: str, given: Sequence[str] | None, command: str, options: Sequence[str] = ("--json",)) -> Program:
    """The program that a command is to run. Raises ``BadArgument`` where there is none.

    A line on standard error names each of the command's own ``options`` that stands after the program.
    """
    arguments = tuple(given or ())
    arguments = arguments[1:] if arguments[:1] == ("--",) else arguments
    found = found_program(target, arguments)
    for name in (*options, "--help"):
        if any(one == name or one.startswith(f"{name}=") for one in arguments):
            typer.echo(f"{name} is given to {target}; for lamina {command} write it before {target}", err=True)
    return found


def finish(ended: Ended, failed: int = 0) -> None:
    """Tell what the program raised, and exit with its status, or with ``failed`` if it ended well."""
    if ended.told:
        typer.echo(ended.told, err=True)
    if status := ended.status or failed:
        raise typer.Exit(status)
