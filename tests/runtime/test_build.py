from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lamina.errors import BadArgument
from lamina.runtime import build as build_module
from lamina.runtime import kernel as kernel_module
from lamina.runtime.build import BuildResult, build_kernels, build_together
from lamina.runtime.cache import Cache
from lamina.runtime.clock import Clock
from lamina.runtime.compilation import Limit, Running
from lamina.runtime.kernel import Kernel, KernelFunction, KernelUnit, kernel_hash
from lamina.runtime.toolchain import Compiler, find_compiler
from tests.processes import python
from tests.runtime.conftest import CountingCompiler, await_end, await_that

MakeUnit = Callable[..., KernelUnit]
Forget = Callable[[], None]


def build(units: list[KernelUnit], compiler: Compiler | None, cache: Cache, **more: object) -> BuildResult:
    return build_kernels(units, compiler=compiler, isa="plain", cache=cache, **more)  # type: ignore[arg-type]


def scaled_by(kernel: Kernel) -> float:
    x, y = torch.ones(100), torch.zeros(100)
    kernel(x.data_ptr(), y.data_ptr(), 100)
    assert (y == y[0]).all()
    return y[0].item()


def found(counting: CountingCompiler, cache: Cache) -> Compiler:
    compiler = find_compiler(str(counting.path), cache)
    assert compiler is not None
    return compiler


def test_kernels_run(compiler: Compiler, cache: Cache, scale_unit: MakeUnit) -> None:
    result = build([scale_unit(i) for i in range(5)], compiler, cache)
    assert [scaled_by(result.kernels[f"scale_{i}"]) for i in range(5)] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert (result.compiled, result.reused, dict(result.errors)) == (5, 0, {})


def test_groups_of_kernels_are_one_batch(counting: CountingCompiler, cache: Cache, scale_unit: MakeUnit) -> None:
    compiler = found(counting, cache)
    before = counting.starts()
    groups = [[scale_unit(1, "a"), scale_unit(2, "b")], [scale_unit(2, "a"), scale_unit(3, "b")], []]
    first, second, third = build_together(groups, compiler=compiler, isa="plain", cache=cache)
    assert counting.starts() == before + 2  # one compiler, and the linker
    assert [scaled_by(first.kernels[name]) for name in "ab"] == [1.0, 2.0]
    assert [scaled_by(second.kernels[name]) for name in "ab"] == [2.0, 3.0]
    assert [(one.compiled, one.reused) for one in (first, second, third)] == [(2, 0), (1, 0), (0, 0)]
    assert first.seconds > second.seconds > third.seconds == 0.0


def test_a_kernel_that_does_not_compile_harms_no_other_group(
    compiler: Compiler, cache: Cache, scale_unit: MakeUnit
) -> None:
    wrong = KernelUnit("a", "static void a(double* o) { *o = nothing; }", (KernelFunction("a", "p"),))
    first, second = build_together([[wrong], [scale_unit(3, "a")]], compiler=compiler, isa="plain", cache=cache)
    assert (list(first.errors), list(second.errors)) == (["a"], [])
    assert scaled_by(second.kernels["a"]) == 3.0


def test_every_kind_of_parameter_arrives(compiler: Compiler, cache: Cache) -> None:
    source = (
        "static void all(double* o, long a, int b, bool c, double d, float e, const void* f, long long g, "
        "unsigned long h) { o[0]=a; o[1]=b; o[2]=c; o[3]=d; o[4]=e; o[5]=(f==0); o[6]=g; o[7]=h; }"
    )
    kernel = build([KernelUnit("all", source, (KernelFunction("all", "pqqqddpqq"),))], compiler, cache).kernels["all"]
    out = torch.empty(8, dtype=torch.float64)
    kernel(out.data_ptr(), -(2**40), -7, 1, 0.1, 0.5, 0, -1, 2**40)
    assert out.tolist() == [-(2.0**40), -7, 1, 0.1, 0.5, 1, -1, 2.0**40]
    with pytest.raises(Exception, match="argument"):
        kernel(out.data_ptr(), 1.5, 0, 0, 0, 0, 0, 0, 0)
    with pytest.raises(Exception, match="expected 9"):
        kernel(out.data_ptr())


