"""What eager refuses is refused in its words: extremes of nothing, writes to shared memory, differences of booleans."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import lamina
from benchmarks.compilers import CompileFunction
from tests.semantics.program import agree, raises_alike, same

SETTINGS: dict[str, dict[str, Any]] = {
    "fast": {},
    "eager": {"options": {"numerics": "eager"}},
    "dynamic": {"dynamic": True},
    "dynamic_eager": {"dynamic": True, "options": {"numerics": "eager"}},
}

Program = Callable[..., Any]


@pytest.fixture(params=list(SETTINGS))
def settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The arguments of ``compile``: both numerics, sizes known and symbolic."""
    return SETTINGS[request.param]


def _raised(call: Callable[..., Any], *args: Any) -> Exception:
    with pytest.raises(Exception) as raised:  # noqa: PT011 (compared by its class and text)
        call(*args)
    return raised.value


def _refused_alike(compiled: Program, program: Program, make: Callable[[], Tensor]) -> None:
    """The compiled program raises eager's error: its class and its text, after which a place may be told."""
    theirs, ours = _raised(program, make()), _raised(compiled, make())
    assert type(ours) is type(theirs)
    assert str(ours).startswith(str(theirs))


# ---- extremes of nothing ------------------------------------------------------------------------------------------

EXTREMES: dict[str, tuple[Program, tuple[int, ...]]] = {
    "max": (lambda x: x.max(), (0, 5)),
    "min": (lambda x: (x + 1).min() * 2, (3, 0)),
    "max_dim": (lambda x: x.max(0), (0, 3)),
    "max_dim_of_nothing": (lambda x: x.max(0), (0, 0)),
    "max_values": (lambda x: x.max(0).values * 2, (0, 3)),
    "min_places": (lambda x: (x * 2).min(1).indices + 1, (3, 0)),
    "negative_dim": (lambda x: (x * 2).min(-1, keepdim=True), (3, 0)),
    "selected": (lambda x: x[x > 5].max(), (4, 3)),
}


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("name", list(EXTREMES))
def test_extremes_of_nothing(compile: CompileFunction, settings: dict[str, Any], name: str, dtype: torch.dtype) -> None:
    program, shape = EXTREMES[name]
    _refused_alike(compile(program, **settings), program, lambda: torch.zeros(shape, dtype=dtype))


def test_extremes_of_nothing_with_gradient(compile: CompileFunction, settings: dict[str, Any]) -> None:
    program = lambda x: (x * 2).max(1).values.sum()  # noqa: E731
    _refused_alike(compile(program, **settings), program, lambda: torch.zeros(3, 0, requires_grad=True))


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("shape", [(0, 3), (3, 0)], ids=str)
def test_extremes_for_nothing(compile: CompileFunction, settings: dict[str, Any], shape: tuple[int, int]) -> None:
    dim = shape.index(3)
    agree(compile, lambda: (lambda x: (*x.max(dim), x.amin(dim), x.argmax(dim)), (torch.zeros(shape),)), **settings)


NAMED_BY_CAPTURE: dict[str, Program] = {
    "amax": lambda x: x.amax(0),
    "amin_of_all": lambda x: x.amin(),
    "argmax": lambda x: x.argmax(0),
    "argmin_of_all": lambda x: x.argmin(),
    "aminmax": lambda x: x.aminmax(dim=0),
    "infinity_norm": lambda x: torch.linalg.vector_norm(x, float("inf"), 0),
}
"""Extremes that capture refuses by an error of its own."""


@pytest.mark.parametrize("name", list(NAMED_BY_CAPTURE))
def test_extremes_that_capture_refuses(compile: CompileFunction, settings: dict[str, Any], name: str) -> None:
    program = NAMED_BY_CAPTURE[name]
    raises_alike(compile, lambda: (program, (torch.zeros(0, 3),)), accepted=RuntimeError, **settings)


SYMBOLIC: dict[str, Program] = {
    "rest": lambda x: (x * 2)[2:].max(),
    "rest_along": lambda x: x[2:].min(0),
    "quarter": lambda x: x[: x.shape[0] // 4].max(0).values,
    "joined": lambda x: torch.cat([x, x])[4:].min(),
}


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("numerics", ["fast", "eager"])
@pytest.mark.parametrize("name", list(SYMBOLIC))
def test_sizes_that_become_zero(compile: CompileFunction, name: str, numerics: str) -> None:
    """A graph made for sizes that leave something is not used for those that leave nothing, and stays in use."""
    program = SYMBOLIC[name]
    compiled = compile(program, dynamic=True, options={"numerics": numerics})
    for rows in (9, 2, 7, 0, 5, 1, 8):
        x = torch.randn(rows, 3)
        try:
            theirs = program(x)
        except (IndexError, RuntimeError):
            _refused_alike(compiled, program, x.clone)
        else:
            same(compiled(x), theirs)


# ---- writes to elements that share memory -------------------------------------------------------------------------


def _shared() -> Tensor:
    """Three elements in one place."""
    return torch.ones(1).expand(3)


def _add(x: Tensor) -> Tensor:
    x.add_(1)
    return x * 2


def _augmented(x: Tensor) -> Tensor:
    x *= 2
    return x + 1


def _assigned(x: Tensor) -> Tensor:
    x[:] = 2
    return x + 1


def _scattered(x: Tensor) -> Tensor:
    return x.scatter_(0, torch.tensor([0]), torch.tensor([4.0])) + 1


@pytest.fixture
def _no_errors_are_kept() -> Iterator[None]:
    """Hooks of torch's checkpoint in which an error was raised stay in place while the error is there."""
    yield
    gc.collect()


def _in_checkpoint(x: Tensor) -> Tensor:
    return checkpoint(lambda y: (y * 1).sum(0, keepdim=True).expand(3).mul_(2), x, use_reentrant=False)


class _Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1).expand(3))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return x + self.count


