"""A copy of a process that has imported Lamina does what a process does that Python starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes import python

SAID = """
import json, os, sys
print(json.dumps([__name__, sys.argv[1:], os.getcwd(), sys.path[0], os.environ.get("WORD"), sys.stdin.read(),
                  len(os.listdir("/proc/self/fd")), "torch" in sys.modules]))
print("an error", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""


def ran(*words: str, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*python(), *words], capture_output=True, text=True, timeout=200, **more)  # type: ignore[call-overload]


@pytest.mark.parametrize("how", ["text", "file", "module"])
def test_it_has_the_words_the_folder_the_environment_and_the_status(how: str, tmp_path: Path) -> None:
    (tmp_path / "said.py").write_text(SAID, encoding="utf-8")
    words = {"text": ("-c", SAID), "file": ("said.py",), "module": ("-m", "said")}[how]
    env = {**os.environ, "WORD": "a word"}
    found = ran(*words, "3", "x", cwd=tmp_path, env=env, input="typed")
    fresh = subprocess.run(
        [sys.executable, *words, "3", "x"], cwd=tmp_path, env=env, input="typed", capture_output=True, text=True
    )
    assert fresh.returncode == 3
    assert (found.returncode, found.stderr) == (fresh.returncode, fresh.stderr)
    assert found.stdout == fresh.stdout.replace("false]", "true]")


def test_an_exception_is_told_as_python_tells_it(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("def f():\n    1 / 0\n\n\nf()\n", encoding="utf-8")
    found = ran("fails.py", cwd=tmp_path)
    fresh = subprocess.run([sys.executable, "fails.py"], cwd=tmp_path, capture_output=True, text=True)
    assert (found.returncode, found.stdout, found.stderr) == (1, "", fresh.stderr)
    assert ran("-c", "import sys; sys.exit('no')").stderr == "no\n"


def test_a_program_is_read_from_a_pipe() -> None:
    """With which the copy is the same as a process that Python starts."""
    show = "import sys\nprint(__name__, __file__, sys.argv, sys.path[0], 'torch' in sys.modules)\n1 / 0\n"
    found = subprocess.run(python(), input=show, capture_output=True, text=True, timeout=200)
    fresh = subprocess.run([sys.executable], input=show, capture_output=True, text=True, timeout=200)
    assert found.stdout == fresh.stdout.replace("False", "True")
    assert (found.returncode, found.stderr) == (fresh.returncode, fresh.stderr)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT])
def test_a_signal_is_told(number: signal.Signals) -> None:
    assert ran("-c", f"import os; os.kill(os.getpid(), {int(number)})").returncode == -number


def test_what_python_reads_at_its_start_is_read() -> None:
    show = "import sys; print(sys.flags.hash_randomization, sys.flags.optimize)"
    assert ran("-c", show, env={**os.environ, "PYTHONHASHSEED": "0"}).stdout == "0 0\n"
    assert ran("-O", "-c", show).stdout.endswith(" 1\n")


def test_it_is_a_copy_whatever_torch_has_set_meanwhile(tmp_path: Path) -> None:
    show = "import os, sys; print('torch' in sys.modules, os.environ.get('TORCHINDUCTOR_CACHE_DIR'))"
    for place in (str(tmp_path), str(tmp_path / "another")):
        env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": place, "TRITON_CACHE_DIR": place}
        assert ran("-c", show, env=env).stdout == f"True {place}\n"
    assert ran("-c", show, env={**os.environ, "PYTORCH_ALLOC_CONF": ""}).stdout.startswith("False ")


def test_it_has_the_threads_and_the_folder_of_temporary_files_that_it_is_given(tmp_path: Path) -> None:
    show = "import sys; copied = 'torch' in sys.modules; import tempfile, torch; "
    show += "print(copied, torch.get_num_threads(), tempfile.gettempdir())"
    env = {**os.environ, "OMP_NUM_THREADS": "3", "TMPDIR": str(tmp_path)}
    assert ran("-c", show, env=env).stdout == f"True 3 {tmp_path}\n"


STARTS = """
import multiprocessing, os, sys

def told(pipe):
    pipe.send(["torch" in sys.modules, os.getpid(), __name__])

if __name__ == "__main__":
    context = multiprocessing.get_context("METHOD")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=told, args=(theirs,))
    process.start()
    theirs.close()
    copied, number, name = ours.recv()
    process.join()
    print(copied, number not in (os.getpid(), os.getppid()), name, ours.poll(), process.exitcode)
"""


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_processes_that_it_starts_are_copies_too(method: str, tmp_path: Path) -> None:
    (tmp_path / "starts.py").write_text(STARTS.replace("METHOD", method), encoding="utf-8")
    done = ran("starts.py", cwd=tmp_path)
    assert done.stdout == "True True __mp_main__ True 0\n", done


def test_nothing_of_one_is_in_the_next_and_each_is_a_process() -> None:
    program = "import builtins, os, random; print(hasattr(builtins, 'mark'), os.getpid(), random.random())\n"
    told = [ran("-c", program + "builtins.mark = 1").stdout.split() for _ in range(2)]
    assert [words[0] for words in told] == ["False", "False"]
    assert told[0][1] != told[1][1]
    assert told[0][2] != told[1][2]


def test_it_ends_with_the_one_that_waits_for_it(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    program = f"import os, time; open({str(mark)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    with subprocess.Popen([*python(), "-c", program]) as waiting:
        assert comes(lambda: mark.exists() and mark.read_text() != "")
        waiting.kill()
    assert comes(lambda: not Path(f"/proc/{mark.read_text()}").exists())


def comes(holds: Callable[[], bool]) -> bool:
    """Whether something is so within a minute."""
    return any(holds() or signal.sigtimedwait([], 0.05) is not None for _ in range(1200))