def test_a_unit_may_have_several_functions(compiler: Compiler, cache: Cache) -> None:
    source = "static void one(double* o) { *o = 1; }\nstatic void two(double* o) { *o = 2; }"
    unit = KernelUnit("both", source, (KernelFunction("one", "p"), KernelFunction("two", "p")))
    kernels = build([unit], compiler, cache).kernels
    out = torch.zeros((), dtype=torch.float64)
    for name, value in (("both.one", 1.0), ("both.two", 2.0)):
        kernels[name](out.data_ptr())
        assert out.item() == value


def test_names_and_comments_are_no_part_of_a_kernel(
    counting: CountingCompiler, cache: Cache, scale_unit: MakeUnit, fresh_process: Forget
) -> None:
    compiler = found(counting, cache)
    first = build([scale_unit(3, "layer_0", "model.py:1"), scale_unit(3, "layer_1", "model.py:9")], compiler, cache)
    assert (first.compiled, sorted(first.kernels)) == (1, ["layer_0", "layer_1"])
    before = counting.starts()
    second = build([scale_unit(3, "layer_2", "other.py:7")], compiler, cache)
    assert (second.compiled, second.reused, counting.starts()) == (0, 1, before)
    assert scaled_by(second.kernels["layer_2"]) == 3.0


def test_equal_kernels_share_code_whatever_their_functions_are_called(counting: CountingCompiler, cache: Cache) -> None:
    def unit(name: str, linkage: str = "static") -> KernelUnit:
        source = f"{linkage} void {name}(double* o) {{ *o = 4; }}"
        return KernelUnit(name, source, (KernelFunction(name, "p"),))

    compiler = found(counting, cache)
    result = build([unit("fill_0"), unit("fill_1")], compiler, cache)
    assert result.compiled == 1
    before = counting.starts()
    result = build([unit("fill_2")], compiler, cache)
    assert (result.reused, counting.starts()) == (1, before)
    out = torch.zeros((), dtype=torch.float64)
    result.kernels["fill_2"](out.data_ptr())
    assert out.item() == 4.0


def test_different_kernels_may_have_functions_of_one_name_with_c_linkage(compiler: Compiler, cache: Cache) -> None:
    units = [
        KernelUnit(f"k{i}", f'extern "C" long long same(double* o) {{ *o = {i}; return {i} - 1; }}', functions)
        for i in range(3)
        for functions in [(KernelFunction("same", "p", checked=True),)]
    ]
    result = build(units, compiler, cache, jobs=1)
    assert not result.errors
    assert len(list(cache.location.rglob("*.cpp"))) == 1
    out = torch.zeros((), dtype=torch.float64)
    for i in range(3):
        assert result.kernels[f"k{i}"](out.data_ptr()) == i - 1
        assert out.item() == i


@pytest.mark.parametrize(("type_", "value"), [("int", -3), ("long", -(2**40)), ("long long", 2**62), ("bool", 1)])
def test_what_a_function_returns_comes_back(compiler: Compiler, cache: Cache, type_: str, value: int) -> None:
    unit = KernelUnit(
        "answer", f"static {type_} answer() {{ return {value}L; }}", (KernelFunction("answer", "", checked=True),)
    )
    assert build([unit], compiler, cache).kernels["answer"]() == value
    nothing = KernelUnit("nothing", "static void nothing() {}", (KernelFunction("nothing", ""),))
    assert build([nothing], compiler, cache).kernels["nothing"]() == 0


def test_what_decides_the_code_is_part_of_its_hash(scale_unit: MakeUnit) -> None:
    unit = scale_unit(2)
    same = kernel_hash(unit, ("-O3",), "x86_64")
    functions = (KernelFunction("scale", "ppd"),)
    checked = (KernelFunction("scale", "ppq", checked=True),)
    others = [
        kernel_hash(scale_unit(3), ("-O3",), "x86_64"),
        kernel_hash(unit, ("-O2",), "x86_64"),
        kernel_hash(unit, ("-O3",), "aarch64"),
        kernel_hash(KernelUnit("x", unit.source, unit.functions, prelude="typedef int t;"), ("-O3",), "x86_64"),
        kernel_hash(KernelUnit("x", unit.source, unit.functions, flags=("-g",)), ("-O3",), "x86_64"),
        kernel_hash(KernelUnit("x", unit.source, functions), ("-O3",), "x86_64"),
        kernel_hash(KernelUnit("x", unit.source, checked), ("-O3",), "x86_64"),
        kernel_hash(KernelUnit("x", unit.source.replace("x[i]", "x [i]"), unit.functions), ("-O3",), "x86_64"),
    ]
    renamed = KernelUnit("x", unit.source.replace("scale(", "grow("), (KernelFunction("grow", "ppq"),))
    assert kernel_hash(renamed, ("-O3",), "x86_64") == same
    assert len({same, *others}) == len(others) + 1
    quoted = [KernelUnit("s", f'const char* s = "//{c}";', ()) for c in "ab"]
    assert kernel_hash(quoted[0], (), "") != kernel_hash(quoted[1], (), "")


