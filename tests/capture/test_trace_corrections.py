"""What Dynamo takes to be otherwise than it is: state behind methods of new objects, deques, generators, subclasses."""

from __future__ import annotations

import collections
import dataclasses
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest
import torch

import lamina
from lamina.capture.wrong_traces.torch_private import _acts_when_closed

WAYS: dict[str, Callable[[Any], Any]] = {
    "lamina": lamina.compile,
    "torch": lambda f: torch.compile(f, backend="lamina"),
}
Program = tuple[Any, Callable[[], Any]]


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def context_manager_that_writes() -> Program:
    log: list[str] = []

    class Manager:
        def __enter__(self) -> int:
            log.append("in")
            return 3

        def __exit__(self, *_: object) -> None:
            log.append("out")

    def program(x: torch.Tensor) -> torch.Tensor:
        with Manager() as factor:
            return x * factor + len(log)

    return program, lambda: log


def method_that_writes() -> Program:
    log: list[int] = []

    class Kind:
        def __init__(self, factor: int) -> None:
            log.append(factor)
            self.factor = factor

        def __len__(self) -> int:
            log.append(0)
            return self.factor

    return lambda x: x * len(Kind(3)) + len(log), lambda: log


def method_that_reads() -> Program:
    count = 1

    def more() -> int:
        nonlocal count
        count += 1
        return count

    class Kind:
        def factor(self) -> int:
            return count

    return lambda x: x * Kind().factor(), more


def default_of_a_method() -> Program:
    class Kind:
        def factor(self, held: list[int] = [1]) -> int:  # noqa: B006
            held.append(1)
            return len(held)

    return lambda x: x * Kind().factor(), lambda: None


def default_of_a_function() -> Program:
    def factor(held: list[int] = [1], *, more: list[int] = [2]) -> int:  # noqa: B006
        held.append(1)
        more.append(more[-1])
        return len(held) + sum(more)

    return lambda x: x * factor(), lambda: (len(factor.__defaults__[0]), factor.__kwdefaults__["more"])  # type: ignore[index]


def data_class_that_writes() -> Program:
    log: list[str] = []

    @dataclasses.dataclass
    class Kind:
        value: torch.Tensor

        def __post_init__(self) -> None:
            log.append("made")

    return lambda x: Kind(x).value * len(log), lambda: log


def named_tuple_that_writes() -> Program:
    log: list[str] = []

    class Kind(NamedTuple):
        value: torch.Tensor

        def doubled(self) -> torch.Tensor:
            log.append("doubled")
            return self.value * 2

    return lambda x: Kind(x).doubled() + len(log), lambda: log


def iterator_that_writes() -> Program:
    log: list[int] = []

    class Kind:
        def __init__(self) -> None:
            self.left = 3

        def __iter__(self) -> Kind:
            return self

        def __next__(self) -> int:
            log.append(self.left)
            self.left -= 1
            if self.left < 0:
                raise StopIteration
            return self.left

    return lambda x: sum(x * k for k in Kind()) + len(log), lambda: log


def deque_of_a_length() -> Program:
    held: Any = collections.deque(maxlen=2)

    def program(x: torch.Tensor) -> torch.Tensor:
        held.append(x * 2)
        return sum(held) * len(held)  # type: ignore[no-any-return]

    return program, lambda: list(held)


def generator_of_ones_own() -> Program:
    draws = random.Random(3)
    return lambda x: x * draws.random() + draws.randint(1, 9), draws.random


def generator_that_is_new() -> Program:
    def program(x: torch.Tensor) -> torch.Tensor:
        draws = random.Random(3)
        return x * draws.uniform(1, 2)

    return program, lambda: None


def generator_of_the_module() -> Program:
    random.seed(1)
    return lambda x: x * random.uniform(1, 2) + random.random(), random.random


PROGRAMS = (
    context_manager_that_writes,
    method_that_writes,
    method_that_reads,
    default_of_a_method,
    default_of_a_function,
    data_class_that_writes,
    named_tuple_that_writes,
    iterator_that_writes,
    deque_of_a_length,
    generator_of_ones_own,
    generator_that_is_new,
    generator_of_the_module,
)


