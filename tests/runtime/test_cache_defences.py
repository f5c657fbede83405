"""Bad objects, other compilers, other users, locks that are not given back, full disks, signals and forks."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import lamina
from lamina.base.clock import Clock
from lamina.runtime import batch, cache_entries, workspace
from lamina.runtime.build import BuildResult, build_kernels
from lamina.runtime.cache import Cache, Entry, Miss, digest
from lamina.runtime.cache_usage import items
from lamina.runtime.compilation import Running, Stopped
from lamina.runtime.kernel import KernelUnit
from lamina.runtime.library import OBJECT
from lamina.runtime.locks import Patience, Stripe, stripe_of
from lamina.runtime.pool import Later, Pool
from lamina.runtime.toolchain import Compiler, DiskIsFull, find_compiler, look_for_compiler
from lamina.runtime.workspace import DiskFull
from tests.runtime.conftest import await_end, await_that

MakeUnit = Callable[..., KernelUnit]
Forget = Callable[[], None]
KEY = digest("an entry")


def build(units: list[KernelUnit], compiler: Any, cache: Cache, **more: Any) -> BuildResult:
    return build_kernels(units, compiler=compiler, isa="plain", cache=cache, **more)


def script(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def fill(folder: Path) -> Mapping[str, Any]:
    (folder / "a.bin").write_bytes(b"content" * 1000)
    return {}


def objects(cache: Cache) -> list[Path]:
    return sorted(cache.location.glob(f"v1/??/*/{OBJECT}"))


# A bad object


@pytest.mark.parametrize(
    "link", ['exec "$REAL" -shared -nostdlib -x c /dev/null -o kernels.so', "echo nonsense > kernels.so; exit 0"]
)
def test_an_object_that_lacks_its_kernels_is_not_registered(
    link: str, compiler: Compiler, cache: Cache, scale_unit: MakeUnit, tmp_path: Path, fresh_process: Forget
) -> None:
    text = f'REAL="{compiler.path}"\ncase "$*" in *kernels.so*) {link};; esac\nexec "$REAL" "$@"'
    lying = Compiler(
        str(script(tmp_path, "lying-c++", text)), compiler.kind, compiler.version, compiler.machine, compiler.stub
    )
    result = build([scale_unit(1), scale_unit(2)], lying, cache)
    assert sorted(result.errors) == ["scale_1", "scale_2"]
    assert not objects(cache)
    fresh_process()
    assert build([scale_unit(1)], compiler, cache).compiled == 1


@pytest.mark.parametrize("how", ["no object", "no symbol"])
def test_a_bad_object_in_the_cache_is_evicted_and_built_again(
    how: str, compiler: Compiler, cache: Cache, scale_unit: MakeUnit, tmp_path: Path, fresh_process: Forget
) -> None:
    assert build([scale_unit(1)], compiler, cache).compiled == 1
    (there,) = objects(cache)
    entry = cache.get(there.parent.name)
    assert isinstance(entry, Entry)

    def bad(folder: Path) -> Mapping[str, Any]:
        if how == "no object":
            (folder / OBJECT).write_bytes(b"nonsense")
        else:
            words = (compiler.path, "-shared", "-nostdlib", "-x", "c", "/dev/null", "-o", str(folder / OBJECT))
            subprocess.run(words, check=True)
        return entry.fields

    shutil.rmtree(there.parent)
    cache.put(entry.key, bad)
    fresh_process()
    result = build([scale_unit(1)], compiler, cache)
    assert (result.compiled, dict(result.errors)) == (1, {})
    assert any(damage.key == entry.key for damage in result.damages)
    fresh_process()
    assert build([scale_unit(1)], compiler, Cache(cache.location)).reused == 1


# The compiler's identity


def test_what_a_wrapper_adds_is_part_of_the_compilers_identity(
    compiler: Compiler, cache: Cache, tmp_path: Path
) -> None:
    fast = script(tmp_path, "fast-c++", f'exec "{compiler.path}" -ffast-math "$@"')
    plain = script(tmp_path, "plain-c++", f'exec "{compiler.path}" "$@"')
    found = [find_compiler(str(path), cache) for path in (fast, plain)] + [compiler]
    assert len({one.identity for one in found if one is not None}) == 3


def test_kernels_of_a_wrapper_are_not_those_of_the_compiler(
    compiler: Compiler, cache: Cache, scale_unit: MakeUnit, tmp_path: Path, fresh_process: Forget
) -> None:
    fast = find_compiler(str(script(tmp_path, "fast-c++", f'exec "{compiler.path}" -ffast-math "$@"')), cache)
    assert build([scale_unit(1)], fast, cache).compiled == 1
    fresh_process()
    assert build([scale_unit(1)], compiler, cache).compiled == 1


def test_a_wrapper_that_is_edited_is_another_compiler(
    compiler: Compiler, cache: Cache, tmp_path: Path, fresh_process: Forget
) -> None:
    path = script(tmp_path, "c++", f'exec "{compiler.path}" "$@"')
    before = find_compiler(str(path), cache)
    script(tmp_path, "c++", f'exec "{compiler.path}" -DX=1 -ffast-math "$@"')
    fresh_process()
    after = find_compiler(str(path), cache)
    assert before is not None
    assert after is not None
    assert before.identity != after.identity


def test_the_name_that_a_program_is_called_by_counts(compiler: Compiler, cache: Cache, tmp_path: Path) -> None:
    text = f'case "$0" in *fast*) exec "{compiler.path}" -ffast-math "$@";; esac\nexec "{compiler.path}" "$@"'
    path = script(tmp_path, "many", text)
    for name in ("fast-c++", "slow-c++"):
        (tmp_path / name).symlink_to(path)
    found = [find_compiler(str(tmp_path / name), cache) for name in ("fast-c++", "slow-c++")]
    assert len({one.identity for one in found if one is not None}) == 2


# Other users, and what is no regular file


@pytest.mark.parametrize("what", ["file", "manifest", "entry", "stripe"])
@pytest.mark.parametrize("how", ["owner", "mode"])
def test_what_another_user_could_have_written_is_not_read(
    what: str, how: str, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = cache.put(KEY, fill)
    path = {
        "file": entry.path / "a.bin",
        "manifest": entry.path / "manifest.json",
        "entry": entry.path,
        "stripe": entry.path.parent,
    }[what]
    if how == "mode":
        path.chmod(0o777)
    else:
        real, number = os.fstat, path.stat().st_ino

        def foreign(descriptor: int) -> os.stat_result:
            found = real(descriptor)
            values = list(found)
            values[4] = os.geteuid() + 7 if found.st_ino == number else found.st_uid
            return os.stat_result(values)

        monkeypatch.setattr(os, "fstat", foreign)
    found = cache.get(KEY)
    assert isinstance(found, Miss)
    assert found.damaged
    assert re.search(r"belongs to user|can be written by", found.reason)
    if what != "manifest":  # one that was checked before is not read again
        with pytest.raises(OSError, match=r"belongs to user|can be written by"):
            entry.read("a.bin")


def test_a_root_that_is_turned_round_after_it_was_opened_is_not_followed(tmp_path: Path) -> None:
    ours, theirs, link = tmp_path / "ours", tmp_path / "theirs", tmp_path / "link"
    ours.mkdir(mode=0o700)
    link.symlink_to(ours)
    cache = Cache(link)
    cache.put(KEY, fill)
    shutil.copytree(ours, theirs)
    (theirs / "v1" / KEY[:2] / KEY / "a.bin").write_bytes(b"poison")
    link.unlink()
    link.symlink_to(theirs)
    found = cache.get(KEY)
    assert isinstance(found, Entry)
    assert found.read("a.bin") == b"content" * 1000


@pytest.mark.parametrize("kind", ["pipe", "link", "device", "folder", "dangling"])
@pytest.mark.parametrize("place", ["a.bin", "manifest.json", "."])
def test_only_regular_files_are_read_and_the_rest_is_replaced(
    kind: str, place: str, cache: Cache, tmp_path: Path
) -> None:
    entry = cache.put(KEY, fill)
    path = entry.path / place
    aside = tmp_path / "aside"
    path.rename(aside)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to({"link": aside, "device": "/dev/zero", "dangling": "/nonexistent/file"}[kind])
    assert isinstance(cache.get(KEY), Miss)
    cache.get_or_build(KEY, fill)
    assert isinstance(cache.get(KEY), Entry)
    assert cache.problem == ""  # the cache is not given up for it


def test_a_note_that_is_a_pipe_is_none(cache: Cache) -> None:
    cache.write_note(f"{KEY}.x", {"a": 1})
    (path,) = (cache.location / "v1" / "index").rglob("*.json")
    path.unlink()
    os.mkfifo(path)
    assert cache.note(f"{KEY}.x") is None
    cache.write_note(f"{KEY}.x", {"a": 2})
    assert cache.note(f"{KEY}.x") == {"a": 2, "name": f"{KEY}.x"}


# Growth


def test_the_least_recently_used_are_removed(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", limit=50_000)
    keys = [digest("entry", str(i)) for i in range(20)]
    for number, key in enumerate(keys):
        entry = cache.put(key, fill)
        os.utime(entry.path / "manifest.json", (number, number))
        if number == 3:
            cache.get(keys[0])  # marks it as used now
    assert cache.top is not None
    assert sum(item.nbytes for item in items(cache.top)) <= 50_000
    held = [key for key in keys if isinstance(cache.get(key), Entry)]
    assert keys[0] in held
    assert keys[-1] in held
    assert keys[1] not in held


def test_a_cache_without_a_limit_keeps_all(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    keys = [digest("entry", str(i)) for i in range(20)]
    for key in keys:
        cache.put(key, fill)
    assert all(isinstance(cache.get(key), Entry) for key in keys)


def test_the_limit_is_an_option(tmp_path: Path) -> None:
    assert lamina.Options().cache_limit == 10240
    assert lamina.Options.from_environment({"cache_limit": 7}).cache_limit == 7


# Locks


class Driven:
    """A clock that goes on when somebody sleeps."""

    def __init__(self) -> None:
        self.time = 0.0
        self.clock = Clock(lambda: self.time, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.time += seconds


def test_a_lock_of_a_stopped_process_is_told_after_ten_seconds_and_done_without_after_sixty(
    compiler: Compiler, cache: Cache, scale_unit: MakeUnit
) -> None:
    program = (
        "import sys; from pathlib import Path; from lamina.runtime.locks import Stripe\n"
        "held = [Stripe(Path(sys.argv[1]), f'{n:02x}') for n in range(256)]\n"
        "assert all(s.acquire() for s in held); print('held', flush=True); sys.stdin.read()"
    )
    folder = cache.location / "v1" / "locks"
    words = [sys.executable, "-c", program, str(folder)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        os.kill(other.pid, signal.SIGSTOP)
        await_that(lambda: Path(f"/proc/{other.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        driven = Driven()
        told: list[tuple[float, str]] = []
        patience = Patience(lambda what: told.append((driven.time, what)), clock=driven.clock)
        result = build([scale_unit(1)], compiler, cache, patience=patience)
        os.kill(other.pid, signal.SIGCONT)
        other.kill()
    assert (result.compiled, dict(result.errors)) == (1, {})
    ((when, what),) = told
    assert 10 <= when < 11
    assert f"process {other.pid} (stopped)" in what
    assert 60 <= driven.time < 61


def test_a_lock_of_a_dead_process_is_free(cache: Cache) -> None:
    folder = cache.location / "v1" / "locks"
    program = (
        "import os, sys; from pathlib import Path; from lamina.runtime.locks import Stripe\n"
        "Stripe(Path(sys.argv[1]), 'ab').acquire(); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(folder)], check=False).returncode == -9
    assert Stripe(folder, "ab").acquire(blocking=False)


def test_waiting_for_a_lock_can_be_stopped(cache: Cache) -> None:
    held = cache.lock(stripe_of(KEY))
    running = Running()
    driven = Driven()

    def tell(what: str) -> None:
        running.stop()

    with held, pytest.raises(Stopped):
        cache.lock(stripe_of(KEY), Patience(tell, running.check, clock=driven.clock)).acquire()
    assert driven.time < 11


# Signals and forks


PROGRAM = """
import signal, sys, torch, lamina
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background switches off
print("begin", flush=True)
lamina.compile(lambda x: (x * 3.5).sin(), options={"cxx": sys.argv[1], "cache_dir": sys.argv[2]})(torch.randn(64))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda n: n.name)
def test_a_signal_ends_compilers_and_removes_their_folders(
    number: signal.Signals, compiler: Compiler, tmp_path: Path
) -> None:
    pid, temporary = tmp_path / "pid", tmp_path / "temporary"
    temporary.mkdir()
    text = f'case "$*" in *trial*|*stub*|*version*) ;; *" -c "*) echo $$ > "{pid}"; exec sleep 600;; esac'
    path = script(tmp_path, "slow-c++", f'{text}\nexec "{compiler.path}" "$@"')
    words = [sys.executable, "-c", PROGRAM, str(path), str(tmp_path / "cache")]
    with subprocess.Popen(words, env={**os.environ, "TMPDIR": str(temporary)}, stderr=subprocess.PIPE) as process:
        await_that(lambda: pid.exists() and pid.read_text().strip() != "")
        process.send_signal(number)
        process.communicate()
    assert process.returncode != 0
    await_end(int(pid.read_text()))
    await_that(lambda: not list(temporary.glob("lamina-build-*")))