def test_a_prelude_that_kernels_share_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monkeypatch.setattr(kernel_module, "meaning", lambda text, functions=(): read.append(text) or text)
    prelude = "typedef long only_of_this_test;  // of two thousand lines, where it is real"
    units = [KernelUnit(f"x{n}", f"source {n}", (), prelude=prelude) for n in range(5)]
    assert len({kernel_hash(unit, (), "x86_64") for unit in units}) == 5
    assert read.count(prelude) == 1


def test_a_warm_process_starts_no_compiler_whatever_the_batch(
    counting: CountingCompiler, cache: Cache, scale_unit: MakeUnit, fresh_process: Forget
) -> None:
    units = [scale_unit(i) for i in range(12)]
    cold = build(units, found(counting, cache), cache, jobs=2)
    assert cold.compiled == 12
    files = counting.starts("-c")
    assert 1 < files < 12  # many kernels to a file, several files side by side
    before = counting.starts()
    fresh_process()
    again = Cache(cache.location)
    warm = build([*units[5:], scale_unit(7, "twin")], found(counting, again), again)
    assert (warm.compiled, warm.reused, counting.starts()) == (0, 7, before)
    assert scaled_by(warm.kernels["scale_11"]) == 11.0
    assert scaled_by(warm.kernels["twin"]) == 7.0
    assert len(list(cache.location.rglob("kernels.so"))) == 1


def test_a_shipped_cache_needs_no_compiler(
    compiler: Compiler, cache: Cache, scale_unit: MakeUnit, fresh_process: Forget, tmp_path: Path
) -> None:
    build([scale_unit(2)], compiler, cache)
    fresh_process()
    moved = Cache(shutil.move(cache.location, tmp_path / "ü moved"))
    result = build([scale_unit(2), scale_unit(3)], None, moved)
    assert scaled_by(result.kernels["scale_2"]) == 2.0
    assert "no C++ compiler" in str(result.errors["scale_3"])


def test_paths_with_spaces_and_other_letters(compiler: Compiler, scale_unit: MakeUnit, tmp_path: Path) -> None:
    folder = tmp_path / "mein Ordner – ü 'x' $HOME"
    assert scaled_by(build([scale_unit(6)], compiler, Cache(folder)).kernels["scale_6"]) == 6.0
    assert list(folder.rglob("kernels.so"))


NEW_PROCESSES = """
import json, os, sys, torch
from lamina.runtime.build import build_kernels
from lamina.runtime.cache import Cache
from lamina.runtime.kernel import KernelFunction, KernelUnit
from lamina.runtime.toolchain import find_compiler

def work(root, sources):
    cache = Cache(root)
    units = [KernelUnit(name, source, (KernelFunction("scale", "ppq"),)) for name, source in sources]
    built = build_kernels(units, compiler=find_compiler("", cache), isa="plain", cache=cache)
    x, y = torch.ones(1), torch.zeros(1)
    values = []
    for unit in units:
        built.kernels[unit.name](x.data_ptr(), y.data_ptr(), 1)
        values.append(y.item())
    print(json.dumps([built.compiled, values, [miss.reason for miss in built.damages]]), flush=True)

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        try:
            work(*json.loads(line))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
"""
InNewProcess = Callable[[Cache, list[KernelUnit]], tuple[int, list[float], list[str]]]


