"""A package is what one machine has compiled, for others of its kind; elsewhere it is refused with a sentence."""

from __future__ import annotations

import copy
import errno
import gc
import json
import os
import random
import subprocess
import sys
import weakref
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lamina
from lamina.artefacts import store
from lamina.artefacts.constants import Unstorable
from lamina.artefacts.front import stored_calls
from lamina.backends.caches import open_cache
from lamina.capture.frame_reasons import LOADED
from lamina.errors import BadArgument
from lamina.options import Options
from lamina.runtime.cache import Cache, Entry
from lamina.runtime.cache_entries import write_note
from lamina.runtime.cache_tool import export_to, import_from
from tests.processes import python

OWN = {"capture": "own"}
SOURCE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, x):
        return self.down(nn.functional.gelu(self.up(x)).softmax(-1))
"""
MAKE = """
import sys, torch, lamina
from packaged_subject import Model
x = torch.ones(3, 16)
compiled = lamina.compile(Model(), options={"capture": "own"})
compiled(x).sum().backward()
with torch.no_grad():
    compiled(x)
lamina.package(compiled, sys.argv[1])
"""
USE = """
import sys, torch, lamina
from packaged_subject import Model
model, x = Model(), torch.ones(3, 16)
compiled = lamina.load(sys.argv[1], model, allow_code=True)
loss = compiled(x).sum()
loss.backward()
print([name for name in ("torch._dynamo", "lamina.compile", "sympy") if name in sys.modules])
gradient = model.up.weight.grad.clone()
model.zero_grad()
expected = model(x).sum()
expected.backward()
torch.testing.assert_close(loss, expected)
torch.testing.assert_close(gradient, model.up.weight.grad)
with torch.no_grad():
    model.up.bias.add_(1.0)
    torch.testing.assert_close(compiled(x), model(x))
print("lamina.compile" in sys.modules)
print(compiled(torch.ones(5, 16)).shape, "lamina.compile" in sys.modules)
"""


@pytest.fixture(autouse=True)
def _no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has loaded no kernel yet: one that comes from another folder of the cache is not stored again."""
    monkeypatch.setattr("lamina.runtime.library._LOADED", {})
    monkeypatch.setattr("lamina.runtime.library._LIBRARIES", {})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("packages")
    (made / "packaged_subject.py").write_text(SOURCE)
    done = _run(python(), MAKE, made, "one", str(made / "model.lamina"))
    assert done.returncode == 0, done.stderr[-3000:]
    return made


@pytest.fixture
def model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[nn.Module]:
    monkeypatch.syspath_prepend(str(folder))
    yield __import__("packaged_subject").Model()
    sys.modules.pop("packaged_subject")


def _run(program: Sequence[str], code: str, folder: Path, cache: str, *args: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder), *sys.path])
    environment = {**os.environ, "LAMINA_CACHE_DIR": str(folder / cache), "PYTHONPATH": path}
    command = [*program, "-c", code, *args]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_another_process_with_an_empty_cache_compiles_nothing(folder: Path) -> None:
    done = _run([sys.executable], USE, folder, "two", str(folder / "model.lamina"))
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == ["[]", "False", "torch.Size([5, 4]) True"]


def test_it_holds_no_weights(folder: Path) -> None:
    with zipfile.ZipFile(folder / "model.lamina") as archive:
        assert archive.namelist() == ["package.json", "calls.tar.gz"]
        manifest = json.loads(archive.read("package.json"))
    assert manifest["of"] == "Model"
    assert manifest["calls"] == 2


