"""cuBLASLt called directly, against a stand-in that checks its arguments and computes on host memory."""

import ctypes
import importlib.util
import re
import subprocess
from pathlib import Path

import pytest
import torch

from lamina.library_algorithms import cublas_lt
from lamina.library_algorithms.cublas_lt import CublasLt, Product, Refused, loaded
from lamina.library_algorithms.gelu_operations import plain, plain_backward
from lamina.runtime.toolchain import find_compiler

SOURCE = Path(__file__).with_name("fake_cublaslt.cpp")
HALF = (torch.bfloat16, torch.float16)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The stand-in, compiled."""
    path = tmp_path_factory.mktemp("cublaslt") / "libfake.so"
    command = [str(find_compiler("").path), "-O1", "-shared", "-fPIC", "-o", str(path), str(SOURCE)]
    subprocess.run(command, check=True, capture_output=True)
    return ctypes.CDLL(str(path))


@pytest.fixture
def fake(built):
    built.fake_workspace(ctypes.c_size_t(4096))
    yield built
    built.fake_fail(0)


def matrix(rows, columns, dtype=torch.bfloat16, transposed=False, seed=0):
    generator = torch.Generator().manual_seed(seed)
    made = torch.randn((columns, rows) if transposed else (rows, columns), generator=generator).to(dtype)
    return made.t() if transposed else made


def products(m=16, k=8, n=24, dtype=torch.bfloat16, transposed=(False, False), seed=0):
    """A forward and the backward that reads what it keeps."""
    left, right = matrix(m, k, dtype, transposed[0], seed), matrix(k, n, dtype, transposed[1], seed + 1)
    out, kept = (torch.empty(m, n, dtype=dtype) for _ in range(2))
    forward = Product(left, right, out, matrix(1, n, dtype, seed=seed + 2)[0], kept)
    return forward, Product(left, right, torch.empty_like(out), None, kept)


def check(lt, forward, backward, algorithm=0):
    """Both by ``lt``, against the specification in float64."""
    lt.multiply(forward, algorithm)
    lt.multiply(backward, algorithm)
    left, right = forward.left.double(), forward.right.double()
    activated, kept = plain(forward.bias.double(), left, right)
    gradient = plain_backward(left, right, forward.kept.double())
    half = 2.0 ** (-7 if forward.out.dtype == torch.bfloat16 else -10)
    for got, want in ((forward.out, activated), (forward.kept, kept), (backward.out, gradient)):
        torch.testing.assert_close(got.double(), want, rtol=half, atol=half)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("transposed", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("shape", [(8, 8, 8), (17, 40, 24), (33, 7, 16)])
def test_products_with_gelu(fake, shape, transposed, dtype):
    check(CublasLt(fake), *products(*shape, dtype, transposed))


def test_rows_with_gaps(fake):
    forward, backward = products()
    left, right = torch.zeros(16, 40, dtype=torch.bfloat16), torch.zeros(8, 32, dtype=torch.bfloat16)
    left, right = left[:, :8].copy_(forward.left), right[:, :24].copy_(forward.right)
    forward = Product(left, right, forward.out, forward.bias, forward.kept)
    check(CublasLt(fake), forward, Product(left, right, backward.out, None, backward.kept))


def test_operands_may_move(fake):
    lt = CublasLt(fake)
    before = fake.fake_matmuls()
    for seed in range(6):
        check(lt, *products(seed=seed))
    assert fake.fake_matmuls() == before + 12
    assert len(lt._prepared) == 2


def test_addresses_are_multiples_of_16(fake):
    forward, backward = products()
    memory = torch.empty(16 * 24 + 256, dtype=torch.bfloat16)
    start = (272 - memory.data_ptr() % 256) // 2
    out = memory[start : start + 16 * 24].view(16, 24)
    assert out.data_ptr() % 256 == 16
    lt = CublasLt(fake)
    check(lt, Product(forward.left, forward.right, out, forward.bias, forward.kept), backward)
    odd = memory[start + 1 : start + 1 + 16 * 24].view(16, 24)
    with pytest.raises(Refused, match="multiple of 16"):
        lt.multiply(Product(forward.left, forward.right, odd, forward.bias, forward.kept), 0)


def test_the_library_proposes_several_algorithms(fake):
    lt = CublasLt(fake)
    pair = products()
    for number in range(2):
        check(lt, *pair, number)
        assert fake.fake_algorithm() == number + 1  # the first is not usable
    with pytest.raises(Refused, match="2 algorithms"):
        lt.multiply(pair[0], 2)


def test_no_workspace(fake):
    fake.fake_workspace(ctypes.c_size_t(0))
    check(CublasLt(fake), *products())


def refused():
    forward, _ = products()
    left, right, out, bias, kept = forward.left, forward.right, forward.out, forward.bias, forward.kept
    three = matrix(16, 24, seed=3)
    return {
        "float32": Product(left.float(), right.float(), out.float(), bias.float(), kept.float()),
        "two types": Product(left.half(), right, out, bias, kept),
        "a bias with gaps": Product(left, right, out, matrix(1, 48)[0, ::2], kept),
        "a scalar bias": Product(left, right, out, bias[:1], kept),
        "what is kept with gaps": Product(left, right, out, bias, matrix(16, 48)[:, :24]),
        "a result turned": Product(left, right, matrix(24, 16).t(), bias, kept),
        "an operand without a dense dimension": Product(matrix(16, 16)[:, ::2], right, out, bias, kept),
        "rows of seven": Product(left, right[:, :7], three[:, :7].clone(), bias[:7].clone(), three[:, :7].clone()),
        "something else kept": Product(left, right, out, bias, kept[:8]),
        "other sizes": Product(left, matrix(16, 24), out, bias, kept),
    }


@pytest.mark.parametrize("what", refused())
def test_what_is_refused(fake, what):
    lt, product = CublasLt(fake), refused()[what]
    lt.multiply(products()[0], 0)  # what was prepared is not for others
    before = product.out.clone().view(torch.int16 if product.out.element_size() == 2 else torch.int32)
    for _ in range(2):
        with pytest.raises(Refused):
            lt.multiply(product, 0)
    assert len(lt.refusals) == 1
    assert torch.equal(product.out.view(before.dtype), before)


def test_failures_are_for_good(fake):
    fake.fake_fail(1)
    with pytest.raises(Refused, match="cublasLtCreate gives status 1"):
        CublasLt(fake)
    for failure, why in ((2, "AlgoGetHeuristic gives status 15"), (3, "cublasLtMatmul gives status 15")):
        fake.fake_fail(0)
        lt = CublasLt(fake)
        fake.fake_fail(failure)
        before = fake.fake_matmuls()
        for _ in range(2):
            with pytest.raises(Refused, match=why):
                lt.multiply(products()[0], 0)
            fake.fake_fail(0)
        assert fake.fake_matmuls() == before


def test_another_library(fake, monkeypatch):
    monkeypatch.setattr(cublas_lt, "_VERSIONS", range(1))
    with pytest.raises(Refused, match="version 130100"):
        CublasLt(fake)
    with pytest.raises(Refused, match="lacks a function"):
        CublasLt(ctypes.CDLL(None))


def test_a_torch_without_the_library(monkeypatch):
    monkeypatch.setattr(cublas_lt, "_LOADED", {})
    monkeypatch.setattr(torch.version, "cuda", "9999.0")
    monkeypatch.setattr(cublas_lt, "is_capturing", lambda: True)
    with pytest.raises(Refused, match="recording"):
        loaded(0)
    assert not cublas_lt._LOADED  # another call may find it
    monkeypatch.setattr(cublas_lt, "is_capturing", lambda: False)
    with pytest.raises(Refused, match=r"libcublasLt.so.9999 is not loaded"):
        loaded(0)
    (why,) = cublas_lt._LOADED.values()
    with pytest.raises(Refused, match=re.escape(str(why))):
        loaded(0)


def header():
    """``cublasLt.h`` and the headers beside it, where a package has them."""
    found = importlib.util.find_spec("nvidia")
    for root in [] if found is None else found.submodule_search_locations or []:
        for path in Path(root).glob("*/include/cublasLt.h"):
            return "\n".join((path.parent / name).read_text() for name in ("cublasLt.h", "cublas_api.h"))
    return None


def test_numbers_are_the_headers():
    text = header()
    if text is None:
        pytest.skip("no cublasLt.h")
    numbers = {name: int(value) for name, value in re.findall(r"^ *(CUBLAS\w+) *= *(\d+),", text, re.M)}
    prefix = "CUBLASLT_MATMUL_DESC_"
    for name, value in (
        ("CUBLAS_COMPUTE_32F", cublas_lt._COMPUTE_32F),
        (prefix + "TRANSA", cublas_lt._TRANSPOSE_A),
        (prefix + "TRANSB", cublas_lt._TRANSPOSE_B),
        (prefix + "EPILOGUE", cublas_lt._EPILOGUE),
        (prefix + "BIAS_POINTER", cublas_lt._VECTOR),
        (prefix + "EPILOGUE_AUX_POINTER", cublas_lt._AUX),
        (prefix + "EPILOGUE_AUX_LD", cublas_lt._AUX_LEADING),
        ("CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES", cublas_lt._MOST_WORKSPACE),
        ("CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK", cublas_lt._REDUCTIONS),
        ("CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE", cublas_lt._IN_FLOAT32),
        ("CUBLASLT_EPILOGUE_DEFAULT", cublas_lt._NONE),
        ("CUBLASLT_EPILOGUE_BIAS", cublas_lt._BIAS),
        *(
            (f"CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_{operand}_BYTES", cublas_lt._LEAST_ALIGNMENT[at])
            for at, operand in enumerate("ABCD")
        ),
    ):
        assert numbers[name] == value
    assert numbers["CUBLASLT_EPILOGUE_GELU"] | 128 | numbers["CUBLASLT_EPILOGUE_BIAS"] == cublas_lt._GELU_AUX_BIAS
    assert "CUBLASLT_EPILOGUE_GELU_AUX = (CUBLASLT_EPILOGUE_GELU | 128)" in text
    assert "CUBLASLT_EPILOGUE_DGELU = 64 | 128" in text
    assert cublas_lt._DGELU == 64 | 128
