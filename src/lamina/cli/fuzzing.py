"""The commands `lamina fuzz` and `lamina minify`: random programs, and the reduction of one that differs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from lamina.errors import BadArgument
from lamina.testing.fuzz import Finding, fuzz, minify_file

__all__ = ["run_fuzz", "run_minify"]


def run_fuzz(
    programs: int, seed: int, target: str, only: Sequence[str], workers: int, seconds: float, to: Path | None
) -> int:
    """Run the programs, print each that differs, and return the exit status: 0 if none does by the compiler's fault."""
    out = Console(highlight=False, soft_wrap=True)
    if to is not None:
        _folder(to)

    def tell(finding: Finding) -> None:
        whose = "torch.compile's capture" if finding.capture else finding.target
        out.print(f"seed {finding.seed}, {whose}: {finding.text}", markup=False)
        if to is not None:
            (to / f"seed_{finding.seed}.py").write_text(finding.source, encoding="utf-8")

    campaign = fuzz(programs, seed, target=target, only=only, workers=workers, seconds=seconds, each=tell)
    out.print(str(campaign), markup=False)
    return 1 if campaign.own else 0


def run_minify(file: Path, target: str, to: Path | None) -> int:
    """Reduce the program of a file, print or write it with what it shows, and return the exit status 0."""
    progress = Console(stderr=True, highlight=False)
    if to is not None and not to.parent.is_dir():
        raise BadArgument(f"the folder of {to} does not exist", remedy="make it first")
    with progress.status("reducing") as status:
        made = minify_file(file, target, progress=status.update)
    progress.print(f"{made.lines} lines after {made.trials} trials: {made.answer.verdict.differences[0]}", markup=False)
    if to is None:
        Console(soft_wrap=True, highlight=False).print(made.source, markup=False, end="")
    else:
        to.write_text(made.source, encoding="utf-8")
    return 0


def _folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise BadArgument(f"the folder {path} cannot be made: {problem}", remedy="name another with --to") from None