SHARED: dict[str, tuple[Program, Callable[[], Tensor]]] = {
    "method": (_add, _shared),
    "rows": (_add, lambda: torch.ones(4, 1).expand(4, 3)),
    "augmented": (_augmented, _shared),
    "assigned": (_assigned, _shared),
    "scattered": (_scattered, _shared),
    "inplace": (lambda x: F.relu(x, inplace=True) * 2, _shared),
    "inplace_by_position": (lambda x: F.relu(x, True) * 2, _shared),
    "view_of_an_input": (lambda x: x.expand(3).add_(1), lambda: torch.ones(1)),
    "view_of_a_view": (lambda x: x[:, 0].add_(1), lambda: torch.ones(1, 3).expand(4, 3)),
    "made_within": (lambda x: x.clone().sum(0, keepdim=True).expand(3, 3).add_(1), lambda: torch.ones(3, 3)),
    "with_gradient": (lambda x: (x * 1).expand(3).mul_(2), lambda: torch.ones(1, requires_grad=True)),
    "in_checkpoint": (_in_checkpoint, lambda: torch.ones(2, requires_grad=True)),
}


@pytest.mark.sampled(one_in=24)
@pytest.mark.usefixtures("_no_errors_are_kept")
@pytest.mark.parametrize("name", list(SHARED))
def test_writes_to_shared_memory(compile: CompileFunction, settings: dict[str, Any], name: str) -> None:
    program, make = SHARED[name]
    _refused_alike(compile(program, **settings), program, make)


def test_writes_to_a_buffer_with_shared_memory(compile: CompileFunction, settings: dict[str, Any]) -> None:
    _refused_alike(compile(_Counter(), **settings), _Counter(), lambda: torch.ones(3))


def test_a_call_with_shared_memory_among_others(compile: CompileFunction, settings: dict[str, Any]) -> None:
    compiled = compile(_add, **settings)
    for make in (lambda: torch.ones(3, 4), lambda: torch.ones(1, 4).expand(3, 4), lambda: torch.ones(5, 4)):
        if 0 in make().stride():
            _refused_alike(compiled, _add, make)
        else:
            same(compiled(make()), _add(make()))