@pytest.fixture(scope="module")
def in_new_process() -> Iterator[InNewProcess]:
    """How many kernels a new process compiles, what they multiply by, and the bad entries it meets.

    A process that has once loaded an object would not see what became of its file. The processes are forked from one
    that has imported torch and done nothing else.
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", NEW_PROCESSES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def ask(cache: Cache, units: list[KernelUnit]) -> tuple[int, list[float], list[str]]:
        assert parent.stdin is not None
        assert parent.stdout is not None
        print(json.dumps([str(cache.location), [(u.name, u.source) for u in units]]), file=parent.stdin, flush=True)
        compiled, values, damages = json.loads(parent.stdout.readline())
        return compiled, values, damages

    yield ask
    parent.communicate()


def replace(path: Path, content: bytes) -> None:
    # Not in place: this process has the file mapped.
    path.unlink()
    path.write_bytes(content)


def damaged_object(cache: Cache) -> str:
    [path] = cache.location.rglob("kernels.so")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    replace(path, bytes(content))
    return "SHA-256"


def emptied_object(cache: Cache) -> str:
    [path] = cache.location.rglob("kernels.so")
    replace(path, b"")
    return "SHA-256"


def removed_entry(cache: Cache) -> str:
    [path] = cache.location.rglob("kernels.so")
    shutil.rmtree(path.parent)
    return ""


def truncated_note(cache: Cache) -> str:
    notes = (cache.location / "v1" / "index").rglob("*.json")
    [path] = (note for note in notes if '"parts"' not in note.read_text())  # those say what a kernel was made of
    path.write_text(path.read_text()[:30])
    return "not a whole JSON object"


@pytest.mark.parametrize(
    "damage", [damaged_object, emptied_object, removed_entry, truncated_note], ids=lambda f: f.__name__
)
def test_damage_costs_a_compilation_and_nothing_else(
    compiler: Compiler,
    cache: Cache,
    scale_unit: MakeUnit,
    fresh_process: Forget,
    in_new_process: InNewProcess,
    damage: Callable[[Cache], str],
) -> None:
    build([scale_unit(9)], compiler, cache)
    reason = damage(cache)
    compiled, values, damages = in_new_process(cache, [scale_unit(9)])
    assert (compiled, values) == (1, [9.0])
    assert len(damages) == bool(reason)
    assert all(reason in met for met in damages)
    fresh_process()
    mended = build([scale_unit(9)], compiler, Cache(cache.location))
    assert (mended.compiled, mended.damages) == (0, ())


def test_the_object_of_another_kernel_is_never_loaded(
    compiler: Compiler, cache: Cache, scale_unit: MakeUnit, in_new_process: InNewProcess
) -> None:
    units = [scale_unit(2), scale_unit(3)]
    for unit in units:
        build([unit], compiler, cache)
    one, two = sorted(cache.location.rglob("kernels.so"))
    first, second = one.read_bytes(), two.read_bytes()
    replace(one, second)
    replace(two, first)
    compiled, values, damages = in_new_process(cache, units)
    assert (compiled, values) == (2, [2.0, 3.0])
    assert len(damages) >= 2
    notes = sorted((cache.location / "v1" / "index").rglob("*.json"))
    shutil.copy(notes[0], notes[1])  # a note in the place of another is no better
    compiled, values, damages = in_new_process(cache, units)
    assert (compiled, values) == (1, [2.0, 3.0])
    assert len(damages) >= 1


def bad_unit(name: str = "bad", body: str = "missing(x);") -> KernelUnit:
    return KernelUnit(name, f"static void bad(float* x) {{ {body} }}", (KernelFunction("bad", "p"),))


def test_an_error_stays_with_its_kernel(compiler: Compiler, cache: Cache, scale_unit: MakeUnit) -> None:
    units = [scale_unit(1), bad_unit("bad"), scale_unit(2), bad_unit("worse", "x + ;"), scale_unit(3)]
    result = build(units, compiler, cache, jobs=1)
    assert [scaled_by(result.kernels[f"scale_{i}"]) for i in (1, 2, 3)] == [1.0, 2.0, 3.0]
    assert sorted(result.errors) == ["bad", "worse"]
    assert "missing" in str(result.errors["bad"])
    assert "missing" not in str(result.errors["worse"])
    assert "bad_" in str(result.errors["bad"])  # the label that names the kernel and its line


def test_an_error_that_names_no_kernel_is_found_by_trying_each(
    compiler: Compiler, cache: Cache, scale_unit: MakeUnit
) -> None:
    unclosed = bad_unit("unclosed", "{")  # the end of the file is where the compiler sees it
    result = build([scale_unit(1), unclosed, scale_unit(2)], compiler, cache, jobs=1)
    assert sorted(result.errors) == ["unclosed"]
    assert scaled_by(result.kernels["scale_2"]) == 2.0


def test_a_symbol_that_torch_lacks_is_an_error_of_its_kernel(
    compiler: Compiler, cache: Cache, scale_unit: MakeUnit
) -> None:
    absent = KernelUnit(
        "absent",
        'extern "C" void no_such_symbol_anywhere(float*);\nstatic void f(float* x) { no_such_symbol_anywhere(x); }',
        (KernelFunction("f", "p"),),
    )
    result = build([scale_unit(1), absent, scale_unit(2)], compiler, cache)
    assert sorted(result.errors) == ["absent"]
    assert "no_such_symbol_anywhere" in str(result.errors["absent"])
    assert scaled_by(result.kernels["scale_1"]) == 1.0


def test_kernels_of_a_file_do_not_see_each_other(compiler: Compiler, cache: Cache) -> None:
    def unit(name: str, value: int, first: str) -> KernelUnit:
        source = f"{first}\nstatic int helper() {{ return {value}; }}\nstatic void run(double* o) {{ *o = helper(); }}"
        return KernelUnit(name, source, (KernelFunction("run", "p"),))

    units = [unit("a", 1, ""), unit("b", 2, ""), unit("c", 3, "#define helper aid"), unit("d", 4, "")]
    kernels = build(units, compiler, cache, jobs=1).kernels
    out = torch.zeros((), dtype=torch.float64)
    values = []
    for name in "abcd":
        kernels[name](out.data_ptr())
        values.append(out.item())
    assert values == [1.0, 2.0, 3.0, 4.0]


def test_preludes_and_flags_of_units_are_kept_apart(compiler: Compiler, cache: Cache) -> None:
    source = "static void run(double* o) { *o = VALUE; }"
    function = (KernelFunction("run", "p"),)
    units = [KernelUnit(f"p{i}", source, function, prelude=f"#define VALUE {i}") for i in (1, 2)]
    units += [KernelUnit(f"f{i}", source, function, flags=(f"-DVALUE={i}",)) for i in (3, 4)]
    result = build(units, compiler, cache)
    assert not result.errors
    out = torch.zeros((), dtype=torch.float64)
    values = []
    for name in ("p1", "p2", "f3", "f4"):
        result.kernels[name](out.data_ptr())
        values.append(out.item())
    assert values == [1.0, 2.0, 3.0, 4.0]


def test_two_kernels_of_one_name_are_refused(compiler: Compiler, cache: Cache, scale_unit: MakeUnit) -> None:
    with pytest.raises(BadArgument, match="two different"):
        build([scale_unit(1, "same"), scale_unit(2, "same")], compiler, cache)


def slow_compiler(folder: Path, compiler: Compiler, script: str) -> Compiler:
    path = folder / "slow-c++"
    path.write_text(f'#!/bin/sh\ncase "$*" in *" -c "*) {script};; esac\nexec "{compiler.path}" "$@"\n')
    path.chmod(0o755)
    return Compiler(str(path), compiler.kind, compiler.version, compiler.machine, compiler.stub)


def clock_after(path: Path, words: int = 1) -> Clock:
    """A clock that stands still until processes have written ``words`` to ``path``, and then goes on by an hour."""
    return Clock(lambda: 3600.0 if path.exists() and len(path.read_text().split()) >= words else 0.0)


def clock_after_the_end(path: Path, words: int) -> Clock:
    """The same for processes that write their number last: each is waited for until it has ended."""

    def now() -> float:
        written = path.read_text().split() if path.exists() else []
        return 3600.0 if len(written) >= words and not any(running(int(pid)) for pid in written) else 0.0

    return Clock(now)


def running(pid: int) -> bool:
    """Whether a process is there, one that has ended and was not yet asked for its status among them."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_compiler_that_hangs_is_stopped_with_its_children(
    compiler: Compiler, cache: Cache, scale_unit: MakeUnit, tmp_path: Path
) -> None:
    slow = slow_compiler(tmp_path, compiler, f'sh -c "echo \\$\\$ > {tmp_path}/child; exec sleep 600"')
    result = build([scale_unit(1)], slow, cache, limit=Limit(300.0, clock_after(tmp_path / "child")))
    assert "compiling took longer than 300 s" in str(result.errors["scale_1"])
    assert "build_seconds" in str(result.errors["scale_1"])
    await_end(int((tmp_path / "child").read_text()))


