"""Triton kernels compiled ahead of time for a GPU this machine need not have; cached, checked, and failing alone."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lamina.runtime import triton_build, triton_pool, triton_worker
from lamina.runtime.cache import Cache
from lamina.runtime.triton_build import TritonBuild, TritonUnit, build_triton, unit_key
from lamina.runtime.triton_pool import CompilerPool, TritonError
from tests.runtime.conftest import await_that

pytest.importorskip("triton")

TEXT = """\
import triton
import triton.language as tl


@triton.jit
def scale(b0, b1, s0):
    i = tl.program_id(0) * 256 + tl.arange(0, 256)  # model.py:1 mul
    tl.store(b1 + i, tl.load(b0 + i, mask=i < s0) * 2.0, mask=i < s0)
"""
UNIT = TritonUnit("scale", "scale", TEXT, ("b0", "b1", "s0"), ("*fp32", "*fp32", "i64"), (0, 1, 2), 4, 3)


@pytest.fixture(scope="module")
def pool() -> CompilerPool:
    return CompilerPool(1)


@pytest.fixture
def build(cache: Cache, pool: CompilerPool, monkeypatch: pytest.MonkeyPatch) -> Callable[..., TritonBuild]:
    """Builds units as a process would that knows nothing of earlier builds."""

    def run(*units: TritonUnit, compiles: bool = True, cache: Cache = cache) -> TritonBuild:
        monkeypatch.setattr(triton_build, "_KNOWN", {})

        def compilers() -> CompilerPool:
            assert compiles, "a compiler was asked for"
            return pool

        return build_triton(units, capability=90, cache=cache, pool=compilers)

    return run


def test_machine_code_and_what_its_launch_needs(build: Callable[..., TritonBuild]) -> None:
    built = build(UNIT)
    cubin = built.cubins["scale"]
    assert (cubin.function, cubin.types, cubin.threads, cubin.shared) == ("scale", UNIT.types, 128, 0)
    assert cubin.code.startswith(b"\x7fELF")
    assert cubin.hidden == 2
    assert (built.compiled, built.reused, dict(built.errors)) == (1, 0, {})


def test_second_process_compiles_nothing(build: Callable[..., TritonBuild]) -> None:
    first = build(UNIT)
    second = build(UNIT, compiles=False)
    assert second.cubins == first.cubins
    assert second.reused == 1


def test_entry_holds_plain_files(build: Callable[..., TritonBuild], cache: Cache) -> None:
    build(UNIT)
    names = {path.name for path in cache.location.rglob("*") if path.is_file()}
    assert {"kernel.cubin", "kernel.ptx", "kernel.ttgir", "scale.py", "manifest.json"} <= names


def test_alignment_changes_the_code(build: Callable[..., TritonBuild]) -> None:
    general = replace(UNIT, name="general", aligned=())
    built = build(UNIT, general)
    assert built.cubins["scale"].key != built.cubins["general"].key
    assert built.cubins["scale"].code != built.cubins["general"].code


def test_names_and_comments_are_no_part_of_the_identity() -> None:
    renamed = replace(UNIT, name="x", function="twice", text=TEXT.replace("def scale", "def twice"))
    commented = replace(UNIT, text=TEXT.replace("model.py:1 mul", "model.py:2 mul"))
    assert unit_key(UNIT, 90) == unit_key(renamed, 90) == unit_key(commented, 90)
    others = [replace(UNIT, text=TEXT.replace("2.0", "3.0")), replace(UNIT, warps=8), replace(UNIT, stages=2)]
    others += [replace(UNIT, types=("*fp32", "*fp32", "i32")), replace(UNIT, aligned=()), replace(UNIT, asserts=True)]
    assert len({unit_key(unit, 90) for unit in (UNIT, *others)} | {unit_key(UNIT, 80)}) == len(others) + 2


PARTS = """\
@triton.jit
def {name}_parts(b0):
    tl.store(b0, 1.0)


@triton.jit
def {name}(b0):
    {name}_parts(b0)
