"""What Python compares itself, tensors in containers and the greatest of them, and where NumPy meets torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lamina

WAYS: dict[str, Callable[[Any], Any]] = {
    "lamina": lamina.compile,
    "torch": lambda f: torch.compile(f, backend="lamina"),
}
X, Y = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([3.0, 1.0, 2.0])
NAN_ = float("nan")
ONE, NAN = torch.tensor(1.0), torch.tensor(torch.nan)


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def seen(function: Any, arguments: Any) -> Any:
    try:
        found = function(*arguments)
    except Exception as error:
        return type(error), str(error)[:40]
    results = found if isinstance(found, (list, tuple)) else [found]
    return [(type(r), str(np.asarray(r.detach() if isinstance(r, Tensor) else r))) for r in results]


PROGRAMS: dict[str, tuple[Any, tuple[tuple[Any, ...], ...]]] = {
    "in": (lambda x, held: (x in held, x * 2), ((X, [X, Y]), (X, []), (X[:1], [Y[:1]]), (X, [Y, X]), (X, ["a", X]))),
    "in, then the same object": (lambda x, held: x in held, ((X[:1], [Y[:1]]), (X[:1], [X[:1]]), (ONE, [1, 2]))),
    "count": (lambda x, held: held.count(x), ((ONE, [ONE, 1.0, 2]), (X, [X, Y]))),
    "remove": (lambda x, y: (lambda held: (held.remove(y), held[0])[1])([x, y]), ((ONE, NAN), (X, Y))),
    "greatest": (lambda x, y: (max(x, y), min(y, x), max(y, 0.5)), ((ONE, NAN), (NAN, ONE), (ONE, ONE * 2), (X, Y))),
    "greatest by key": (lambda x, y: max([x, y], key=lambda t: t[0]) * 2, ((X, Y), (Y, X))),
    "greatest of two types": (
        lambda x, k: (min(x.shape[0], k) + 1, max(k, 2), x + 1),
        ((X, 2.5), (X, 5.5), (X, 7), (X, 1)),
    ),
    "number among numbers": (
        lambda x, k, held: (k in held, x + 1),
        ((X, 1, [0.5]), (X, 1.0, [1]), (X, True, [NAN_, 1.0])),
    ),
    "scalars of NumPy": (lambda x: (x.numpy().sum(), x.numpy().max(0) + 1, np.array(3.0)), ((X,), (Y,))),
    "type of a scalar": (lambda x: (isinstance(x.numpy().mean(), np.ndarray), x + 1), ((X,),)),
    "functions of NumPy": (lambda x: np.sin(x), ((X,), (X.clone().requires_grad_(),))),
    "arrays of what has gradients": (lambda x: (x * 2).numpy(), ((X,), (X.clone().requires_grad_(),))),
    "arrays of conjugates": (lambda x: x.numpy(), ((torch.tensor([1j]).conj(),), (torch.tensor([1j]),))),
}


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_values_are_those_of_python(name: str, way: str) -> None:
    program, calls = PROGRAMS[name]
    compiled = WAYS[way](program)
    assert [seen(compiled, c) for c in calls] == [seen(program, c) for c in calls]


def test_a_parameter_is_looked_for_among_parameters() -> None:
    module = nn.Linear(2, 2)
    held = list(module.parameters())
    assert lamina.compile(lambda x: x * (2 if module.weight in held else 3))(ONE) == 2


@pytest.mark.parametrize("way", WAYS)
def test_numbers_of_numpy_follow_its_seed(way: str) -> None:
    def program(x: Tensor) -> Tensor:
        return x + torch.from_numpy(np.random.rand(3)) + np.random.randint(5)

    def run(function: Any) -> tuple[list[Any], float]:
        np.random.seed(3)
        return [function(X).tolist() for _ in range(2)], float(np.random.rand())

    assert run(WAYS[way](program)) == run(program)


@pytest.mark.parametrize("way", WAYS)
def test_padding_in_a_transformer_encoder(way: str) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 4, dropout=0.0, batch_first=True)
    module = nn.TransformerEncoder(layer, 1).eval()
    x, padding = torch.randn(2, 3, 4), torch.tensor([[False, False, True], [False, True, True]])
    compiled = WAYS[way](module)
    with torch.no_grad():
        assert torch.equal(compiled(x, src_key_padding_mask=padding)[1, 1:], torch.zeros(2, 4))
    assert compiled(x, src_key_padding_mask=padding)[1, 1:].all()


@pytest.mark.skipif(not hasattr(torch._dynamo.config, "invalidate_compile_context_weakrefs"), reason="torch below 2.13")
def test_parameters_may_be_swapped_after_a_call() -> None:
    module = nn.Linear(2, 2, bias=False)
    compiled = lamina.compile(module)
    compiled(torch.ones(1, 2))
    torch.utils.swap_tensors(module.weight, nn.Parameter(torch.eye(2) * 5))
    assert torch.equal(compiled(torch.ones(1, 2)), torch.full((1, 2), 5.0))


@pytest.mark.parametrize("way", WAYS)
def test_an_assertion_without_a_message_is_kept(way: str) -> None:
    def program(x: Tensor) -> Tensor:
        torch._assert_async((x > 0).all())
        return x * 2

    compiled = WAYS[way](program)
    assert torch.equal(compiled(X), X * 2)
    with pytest.raises(RuntimeError, match="nonzero"):
        compiled(-X)
