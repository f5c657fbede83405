from __future__ import annotations

import gc
import linecache
import marshal
import traceback

import pytest
import torch

from lamina.errors import BadArgument
from lamina.runtime import torch_private
from lamina.runtime.build import build_kernels
from lamina.runtime.cache import Cache
from lamina.runtime.host import aten, code_of, load_program, reinterpret, view
from lamina.runtime.kernel import KernelFunction, KernelUnit
from lamina.runtime.toolchain import Compiler

PROGRAM = """\
from lamina.runtime.host import Arena, aten, empty_small, share_threads
import torch

arena = Arena()
mm = aten("mm.out")
square = square_kernel.launch
square_arguments = square_kernel.pack


def forward(x, w):
    share_threads()
    n, m, k = x.shape[0], w.shape[1], w.shape[0]
    ws = arena.take(n * m * 4)
    h = ws.tensor(0, (n, m), (m, 1), torch.float32)
    mm(x, w, out=h)
    y = empty_small((n, m), (m, 1), torch.float32)
    square(square_arguments(h.data_ptr(), y.data_ptr(), n * m))
    arena.give(ws)
    return (y,)
"""


def test_a_host_program_runs(compiler: Compiler, cache: Cache) -> None:
    unit = KernelUnit(
        "square",
        "static void square(const float* x, float* y, long n) { for (long i = 0; i < n; i++) y[i] = x[i] * x[i]; }",
        (KernelFunction("square", "ppq"),),
    )
    built = build_kernels([unit], compiler=compiler, isa="plain", cache=cache)
    forward = load_program(PROGRAM, "forward", {"square_kernel": built.kernels["square"]})
    for n in (3, 7, 3):
        x, w = torch.randn(n, 4), torch.randn(4, 5)
        torch.testing.assert_close(forward(x, w)[0], (x @ w) ** 2)
    assert repr(built.kernels["square"]) == "Kernel('square', 'ppq')"


def test_the_text_shows_in_tracebacks() -> None:
    program = load_program("def fails(x):\n    return x // 0  # why\n", "fails")
    with pytest.raises(ZeroDivisionError) as caught:
        program(1)
    assert "return x // 0  # why" in "".join(traceback.format_exception(caught.value))


def test_two_programs_of_one_name_show_their_own_text() -> None:
    programs = [load_program(f"def f():\n    raise ValueError({i})  # text {i}\n", "f") for i in range(2)]
    for i, program in enumerate(programs):
        with pytest.raises(ValueError, match=str(i)) as caught:
            program()
        assert f"# text {i}" in "".join(traceback.format_exception(caught.value))


def test_the_text_goes_with_the_function() -> None:
    program = load_program("def f():\n    return 1\n", "f")
    file = program.__code__.co_filename
    linecache.checkcache(file)
    assert linecache.getline(file, 2) == "    return 1\n"
    del program
    gc.collect()
    assert file not in linecache.cache


def test_a_text_without_the_function_is_refused_and_forgotten() -> None:
    before = set(linecache.cache)
    with pytest.raises(BadArgument, match="no function 'g'"):
        load_program("def f():\n    return 1\n", "g")
    with pytest.raises(SyntaxError):
        load_program("def f(:\n", "f")
    assert {name for name in linecache.cache if name.startswith("<lamina")} <= before


def test_aten_finds_ops_by_name() -> None:
    assert aten("mm.default") is torch.ops.aten.mm.default
    assert aten("mm.out") is torch.ops.aten.mm.out
    assert aten("relu") is torch.ops.aten.relu.default
    assert aten("prims::convert_element_type.default") is torch.ops.prims.convert_element_type.default
    for name in ("no_such_op.default", "mm.no_such_overload", "nowhere::mm.default"):
        with pytest.raises(BadArgument, match="has no op"):
            aten(name)


def test_view_and_reinterpret_lie_on_the_same_memory() -> None:
    base = torch.arange(24.0).view(4, 6)
    for make, is_view in ((view, True), (reinterpret, False)):
        found = make(base, (2, 3), (6, 2), 7)
        assert found.tolist() == [[7, 9, 11], [13, 15, 17]]
        assert found.data_ptr() == base.data_ptr() + 28
        assert found._is_view() == is_view


def test_private_names_of_torch_exist() -> None:
    assert torch_private.CAN_COUNT_USES
    assert torch_private.empty_strided_cpu is not torch_private._empty_strided
    assert torch_private.reinterpret is not torch.as_strided
    made = torch_private.empty_strided_cpu((2, 3), (1, 2), torch.int16)
    assert (made.shape, made.stride(), made.dtype) == ((2, 3), (1, 2), torch.int16)
    assert torch_private._empty_strided((2, 3), (1, 2), torch.int16).stride() == (1, 2)


def test_a_program_that_is_code_already_shows_its_text_as_long_as_one_lives() -> None:
    text = "def fails(x):\n    return x // 0  # why\n"
    code = marshal.loads(marshal.dumps(code_of(text, "fails")))
    programs = [load_program(text, "fails", {"given": number}, code) for number in (1, 2)]
    assert [program.__globals__["given"] for program in programs] == [1, 2]
    del programs[0]
    with pytest.raises(ZeroDivisionError) as raised:
        programs[0](1)
    assert "# why" in "".join(traceback.format_tb(raised.tb))
    programs.clear()
    raised.value.__traceback__ = None
    del raised
    gc.collect()
    assert code.co_filename not in linecache.cache
