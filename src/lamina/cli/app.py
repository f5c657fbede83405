"""The `lamina` command: what each subcommand is called and what its options are."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn

import lamina
from lamina.base.devices import GENERATED, kind_of
from lamina.base.tables import plain_console
from lamina.cli.blaming import bisect_command
from lamina.cli.caching import caching
from lamina.cli.demo import CompileFunction, Row, as_data, chosen, demonstrate, table
from lamina.cli.demo_models import DEMOS
from lamina.cli.doctor import examine, installed_version
from lamina.cli.explaining import add_explaining
from lamina.cli.fuzzing import run_fuzz, run_minify
from lamina.cli.profiling import profile_command
from lamina.cli.reporting import add_commands
from lamina.cli.running import SETTINGS
from lamina.cli.tuning import tune_command
from lamina.errors import LaminaError
from lamina.options import Options
from lamina.testing.fuzz import INGREDIENTS

__all__ = ["app", "main"]

NARROWEST = 120
"""Characters of a line below which tables would be cut, whatever the terminal says."""

_MODELS = tuple(item.name for item in DEMOS)

app = typer.Typer(
    help="Lamina, a layered tensor compiler for PyTorch.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(caching, name="cache")
add_commands(app)
add_explaining(app)
app.command("bisect", context_settings=SETTINGS)(bisect_command)
app.command("profile", context_settings=SETTINGS)(profile_command)
app.command("tune")(tune_command)


def main() -> None:
    """Run the command line; a mistake that Lamina knows is told without a traceback, and exits with status 2."""
    try:
        app()
    except LaminaError as error:
        plain_console(stderr=True, soft_wrap=True).print(str(error), style="red")
        raise SystemExit(2) from None


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lamina {installed_version()}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Lamina, a layered tensor compiler for PyTorch."""


@app.command()
def demo(
    only: Annotated[
        list[str] | None, typer.Option(help=f"Only this model ({', '.join(_MODELS)}); may be given again.")
    ] = None,
    torch_compile: Annotated[bool, typer.Option(help="Time torch.compile's default mode too.")] = True,
    seconds: Annotated[float, typer.Option(help="How long to time each callable.", min=0.01)] = 1.0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
) -> None:
    """Compile three models, check them against eager in double precision and print one table.

    Example: lamina demo --only gpt --no-torch-compile
    """
    # torch says so once where NumPy is not installed, which nothing here needs.
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    unknown = [name for name in only or [] if name not in _MODELS]
    if unknown:
        raise typer.BadParameter(f"no model is called {unknown[0]!r}; there are {', '.join(_MODELS)}")
    here = [name for name in GENERATED if kind_of(name).host or torch.cuda.is_available()]
    if device not in here:
        raise typer.BadParameter(f"there is no device {device!r} here; use {' or '.join(here)}")
    Options.from_environment()  # what it refuses no model would be compiled with
    rival = torch.compile if torch_compile else None
    raise typer.Exit(run_demo(only or [], _compile, rival, seconds, device, as_json))


@app.command()
def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False) -> None:
    """Say in ten lines what this machine has for Lamina and what to do about what is missing.

    Example: lamina doctor
    """
    console = plain_console(soft_wrap=True)
    findings = examine(Options.from_environment())
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings]))
    else:
        for finding in findings:
            console.print(finding.line())
    raise typer.Exit(1 if any(finding.state == "bad" for finding in findings) else 0)


@app.command()
def fuzz(
    programs: Annotated[int, typer.Option(help="How many programs to run.", min=1)] = 200,
    seed: Annotated[int, typer.Option(help="The first program's seed; each next one's is one more.", min=0)] = 0,
    compile: Annotated[
        str, typer.Option(help="lamina, lamina:BACKEND, or the name of a backend of torch.compile.")
    ] = "lamina",
    only: Annotated[
        list[str] | None, typer.Option(help=f"Only this ingredient ({', '.join(INGREDIENTS)}); may be given again.")
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes that run programs.", min=1)] = 1,
    seconds: Annotated[float, typer.Option(help="How long one draw of a program may take.", min=1)] = 120.0,
    to: Annotated[Path | None, typer.Option(help="Folder that takes the programs that differ.")] = None,
    options: Annotated[
        list[str] | None, typer.Option(help="Lamina's, as capture=own or dynamic=true; may be given again.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts and what differs as JSON.")] = False,
) -> None:
    """Run random programs eagerly and compiled, and tell what differs; exits with status 1 if anything does.

    Example: lamina fuzz --programs 50 --seed 7 --to found
    """
    target = "+".join((compile, *(options or ())))
    raise typer.Exit(run_fuzz(programs, seed, target, only or [], workers, seconds, to, as_json))


@app.command()
def minify(
    file: Annotated[
        str,
        typer.Argument(help="A script, package.module:function, or a file with program(compile), as fuzz has it."),
    ],
    compile: Annotated[str, typer.Option(help="As for fuzz: what the program differs with.")] = "lamina",
    to: Annotated[Path | None, typer.Option(help="File to write; the screen if not given.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the program and what differs as JSON.")] = False,
) -> None:
    """Reduce a program whose compiled results differ from eager's to one that still does, and print it.

    Of a script the first call that differs is reduced: its captured graph, sizes and inputs.

    Example: lamina minify train.py --to small.py
    """
    raise typer.Exit(run_minify(file, compile, to, as_json))


def run_demo(
    only: list[str],
    compile_function: CompileFunction,
    rival: CompileFunction | None,
    seconds: float,
    device: str = "cpu",
    as_json: bool = False,
) -> int:
    """Run the demo, print the table and the complaints, and return the exit status: 0 if every check held."""
    out = plain_console()
    progress = plain_console(stderr=True)
    rows: list[Row] = []
    for row in demonstrate(chosen(only), compile_function, rival, progress, seconds, device):
        rows.append(row)
        progress.print(f"{row.title}, {row.step}: {'failed' if row.failure else 'ok'}")
    if as_json:
        typer.echo(json.dumps([as_data(row) for row in rows]))
        return 1 if any(row.failure for row in rows) else 0
    out.width = max(out.width, NARROWEST)
    out.print(table(rows))
    failed = [row for row in rows if row.failure]
    for row in failed:
        out.print(f"{row.title}, {row.step}: {row.failure}", style="red")
    return 1 if failed else 0


def _compile(model: nn.Module) -> Callable[..., Any]:
    compiled: Callable[..., Any] = lamina.compile(model, options={"progress": False})
    return compiled
