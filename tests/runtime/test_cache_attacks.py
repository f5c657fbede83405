"""What may be done to a cache from outside: odd files in its place, bad objects, locks held, forks, full disks."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from lamina.base.clock import Clock
from lamina.errors import LaminaWarning
from lamina.runtime.build import build_kernels
from lamina.runtime.cache import Cache, Entry, Miss, digest
from lamina.runtime.cache_usage import items
from lamina.runtime.kernel import KernelFunction, KernelUnit
from lamina.runtime.locks import Patience
from lamina.runtime.toolchain import Compiler, DiskIsFull, NoCompiler, find_compiler, probe
from tests.runtime.conftest import await_end, await_that

MakeUnit = Callable[..., KernelUnit]
KEY = digest("attacked")


def _fill(folder: Path) -> Mapping[str, Any]:
    (folder / "a.txt").write_text("content")
    return {"what": "content"}


def _to_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _to_link(path: Path) -> None:
    outside = path.parent.parent.parent / "outside"
    path.rename(outside)
    path.symlink_to(outside)


def _to_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _to_device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def _to_others(path: Path) -> None:
    path.chmod(0o666)


ATTACKS = {
    "a FIFO": _to_fifo,
    "a symbolic link": _to_link,
    "a folder": _to_folder,
    "a device": _to_device,
    "a file that others may write to": _to_others,
    "a file cut off": lambda path: os.truncate(path, 3),
    "an empty file": lambda path: os.truncate(path, 0),
    "no file": Path.unlink,
}


@pytest.mark.parametrize("name", ["a.txt", "manifest.json"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_only_a_regular_file_of_the_user_is_read(cache: Cache, attack: str, name: str) -> None:
    cache.put(KEY, _fill)
    (path,) = cache.location.rglob(name)
    ATTACKS[attack](path)
    fresh = Cache(cache.location)
    assert isinstance(fresh.get(KEY), Miss)
    assert fresh.get_or_build(KEY, _fill).read("a.txt") == b"content"
    assert isinstance(Cache(cache.location).get(KEY), Entry)  # it was put right


def test_an_object_without_its_symbol_is_not_kept(compiler: Compiler, cache: Cache, scale_unit: MakeUnit) -> None:
    lost = KernelUnit("lost", "", (KernelFunction("nowhere", "p"),))
    result = build_kernels([lost], compiler=compiler, isa="plain", cache=cache)
    assert "nowhere" in str(result.errors["lost"])
    assert not result.kernels
    assert cache.top is not None
    assert not [item.name for item in items(cache.top) if not item.is_note]
    assert build_kernels([scale_unit(1)], compiler=compiler, isa="plain", cache=cache).compiled == 1


def test_growth_is_bounded_and_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "small", limit=200_000)

    def large(folder: Path) -> Mapping[str, Any]:
        (folder / "data.bin").write_bytes(bytes(30_000))
        return {}

    keys = [digest("large", str(number)) for number in range(20)]
    cache.put(keys[0], large)
    for key in keys[1:]:
        cache.put(key, large)
    size = sum(path.stat().st_size for path in cache.location.rglob("*") if path.is_file())
    assert size <= 200_000
    assert isinstance(cache.get(keys[-1]), Entry)
    assert isinstance(cache.get(keys[3]), Miss)


def test_a_stopped_holder_is_told_of_and_not_waited_for(cache: Cache) -> None:
    program = (
        "import sys, signal, os\nfrom lamina.runtime.cache import Cache\n"
        "held = Cache(sys.argv[1]).lock('ab')\nassert held.acquire()\nprint('held', flush=True)\n"
        "os.kill(os.getpid(), signal.SIGSTOP)\n"
    )
    cache.put(KEY, _fill)
    child = subprocess.Popen([sys.executable, "-c", program, str(cache.location)], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        await_that(lambda: Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        seconds, told = [0.0], list[str]()

        def sleep(pause: float) -> None:
            seconds[0] += 5.0

        patience = Patience(told.append, clock=Clock(lambda: seconds[0], sleep))
        assert not cache.lock("ab", patience).acquire()
        assert seconds[0] == 60.0
        assert told == [f"waiting for process {child.pid} (stopped), which compiles the same kernels, 10 s so far"]
    finally:
        child.kill()
        child.wait()
    assert cache.lock("ab").acquire(blocking=False)


_BUILD = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background switches off
from pathlib import Path
from lamina.runtime.build import build_kernels
from lamina.runtime.cache import Cache
from lamina.runtime.kernel import KernelFunction, KernelUnit
from lamina.runtime.toolchain import Compiler, DiskIsFull, NoCompiler, find_compiler, probe
found = find_compiler("", Cache(sys.argv[1]))
slow = Compiler(sys.argv[2], found.kind, found.version, found.machine, found.stub)
unit = KernelUnit("scale", "static void scale(const float* x, float* y, long n) {}", (KernelFunction("scale", "ppq"),))
build_kernels([unit], compiler=slow, isa="plain", cache=Cache(sys.argv[1]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_compilers_and_leaves_no_folder(compiler: Compiler, tmp_path: Path, number: int) -> None:
    pid, slow, temporary = tmp_path / "pid", tmp_path / "slow-c++", tmp_path / "temporary"
    temporary.mkdir()
    slow.write_text(f'#!/bin/sh\necho $$ > "{pid}.new"; mv "{pid}.new" "{pid}"; exec sleep 600\n')
    slow.chmod(0o755)
    child = subprocess.Popen(
        [sys.executable, "-c", _BUILD, str(tmp_path / "cache"), str(slow)],
        env={**os.environ, "TMPDIR": str(temporary)},
        stderr=subprocess.DEVNULL,
    )
    try:
        await_that(lambda: pid.exists() or child.poll() is not None)
        assert child.poll() is None
        child.send_signal(number)
        await_end(int(pid.read_text()))
        await_end(child.pid)
    finally:
        child.kill()
        child.wait()
    # What removes it is a process that outlives the one that was ended.
    await_that(lambda: not [path.name for path in temporary.iterdir() if "lamina" in path.name])


def test_a_child_forked_during_a_compilation_works(
    compiler: Compiler, cache: Cache, scale_unit: MakeUnit, tmp_path: Path
) -> None:
    started, go = tmp_path / "started", tmp_path / "go"
    program = tmp_path / "waiting-c++"
    program.write_text(
        f'#!/bin/sh\ntouch "{started}"; while [ ! -e "{go}" ]; do sleep 0.01; done\nexec "{compiler.path}" "$@"\n'
    )
    program.chmod(0o755)
    script = tmp_path / "forks.py"
    script.write_text(_FORKS)
    done = subprocess.run(
        [sys.executable, str(script), str(cache.location), str(program), str(started), str(go)],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


_FORKS = """
import os, sys, threading, time
import torch, lamina
root, program, started, go = sys.argv[1:]
torch.set_num_threads(1)

