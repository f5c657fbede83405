"""Views: torch's samples, and index maps that stay free of divisions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from lamina.ir.index import Div, Mod
from lamina.ir.loops import LibraryCall, Load, Nest
from lamina.ir.loops_interp import run_program
from lamina.lower.to_loops import lower

from .harness import check, outcome
from .samples import DTYPES, check_samples
from .torch_private import traced

aten = torch.ops.aten

VIEWS = (
    *("view", "reshape", "expand", "permute", "transpose", "t", "squeeze", "squeeze.multiple", "unsqueeze", "slice"),
    *("select", "split", "split_with_sizes", "split.list_args", "chunk", "unbind", "diagonal", "as_strided", "unfold"),
    *("movedim", "flatten", "unflatten", "hsplit", "vsplit", "broadcast_to", "view_as"),
)
COPIES = (
    *("view_copy", "expand_copy", "unsqueeze_copy", "permute_copy", "t_copy", "transpose_copy", "squeeze_copy"),
    *("unfold_copy", "diagonal_copy", "alias_copy"),
)


@pytest.mark.sampled(one_in=15)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [*VIEWS, *COPIES])
def test_samples(name: str, dtype: torch.dtype) -> None:
    check_samples(name, dtype)


X = torch.randn(4, 6, 8)

FUNCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "merged": lambda x: x.reshape(4, 48) + 1,
    "split": lambda x: x.view(4, 6, 2, 4).permute(2, 0, 1, 3).reshape(2, 24, 4) + 1,
    "regrouped": lambda x: x.reshape(8, 24) + 1,
    "expanded": lambda x: x[:, :1].expand(4, 6, 8) + 1,
    "sliced": lambda x: x[1:, -3:, ::2] + 1,
    "from_the_end": lambda x: x[-1, :, -2] + 1,
    "pieces": lambda x: [v + 1 for v in x.split(4, 1)],
    "windows": lambda x: x.unfold(2, 3, 2) + 1,
    "ones": lambda x: x.view(4, 1, 6, 1, 8).squeeze(1).squeeze().unsqueeze(-1) + 1,
}


@pytest.mark.parametrize("offset", [-2, 0, 3])
def test_diagonals_begin_at_their_offset(offset: int) -> None:
    check(lambda x: x.diagonal(offset, 1, 2) + 1, X)


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_views_of_computed_and_given_tensors(name: str, symbolic: bool) -> None:
    check(FUNCTIONS[name], X, symbolic=symbolic)
    check(lambda x: FUNCTIONS[name](x * 2), X.transpose(0, 1).contiguous().transpose(0, 1), symbolic=symbolic)


def _loads(fn: Callable[..., Any], x: torch.Tensor, symbolic: bool) -> list[Load]:
    program = lower(traced(fn, [x], symbolic), "test")
    assert not any(isinstance(s, LibraryCall) for s in program.steps)
    return [e for s in program.steps if isinstance(s, Nest) for e in s.body if isinstance(e, Load)]


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.view(x.shape[0], x.shape[1], 2, 4).permute(0, 2, 1, 3) + 1,
        lambda x: (x + 1).view(-1, 8) + 1,
        lambda x: x.unsqueeze(1).expand(-1, 3, -1, -1).reshape(-1, x.shape[1], 8) + 1,
        lambda x: x.view(x.shape[0], x.shape[1], 2, 4).transpose(1, 2)[:, 1].reshape(-1, 4) * 2,
    ],
    ids=["heads", "rows", "groups", "one head"],
)
def test_splitting_and_merging_leaves_few_divisions(fn: Callable[..., Any], symbolic: bool) -> None:
    """Dimensions that are split need none; those that are merged only divide by the inner size."""
    for load in _loads(fn, X, symbolic):
        inside = [a for e in load.index for a in e.atoms() if isinstance(a, Div | Mod)]
        assert all(not any(isinstance(b, Div | Mod) for b in a.num.atoms()) for a in inside)
    assert not [
        a
        for load in _loads(lambda x: x.view(4, 6, 2, 4).permute(0, 2, 1, 3) + 1, X, False)
        for e in load.index
        for a in e.atoms()
        if isinstance(a, Mod)
    ]


@pytest.mark.parametrize("symbolic", [False, True])
def test_a_merged_contiguous_tensor_is_linear_again(symbolic: bool) -> None:
    """Split, rearranged and put back: what a product reads is a plain window, not a copy."""

    def heads(x: torch.Tensor) -> torch.Tensor:
        y = (x + 1).view(x.shape[0], x.shape[1], 2, 4)
        return y.reshape(x.shape[0] * x.shape[1], 8) @ torch.ones_like(x[0, :3]).t()

    found = outcome(heads, [X], symbolic)
    assert not found.complaints
    assert [op for op, _ in found.library] == ["aten.mm.default"]
    assert found.nests == 2  # the sum and the ones; no copy


def test_transposed_operands_stay_windows() -> None:
    found = outcome(lambda x: (x.t() @ x, torch.bmm(x[None].mT, x[None])), [X[0]])
    assert not found.complaints
    assert found.nests == 0


def test_a_window_by_raw_strides() -> None:
    check(lambda x: (x * 2).as_strided((3, 2), (1, 6), 2) + 1, X[0])
    check(lambda x: x[1:].as_strided((3, 2), (1, 8)) + 1, X[0])
    check(lambda x: torch.as_strided_scatter(x * 1, x[:3, :2], (3, 2), (1, 8), 2), X[0])


def test_a_window_on_the_bits_of_a_transposed_tensor() -> None:
    """The bits are copied, in the strides that eager's view has."""

    def window(x: torch.Tensor) -> torch.Tensor:
        return x.t().view(torch.int32).as_strided((3,), (6,))

    program = lower(traced(window, [X[0]]), "test")
    assert torch.equal(run_program(program, [X[0]])[0], window(X[0]))


def test_zero_sizes_and_scalars() -> None:
    check(lambda x: (x.view(3, 0, 2).sum(1), x.permute(1, 0).sum(0)), torch.zeros(0, 6))
    check(lambda x: (x.view(1, 1) + 1, x.expand(3) * 2, x.unsqueeze(0).squeeze(0) - 1, x.t() + 2), torch.tensor(2.5))
