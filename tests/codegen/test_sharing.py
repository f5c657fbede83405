"""Kernels that differ in sizes share one text: the same bits as apart, and apart where a number must stay constant."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import lamina
from lamina.backends import cpu
from lamina.codegen.cpp.sharing import Shared, shared_kernels, shown_numbers

SIZES = ((2, 24, 64), (2, 40, 64), (3, 24, 100), (2, 9, 129), (2, 17, 65), (4, 33, 1), (0, 12, 70), (2, 12, 0))


def text(name: str, length: int, rows: int = 20, lanes: str = "i1") -> str:
    return f"""static int64 {name}_part0(f32* b0, int64 begin, int64 end) {{
  for (int64 i0 = 0; i0 < {rows}; ++i0) {{  // {name}: {length} points
    strip_even<1>(0, {length}, [&](int64 {lanes}, auto n, int k) STEP {{
      store_f32(b0 + i0*{length} + {lanes}*3 + {rows + 100}, v, n);
    }});
    const f32 v4 = v2 / {length}.0f;
    const f32 v5 = v4 + {rows}.0f;
  }}
}}

extern "C" int64 {name}(void* b0_) {{
  return {name}_part0(b0, 0, 1);
}}
"""


def test_what_differs_becomes_a_parameter_in_every_function() -> None:
    found = shared_kernels({"add_12": text("add_12", 128), "mul_34": text("mul_34", 4096)})
    assert found["add_12"].source == found["mul_34"].source
    assert found["add_12"].function == found["mul_34"].function == "add_12"
    assert sorted(zip(found["add_12"].sizes, found["mul_34"].sizes, strict=True)) == [(128, 4096)]
    source = found["add_12"].source
    assert "static int64 add_12_part0(int64 n0, f32* b0, int64 begin, int64 end) {" in source
    assert 'extern "C" int64 add_12(int64 n0, void* b0_) {' in source
    assert "return add_12_part0(n0, b0, 0, 1);" in source
    for part in ("strip_even<1>(0, n0, ", "i0*n0 + i1*3 + 120", "v2 / (f32)n0;"):
        assert part in source
    assert "i0 < 20;" in source, "what all have stays a constant"


def columns(name: str, tile: int, extent: int, rows: int) -> str:
    return f"""static int64 {name}_part0(f32* b0, int64 begin, int64 end) {{
  for (int64 i1_tile = begin; i1_tile < end; ++i1_tile) {{
    const int64 i1_begin = i1_tile * {tile};
    const int64 i1_end = least(i1_begin + {tile}, {extent});
    alignas(64) f32 v1_sum[{tile}];
    fill(v1_sum, {tile}, (f32)0);
    for (; v1_at + 4 <= {rows}; v1_at += 4) {{
      drain(v1_total, v1_sum, v1_lost, {tile});
    }}
    const vf32 v2 = v1 / splat_f32({rows}.0f);
  }}
}}

