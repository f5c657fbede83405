"""What the commands that run a user's program have in common: which arguments are whose, and how its end is told."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

import lamina
from lamina.errors import BadArgument
from lamina.programs import Ended, Program, found_program
from lamina.record import Record

__all__ = [
    "SETTINGS",
    "AsJson",
    "Given",
    "Target",
    "check_file",
    "check_folder",
    "finish",
    "nothing_compiled",
    "program",
    "run",
]

Target = Annotated[
    str,
    typer.Argument(
        help="A Python program (train.py), or package.module:function of no arguments, "
        "which is called again, compiled, if it compiles nothing."
    ),
]
Given = Annotated[list[str] | None, typer.Argument(help="What the program finds in sys.argv.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON alone; what the program prints goes to stderr.")]

SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": False}
"""What stands after the program is the program's."""


def program(target: str, given: Sequence[str] | None, command: str, options: Sequence[str] = ("--json",)) -> Program:
    """The program that a command is to run. Raises ``BadArgument`` where there is none.

    A line on standard error names each of the command's own ``options`` that stands after the program.
    """
    if target.startswith("-"):
        raise BadArgument(f"lamina {command} has no option {target}", remedy=f"lamina {command} --help lists them")
    arguments = tuple(given or ())
    arguments = arguments[1:] if arguments[:1] == ("--",) else arguments
    found = found_program(target, arguments)
    for name in (*options, "--help"):
        if any(one == name or one.startswith(f"{name}=") for one in arguments):
            typer.echo(f"{name} is given to {target}; for lamina {command} write it before {target}", err=True)
    return found


def run(program: Program, held: Sequence[Record], quiet: bool) -> Ended:
    """Run a program, and how that ended; a function with which nothing is compiled is compiled itself.

    ``held``: the records of what is compiled meanwhile.
    """
    ended = program.ended(quiet)
    if not program.of_function or ended.raised is not None or any(record.stages for record in held):
        return ended
    return Program(program.name, lambda: lamina.compile(program.run)()).ended(quiet)


def check_file(path: Path | None, option: str = "--to") -> None:
    """Raise ``BadArgument`` if the file cannot be written, before anything is run that is to end in it."""
    if path is None:
        return
    there = path.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("ab").close()
    except OSError as problem:
        why = f"{path.parent} is no folder" if isinstance(problem, FileExistsError) else problem.strerror
        said = f"{path} cannot be written: {why}"
        raise BadArgument(said, remedy=f"name another file with {option}") from None
    if not there:
        path.unlink()


def check_folder(path: Path | None) -> None:
    """Make a folder that files are to be written to. Raises ``BadArgument`` if that cannot be done."""
    if path is not None:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise BadArgument(f"the folder {path} cannot be made: {problem}", remedy="name another with --to") from None


def nothing_compiled(target: str, ended: Ended) -> NoReturn:
    """Say that nothing was compiled in a program, and how that ended; the status is the program's, or 1."""
    typer.echo(f"nothing was compiled in {target}", err=True)
    typer.echo('  do: have it call what lamina.compile, or torch.compile(backend="lamina"), has made', err=True)
    finish(ended, 1)
    raise typer.Exit(1)


def finish(ended: Ended, failed: int = 0) -> None:
    """Tell what the program raised, and exit with its status, or with ``failed`` if it ended well."""
    if ended.told:
        typer.echo(ended.told, err=True)
    if status := ended.status or failed:
        raise typer.Exit(status)
