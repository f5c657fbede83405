"""Programs whose sizes and numbers come from data, with the inputs of several calls: many, one and no elements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.semantics.torch_private import check

__all__ = ["ASSERTIONS", "PROGRAMS", "Program"]

_OPS = torch.library.Library("lamina_run_time_sizes", "DEF")
_OPS.define("positive(Tensor x) -> Tensor")
_OPS.define("halves(Tensor x) -> (Tensor, Tensor)")
_OPS.define("count(Tensor x) -> SymInt")
_OPS.define("evens(Tensor x) -> Tensor[]")


def _fresh_size() -> Any:
    return torch.library.get_ctx().new_dynamic_size()


def _positive(x: Tensor) -> Tensor:
    return x[x > 0].clone()


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[x > 0].clone(), x[x <= 0].clone()


_OPS.impl("positive", _positive, "CPU")
_OPS.impl("halves", _halves, "CPU")
_OPS.impl("count", lambda x: int((x > 0).sum()), "CPU")
_OPS.impl("evens", lambda x: [x[x > 0].clone(), x[x > 9].clone()], "CPU")
torch.library.register_fake(
    "lamina_run_time_sizes::positive", lambda x: x.new_empty(_fresh_size()), lib=_OPS, allow_override=True
)
torch.library.register_fake(
    "lamina_run_time_sizes::halves", lambda x: (x.new_empty(_fresh_size()), x.new_empty(_fresh_size())), lib=_OPS
)
torch.library.register_fake("lamina_run_time_sizes::count", lambda x: _fresh_size(), lib=_OPS)
torch.library.register_fake(
    "lamina_run_time_sizes::evens", lambda x: [x.new_empty(_fresh_size()), x.new_empty(_fresh_size())], lib=_OPS
)
_own = torch.ops.lamina_run_time_sizes


@dataclass(frozen=True, slots=True)
class Program:
    """``function`` with the arguments of each call, made fresh by ``calls``."""

    function: Callable[..., Any]
    calls: Callable[[], list[tuple[Any, ...]]]


PROGRAMS: dict[str, Program] = {}
ASSERTIONS: dict[str, Program] = {}
"""Programs of which some call fails."""


def _rows(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator)


def _numbers(*numbers: int) -> Callable[[], list[tuple[Any, ...]]]:
    return lambda: [(_rows(6, 4), torch.tensor(n)) for n in numbers]


def _floats() -> list[tuple[Any, ...]]:
    return [(_rows(6, 4), torch.tensor(v)) for v in (0.5, -2.0, 0.0)]


def _masks() -> list[tuple[Any, ...]]:
    return [(_rows(5, 4),), (-_rows(5, 4).abs(),), (_rows(5, 4).abs() + 1,)]


def _counts() -> list[tuple[Any, ...]]:
    return [(torch.tensor(v),) for v in ([1, 0, 2, 3, 0], [0, 0, 0, 0, 0], [0, 0, 1, 0, 0], [5, 5, 2, 2, 9])]


def _splits() -> list[tuple[Any, ...]]:
    return [(_rows(6, 4), torch.tensor(v)) for v in ([1, 2, 3], [0, 6, 0], [4, 1, 1])]


def _trained(calls: Callable[[], list[tuple[Any, ...]]]) -> Callable[[], list[tuple[Any, ...]]]:
    def made() -> list[tuple[Any, ...]]:
        return [(first.requires_grad_(), *rest) for first, *rest in calls()]

    return made


def _program(calls: Callable[[], list[tuple[Any, ...]]], *, into: dict[str, Program] = PROGRAMS) -> Callable[..., Any]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        into[function.__name__] = Program(function, calls)
        return function

    return register


def _size(n: Tensor, limit: int) -> int:
    k = int(n.item())
    check(k >= 0)
    check(k <= limit)
    return k


_SIZES = _numbers(3, 0, 1, 6)


# ---- numbers --------------------------------------------------------------------------------------------------


@_program(_SIZES)
def slice_by_item(x: Tensor, n: Tensor) -> Any:
    return x[: _size(n, x.size(0))].sum(0) * 2


@_program(_SIZES)
def slice_after_item(x: Tensor, n: Tensor) -> Any:
    return (x.exp() + 1)[_size(n, x.size(0)) :].sin()


@_program(_SIZES)
def narrow_by_item(x: Tensor, n: Tensor) -> Any:
    return x.narrow(0, 0, _size(n, x.size(0))).relu()


@_program(_SIZES)
def zeros_of_item(x: Tensor, n: Tensor) -> Any:
    return torch.zeros(_size(n, 10), 4) + x[0]


@_program(_SIZES)
def arange_of_item(x: Tensor, n: Tensor) -> Any:
    return torch.arange(_size(n, 10)) * 2 + 1


@_program(_SIZES)
def item_as_factor(x: Tensor, n: Tensor) -> Any:
    return x * n.item() + 1


@_program(_numbers(3, -5, 0, -1))
def negative_item_as_factor(x: Tensor, n: Tensor) -> Any:
    return (x * n.item()).sum(1) - n.item()


@_program(_numbers(3, -5, 0, 7))
def arithmetic_of_items(x: Tensor, n: Tensor) -> Any:
    k = n.item()
    return x + (k * 2 - 3), x * (k // 2), x - k % 3


@_program(_SIZES)
def item_returned(x: Tensor, n: Tensor) -> Any:
    k = n.item()
    return x * 2, k, k + 1


@_program(_floats)
def float_item_as_factor(x: Tensor, f: Tensor) -> Any:
    return x * f.item() + f.item()


@_program(_floats)
def float_arithmetic(x: Tensor, f: Tensor) -> Any:
    a = f.item()
    return (x * (a * 2 + 1)).relu() - a / 3


@_program(_floats)
def float_returned(x: Tensor, f: Tensor) -> Any:
    return x.sin() * 2, f.item()


@_program(_floats)
def float_filled(x: Tensor, f: Tensor) -> Any:
    return torch.full((3, 2), f.item()) + 1


@_program(_floats)
def float_addition_with_alpha(x: Tensor, f: Tensor) -> Any:
    return torch.add(x, x.sin(), alpha=f.item())


@_program(_floats)
def float_of_a_maximum(x: Tensor, f: Tensor) -> Any:
    return x / (x.abs().max().item() + 1.0) + f


@_program(_floats)
def float_power(x: Tensor, f: Tensor) -> Any:
    return (x.abs() + 1) ** f.item()


@_program(_floats)
def clamp_by_items(x: Tensor, f: Tensor) -> Any:
    return x.clamp(max=f.item()) * 2


@_program(lambda: [(_rows(3, 4), torch.tensor(b)) for b in (True, False)])
def truth_item(x: Tensor, b: Tensor) -> Any:
    return x * b.item() + 1


@_program(_splits)
def tolist_split(x: Tensor, n: Tensor) -> Any:
    sizes = n.tolist()
    for size in sizes:
        check(size >= 0)
        check(size <= x.size(0))
    check(sum(sizes) == x.size(0))
    return [part.sum(0) * 2 for part in x.split(sizes)]


@_program(_splits)
def tolist_arithmetic(x: Tensor, n: Tensor) -> Any:
    a, b, c = n.tolist()
    return x * a + b - c


@_program(_splits)
def tolist_returned(x: Tensor, n: Tensor) -> Any:
    return n.tolist(), x + 1


@_program(_SIZES)
def two_items(x: Tensor, n: Tensor) -> Any:
    k, m = _size(n, 6), _size((6 - n), 6)
    return torch.cat([x[:k] * 2, x[:m] * 3]).sum(0)


@_program(_SIZES)
def concatenation(x: Tensor, n: Tensor) -> Any:
    return torch.cat([torch.ones(_size(n, 9), 4), x]).cumsum(0)


@_program(_SIZES)
def padding_by_item(x: Tensor, n: Tensor) -> Any:
    return F.pad(x, (0, _size(n, 9))) + 1


@_program(_SIZES)
def expand_by_item(x: Tensor, n: Tensor) -> Any:
    return x[0].expand(_size(n, 9), 4) * 2


@_program(_SIZES)
def product_of_sizes(x: Tensor, n: Tensor) -> Any:
    k = _size(n, 9)
    return (torch.ones(k, 4) @ x.t()).relu()


@_program(_SIZES)
def reshape_by_item(x: Tensor, n: Tensor) -> Any:
    k = _size(n, 9)
    return torch.arange(k * 4).reshape(k, 4) + 1.5


@_program(_SIZES)
def select_by_item(x: Tensor, n: Tensor) -> Any:
    return x.new_zeros(8, 4).index_fill(0, n.reshape(1), 1.0)[_size(n, 7)] * 2


@_program(_SIZES)
def softmax_of_a_slice(x: Tensor, n: Tensor) -> Any:
    return x[:, : _size(n, 6) // 2].softmax(0)


@_program(_numbers(3, 1, 6))
def mean_of_a_slice(x: Tensor, n: Tensor) -> Any:
    return x[: _size(n, 6)].mean(0)


@_program(_numbers(3, 2, 6))
def variance_of_a_slice(x: Tensor, n: Tensor) -> Any:
    return x[: _size(n, 6)].var(0) * 2


@_program(_SIZES)
def layer_norm_of_a_slice(x: Tensor, n: Tensor) -> Any:
    return F.layer_norm(x[: _size(n, 6)], (4,))


@_program(_SIZES)
def write_to_a_slice(x: Tensor, n: Tensor) -> Any:
    y = x.clone()
    y[: _size(n, 6)] = 5.0
    return y * 2


@_program(_SIZES)
def write_to_the_input(x: Tensor, n: Tensor) -> Any:
    k = _size(n, 6)
    x.mul_(k)
    return x + 1


@_program(_SIZES)
def item_of_a_sum(x: Tensor, n: Tensor) -> Any:
    k = (x > 0).sum().item()
    return torch.ones(k).cumsum(0) + n


@_program(_SIZES)
def item_after_item(x: Tensor, n: Tensor) -> Any:
    k = _size(n, 6)
    m = _size(torch.arange(k + 1).sum() // 4, 6)
    return x[:m] * k


@_program(_SIZES)
def dropout_by_zero(x: Tensor, n: Tensor) -> Any:
    return F.dropout(x[: _size(n, 6)], 0.0) + 1


@_program(_SIZES)
def mask_by_positions(x: Tensor, n: Tensor) -> Any:
    return x.masked_fill(torch.arange(6)[:, None] >= n.item(), 0.0).sum(0)


@_program(_SIZES)
def branch_by_torch_where(x: Tensor, n: Tensor) -> Any:
    return torch.where(x > 0, x * n.item(), -x)


@_program(lambda: [(_rows(6, 4), torch.tensor(n)) for n in (3, 0)])
def branch_in_python(x: Tensor, n: Tensor) -> Any:
    if n.item() > 1:
        return x.sin() * 2
    return x.cos() - 1


@_program(lambda: [(_rows(6, 4), torch.tensor(n)) for n in (3, 0, 2)])
def loop_in_python(x: Tensor, n: Tensor) -> Any:
    for _ in range(int(n)):
        x = x * 2 + 1
    return x.relu()


# ---- sizes of results -----------------------------------------------------------------------------------------


@_program(_counts)
def nonzero(x: Tensor) -> Any:
    return x.nonzero() * 2 + 1


@_program(_counts)
def nonzero_as_tuple(x: Tensor) -> Any:
    (places,) = x.nonzero(as_tuple=True)
    return x[places] + places


@_program(_masks)
def nonzero_of_rows(x: Tensor) -> Any:
    return (x > 0).nonzero().sum(0)


@_program(_masks)
def argwhere(x: Tensor) -> Any:
    return torch.argwhere(x > 0) + 1


@_program(_masks)
def where_of_one(x: Tensor) -> Any:
    rows, columns = torch.where(x > 0)
    return rows * 4 + columns, x[rows, columns].exp()


@_program(_masks)
def boolean_mask(x: Tensor) -> Any:
    return x[x > 0].exp() * 2


@_program(_masks)
def boolean_mask_summed(x: Tensor) -> Any:
    return x.sin()[x > 0].sum()


@_program(_masks)
def boolean_mask_of_rows(x: Tensor) -> Any:
    return x[x.sum(1) > 0].relu().sum(0)


@_program(_masks)
def rows_times_matrix(x: Tensor) -> Any:
    return x[x.sum(1) > 0] @ x.t() + 1


@_program(_masks)
def masked_select(x: Tensor) -> Any:
    return torch.masked_select(x, x > 0) + 1


@_program(_masks)
def write_by_mask(x: Tensor) -> Any:
    y = x.clone()
    y[x > 0] = 0.5
    return y * 2


@_program(_masks)
def write_by_places(x: Tensor) -> Any:
    rows, columns = torch.where(x > 0)
    y = x.clone()
    y[rows, columns] = x[rows, columns] * 2
    return y + 1


@_program(_masks)
def masked_scatter_back(x: Tensor) -> Any:
    return torch.zeros_like(x).masked_scatter(x > 0, x[x > 0] * 3)


@_program(_masks)
def size_as_number(x: Tensor) -> Any:
    y = x[x > 0]
    return y * 2 + y.size(0), y.size(0)


@_program(_masks)
def numel_as_number(x: Tensor) -> Any:
    y = x[x.sum(1) > 0]
    return x * y.numel()


@_program(_masks)
def ones_as_long(x: Tensor) -> Any:
    y = x[x > 0]
    return torch.ones(y.size(0)) + y, torch.arange(y.size(0))


@_program(_masks)
def sorted_by_mask(x: Tensor) -> Any:
    return x[x > 0].sort().values * 2


@_program(_masks)
def cumulative_by_mask(x: Tensor) -> Any:
    return x[x > 0].cumsum(0) + 1


@_program(_masks)
def two_masks(x: Tensor) -> Any:
    return x[x > 0].sum() + x[x <= 0].exp().sum()


@_program(_masks)
def mask_of_a_mask(x: Tensor) -> Any:
    y = x[x > 0] * 2
    return y[y > 1].sin()


@_program(_masks)
def concatenated_masks(x: Tensor) -> Any:
    return torch.cat([x[x > 0], x[x <= 0]]) * 2


@_program(_masks)
def stacked_places(x: Tensor) -> Any:
    rows, columns = torch.where(x > 0)
    return torch.stack([rows, columns], 1) + 1


@_program(_masks)
def softmax_of_masked_rows(x: Tensor) -> Any:
    return x[x.sum(1) > 0].softmax(-1)


@_program(_masks)
def layer_norm_of_masked_rows(x: Tensor) -> Any:
    return F.layer_norm(x[x.sum(1) > 0], (4,)) * 2


@_program(_masks)
def view_of_masked_rows(x: Tensor) -> Any:
    y = x[x.sum(1) > 0]
    return y.reshape(-1) * 2, y.t() + 1


@_program(_masks)
def unsqueezed_and_broadcast(x: Tensor) -> Any:
    y = x[x > 0]
    return (y[:, None] - y[None, :]).abs().sum()


@_program(_masks)
def half_precision(x: Tensor) -> Any:
    return (x.bfloat16()[x > 0] * 2).float()


@_program(_masks)
def any_of_a_mask(x: Tensor) -> Any:
    y = x[x > 0]
    return (y > 1).any(), (y > 0).all(), (y > 1).sum()


@_program(_masks)
def statistics_of_a_mask(x: Tensor) -> Any:
    y = x[x > 0]
    return y.sum() / (y.size(0) + 1)


@_program(_counts)
def unique(x: Tensor) -> Any:
    return torch.unique(x) * 2


@_program(_counts)
def unique_with_inverse(x: Tensor) -> Any:
    values, inverse, counts = torch.unique(x, return_inverse=True, return_counts=True)
    return values[inverse] + 1, counts * 2, values.size(0)


@_program(_counts)
def unique_consecutive(x: Tensor) -> Any:
    values, counts = torch.unique_consecutive(x, return_counts=True)
    return values + counts


@_program(lambda: [(torch.tensor(v),) for v in ([[1, 2], [1, 2], [0, 3]], [[0, 0], [0, 0], [0, 0]])])
def unique_rows(x: Tensor) -> Any:
    return torch.unique(x, dim=0) + 1


@_program(_counts)
def bincount(x: Tensor) -> Any:
    return torch.bincount(x) * 2


@_program(_counts)
def bincount_with_length(x: Tensor) -> Any:
    return torch.bincount(x, minlength=10).cumsum(0)


@_program(_counts)
def repeat_interleave_of_counts(x: Tensor) -> Any:
    return torch.repeat_interleave(x) * 2


@_program(_counts)
def repeat_interleave_of_rows(x: Tensor) -> Any:
    return torch.repeat_interleave(torch.arange(5.0)[:, None] + 1, x, dim=0).sin()


@_program(_counts)
def repeat_interleave_of_known_size(x: Tensor) -> Any:
    return torch.repeat_interleave(torch.arange(5.0), x.clamp(1, 1), output_size=5) + 1


@_program(_counts)
def one_hot_of_data(x: Tensor) -> Any:
    return F.one_hot(x, 10).sum(0)


@_program(_counts)
def embedding_bag_by_offsets(x: Tensor) -> Any:
    weight = torch.arange(40.0).reshape(10, 4)
    places = torch.repeat_interleave(torch.arange(5), x)
    return F.embedding(places, weight).sum(0)


@_program(_counts)
def scatter_of_counts(x: Tensor) -> Any:
    places = torch.repeat_interleave(torch.arange(5), x)
    return torch.zeros(5).index_add(0, places, torch.ones(places.size(0)))


@_program(_counts)
def sum_of_counts_as_size(x: Tensor) -> Any:
    return torch.zeros(x.sum().item()) + 3


# ---- operations of one's own ----------------------------------------------------------------------------------


@_program(_masks)
def own_operation(x: Tensor) -> Any:
    return _own.positive(x * 2).exp() + 1


@_program(_masks)
def own_operation_with_two_sizes(x: Tensor) -> Any:
    a, b = _own.halves(x + 0.25)
    return a.sum() * 2, b.relu() + 1, a.size(0) + b.size(0)


@_program(_masks)
def own_operation_with_an_integer(x: Tensor) -> Any:
    return x * _own.count(x)


@_program(_masks)
def own_operation_with_a_list(x: Tensor) -> Any:
    a, b = _own.evens(x)
    return torch.cat([a * 2, b])


# ---- control flow ---------------------------------------------------------------------------------------------


@_program(_masks)
def cond_by_value(x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda y: y.sin() * 2, lambda y: y.cos() - 1, (x + 1,)) * 3


@_program(_masks)
def mask_beside_cond(x: Tensor) -> Any:
    y = x[x > 0] * 2
    return y.exp(), torch.cond(x.sum() > 0, lambda z: z.sin(), lambda z: z.cos(), (x,))


# ---- gradients ------------------------------------------------------------------------------------------------


@_program(_trained(_masks))
def gradient_of_a_mask(x: Tensor) -> Any:
    return (x * 2)[x > 0].exp().sum()


@_program(_trained(_masks))
def gradient_of_masked_rows(x: Tensor) -> Any:
    return (x[x.sum(1) > 0].sin() @ x.t()).relu().sum(0)


@_program(_trained(_masks))
def gradient_of_a_masked_result(x: Tensor) -> Any:
    return (x.sin() * 2)[x > 0] * 3


@_program(_trained(_masks))
def gradient_of_select(x: Tensor) -> Any:
    return torch.masked_select(x.tanh(), x > 0).square().sum()


@_program(_trained(_SIZES))
def gradient_of_a_slice(x: Tensor, n: Tensor) -> Any:
    return x[: _size(n, 6)].tanh().sum(0) * 2


@_program(_trained(_SIZES))
def gradient_of_a_product(x: Tensor, n: Tensor) -> Any:
    return (x[: _size(n, 6)] @ x.t()).sin().sum()


@_program(_trained(_SIZES))
def gradient_of_a_factor(x: Tensor, n: Tensor) -> Any:
    return (x.sin() * n.item()).exp().sum(0)


@_program(_trained(_floats))
def gradient_of_a_float_factor(x: Tensor, f: Tensor) -> Any:
    return (x.sin() * f.item()).cos().sum(0)


@_program(_trained(_splits))
def gradient_of_splits(x: Tensor, n: Tensor) -> Any:
    sizes = n.tolist()
    for size in sizes:
        check(size >= 0)
        check(size <= x.size(0))
    check(sum(sizes) == x.size(0))
    return [part.exp().sum(0) * (k + 1) for k, part in enumerate(x.split(sizes))]


@_program(_trained(_numbers(3, 1, 6)))
def gradient_of_a_mean(x: Tensor, n: Tensor) -> Any:
    return x[: _size(n, 6)].mean(0).exp()


@_program(_trained(_numbers(3, 2, 6)))
def gradient_of_a_norm(x: Tensor, n: Tensor) -> Any:
    return F.layer_norm(x[: _size(n, 6)], (4,)).square().sum(1)


@_program(lambda: [(_rows(5, 4).requires_grad_(), torch.tensor(v)) for v in ([1, 0, 2, 3, 0], [0] * 5, [1] * 5)])
def gradient_of_repeats(x: Tensor, n: Tensor) -> Any:
    return torch.repeat_interleave(x.sin(), n, dim=0).square().sum(0)


@_program(_trained(lambda: [(_rows(8, 4), torch.tensor(v)) for v in ([1, 0, 7], [3, 3, 3])]))
def gradient_of_unique_rows(x: Tensor, n: Tensor) -> Any:
    return F.embedding(torch.unique(n), x).exp().sum(0)


@_program(_trained(_masks))
def gradient_scattered_to_experts(x: Tensor) -> Any:
    total = torch.zeros_like(x)
    for expert in range(2):
        places = ((x.sum(1) > 0).long() == expert).nonzero().squeeze(1)
        total = total.index_add(0, places, (x[places] * (expert + 1)).sin())
    return total


# ---- assertions -----------------------------------------------------------------------------------------------


@_program(_numbers(3, 7, -1, 2), into=ASSERTIONS)
def slice_within(x: Tensor, n: Tensor) -> Any:
    return x[: _size(n, 6)].sum(0) * 2


@_program(_numbers(3, 12, 2), into=ASSERTIONS)
def assertion_with_message(x: Tensor, n: Tensor) -> Any:
    k = n.item()
    check(k < 10, lambda: "too many")
    return x * k


@_program(_numbers(4, 5, 4), into=ASSERTIONS)
def assertion_of_equality(x: Tensor, n: Tensor) -> Any:
    k = n.item()
    check(k == x.size(1))
    return torch.ones(k) + x


@_program(_numbers(4, -5, 4), into=ASSERTIONS)
def assertion_before_a_write(x: Tensor, n: Tensor) -> Any:
    k = n.item()
    check(k > 0)
    x.add_(1)
    return x * k


@_program(lambda: [(_rows(6, 4), torch.tensor(v)) for v in ([1, 2, 3], [1, 2, 4], [3, 3, 0])], into=ASSERTIONS)
def split_that_must_fit(x: Tensor, n: Tensor) -> Any:
    sizes = n.tolist()
    for size in sizes:
        check(size >= 0)
        check(size <= 6)
    check(sum(sizes) == x.size(0))
    return [part * 2 for part in x.split(sizes)]


@_program(_trained(_numbers(3, 7, 2)), into=ASSERTIONS)
def assertion_in_training(x: Tensor, n: Tensor) -> Any:
    return x[: _size(n, 6)].sin().sum(0)