extern "C" int64 {name}(void* b0_) {{
  const int64 threads = thread_count({rows * extent}, 4000);
  if (int64 failed = share((({extent} + {tile - 1}) / {tile}), threads, [&](int64 begin, int64 end, int64 thread) {{
    return {name}_part0(b0, begin, end);
  }})) return failed;
}}
"""


def test_tiles_share_arrays_of_the_longest_and_reciprocals_of_powers_of_two() -> None:
    found = shared_kernels({"a": columns("a", 32, 24, 1024), "b": columns("b", 64, 96, 512)})
    source = found["a"].source
    assert source == found["b"].source
    assert set(zip(found["a"].sizes, found["b"].sizes, strict=True)) == {
        (32, 64), (24, 96), (1024, 512), (24 * 1024, 96 * 512), (31, 63),
    }  # fmt: skip
    assert "v1_sum[64];" in source
    rows = re.search(r"v1 \* splat_f32\(1\.0f / \(f32\)(n\d)\);", source)
    assert rows is not None
    assert f"v1_at + 4 <= {rows[1]};" in source
    whole = shared_kernels({"a": columns("a", 32, 24, 1000), "b": columns("b", 64, 96, 250)})
    assert re.search(r"v1 / splat_f32\(\(f32\)n\d\);", whole["a"].source)


def test_arrays_that_all_kernels_have_may_be_of_any_length() -> None:
    found = shared_kernels({"a": columns("a", 4096, 5000, 1024), "b": columns("b", 4096, 9000, 512)})
    assert found["a"].source == found["b"].source
    assert "v1_sum[4096];" in found["a"].source


@pytest.mark.parametrize(
    "other",
    [
        columns("b", 64, 96, 1000),  # a division, where the other multiplies
        columns("b", 4096, 96, 256),  # an array that is too long for the stack
        columns("b", 64, 96, 256).replace("+ 4 <=", "+ 2 <="),
        columns("b", 64, 96, 256).replace("4000", "5000"),  # work of a point
    ],
)
def test_tiles_that_differ_in_more_stay_apart(other: str) -> None:
    sources = {"a": columns("a", 32, 24, 1024), "b": other}
    assert shared_kernels(sources) == {name: Shared(source, name) for name, source in sources.items()}


@pytest.mark.parametrize(
    "other",
    [
        text("b", 32),  # a short vector loop
        text("b", 128, rows=7),  # a short loop
        text("b", 128).replace("+ 20.0f", "+ 1.0f"),
        text("b", 128).replace("+ 20.0f", "+ 0.2f"),  # a parameter of bits, where the other is one of whole numbers
        text("b", 128).replace("i1*3", "i1*5"),  # a stride of the vector axis
        text("b", 128).replace("strip_even<1>", "strip_even<4>"),
        text("b", 128).replace("strip_even", "strip"),
        text("b", 2**24 + 1).replace("i0*16777217", "i0*128").replace("(0, 16777217", "(0, 128"),
    ],
)
def test_constants_that_matter_keep_kernels_apart(other: str) -> None:
    sources = {"a": text("a", 128), "b": other}
    assert shared_kernels(sources) == {name: Shared(source, name) for name, source in sources.items()}


def dropped(name: str, rate: str, scale: str, width: int, lanes: int) -> str:
    return f"""static int64 {name}_part0(f32* b0, int64 v0, int64 begin, int64 end) {{
  for (int64 i0 = begin; i0 < end; ++i0) {{
    strip<1>(i1_begin, i1_end, [&](int64 i1, auto n, int k) STEP {{
      const vf32 v1 = philox(index_lanes(i0*{width} + i1*{lanes}, {lanes}), (int64)v0, (uint32)(s0));
      const vflag v2 = v1 >= splat_f32({rate});
      const vf32 v3 = picked_f32(b0 + i0*{width} + i1*{lanes}, {lanes}, lane_count(n));
      const vf32 v4 = v3 * splat_f32({scale});
      store_f32(v4_row + ((i0) * {width} + i1) * {lanes} + i2 - i1_begin, v4, n);
      const vf32 v5 = stepped_f32<4>(b0 + i0*{width} + i1*4 + {lanes}, n);
    }});
  }}
}}