"""


def test_names_of_a_kernel_s_parts_are_none_either() -> None:
    one, other = (replace(UNIT, function=name, text=PARTS.format(name=name)) for name in ("sum_a", "sum_a_0"))
    changed = replace(one, text=one.text.replace("1.0", "2.0"))
    assert unit_key(one, 90) == unit_key(other, 90) != unit_key(changed, 90)


PACKED = """\
import triton
import triton.language as tl


@triton.jit
def packed(b0, b1):
    i = tl.arange(0, 128)
    pair = tl.load(b0 + i)
    pair = tl.inline_asm_elementwise("add.s16x2 $0, $1, 196610;", "=r,r", [pair], tl.int32, is_pure=True, pack=1)
    tl.store(b1 + i, pair >> 16)
"""


def test_packed_sums_are_done_one_by_one(build: Callable[..., TritonBuild], cache: Cache) -> None:
    # ptxas adds 0 instead of the constant where only one of two packed sums is used.
    unit = TritonUnit("packed", "packed", PACKED, ("b0", "b1"), ("*i32", "*i32"), (0, 1), 4, 1)
    assert not build(unit).errors
    (ptx,) = cache.location.rglob("kernel.ptx")
    text = ptx.read_text()
    assert "16x2" not in text
    assert text.count("add.s16") == 2
    assert "{%half2, %half3}, 196610;" in text


def test_a_kernel_that_does_not_compile_fails_alone(build: Callable[..., TritonBuild]) -> None:
    wrong = replace(UNIT, name="wrong", text=TEXT.replace("tl.load(b0 + i", "tl.load(missing + i"))
    built = build(wrong, UNIT)
    assert list(built.cubins) == ["scale"]
    assert "missing is not defined" in built.errors["wrong"].what


def test_a_compiler_that_dies_is_replaced(build: Callable[..., TritonBuild]) -> None:
    deadly = replace(UNIT, name="deadly", text=TEXT + "\nimport os\nos._exit(3)\n")
    built = build(deadly)
    assert "ended with code 3" in built.errors["deadly"].what
    assert build(UNIT).compiled == 1


def test_as_many_compilers_start_ahead_as_may_be_and_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, together = list[object](), threading.Barrier(3)

    class Noted(triton_pool._Worker):
        def __init__(self) -> None:
            made.append(self)
            super().__init__()

        def ask(self, request: triton_build.Request, timeout: float) -> dict[str, Any]:
            together.wait(120)  # each has one request, so it is not one process that answers all
            return {"asked": self}

    monkeypatch.setattr(triton_pool, "_Worker", Noted)
    pool = CompilerPool(3)
    pool.start()
    pool.start()
    asked = [pool.compile(triton_build.Request()) for _ in range(9)]  # type: ignore[typeddict-item]
    assert {reply.result()["asked"] for reply in asked} <= set(made)
    assert len(made) == 3


def test_a_compiler_that_takes_too_long_is_stopped(pool: CompilerPool, tmp_path: Path) -> None:
    endless = TEXT + "\nimport time\nwhile True:\n    time.sleep(1)\n"
    request = triton_build.Request(
        name="scale", text=endless, parameters=list(UNIT.parameters), types=list(UNIT.types), aligned=[], warps=4,
        stages=3, asserts=False, scratch=0, capability=90, folder=str(tmp_path),
    )  # fmt: skip
    with pytest.raises(TritonError, match="stopped after 0 s"):
        pool.compile(request, timeout=0.1).result()


LEAVING = """
import os, signal, sys
from pathlib import Path
from lamina.runtime.triton_pool import CompilerPool
from tests.runtime.test_triton_build import UNIT
pool = CompilerPool(2)
pool.compile(UNIT.request(90, Path(sys.argv[1]))).result()
pool.start()
print(len([n for n in os.listdir(os.environ["TMPDIR"]) if n.startswith("lamina-triton-")]), flush=True)
if sys.argv[2] == "fork" and not os.fork():
    sys.exit()  # not the end of its parent's compilers
if sys.argv[2] == "fork":
    os.wait()
    pool.compile(UNIT.request(90, Path(sys.argv[1]))).result()
