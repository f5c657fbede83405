"""Graphs that write to objects depend on which of a call's values are the same object."""

import collections
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import lamina

Made = Callable[[], Any]


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0


def append(x, written, read):
    written.append(2)
    return x * len(read)


def set_item(x, written, read):
    written[0] = 9
    return x * read[0]


def change_twice(x, written, read):
    written[0] += 2
    read[0] *= 3
    return x * written[0]


def add(x, written, read):
    written.add(9)
    return x * len(read)


def set_attribute(x, written, read):
    written.count = 9
    return x * read.count


def set_attribute_of_a_part(x, written, read):
    written.part.count = 9
    return x * read.part.count


def without_a_graph(x, written, read):
    written.append(2)
    length = len(read)
    torch._dynamo.graph_break()
    return x * length


def over_a_list(x, written, read):
    for one in (written, read):
        one.append(1)
    return x * sum(map(len, [written, read]))


def shown(value: Any) -> str:
    return f"{value.training} {value.count}" if isinstance(value, Counter) else str(value)


CASES: list[tuple[Callable[..., Any], Made]] = [
    (append, list),
    (append, lambda: collections.deque([1])),
    (set_item, lambda: [1]),
    (set_item, lambda: {0: 1}),
    (set_item, lambda: collections.OrderedDict({0: 1})),
    (change_twice, lambda: {0: 1}),
    (add, lambda: {1}),
    (set_attribute, lambda: types.SimpleNamespace(count=1)),
    (set_attribute, Counter),
    (set_attribute_of_a_part, lambda: types.SimpleNamespace(part=types.SimpleNamespace(count=1))),
    (without_a_graph, list),
    (over_a_list, list),
]


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("order", ["first two", "first one"])
@pytest.mark.parametrize(("f", "make"), CASES, ids=lambda case: getattr(case, "__name__", ""))
def test_one_object_for_two(f, make, order):
    compiled = lamina.compile(f)
    x = torch.ones(2)
    for same in (False, True, False, True) if order == "first two" else (True, False, True):
        wanted, found = make(), make()
        of_eager = f(x, wanted, wanted if same else make())
        of_ours = compiled(x, found, found if same else make())
        assert torch.equal(of_ours, of_eager), same
        assert shown(found) == shown(wanted), same


def test_a_variable_of_one_function_or_of_two():
    def pair():
        count = 0

        def increase():
            nonlocal count
            count += 1

        return increase, lambda: count

    def f(x, increase, read):
        increase()
        return x * read()

    compiled = lamina.compile(f)
    x = torch.ones(2)
    for _ in range(2):
        assert torch.equal(compiled(x, pair()[0], pair()[1]), x * 0)
        assert torch.equal(compiled(x, *pair()), x)


def test_submodules_that_become_one():
    class Increasing(Counter):
        def forward(self, x):
            self.count += 1
            return x + self.count

    model = torch.nn.Sequential(Increasing(), Increasing())
    compiled = lamina.compile(model)
    assert compiled(torch.zeros(1)).item() == 2
    model[1] = model[0]
    assert compiled(torch.zeros(1)).item() == 5


def test_what_is_only_read_is_not_told_apart():
    compiled = lamina.compile(lambda x, a, b: x * (a.count + b.count))
    one, other = types.SimpleNamespace(count=1), types.SimpleNamespace(count=1)
    compiled(torch.ones(2), one, other)
    compiled(torch.ones(2), types.SimpleNamespace(count=1), types.SimpleNamespace(count=1))
    assert compiled.stats().recompiles == 0


def test_objects_that_stay_two_compile_once():
    compiled = lamina.compile(append)
    for _ in range(3):
        compiled(torch.ones(2), [], [])
    assert compiled.stats().recompiles == 0