@pytest.mark.sampled(one_in=6)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_state_is_read_and_left_as_in_eager(make: Callable[[], Program], way: str) -> None:
    seen = []
    for entry in (lambda f: f, WAYS[way]):
        program, state = make()
        compiled = entry(program)
        results = []
        for k in range(4):
            results += [compiled(torch.full((3,), float(k + 1))), state()]
        seen.append(repr(results))
    assert seen[0] == seen[1]


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_writes_to_tensors_of_one_number_are_kept(way: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        x.add_(x)
        return x * y

    compiled = WAYS[way](function)
    for length in (3, 5, 6):
        x, ones = torch.full(shape, -0.75, dtype=dtype), torch.ones(length)
        assert torch.equal(compiled(x, ones), -3.0 * ones.to(torch.result_type(x, ones)))
        assert torch.equal(x, torch.full(shape, -3.0, dtype=dtype))


class Plain(torch.Tensor):
    pass


class Adds(torch.Tensor):
    """Calls torch within its own handler, which calls the handler again."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        if func is torch.Tensor.mul:
            return result.add(1)
        return result.neg() if func is torch.Tensor.add else result


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [Plain, Adds])
def test_classes_of_tensors(kind: type[torch.Tensor], way: str) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x.sub_(1)
        return x, x * 2, (x * 3).add(x), x.sum()

    seen = []
    for entry in (lambda f: f, WAYS[way]):
        x = torch.arange(3.0).as_subclass(kind)
        results = entry(program)(x)
        assert results[0] is x
        seen.append(results)
    for one, other in zip(*seen, strict=True):
        assert type(one) is type(other) is kind
        assert torch.equal(one.as_subclass(torch.Tensor), other.as_subclass(torch.Tensor))


class Own(torch.Tensor):
    def __mul__(self, other: Any) -> Any:
        return torch.Tensor.__mul__(self, other) + 1

    def __neg__(self) -> Any:
        return self * 5

    def __lt__(self, other: Any) -> Any:
        return self * 7

    def __len__(self) -> int:
        return 9


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "program",
    [lambda x: x * 2, lambda x: -x, lambda x: x < 1, lambda x: x.sin() + len(x), lambda x: (x + 1).exp() * 3],
)
def test_operators_of_classes_of_tensors(program: Any, way: str) -> None:
    x = torch.arange(3.0).as_subclass(Own)
    found, wanted = WAYS[way](program)(x), program(x)
    assert type(found) is type(wanted) is Own
    assert torch.equal(found.as_subclass(torch.Tensor), wanted.as_subclass(torch.Tensor))


def test_traces_of_other_compilers_are_theirs() -> None:
    draws = random.Random(3)
    run = torch.compile(lambda x: x * draws.randint(1, 9), backend="eager", fullgraph=True)
    assert run(torch.ones(2)).shape == (2,)


def _counting() -> Any:
    sent = yield 1
    while True:
        try:
            sent = yield sent * 2
        except ValueError:
            sent = yield -1


def test_what_is_sent_to_a_generator_after_an_exception_arrives() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, int, int]:
        made = _counting()
        next(made)
        first, handled = made.send(5), made.throw(ValueError())
        return x * first, handled, made.send(2)

    x = torch.ones(2)
    found, wanted = lamina.compile(function, backend="interp")(x), function(x)
    assert found[0].tolist() == wanted[0].tolist()
    assert found[1:] == wanted[1:]


def _with_clauses() -> Iterator[int]:
    try:
        yield 1
    except (IndexError, KeyError) as error:
        print(error)
    except ValueError:
        pass


def _with_finally() -> Iterator[int]:
    try:
        yield 1
    finally:
        print("left")


def _with_any_exception() -> Iterator[int]:
    try:
        yield 1
    except ValueError:
        pass
    except BaseException:
        print("left")
        raise


def _with_a_manager() -> Iterator[int]:
    with torch.no_grad():
        yield 1


def _with_a_named_class(kind: type = ValueError) -> Iterator[int]:
    try:
        yield 1
    except kind:
        print("left")


@pytest.mark.parametrize(
    ("function", "acts"),
    [
        (Sequence.__iter__, False),
        (_with_clauses, False),
        (_with_finally, True),
        (_with_any_exception, True),
        (_with_a_manager, True),
        (_with_a_named_class, True),
    ],
)
def test_handlers_that_may_take_what_closes_a_generator(function: Any, acts: bool) -> None:
    assert _acts_when_closed(function.__code__, function.__globals__) is acts


class _Parts(Sequence[int]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, place: Any) -> Any:
        return [2, 5, 7][place]


def test_a_sequence_that_is_left_in_the_middle_is_part_of_a_graph() -> None:
    parts = _Parts()

    def function(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if any(part > 4 for part in parts) else x

    x = torch.ones(2)
    compiled = lamina.compile(function, backend="interp", fullgraph=True, options={"strict": True})
    assert torch.equal(compiled(x), x * 2)


def test_a_generator_of_tensors_that_handles_an_exception_goes_on() -> None:
    def parts(x: torch.Tensor) -> Any:
        try:
            yield x
        except ValueError:
            sent = yield x * 2
            yield x * sent

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        made = parts(x)
        first = next(made)
        y = x + 1
        return first + y, made.throw(ValueError()), made.send(5)

    x = torch.ones(2)
    for found, wanted in zip(lamina.compile(function, backend="interp")(x), function(x), strict=True):
        assert torch.equal(found, wanted)
