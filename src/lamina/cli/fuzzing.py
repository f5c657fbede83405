"""The commands `lamina fuzz` and `lamina minify`: random programs, and the reduction of one that differs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lamina.base.plurals import counted
from lamina.base.tables import plain_console
from lamina.blame.reduction import Reduced, minify_call
from lamina.blame.scripts import Call, Stop, run_target
from lamina.cli.running import check_file, check_folder
from lamina.errors import BadArgument
from lamina.programs import found_program
from lamina.testing.fuzz import Finding, fuzz, minify_file
from lamina.testing.fuzz.campaign import dumps
from lamina.testing.verify import verify

__all__ = ["run_fuzz", "run_minify"]


def run_fuzz(
    programs: int,
    seed: int,
    target: str,
    only: Sequence[str],
    workers: int,
    seconds: float,
    to: Path | None,
    as_json: bool = False,
) -> int:
    """Run the programs, print each that differs, and return the exit status: 0 if none does by the compiler's fault.

    With ``as_json`` the counts and findings are printed as JSON at the end, and each finding to the error stream.
    """
    out = plain_console(stderr=as_json, soft_wrap=True)
    check_folder(to)

    def tell(finding: Finding) -> None:
        whose = "torch.compile's capture" if finding.capture else finding.target
        out.print(f"seed {finding.seed}, {whose}: {finding.text}")
        if to is not None:
            (to / f"seed_{finding.seed}.py").write_text(finding.source, encoding="utf-8")

    campaign = fuzz(programs, seed, target=target, only=only, workers=workers, seconds=seconds, each=tell)
    out.print(str(campaign))
    if as_json:
        plain_console(soft_wrap=True).print(dumps(campaign), end="")
    return 1 if campaign.own else 0


def run_minify(file: str, target: str, to: Path | None, as_json: bool = False) -> int:
    """Reduce the program of a file, or the first call of a script that differs; the exit status is 0.

    The reduced program is printed, or written to a file, with what it shows.
    """
    progress = plain_console(stderr=True)
    check_file(to)
    with progress.status("reducing") as status:
        if _is_fuzz_program(file):
            made = minify_file(file, target, progress=status.update)
            source, lines, trials, shown = made.source, made.lines, made.trials, str(made.answer.verdict.differences[0])
        else:
            found = _minified_call(file, status.update)
            source, lines, trials, shown = found.source, found.lines, found.trials, "; ".join(found.different)
    progress.print(f"{counted(lines, 'line')} after {counted(trials, 'trial')}: {shown}")
    if to is not None:
        to.write_text(source, encoding="utf-8")
    out = plain_console(soft_wrap=True)
    if as_json:
        told = {"source": source, "lines": lines, "trials": trials, "different": shown}
        out.print(json.dumps(told, indent=1))
    elif to is None:
        out.print(source, end="")
    return 0


def _is_fuzz_program(file: str) -> bool:
    """Whether a file has a function ``program(compile)``, or is for who reads such files to complain about.

    Raises ``BadArgument`` for what is no Python program.
    """
    path = Path(file)
    if ":" in file and not path.is_file():
        return False
    found_program(file)
    text = path.read_text(encoding="utf-8", errors="replace")
    return "def program(compile" in text or "lamina" not in text


def _minified_call(target: str, progress: Callable[[Any], None]) -> Reduced:
    """The first call of a script or function that differs from eager, reduced."""
    made: list[Reduced] = []

    def look(call: Call) -> None:
        if not verify(call.fn, *call.args, options=call.options, **call.kwargs):
            made.append(minify_call(call, progress))
            raise Stop

    _, ended = run_target(found_program(target), look)
    if not made and ended.told:
        plain_console(stderr=True, soft_wrap=True).print(ended.told)
    if not made:
        raise BadArgument(f"nothing that {target} calls differs from eager", remedy="lamina.verify compares one call")
    return made[0]