extern "C" int64 {name}(void* b0_) {{
  const int64 shared = 0, own = {width * 4};
  return {name}_part0(b0, 0, 1);
}}
"""


def test_rates_places_in_streams_and_lanes_that_lie_apart_become_parameters() -> None:
    found = shared_kernels(
        {"a": dropped("a", "0.2f", "1.25f", 320, 64), "b": dropped("b", "1e-05f", "1.1111112f", 192, 16)}
    )
    source = found["a"].source
    assert source == found["b"].source
    assert not re.search(r"\d{2}(?!\w)", re.sub(r"f32|int64|int32", "", source)), "only digits are left"
    assert "i1*4 + n" in source, "the stride of the vector axis stays"
    assert len(re.findall(r"splat_f32\(bits_of<f32>\(\(int32\)n\d\)\)", source)) == 2
    assert set(shown_numbers(source, found["b"].sizes)) == {"1e-05", "1.111111", "192", "16", "768"}


@pytest.mark.parametrize("other", ["1.0f", "0.0f", "-1.0f", "1.0f / 2.0f"])
def test_numbers_with_which_nothing_is_computed_stay(other: str) -> None:
    sources = {"a": dropped("a", "0.2f", "1.25f", 320, 64), "b": dropped("b", "0.2f", other, 320, 64)}
    assert len({shared.source for shared in shared_kernels(sources).values()}) == 2


@pytest.mark.parametrize("numerics", ["eager", "fast"])
def test_layers_that_drop_at_different_rates_are_one_kernel(
    numerics: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def function(*xs: Tensor) -> list[Tensor]:
        return [nn.functional.dropout(x, 0.1 + 0.03 * i) * (0.7 - 0.1 * i) for i, x in enumerate(xs)]

    xs = [torch.randn(size) for size in ((64, 100), (50, 3, 70), (200, 90), (17, 77))]
    outcomes, texts = [], []
    for share in (shared_kernels, lambda sources: {name: Shared(text, name) for name, text in sources.items()}):
        torch.compiler.reset()

        def counted(sources: dict[str, str], share: Callable[..., dict[str, Shared]] = share) -> dict[str, Shared]:
            found = share(sources)
            texts.append((len({one.source for one in found.values()}), len(found)))
            return found

        monkeypatch.setattr(cpu, "shared_kernels", counted)
        compiled = lamina.compile(function, options={"strict": True, "cache_dir": str(tmp_path), "numerics": numerics})
        torch.manual_seed(3)
        outcomes.append(compiled(*xs))
    (shared, kernels), (apart, others) = texts
    assert kernels == others == apart > shared
    for one, other in zip(*outcomes, strict=True):
        assert torch.equal(one, other)
        assert 0.7 < (one != 0).float().mean() < 0.95


def test_a_kernel_that_no_other_resembles_keeps_its_text() -> None:
    assert shared_kernels({"a": text("a", 128)}) == {"a": Shared(text("a", 128), "a")}
    assert shared_kernels({}) == {}


def _normalised(*xs: Tensor) -> list[Tensor]:
    return [nn.functional.relu(x - x.mean(2, keepdim=True)) * x.sum((0, 2), keepdim=True) for x in xs]


def _joined(*xs: Tensor) -> list[Tensor]:
    return [torch.cat([x * 2, x.sin()], 1) for x in xs]


def _turned(*xs: Tensor) -> list[Tensor]:
    return [x.transpose(1, 2) * 2 + x.transpose(1, 2).contiguous().exp() for x in xs]


def _windows(*xs: Tensor) -> list[Tensor]:
    return [nn.functional.pad(x, (1, 2)).cumsum(2).roll(3, 1) for x in xs]


def _extremes(*xs: Tensor) -> list[Tensor]:
    return [x.amax(1) + x.softmax(1).argmax(1) for x in xs if x.numel()]


def _batch_norms(*xs: Tensor) -> list[Tensor]:
    return [nn.functional.batch_norm(x, None, None, training=True) for x in xs if x.shape[0] * x.shape[2] > 1]


@pytest.mark.sampled(one_in=10)
@pytest.mark.parametrize("function", [_normalised, _joined, _turned, _windows, _extremes, _batch_norms])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("numerics", ["eager", "fast"])
def test_results_are_those_of_kernels_apart(
    function: Callable[..., list[Tensor]],
    numerics: str,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    xs = [torch.randn(size).to(dtype) for size in SIZES]
    outcomes, tolerance = [], 3e-2 if dtype is torch.bfloat16 else 1e-4
    for share in (shared_kernels, lambda sources: {name: Shared(text, name) for name, text in sources.items()}):
        torch.compiler.reset()
        monkeypatch.setattr(cpu, "shared_kernels", share)
        compiled = lamina.compile(function, options={"strict": True, "cache_dir": str(tmp_path), "numerics": numerics})
        outcomes.append(compiled(*xs))
    for one, other, eager in zip(outcomes[0], outcomes[1], function(*xs), strict=True):
        # Fast kernels may round a product before it is added or not, as the compiler finds it shorter.
        assert torch.equal(one, other) or numerics == "fast"
        torch.testing.assert_close(one, eager, rtol=tolerance, atol=tolerance)


def test_batch_norms_of_any_width_are_one_kernel_each_way(tmp_path: Path) -> None:
    def function(*xs: Tensor) -> list[Tensor]:
        return [nn.functional.batch_norm(x, None, None, training=True) for x in xs]

    xs = [torch.randn(rows, width, requires_grad=True) for rows, width in ((512, 24), (1024, 96), (256, 200))]
    compiled = lamina.compile(function, options={"strict": True, "cache_dir": str(tmp_path)})
    results = compiled(*xs)
    found = torch.autograd.grad(results, xs, results)
    eager = function(*xs)
    for one, other in zip([*results, *found], [*eager, *torch.autograd.grad(eager, xs, eager)], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    built = [stage.value for stage in compiled.record.stages if stage.name == "build"]
    assert [len(build.kernels) > build.compiled for build in built] == [True, True]


def test_the_layers_of_a_network_share_kernels_and_the_record_says_so(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers = [
        nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.SiLU()) for a, b in ((8, 16), (16, 16), (16, 24))
    ]
    model = nn.Sequential(*layers).train()
    compiled = lamina.compile(model, options={"strict": True, "cache_dir": str(tmp_path)})
    compiled(torch.randn(2, 8, 64, 64))
    made = [stage.value for stage in compiled.record.stages if stage.name == "build"]
    assert sum(build.compiled for build in made) < sum(len(build.kernels) for build in made)
    assert any("with sizes" in decision.reason for decision in compiled.record.decisions("share"))
    assert re.search(r"kernels compiled \(\d+ ms each\), \d+ reused", repr(compiled.record))
