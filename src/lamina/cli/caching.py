"""The commands `lamina cache ...`: what the on-disk cache holds, and what is done to it as a whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from lamina.base.tables import plain_console
from lamina.errors import BadArgument
from lamina.options import Options
from lamina.runtime import cache_tool
from lamina.runtime.cache import Cache, Miss, cache_root

__all__ = ["caching"]

caching = typer.Typer(help="Look at, check, empty, ship and receive the on-disk cache.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@caching.command()
def info(as_json: AsJson = False) -> None:
    """Say where the cache is, what it holds and how large it may become.

    Example: lamina cache info --json
    """
    options, cache = _opened()
    held = cache_tool.count(cache)
    if as_json:
        limit_bytes = options.cache_limit << 20 if options.cache_limit else None
        _json(folder=str(cache_root(options.cache_dir)), limit=limit_bytes, held=[asdict(one) for one in held])
        return
    total = sum(one.nbytes for one in held)
    limit = _size(options.cache_limit << 20) if options.cache_limit else "none"
    _say(f"folder  {cache_root(options.cache_dir)}")
    _say(f"size    {_size(total)} in {sum(one.count for one in held)} entries and notes, limit {limit}")
    for one in held:
        _say(f"{one.kind:<8}{one.count:>6}  {_size(one.nbytes)}")


@caching.command()
def verify(
    repair: Annotated[bool, typer.Option(help="Remove what is bad; it is built again when it is needed.")] = True,
    as_json: AsJson = False,
) -> None:
    """Check each entry and note, and load each object; exits with status 1 if anything is bad.

    Example: lamina cache verify --no-repair
    """
    _, cache = _opened()
    bad = cache_tool.check(cache, repair)
    if as_json:
        _json(bad=_told(bad), removed=bool(bad) and repair)
    else:
        _complain(bad)
        _say(f"{len(bad)} bad{', removed' if bad and repair else ''}")
    raise typer.Exit(1 if bad else 0)


@caching.command()
def clear(as_json: AsJson = False) -> None:
    """Remove all entries and notes. Running processes keep what they have loaded.

    Example: lamina cache clear
    """
    _, cache = _opened()
    removed = cache_tool.clear(cache)
    if as_json:
        _json(removed=removed)
    else:
        _say(f"{removed} entries and notes removed")


@caching.command("export")
def export_(
    file: Annotated[Path, typer.Argument(help="The archive to write (tar, compressed).")], as_json: AsJson = False
) -> None:
    """Write all good entries to one file, for another machine with the same compiler or with none.

    Example: lamina cache export kernels.tar.gz
    """
    _, cache = _opened()
    written = cache_tool.export_to(cache, file)
    if as_json:
        _json(file=str(file), written=written)
    else:
        _say(f"{written} entries and notes written to {file}")


@caching.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="A file that `lamina cache export` wrote.")], as_json: AsJson = False
) -> None:
    """Add the entries of such a file, which is as good as a program: import only what you would run.

    Example: lamina cache import kernels.tar.gz
    """
    _, cache = _opened(writing=True)
    added, bad = cache_tool.import_from(cache, file)
    if as_json:
        _json(added=added, refused=_told(bad))
    else:
        _complain(bad)
        _say(f"{added} entries and notes added, {len(bad)} refused")
    raise typer.Exit(1 if bad else 0)


def _opened(writing: bool = False) -> tuple[Options, Cache]:
    options = Options.from_environment()
    cache = Cache(cache_root(options.cache_dir), options.cache_limit << 20)
    if cache.top is None or (writing and cache.problem):
        raise BadArgument(f"the cache cannot be used: {cache.problem}", remedy="set LAMINA_CACHE_DIR to another folder")
    return options, cache


def _json(**found: Any) -> None:
    typer.echo(json.dumps(found))


def _told(bad: Sequence[Miss]) -> list[dict[str, str]]:
    return [{"key": one.key, "reason": str(one.reason)} for one in bad]


def _complain(bad: Sequence[Miss]) -> None:
    console = plain_console(stderr=True, soft_wrap=True)
    for one in bad:
        console.print(f"{one.key}: {one.reason}", style="red")


def _size(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):.1f} MiB"


_say: Callable[[str], None] = typer.echo
