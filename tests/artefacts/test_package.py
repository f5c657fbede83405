"""A package is what one machine has compiled, for others of its kind; elsewhere it is refused with a sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lamina
from lamina.errors import BadArgument

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
compiled = lamina.load(sys.argv[1], model)
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("packages")
    (made / "packaged_subject.py").write_text(SOURCE)
    done = _run(MAKE, made, "one", str(made / "model.lamina"))
    assert done.returncode == 0, done.stderr[-3000:]
    return made


@pytest.fixture
def model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[nn.Module]:
    monkeypatch.syspath_prepend(str(folder))
    yield __import__("packaged_subject").Model()
    sys.modules.pop("packaged_subject")


def _run(code: str, folder: Path, cache: str, *args: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder), *sys.path])
    environment = {**os.environ, "LAMINA_CACHE_DIR": str(folder / cache), "PYTHONPATH": path}
    command = [sys.executable, "-c", code, *args]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_another_process_with_an_empty_cache_compiles_nothing(folder: Path) -> None:
    done = _run(USE, folder, "two", str(folder / "model.lamina"))
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
        (lambda m: m["machine"][0].__setitem__(1, "riscv64 rvv 0"), "for another processor: riscv64 rvv 0; here it is"),
        (lambda m: m["machine"][1].__setitem__(1, "99"), "for another cores: 99; here it is"),
        (lambda m: m["versions"][1].__setitem__(1, "1.0"), "for another torch: 1.0; here it is"),
        (lambda m: m.update(prefix="0" * 40), "of another callable than Model, or its code has changed"),
        (lambda m: m.update(format=99), "is no package: its format is another one"),
        (lambda m: m.pop("machine"), "is no package: its description is not complete"),
        (lambda m: m.update(machine=[["x"]]), "is no package: its description is not complete"),
        (lambda m: m["options"].update(nonsense=1), "nonsense"),
    ],
)
def test_refused_elsewhere(
    folder: Path, model: nn.Module, tmp_path: Path, change: Callable[[dict[str, Any]], Any], said: str
) -> None:
    with pytest.raises(lamina.LaminaError) as caught:
        lamina.load(_changed(folder, tmp_path / "other", change), model)
    assert said in str(caught.value)


def test_another_model_is_refused(folder: Path) -> None:
    with pytest.raises(BadArgument, match="of another callable than Linear"):
        lamina.load(folder / "model.lamina", nn.Linear(16, 4))


def test_a_damaged_file_is_refused(folder: Path, model: nn.Module, tmp_path: Path) -> None:
    whole = (folder / "model.lamina").read_bytes()
    for kept in (len(whole) // 2, len(whole) - 30):
        (tmp_path / "cut").write_bytes(whole[:kept])
        with pytest.raises(BadArgument):
            lamina.load(tmp_path / "cut", model)
    at = whole.index(b"calls.tar.gz") + 400
    (tmp_path / "bent").write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
    with pytest.raises(BadArgument):
        lamina.load(tmp_path / "bent", model)
    for path in (tmp_path / "not there", tmp_path):
        with pytest.raises(BadArgument):
            lamina.load(path, model)
    with pytest.raises(BadArgument, match="give the file and the model"):
        lamina.load(folder / "model.lamina", model, torch.ones(3, 16))


def _plain(x: Tensor) -> Tensor:
    return x.sin() + 1


def _writes(x: Tensor) -> Tensor:
    return x.add_(1) * 2


def test_what_cannot_be_packaged_says_why(tmp_path: Path) -> None:
    target = tmp_path / "made"
    for given in (_plain, lamina.compile(_plain), lamina.compile(_plain, options={**OWN, "cache": False}), 3):
        with pytest.raises(BadArgument, match=r"no calls that can be packaged.*\n.*capture.*own"):
            lamina.package(given, target)  # type: ignore[arg-type]
    compiled = lamina.compile(_plain, options=OWN)
    with pytest.raises(BadArgument, match="it has not been called"):
        lamina.package(compiled, target)
    writing = lamina.compile(_writes, options=OWN)
    writing(torch.ones(4))
    with pytest.raises(BadArgument, match="nothing of _writes can be packaged: its calls are not stored"):
        lamina.package(writing, target)
    compiled(torch.ones(4))
    with pytest.raises(BadArgument, match="cannot be written"):
        lamina.package(compiled, tmp_path / "no folder" / "made")
    assert list(tmp_path.iterdir()) == []
    assert lamina.package(compiled, target) == target
    assert list(tmp_path.iterdir()) == [target]