def test_a_compiler_that_its_parent_had_no_time_to_tell_of_ends_too(tmp_path: Path) -> None:
    program = (
        "import os, subprocess, sys; from lamina.runtime.workspace import Workspace\n"
        "space = Workspace(sys.argv[1])\n"
        "other = subprocess.Popen(['sleep', '600'], cwd=space.path, start_new_session=True)\n"
        "open(sys.argv[2], 'w').write(str(other.pid)); os.kill(os.getpid(), 9)"
    )
    place = tmp_path / "place"
    place.mkdir()
    done = subprocess.run([sys.executable, "-c", program, str(place), str(tmp_path / "pid")], check=False)
    assert done.returncode == -9
    await_end(int((tmp_path / "pid").read_text()))
    await_that(lambda: not list(place.iterdir()))


def test_a_forked_child_begins_anew_what_a_thread_of_its_parent_does() -> None:
    pool = Pool(1, "test")
    go, read = os.pipe()[::-1]
    parent = os.getpid()

    def work(running: Running) -> int:
        if os.getpid() == parent:
            os.read(read, 1)
        return os.getpid()

    later = Later(lambda: pool, work)
    child = os.fork()
    if child == 0:
        os._exit(0 if later.result() == os.getpid() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.write(go, b"x")
    assert later.result() == parent


# Full disks, and compilers that are not there


def test_a_full_disk_is_not_no_compiler(compiler: Compiler, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(workspace.tempfile, "mkdtemp", full)
    monkeypatch.setattr(cache_entries.tempfile, "mkdtemp", full)
    found = look_for_compiler(compiler.path, cache)
    assert isinstance(found, DiskIsFull)
    assert "no disk has room" in found.what
    assert "install" not in str(found)


def test_the_next_disk_is_used_where_the_first_is_full(
    compiler: Compiler, cache: Cache, scale_unit: MakeUnit, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Path] = []

    def places(folder: Callable[[], Path]) -> list[str]:
        return [tempfile.gettempdir(), str(cache.location)]

    monkeypatch.setattr(workspace, "_places", places)
    compile_in = batch._compile

    def fails_once(build: Any, compiler: Compiler, hashes: list[str], space: workspace.Workspace) -> list[str]:
        tried.append(space.path.parent)
        if len(tried) == 1:
            raise DiskFull(errno.ENOSPC, "full")
        return compile_in(build, compiler, hashes, space)

    monkeypatch.setattr(batch, "_compile", fails_once)
    result = build([scale_unit(1)], compiler, cache)
    assert (result.compiled, tried) == (1, [Path(tempfile.gettempdir()), cache.location])


def test_a_relative_compiler(compiler: Compiler, cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, "my-c++", f'exec "{compiler.path}" "$@"')
    monkeypatch.chdir(tmp_path)
    found = find_compiler("./my-c++", cache)
    assert found is not None
    assert found.path == str(tmp_path / "my-c++")
    monkeypatch.setenv("PATH", f".:{os.environ['PATH']}")
    assert find_compiler("my-c++", cache) is not None


def test_a_compiler_that_is_not_there_is_told_even_if_the_cache_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(**options: Any) -> torch.Tensor:
        torch.compiler.reset()
        compiled = lamina.compile(lambda x: (x * 2.75).cos(), options={"cache_dir": str(tmp_path), **options})
        result: torch.Tensor = compiled(torch.ones(8))
        return result

    run()
    monkeypatch.setattr("lamina.backends.regions._warned", set())
    with pytest.warns(lamina.LaminaWarning, match=re.escape("nonsense is not on the PATH")):
        run(cxx="nonsense")
