"""Calls that eager refuses and tracing takes raise eager's exception; calls that values alone refuse are compiled."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lamina


@pytest.fixture(autouse=True)
def apart() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def floats(*shape: int) -> Tensor:
    return torch.randn(shape)


def doubles(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def whole(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.int64)


REFUSED: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (lambda x: F.softmax(x, dim=2), (floats(3, 4),)),
    (lambda x: F.softmin(x.exp(), dim=100), (floats(3, 4),)),
    (lambda x: x.log_softmax(2), (floats(2100, 2200),)),
    (lambda x: F.softmax(x.unsqueeze(0), 3), (floats(300, 300),)),
    (lambda x, w: F.layer_norm(x, (4,), w), (doubles(3, 4), floats(4))),
    (lambda x, w: F.group_norm(x, 2, w), (doubles(3, 4, 5), floats(4))),
    (lambda x, m: F.batch_norm(x, m, m), (floats(3, 4), doubles(4).abs())),
    (lambda x, t: F.cross_entropy(x, t), (floats(3, 4), torch.ones(3, dtype=torch.int32))),
    (lambda x, t: F.binary_cross_entropy(x.sigmoid(), t), (floats(3), torch.ones(3).double())),
    (lambda x: F.relu(x), (torch.ones(3, dtype=torch.bool),)),
    (lambda x: x.abs(), (torch.ones(3, dtype=torch.bool),)),
    (lambda x: x.frac() + 1, (whole(3),)),
    (lambda x: F.hardsigmoid(x), (whole(3),)),
    (lambda x: F.interpolate(x, scale_factor=2), (whole(1, 2, 3),)),
    (lambda x: F.avg_pool3d(x, 2, divisor_override=0), (floats(1, 2, 4, 4, 4),)),
    (lambda x, i, s: x.index_add(0, i, s), (floats(3, 2), whole(2), floats(2))),
    (lambda x, o: torch.aminmax(x, dim=0, out=o), (floats(5, 5), (floats(5), doubles(5)))),
    (lambda e, x: torch.cat([e, x], out=x), (floats(0), floats(4, 6))),
    (lambda x, o: torch.complex(x, x, out=o), (doubles(3), torch.zeros(3, dtype=torch.complex64))),
    (lambda x, o: torch.multinomial(x, 2, out=o), (doubles(1, 2).abs(), doubles(1, 2))),
    (lambda x: torch.arange(3, dtype=torch.bool), (floats(3),)),
    (lambda x: torch.eye(3, dtype=torch.uint16), (floats(3),)),
    (lambda x: torch.full((2,), 1e39), (floats(3),)),
    (lambda x: torch.full((2,), 1e5, dtype=torch.float16), (floats(3),)),
]


def raised(function: Callable[..., Any], *arguments: Any) -> Exception | None:
    try:
        function(*arguments)
    except Exception as problem:
        return problem
    return None


@pytest.mark.parametrize("case", range(len(REFUSED)))
def test_what_eager_refuses_is_refused(case: int) -> None:
    function, arguments = REFUSED[case]
    eager = raised(function, *arguments)
    assert eager is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = raised(lamina.compile(function), *arguments)
    assert type(ours) is type(eager)
    assert str(ours) == str(eager)


def test_it_is_said_what_eager_refuses() -> None:
    with pytest.warns(lamina.LaminaWarning, match="softmax is refused by eager: IndexError: Dimension out of range"):
        raised(lamina.compile(REFUSED[0][0]), *REFUSED[0][1])


def huber(x: Tensor, y: Tensor) -> Tensor:
    return F.huber_loss(x * 2, y) + 1


def squared(x: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(x, y.neg(), reduction="sum").tanh()


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("function", [huber, squared])
@pytest.mark.parametrize("wants", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("low", [torch.bfloat16, torch.float64])
def test_a_gradient_that_eager_refuses_for_its_dtypes_is_refused(function: Any, wants: Any, low: Any) -> None:
    def gradients(each: Callable[..., Any]) -> list[Any]:
        x, y = torch.ones(3, 4).requires_grad_(wants[0]), torch.zeros(3, 4, dtype=low).requires_grad_(wants[1])
        problem = raised(each(x, y).backward)
        return [type(problem), str(problem), *(None if t.grad is None else t.grad.dtype for t in (x, y))]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert gradients(lamina.compile(function)) == gradients(function)


@pytest.mark.parametrize("function", [huber, squared])
def test_calls_whose_gradients_eager_has_are_compiled(function: Any) -> None:
    compiled: Any = lamina.compile(function)
    x, y = (torch.ones(3, 4, requires_grad=True) for _ in range(2))
    compiled(x, y).backward()
    with torch.no_grad():
        compiled(torch.ones(3, 4), torch.ones(3, 4))
    assert not compiled.record.decisions("eager")


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.narrow(0, 1500, 300) * 2,
        lambda x: torch.narrow_copy(x, 0, -900, 7) * 2,
        lambda x: x.select_scatter(x[3], 0, 1500) * 2,
        lambda x: x.slice_scatter(x[:300], 0, 1500, 1800) * 2,
        lambda x: x.diagonal(1500) * 2,
    ],
)
def test_places_that_only_large_tensors_have_are_compiled(function: Callable[..., Any]) -> None:
    x = torch.randn(2560, 2048)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(lamina.compile(function)(x), function(x))


def test_asking_for_gradients_leaves_the_users_hooks_on_saved_tensors_alone() -> None:
    seen: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        seen.append(1)
        return tensor

    x = torch.ones(3, 4, requires_grad=True)
    compiled: Any = lamina.compile(lambda x: torch.hypot(x, x.sin()).sum())
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        for _ in range(2):
            compiled(x).backward()
            counted = len(seen)
            seen.clear()
    assert counted == 1


def inverse(x: Tensor) -> Tensor:
    return torch.linalg.inv(x) @ torch.linalg.cholesky(x)


def tensor_inverse(x: Tensor) -> Tensor:
    return torch.linalg.tensorinv(x.reshape(2, 2, 4), ind=2)


def divided(x: Tensor) -> Tensor:
    return (7 // x) + x % 5


def drawn(x: Tensor) -> Tensor:
    return torch.multinomial(x.abs(), 3).float()


def chosen(x: Tensor) -> Tensor:
    return F.embedding(x.long(), torch.eye(3)) + F.one_hot(x.long(), 3)


def in_low_precision(x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        y = x @ x
        return y @ x


VALUES = [
    (inverse, torch.eye(4) * 2 + 1),
    (tensor_inverse, torch.eye(4) * 2 + 1),
    (divided, torch.tensor([3, 4])),
    (chosen, torch.tensor([0, 2])),
    (in_low_precision, torch.eye(4)),
]


@pytest.mark.parametrize(("function", "x"), VALUES)
def test_what_only_values_refuse_is_compiled(function: Callable[..., Any], x: Tensor) -> None:
    compiled: Any = lamina.compile(function, options={"numerics": "eager"})
    torch.testing.assert_close(compiled(x), function(x), rtol=0, atol=1e-6)
    assert not compiled.record.decisions("eager")


def test_asking_draws_no_random_numbers() -> None:
    x = torch.rand(2, 5)
    compiled = lamina.compile(drawn, options={"numerics": "eager"})
    torch.manual_seed(3)
    ours = compiled(x)
    torch.manual_seed(3)
    assert torch.equal(ours, drawn(x))


def absent_labels(x: Tensor) -> Tensor:
    labels = torch.tensor([[0, 2, -1, 1], [3, -1, 0, 0], [-1, 0, 0, 0]])
    return F.multilabel_margin_loss(x, labels, reduction="none")


def labels_of_one(x: Tensor) -> Tensor:
    return F.multilabel_margin_loss(x[0], torch.tensor([0, 2, -1, 1]), reduction="none")


def class_of_one(x: Tensor) -> Tensor:
    return F.multi_margin_loss(x[0], torch.tensor(1), reduction="none")


def margins_of_zero_and_nan(x: Tensor) -> Tensor:
    margins = x - x.detach() + torch.tensor([[1.0, 2.0, 3.0, 0.5], [2.0, 2.0, math.nan, 1.0], [0.0, 1.0, 1.0, 2.0]])
    return F.multi_margin_loss(margins, torch.tensor([1, 0, 3]), reduction="none")


@pytest.mark.filterwarnings("ignore:lamina leaves")
@pytest.mark.parametrize("loss", [absent_labels, labels_of_one, class_of_one, margins_of_zero_and_nan])
def test_margin_losses_are_those_of_eager(loss: Callable[[Tensor], Tensor]) -> None:
    x = floats(3, 4).requires_grad_()
    ours, eager = lamina.compile(loss)(x), loss(x)
    assert ours.shape == eager.shape
    torch.testing.assert_close(ours, eager)
    gradients = [torch.autograd.grad(result.sum(), x)[0] for result in (ours, eager)]
    torch.testing.assert_close(*gradients)


@pytest.mark.filterwarnings("ignore:lamina leaves")
@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("both", [True, False])
def test_unpooled_images_are_laid_out_as_in_eager(images: int, both: bool) -> None:
    last = floats(images, 3, 4, 4).to(memory_format=torch.channels_last)
    pooled, places = F.max_pool2d(last, 2, return_indices=True)
    pooled = pooled if both else pooled.contiguous()

    def unpooled(x: Tensor) -> Tensor:
        return F.max_unpool2d(x, places, 2)

    ours, eager = lamina.compile(unpooled)(pooled), unpooled(pooled)
    assert torch.equal(ours, eager)
    assert ours.stride() == eager.stride()


def test_a_usual_call_is_not_left_to_eager() -> None:
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.MaxPool2d(2)
    )
    images = floats(1, 3, 20, 20).to(memory_format=torch.channels_last)
    compiled: Any = lamina.compile(layers.eval())
    with torch.no_grad():
        torch.testing.assert_close(compiled(images), layers(images))
    assert not compiled.record.decisions("eager")


def test_attention_with_a_learned_bias_is_not_left_to_eager() -> None:
    bias = torch.nn.Parameter(floats(1, 2, 5, 5))

    def attended(x: Tensor) -> Tensor:
        heads = x.view(2, 5, 2, 4).transpose(1, 2)
        return F.scaled_dot_product_attention(heads, heads, heads, attn_mask=bias).transpose(1, 2)

    compiled: Any = lamina.compile(attended)
    x = floats(2, 5, 8)
    ours, eager = compiled(x), attended(x)
    torch.testing.assert_close(ours, eager)
    assert ours.stride() == eager.stride()
    assert not compiled.record.decisions("eager")


@pytest.mark.filterwarnings("ignore:lamina leaves")
@pytest.mark.parametrize(
    "parts",
    [
        lambda x: torch.unsafe_chunk(x, 2),
        lambda x: x.unsafe_split(2),
        lambda x: torch.unsafe_split_with_sizes(x, [1, 3]),
    ],
)
def test_unsafe_parts_lie_in_the_memory_of_the_whole(parts: Callable[[Tensor], tuple[Tensor, ...]]) -> None:
    def written(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        whole = x * 1
        first, second = parts(whole)
        first.mul_(2)
        return whole.sum(), first, second

    x = floats(4, 2)
    for ours, eager in zip(lamina.compile(written)(x), written(x), strict=True):
        assert torch.equal(ours, eager)