def test_one_limit_holds_for_all_kernels_and_what_hangs_is_not_tried_again(
    compiler: Compiler, cache: Cache, scale_unit: MakeUnit, tmp_path: Path
) -> None:
    log, done = tmp_path / "log", tmp_path / "done"
    script = f"""echo $$ >> {log}
        for word; do case $word in *.cpp) file=$word;; esac; done
        grep -q "x.i. . 3" $file && exec sleep 600
        {compiler.path} "$@" && echo $$ >> {done} && exit 0"""
    slow = slow_compiler(tmp_path, compiler, script)
    units = [scale_unit(i) for i in range(4)]
    result = build(units, slow, cache, jobs=1, limit=Limit(300.0, clock_after(log)))
    assert sorted(result.errors) == [f"scale_{i}" for i in range(4)]
    assert len(log.read_text().split()) == 1  # all were in one file, and none was tried by itself
    # In another region each has a file of its own, and the one that hangs is found.
    result = build(units, slow, cache, jobs=4, limit=Limit(300.0, clock_after_the_end(done, 3)))
    assert list(result.errors) == ["scale_3"]
    assert scaled_by(result.kernels["scale_2"]) == 2.0
    log.write_text("")
    result = build(units, slow, cache, jobs=4, limit=Limit(300.0, clock_after(done, 99)))
    assert list(result.errors) == ["scale_3"]
    assert not log.read_text()