def _changed(folder: Path, path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    with zipfile.ZipFile(folder / "model.lamina") as archive, zipfile.ZipFile(path, "w") as made:
        manifest = json.loads(archive.read("package.json"))
        change(manifest)
        made.writestr("package.json", json.dumps(manifest))
        made.writestr("calls.tar.gz", archive.read("calls.tar.gz"))
    return path


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: m["machine"][0].__setitem__(1, "riscv64 rvv 0"), "for other processors: riscv64 rvv 0; here: "),
        (lambda m: m["machine"][1].__setitem__(1, "99"), "for other numbers of cores: 99; here: "),
        (lambda m: m["versions"][1].__setitem__(1, "1.0"), "for other torch: 1.0; here: "),
        (lambda m: m.update(prefix="0" * 40), "is of Model, and not of Model or not of its code as it is now"),
        (lambda m: m.update(prefix="0" * 40, parts={**m["parts"], "options": "0"}), "other options are set"),
        (lambda m: m.update(prefix="0" * 40, parts={**m["parts"], "lowerings": "0"}), "other lowerings are registered"),
        (lambda m: m.update(dynamic="yes"), "is no package: its description is not complete"),
        (lambda m: m.update(machine=[[[1], "2"]]), "is no package: its description is not complete"),
        (lambda m: m.update(format=99), "is no package: its format is another one"),
        (lambda m: m.pop("machine"), "is no package: its description is not complete"),
        (lambda m: m.update(machine=[["x"]]), "is no package: its description is not complete"),
        (lambda m: m.update(machine=5), "is no package: its description is not complete"),
        (lambda m: m["options"].update(nonsense=1), "nonsense"),
    ],
)
def test_refused_elsewhere(
    folder: Path, model: nn.Module, tmp_path: Path, change: Callable[[dict[str, Any]], Any], said: str
) -> None:
    with pytest.raises(lamina.LaminaError) as caught:
        lamina.load(_changed(folder, tmp_path / "other", change), model, allow_code=True)
    assert said in str(caught.value)


def test_another_model_is_refused(folder: Path) -> None:
    with pytest.raises(BadArgument, match="is of Model, and not of Linear"):
        lamina.load(folder / "model.lamina", nn.Linear(16, 4), allow_code=True)


def test_programs_are_loaded_with_leave_only(folder: Path, model: nn.Module) -> None:
    with pytest.raises(BadArgument, match="holds programs"):
        lamina.load(folder / "model.lamina", model)