def _both(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    return x + y


def _base_and_view() -> tuple[Program, tuple[Any, ...]]:
    base = torch.ones(1, 4)
    return _both, (base, base.expand(3, 4))


ALLOWED: dict[str, Callable[[], tuple[Program, tuple[Any, ...]]]] = {
    "fill": lambda: (lambda x: x.fill_(2) * 2, (_shared(),)),
    "zero": lambda: (lambda x: x.zero_() + 2, (_shared(),)),
    "one_element": lambda: (lambda x: x[0].mul_(3) + x, (_shared(),)),
    "base": _base_and_view,
    "size_of_one": lambda: (_add, (torch.ones(3, 1).as_strided((3, 1), (1, 0)),)),
    "empty": lambda: (_add, (torch.ones(1, 1).expand(3, 0),)),
    "only_read": lambda: (lambda x: x + x.sum(), (_shared(),)),
    "copy": lambda: (lambda x: x.clone().add_(1), (_shared(),)),
}


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("name", list(ALLOWED))
def test_writes_that_eager_allows(compile: CompileFunction, settings: dict[str, Any], name: str) -> None:
    agree(compile, ALLOWED[name], exact=False, **settings)


# ---- writes to one of several views, and to what the backward pass needs --------------------------------------------


def _each(x: Tensor) -> Tensor:
    y = x * 1
    for row in y:
        row.add_(1)
    return y.sum()


def _rows(x: Tensor) -> Tensor:
    y = x * 1
    _, second, _ = y
    second.mul_(2)
    return y.sum()


def _listed(x: Tensor) -> Tensor:
    y = x * 1
    first, *_ = [*y]
    first[:2] = 3
    return y.sum()


def _numbered(x: Tensor) -> Tensor:
    y = x * 1
    for number, (row, other) in enumerate(zip(y, x, strict=True)):
        row.copy_(other * number)
    return y.sum()


def _written(take: Program) -> Program:
    def program(x: Tensor) -> Tensor:
        y = x * 1
        take(y).mul_(2)
        return (y * y).sum()

    return program


def _changed(compute: Program, result: bool) -> Program:
    """A program that writes to what ``compute`` takes, or to the first of what it gives."""

    def program(x: Tensor) -> Tensor:
        y = x * 1
        found = compute(y)
        parts = found if isinstance(found, tuple) else (found,)
        (parts[0] if result else y).mul_(2)
        return torch.stack([part.sum() for part in parts]).sum()

    return program


VIEWS: dict[str, Program] = {
    "each": _each,
    "rows": _rows,
    "listed": _listed,
    "numbered": _numbered,
    "unbind": _written(lambda y: y.unbind(1)[0]),
    "split": _written(lambda y: y.split(2)[1]),
    "chunk": _written(lambda y: y.chunk(3)[1].view(-1)),
}
SAVED: dict[str, Program] = {
    "svd_result": _changed(lambda y: tuple(torch.linalg.svd(y, full_matrices=False)), True),
    "eigh_result": _changed(lambda y: tuple(torch.linalg.eigh(y @ y.t()))[::-1], True),
    "qr_result": _changed(lambda y: tuple(torch.linalg.qr(y)), True),
    "prod": _changed(lambda y: y.prod(), False),
    "prod_result": _changed(lambda y: y.prod(0), True),
    "cumprod": _changed(lambda y: y.cumprod(0), False),
    "cumprod_result": _changed(lambda y: y.cumprod(0), True),
    "norm_result": _changed(lambda y: y.norm(dim=0), True),
    "std_result": _changed(lambda y: y.std(0), True),
}


@pytest.mark.usefixtures("_no_errors_are_kept")
@pytest.mark.filterwarnings("ignore:lamina runs", "ignore:Error detected in")
@pytest.mark.sampled(one_in=18)
@pytest.mark.parametrize("name", [*VIEWS, *SAVED])
@pytest.mark.parametrize("how", ["static", "dynamic", "own"])
def test_writes_that_autograd_refuses(how: str, name: str) -> None:
    """One of several views is not written to, nor what is needed for gradients before these are asked for."""
    program = {**VIEWS, **SAVED}[name]
    options = {"strict": False, "capture": "own" if how == "own" else "dynamo"}
    torch.compiler.reset()
    compiled = lamina.compile(program, options=options, dynamic=True if how == "dynamic" else None)

    def whole(function: Program) -> Program:
        return lambda x: function(x).backward()

    def make() -> Tensor:
        return torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()

    theirs, ours = _raised(whole(program), make()), _raised(whole(compiled), make())
    assert type(ours) is type(theirs)


@pytest.mark.parametrize("dynamic", [False, True])
def test_rows_that_are_only_read_have_their_gradients(compile: CompileFunction, dynamic: bool) -> None:
    def program(x: Tensor) -> Tensor:
        with torch.no_grad():
            for row in x.detach() * 1:
                row.add_(1)
        return torch.stack([row * number for number, row in enumerate(x.exp())])

    agree(compile, lambda: (program, (torch.randn(3, 4, requires_grad=True),)), exact=False, dynamic=dynamic)


# ---- arithmetic that no type has ----------------------------------------------------------------------------------

DIFFERENCES: dict[str, Program] = {
    "true": lambda x: x - True,
    "false": lambda x: (x - False) * 2,
    "from_true": lambda x: True - x,
    "mask": lambda x: x - (x > 0),
    "from_mask": lambda x: (x > 0) - x * 2,
    "mask_and_number": lambda x: (1 - (x > 0)) * x,
    "function": lambda x: torch.sub(x, True, alpha=2) + 1,
    "in_place": lambda x: x.clone().sub_(True) * 2,
    "lists": lambda x: torch._foreach_sub([x, x], True),
    "factor": lambda x: torch.add(x, x, alpha=True),
    "factor_of_a_difference": lambda x: torch.sub(x, x * 2, alpha=True),
}


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
@pytest.mark.parametrize("name", list(DIFFERENCES))
def test_differences_with_booleans(
    compile: CompileFunction, settings: dict[str, Any], name: str, dtype: torch.dtype
) -> None:
    program = DIFFERENCES[name]
    _refused_alike(compile(program, **settings), program, lambda: torch.ones(3, dtype=dtype))


CASTS: dict[str, Program] = {
    "number": lambda x: 1.0 - (x > 0).float(),
    "tensor": lambda x: x - (x > 0).to(x.dtype),
    "integer": lambda x: 1 - (x > 0).int(),
    "factor": lambda x: torch.sub(x, (x > 0).float(), alpha=3),
    "sum": lambda x: torch.add(x > 0, x < 1, alpha=True),
    "sum_with_true": lambda x: (x + True, x * True),
}


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("name", list(CASTS))
def test_booleans_as_numbers(compile: CompileFunction, settings: dict[str, Any], name: str) -> None:
    agree(compile, lambda: (CASTS[name], (torch.randn(5, 4),)), **settings)
