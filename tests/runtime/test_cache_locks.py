"""Locks that are not given back, signals and forks while kernels are compiled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lamina.runtime.cache import Cache
from lamina.runtime.clock import Clock
from lamina.runtime.compilation import Running, Stopped
from lamina.runtime.locks import Patience, Stripe, stripe_of
from lamina.runtime.pool import Later, Pool
from lamina.runtime.toolchain import Compiler
from tests.processes import python
from tests.runtime.caching import KEY, MakeUnit, build, script
from tests.runtime.conftest import await_end, await_that


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
    assert what.startswith(f"waiting for process {other.pid} (stopped), which compiles the same kernels, 10 s so far")
    assert 60 <= driven.time < 61


def test_a_lock_of_a_dead_process_is_free(cache: Cache) -> None:
    folder = cache.location / "v1" / "locks"
    program = (
        "import os, sys; from pathlib import Path; from lamina.runtime.locks import Stripe\n"
        "Stripe(Path(sys.argv[1]), 'ab').acquire(); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([*python(), "-c", program, str(folder)], check=False).returncode == -9
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


PROGRAM = """
import signal, sys, torch, lamina
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background switches off
print("begin", flush=True)
lamina.compile(lambda x: (x * 3.5).sin(), options={"cxx": sys.argv[1], "cache_dir": sys.argv[2]})(torch.randn(64))
"""


@pytest.mark.sampled(one_in=3)
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
    await_that(lambda: not list(temporary.glob("*lamina*")))  # by a process that outlives the one that was ended


def test_an_interrupt_that_does_not_wake_the_waiting_thread_is_seen() -> None:
    """As one that comes between its last look at signals and its sleep; here another thread is given it."""
    program = (
        "import os, signal, time\n"
        "from lamina.runtime.pool import Later, Pool\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "ended = []\n"
        "def work(running):\n"
        "    time.sleep(0.2)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    for _ in range(600):\n"
        "        running.check()\n"
        "        time.sleep(0.1)\n"
        "    ended.append(True)\n"
        "pool = Pool(1, 'test')\n"
        "later = Later(lambda: pool, work)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})\n"
        "try:\n"
        "    later.result()\n"
        "except KeyboardInterrupt:\n"
        "    os._exit(2 if ended else 0)\n"
        "os._exit(1)\n"
    )
    done = subprocess.run([*python(), "-c", program], check=False)
    assert done.returncode == 0


def test_a_compiler_that_its_parent_had_no_time_to_tell_of_ends_too(tmp_path: Path) -> None:
    program = (
        "import os, subprocess, sys; from lamina.runtime.workspace import Workspace\n"
        "space = Workspace(sys.argv[1])\n"
        "other = subprocess.Popen(['sleep', '600'], cwd=space.path, start_new_session=True)\n"
        "open(sys.argv[2], 'w').write(str(other.pid)); os.kill(os.getpid(), 9)"
    )
    place = tmp_path / "place"
    place.mkdir()
    done = subprocess.run([*python(), "-c", program, str(place), str(tmp_path / "pid")], check=False)
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
        [*python(), str(script), str(cache.location), str(program), str(started), str(go)],
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