if sys.argv[2] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("end", ["exit", "fork", "killed"])
def test_compilers_leave_no_files_behind(end: str, tmp_path: Path) -> None:
    temporary, built = tmp_path / "temporary", tmp_path / "built"
    temporary.mkdir()
    built.mkdir()
    done = subprocess.run(
        (sys.executable, "-c", LEAVING, str(built), end),
        env={**os.environ, "TMPDIR": str(temporary)},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == (-9 if end == "killed" else 0), done.stderr
    assert int(done.stdout.split()[0]) >= 1
    await_that(lambda: not list(temporary.iterdir()))  # of a process that was killed the compilers see to it


def test_a_damaged_entry_is_compiled_again(build: Callable[..., TritonBuild], cache: Cache) -> None:
    build(UNIT)
    (cubin,) = cache.location.rglob("kernel.cubin")
    cubin.write_bytes(cubin.read_bytes()[:-1] + b"x")
    built = build(UNIT)
    assert (built.compiled, len(built.damages)) == (1, 1)
    assert built.cubins["scale"].code.startswith(b"\x7fELF")


def test_kernels_may_use_the_runtime_s_functions(build: Callable[..., TritonBuild]) -> None:
    text = TEXT.replace("import triton\n", "import triton\nfrom lamina.runtime.triton_math import maximum\n", 1)
    text = text.replace("mask=i < s0) * 2.0", "mask=i < s0) * 2.0 + maximum(i, i)")
    assert not build(replace(UNIT, text=text)).errors


def test_kernels_say_whether_this_process_compiled_them(build: Callable[..., TritonBuild]) -> None:
    assert build(UNIT).cubins["scale"].fresh
    again = build_triton([UNIT], capability=90, cache=Cache(None), pool=lambda: pytest.fail("it is known"))
    assert again.cubins["scale"].fresh
    assert not build(UNIT).cubins["scale"].fresh  # on disk


def test_kernels_do_not_outlive_a_change_of_what_they_call(monkeypatch: pytest.MonkeyPatch) -> None:
    importing = TEXT.replace("import triton\n", "import triton\nfrom lamina.runtime.triton_fast import keep\n", 1)
    plain, calling = UNIT, replace(UNIT, text=importing)
    before = unit_key(plain, 90), unit_key(calling, 90)
    monkeypatch.setattr(triton_build, "_text_of", lambda module: f"another {module}")
    assert unit_key(plain, 90) == before[0]
    assert unit_key(calling, 90) != before[1]


class SlowPool:
    """Compilers that are not ready before they are told to fail."""

    def __init__(self) -> None:
        self.reply: Future[dict[str, Any]] = Future()

    def compile(self, request: object) -> Future[dict[str, Any]]:
        return self.reply


def test_a_slow_kernel_is_left_behind_alone(build: Callable[..., TritonBuild], cache: Cache) -> None:
    build(UNIT)
    slow = replace(UNIT, name="slow", warps=8)
    pool: Any = SlowPool()
    built = build_triton((UNIT, slow), capability=90, cache=cache, pool=lambda: pool, patience=0.2)
    pool.reply.set_exception(TritonError("stopped"))
    assert set(built.cubins) == {"scale"}
    assert built.errors["slow"].what == "not compiled within 0.2 s"


PREPARED = """
import sys
from importlib.util import module_from_spec, spec_from_file_location
found = spec_from_file_location("worker", sys.argv[1])
worker = module_from_spec(found)
found.loader.exec_module(worker)
worker._prepare_imports()
triton = worker._prepared_triton()
loaded = [n for n in ("torch", "numpy", "triton.runtime.interpreter") if n in sys.modules]
print([n for n in loaded if type(sys.modules[n]) is not worker._Later])
print(sys.modules["triton.runtime.cache"].triton_key() == triton.__version__)
"""


@pytest.mark.parametrize("cache", ["", "triton.runtime.cache:FileCacheManager"])
def test_a_compiler_process_imports_and_hashes_nothing_in_vain(cache: str) -> None:
    environment = {**os.environ, "TRITON_CACHE_MANAGER": cache} if cache else dict(os.environ)
    done = subprocess.run(
        (sys.executable, "-c", PREPARED, triton_worker.__file__),
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    # The identity of Triton matters to a cache of the user's.
    assert done.stdout.split("\n")[:2] == ["[]", str(not cache)]