def f(x):
    return torch.sin(x) * 3 + 1

g = lamina.compile(f, options={"cache_dir": root, "cxx": program, "strict": True})
x = torch.linspace(-1, 1, 50)
# Finding the compiler runs it too: let that pass, then hold up the kernel.
thread = threading.Thread(target=lambda: g(x))
thread.start()
while not os.path.exists(started):
    time.sleep(0.01)
child = os.fork()
if child == 0:
    status = 1
    try:
        open(go, "w").close()
        status = 0 if torch.allclose(g(x), f(x)) else 3
    finally:
        os._exit(status)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
thread.join()
sys.exit(status)
"""


def test_a_full_disk_is_no_missing_compiler(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_process: Callable[[], None]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("lamina.runtime.cache_entries.write_file", full)
    monkeypatch.setattr(Path, "write_bytes", full)
    monkeypatch.setattr(Path, "write_text", full)
    cache = Cache(tmp_path / "cache")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LaminaWarning)
        with pytest.raises(DiskIsFull, match="the disk is full") as caught:
            probe(compiler.path, cache)
    assert "TMPDIR" in str(caught.value)
    assert "install" not in str(caught.value)


def test_a_relative_compiler_and_one_that_does_not_exist(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_process: Callable[[], None]
) -> None:
    (tmp_path / "my-c++").symlink_to(compiler.path)
    monkeypatch.chdir(tmp_path)
    cache = Cache(tmp_path / "cache")
    assert find_compiler("./my-c++", cache) is not None
    fresh_process()
    with pytest.raises(NoCompiler, match=r"no-such-c\+\+"):
        probe("no-such-c++", cache)


def test_a_compiler_that_does_not_exist_is_told_though_the_cache_serves(tmp_path: Path) -> None:
    program = (
        "import sys, torch, lamina\n"
        "options = {'cache_dir': sys.argv[1], **({'cxx': sys.argv[2]} if len(sys.argv) > 2 else {})}\n"
        "x = torch.linspace(-1, 1, 9)\n"
        "assert torch.allclose(lamina.compile(lambda x: x.sin() + 2, options=options)(x), x.sin() + 2)\n"
    )
    said = []
    for more in ([], ["/nowhere/c++"]):
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / "cache"), *more], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        said.append(done.stderr)
    assert "/nowhere/c++" not in said[0]
    assert "/nowhere/c++" in said[1]
    assert LaminaWarning.__name__ in said[1]