def test_a_compiler_that_is_killed_says_by_what(
    compiler: Compiler, cache: Cache, scale_unit: MakeUnit, tmp_path: Path
) -> None:
    dying = slow_compiler(tmp_path, compiler, "kill -SEGV $$")
    assert "killed by Segmentation fault" in str(build([scale_unit(1)], dying, cache).errors["scale_1"])


def test_builds_in_several_threads_share_the_jobs_and_the_first_comes_first(
    compiler: Compiler, cache: Cache, scale_unit: MakeUnit, tmp_path: Path
) -> None:
    go = f'while [ ! -e "{tmp_path}/go" ]; do sleep 0.01; done'
    script = f'echo start >> "{tmp_path}/log"; {go}; echo end >> "{tmp_path}/log"'
    slow = slow_compiler(tmp_path, compiler, script)
    order: list[int] = []

    def ask(number: int) -> None:
        units = [scale_unit(10 * number + i) for i in range(2)]
        units = [KernelUnit(u.name, u.source, u.functions, flags=(f"-DU={u.name}",)) for u in units]  # a file for each
        assert not build(units, slow, cache, jobs=1).errors
        order.append(number)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
        await_that((tmp_path / "log").exists)
    (tmp_path / "go").touch()
    for thread in threads:
        thread.join()
    assert (tmp_path / "log").read_text().split() == ["start", "end"] * 6
    assert order[0] == 0