def test_options_of_the_process_are_told(folder: Path, model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMINA_CACHE", "0")
    with pytest.raises(BadArgument, match="cannot be used with these options: cache"):
        lamina.load(folder / "model.lamina", model, allow_code=True)


def test_a_damaged_file_is_refused(folder: Path, model: nn.Module, tmp_path: Path) -> None:
    whole = (folder / "model.lamina").read_bytes()

    def refused(content: bytes) -> None:
        (tmp_path / "bent").write_bytes(content)
        with pytest.raises(BadArgument):
            lamina.load(tmp_path / "bent", model, allow_code=True)

    refused(whole[: len(whole) // 2])
    refused(whole[:-30])
    at = whole.index(b"calls.tar.gz") + 400
    refused(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
    flags = whole.index(b"PK\x01\x02") + 8
    refused(whole[:flags] + bytes([whole[flags] | 1]) + whole[flags + 1 :])  # encrypted
    for path in (tmp_path / "not there", tmp_path):
        with pytest.raises(BadArgument):
            lamina.load(path, model, allow_code=True)
    with pytest.raises(BadArgument, match="give the file and the model"):
        lamina.load(folder / "model.lamina", model, torch.ones(3, 16), allow_code=True)


def test_what_is_not_of_the_callable_is_not_added(
    folder: Path, model: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(folder / "model.lamina") as archive:
        calls, manifest = archive.read("calls.tar.gz"), archive.read("package.json")
    apart = Cache(tmp_path / "apart")
    (tmp_path / "calls").write_bytes(calls)
    import_from(apart, tmp_path / "calls")
    apart.write_note("ff" * 20 + ".x", {"entry": "nothing"})
    export_to(apart, tmp_path / "calls")
    with zipfile.ZipFile(tmp_path / "more", "w") as made:
        made.writestr("package.json", manifest)
        made.write(tmp_path / "calls", "calls.tar.gz")
    monkeypatch.setenv("LAMINA_CACHE_DIR", str(tmp_path / "cache"))
    lamina.load(tmp_path / "more", model, allow_code=True)
    assert Cache(tmp_path / "cache").notes_of("ff" * 20) == ()
    assert len(Cache(tmp_path / "cache").notes_of(json.loads(manifest)["prefix"])) == 2


def test_other_calls_of_one_class_stay_out(tmp_path: Path) -> None:
    options = {**OWN, "cache_dir": str(tmp_path / "cache")}
    lamina.compile(nn.Sequential(nn.ReLU()), options=options)(torch.ones(3))
    other = lamina.compile(nn.Sequential(nn.Tanh()), options=options)
    with pytest.raises(BadArgument, match="it has not been called"):
        lamina.package(other, tmp_path / "made")


def test_backward_passes_that_came_late_are_there(tmp_path: Path) -> None:
    compiled = lamina.compile(_plain, options={**OWN, "cache_dir": str(tmp_path / "cache")})
    x = torch.ones(4, requires_grad=True)
    (compiled(x) + compiled(x)).sum().backward()
    lamina.package(compiled, tmp_path / "made")
    with zipfile.ZipFile(tmp_path / "made") as archive:
        prefix = json.loads(archive.read("package.json"))["prefix"]
        calls = Path(archive.extract("calls.tar.gz", tmp_path))
    apart = Cache(tmp_path / "apart")
    import_from(apart, calls)
    (name,) = apart.notes_of(prefix)
    entry = apart.get(str((apart.note(name) or {})["entry"]))
    assert isinstance(entry, Entry)
    (graph,) = json.loads(entry.read("driver.json"))["graphs"]
    assert len(graph["backwards"]) == 1


def _plain(x: Tensor) -> Tensor:
    return x.sin() + 1


def _views(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[1:], x * 2


def _draws(x: Tensor) -> Tensor:
    return x.relu() * random.random()


def _now_and_then(x: Tensor) -> Tensor:
    return x[1:] if x.shape[0] == 3 else x.sin() * 2


def test_what_a_package_lacks_is_told(tmp_path: Path) -> None:
    compiled = lamina.compile(_now_and_then, options={**OWN, "cache_dir": str(tmp_path / "cache")})
    for size in (3, 3, 4, 4, 3):
        compiled(torch.ones(size))
    for _ in range(2):
        with pytest.warns(lamina.LaminaWarning, match="some calls of _now_and_then are not in .*: its calls are not"):
            lamina.package(compiled, tmp_path / "made")


def test_all_calls_of_a_package_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few of other processes' calls are."""
    monkeypatch.setattr(store, "_MOST", 1)
    compiled = lamina.compile(_plain, dynamic=False, options={**OWN, "cache_dir": str(tmp_path / "cache")})
    for size in (3, 4, 5):
        compiled(torch.ones(size))
    lamina.package(compiled, tmp_path / "made")
    monkeypatch.setenv("LAMINA_CACHE_DIR", str(tmp_path / "empty"))
    loaded = lamina.load(tmp_path / "made", _plain, allow_code=True)
    for size in (3, 4, 5):
        loaded(torch.ones(size))
    assert [d.reason.code for d in loaded.record.decisions("capture")].count(LOADED.number) == 3


class _Same(nn.Module):
    """All of these are equal, and have no hash."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same)

    __hash__ = None  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        """As large as ``x``."""
        return x.sin() * self.factor


def test_equal_modules_have_calls_of_their_own(tmp_path: Path) -> None:
    options = {**OWN, "cache_dir": str(tmp_path / "cache")}
    first, second = (lamina.compile(_Same(factor), options=options) for factor in (2.0, 3.0))
    first(torch.ones(3))
    with pytest.raises(BadArgument, match="it has not been called"):
        lamina.package(second, tmp_path / "made")
    with pytest.raises(BadArgument, match="it has not been called"):
        lamina.package(copy.deepcopy(first), tmp_path / "made")
    lamina.package(first, tmp_path / "made")


def _calls_itself() -> weakref.ref[Callable[..., Any]]:
    def step(x: Tensor, times: int) -> Tensor:
        return compiled(x.sin(), times - 1) if times else x  # type: ignore[no-any-return]

    compiled = lamina.compile(step, options=OWN)
    compiled(torch.ones(3), 1)
    return weakref.ref(step)


def test_what_calls_itself_compiled_is_freed() -> None:
    left = _calls_itself()
    gc.collect()
    assert left() is None


@pytest.mark.by_dynamo("asks for the advice to take the own front end")
def test_what_cannot_be_packaged_says_why(tmp_path: Path) -> None:
    target = tmp_path / "made"
    for given in (_plain, lamina.compile(_plain), lamina.compile(_plain, options={**OWN, "cache": False}), 3):
        with pytest.raises(BadArgument, match=r"no calls that can be packaged.*\n.*capture.*own"):
            lamina.package(given, target)  # type: ignore[arg-type]
    compiled = lamina.compile(_plain, options=OWN)
    with pytest.raises(BadArgument, match="it has not been called"):
        lamina.package(compiled, target)
    viewing = lamina.compile(_views, options=OWN)
    viewing(torch.ones(4))
    with pytest.raises(BadArgument, match="nothing of _views can be packaged: its calls are not stored"):
        lamina.package(viewing, target)
    for _ in range(2):  # the others run from the first one's driver, or are interpreted
        viewing(torch.ones(4))
        with pytest.raises(BadArgument, match="nothing of _views can be packaged: its calls are not stored"):
            lamina.package(viewing, target)
    interpreted = lamina.compile(_draws, options=OWN)
    for _ in range(2):
        interpreted(torch.ones(4))
        with pytest.raises(BadArgument, match=r"nothing of _draws can be packaged: .*interpreted each time"):
            lamina.package(interpreted, target)
    compiled(torch.ones(4))
    with pytest.raises(BadArgument, match="cannot be written"):
        lamina.package(compiled, tmp_path / "no folder" / "made")
    with pytest.raises(BadArgument, match="is no name of a file"):
        lamina.package(compiled, ".")
    assert list(tmp_path.iterdir()) == []
    assert lamina.package(compiled, target) == target
    assert list(tmp_path.iterdir()) == [target]


def test_calls_are_packaged_though_the_cache_cannot_be_written_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of them are in the folder of this process then."""
    compiled = lamina.compile(_plain, options={**OWN, "cache_dir": str(tmp_path / "cache")})
    compiled(torch.ones(4))
    kept = open_cache(Options.of(None, {**OWN, "cache_dir": str(tmp_path / "cache")}))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    top = kept.top
    monkeypatch.setattr(
        "lamina.runtime.cache.write_note", lambda at, *given: full() if at is top else write_note(at, *given)
    )
    monkeypatch.setattr("lamina.runtime.cache._WARNED", set())
    with pytest.warns(RuntimeWarning, match="cannot be written: No space left"):
        compiled(torch.ones(4, 2))
    assert kept.location != top.path.parent
    lamina.package(compiled, tmp_path / "made")
    loaded = lamina.load(tmp_path / "made", _plain, allow_code=True)
    assert len(stored_calls(loaded).own) == len(stored_calls(compiled).own) == 2


def test_calls_that_eager_runs_by_now_are_packaged_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = lamina.compile(_plain, options={**OWN, "cache_dir": str(tmp_path / "cache")})
    for _ in range(2):
        compiled(torch.ones(4))
    lamina.package(compiled, tmp_path / "made")

    def decided(*_: object) -> None:
        raise Unstorable("a graph that eager runs faster")

    monkeypatch.setattr(store, "written_program", decided)
    with pytest.raises(BadArgument, match="eager runs faster"):
        lamina.package(compiled, tmp_path / "made")