def test_an_interrupted_build_leaves_no_compiler_behind(
    compiler: Compiler, cache: Cache, scale_unit: MakeUnit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = tmp_path / "pid"
    slow = slow_compiler(tmp_path, compiler, f'echo $$ > "{pid}"; exec sleep 600')
    monkeypatch.setattr(build_module, "_PROGRESS_SECONDS", 0.0)

    def interrupt(*_: object) -> None:
        if pid.exists() and pid.read_text().strip():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build([scale_unit(1)], slow, cache, on_progress=interrupt)
    await_end(int(pid.read_text()))
    assert build([scale_unit(1)], compiler, cache).compiled == 1  # no lock is left either


def test_a_compiler_that_vanished(compiler: Compiler, cache: Cache, scale_unit: MakeUnit, tmp_path: Path) -> None:
    gone = Compiler(str(tmp_path / "gone"), compiler.kind, compiler.version, compiler.machine, compiler.stub)
    assert "cannot be started" in str(build([scale_unit(1)], gone, cache).errors["scale_1"])


def test_progress_is_told_after_a_while(compiler: Compiler, cache: Cache, scale_unit: MakeUnit, tmp_path: Path) -> None:
    told: list[tuple[int, int, float]] = []
    seconds = 0.0

    def now() -> float:
        return seconds

    def tell(*values: Any) -> None:
        told.append(values)
        (tmp_path / "go").touch()

    class Ticks(Running):
        """Time goes on while compilers run."""

        def add(self, group: int) -> None:
            nonlocal seconds
            super().add(group)
            seconds += 5.0

    slow = slow_compiler(tmp_path, compiler, f'while [ ! -e "{tmp_path}/go" ]; do sleep 0.01; done')
    build([scale_unit(1)], slow, cache, limit=Limit(300.0, Clock(now)), on_progress=tell, running=Ticks())
    assert told
    assert all(seconds == 5.0 and 0 <= finished <= files == 1 for finished, files, seconds in told)
    told.clear()
    still = Limit(300.0, Clock(lambda: 0.0))
    build([scale_unit(2)], compiler, Cache(tmp_path / "other"), limit=still, on_progress=tell)
    assert not told


def test_threads_compile_each_kernel_once(
    counting: CountingCompiler, cache: Cache, scale_unit: MakeUnit, fresh_process: Forget
) -> None:
    compiler = found(counting, cache)
    before = counting.starts("-c")
    together = threading.Barrier(4)
    results: list[BuildResult] = []

    def ask() -> None:
        together.wait()
        results.append(build([scale_unit(5)], compiler, cache))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counting.starts("-c") - before == 1
    assert sum(result.compiled for result in results) == 1
    assert [scaled_by(result.kernels["scale_5"]) for result in results] == [5.0] * 4


EIGHT_PROCESSES = """
import os, sys, torch
from lamina.runtime.build import build_kernels
from lamina.runtime.cache import Cache
from lamina.runtime.kernel import KernelFunction, KernelUnit
from lamina.runtime.toolchain import find_compiler

def work():
    cache = Cache(sys.argv[1])
    compiler = find_compiler(sys.argv[2], cache)
    units = [
        KernelUnit(f"k{i}", f"static void k(double* o) {{ *o = {i}; }}", (KernelFunction("k", "p"),)) for i in range(6)
    ]
    os.read(wait, 1)
    built = build_kernels(units, compiler=compiler, isa="plain", cache=cache)
    out = torch.zeros((), dtype=torch.float64)
    for i in range(6):
        built.kernels[f"k{i}"](out.data_ptr())
        assert out.item() == i
    return built.compiled

wait, go = os.pipe()
children = []
for _ in range(8):
    child = os.fork()
    if child == 0:
        os.close(go)
        status = 100
        try:
            status = work()
        finally:
            os._exit(status)
    children.append(child)
os.close(go)  # all of them begin
print(*(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""


def test_eight_processes_compile_each_kernel_once(counting: CountingCompiler, cache: Cache) -> None:
    found(counting, cache)
    before = counting.starts("-c")
    command = [*python(), "-c", EIGHT_PROCESSES, str(cache.location), str(counting.path)]
    compiled = [int(word) for word in subprocess.check_output(command, text=True).split()]
    assert len(compiled) == 8
    assert sum(compiled) == 6
    sources = [p.read_text() for p in cache.location.rglob("*.cpp")]
    assert counting.starts("-c") - before == len(sources)  # one start per file that was published
    assert sum(text.count("namespace kernel_") for text in sources) == 6


def test_a_forked_child_waits_for_its_parents_lock_and_does_not_hold_it(cache: Cache) -> None:
    held = cache.lock("ab")
    assert held.acquire()
    free, go = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.read(free, 1)
            status = 0 if cache.lock("ab").acquire(blocking=False) else 2
        finally:
            os._exit(status)
    held.release()
    again = cache.lock("ab")
    assert again.acquire(blocking=False)  # though the child was given a descriptor of the file
    again.release()
    os.write(go, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(free)
    os.close(go)


def test_function_names_and_letters_are_checked() -> None:
    for name, parameters in (("a-b", "p"), ("f", "px")):
        with pytest.raises(BadArgument):
            KernelFunction(name, parameters)


def test_first_arguments_of_a_kernel_are_given_for_the_caller(compiler: Compiler, cache: Cache) -> None:
    source = "static void fill(long long a, long long b, long long* o, long long n) { o[0] = a * 100 + b * 10 + n; }"
    function = (KernelFunction("fill", "qqpq"),)
    units = [KernelUnit(f"fill{a}", source, function, arguments=(a, 7)) for a in (3, 4)]
    built = build(units, compiler, cache)
    assert built.compiled == 1, "arguments are no part of a kernel's identity"
    out = torch.zeros(1, dtype=torch.int64)
    for a in (3, 4):
        kernel = built.kernels[f"fill{a}"]
        assert kernel.parameters == "pq"
        kernel(out.data_ptr(), 5)
        assert out.item() == a * 100 + 75
    with pytest.raises(BadArgument):
        KernelUnit("wrong", source, (KernelFunction("fill", "pqpq"),), arguments=(1, 2))
