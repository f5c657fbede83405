"""How much of programs with graph breaks is compiled, and how many graphs are."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch.overrides import TorchFunctionMode

from lamina.capture.own.interpreting import Interpreting
from lamina.capture.own.reuse.versions import Versions
from lamina.capture.own.torch_calls import QUERIES, name_of
from lamina.record import Record
from tests.capture.own import programs_that_break
from tests.capture.own.broken_programs import PROGRAMS, rounds

LEAST = 0.8
"""The part of all calls of torch's that is in graphs."""


class Interpreted:
    """Calls of a program, each of them interpreted, with the graphs that it has."""

    def __init__(self, program):
        self.graphs, record = [], Record()
        self.interpreting = Interpreting(
            program,
            ("program",),
            self._backend,
            record,
            False,
            None,
            Versions(("program",), record),
            lambda node, laid_out: False,
        )

    def _backend(self, gm, fakes):
        self.graphs.append(gm)
        return gm.forward

    def __call__(self, *args):
        return self.interpreting.call(args, {})


class Counting(TorchFunctionMode):
    """Counts the calls of torch's that compute something, all and by name."""

    def __init__(self):
        super().__init__()
        self.calls, self.names = 0, Counter()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if name_of(func) not in QUERIES:
            self.calls += 1
            self.names[name_of(func)] += 1
        return func(*args, **(kwargs or {}))


def test_there_are_twenty_programs() -> None:
    assert len(PROGRAMS) == len(set(PROGRAMS)) == 20


def test_calls_of_programs_with_breaks_within_loops_and_handlers_are_in_graphs() -> None:
    captured = made = 0
    for program in programs_that_break.PROGRAMS:
        call, x = Interpreted(program), torch.linspace(-1, 2, 8)
        with Counting() as counting:
            wanted = program(x)
        torch.testing.assert_close(call(x), wanted)
        assert call.graphs, program
        captured, made = captured + min(call.interpreting.regions.calls, counting.calls), made + counting.calls
    assert captured >= LEAST * made


def test_most_calls_of_programs_with_graph_breaks_are_in_graphs() -> None:
    captured = made = 0
    for program in PROGRAMS:
        call, x = Interpreted(program), torch.linspace(-1, 2, 8)
        with Counting() as counting:
            wanted = program(x)
        torch.testing.assert_close(call(x), wanted)
        assert call.graphs, f"{program.__name__} has no graph"
        regions = call.interpreting.regions
        part = min(regions.calls, counting.calls)  # more where one that is recorded raises
        assert part >= LEAST * counting.calls, program.__name__
        captured, made = captured + part, made + counting.calls
    assert captured >= LEAST * made


@pytest.mark.parametrize("count", [8, 8000])
def test_a_loop_compiles_its_body_once_whatever_the_number_of_its_rounds(count: int) -> None:
    call, x = Interpreted(rounds(count)), torch.linspace(-1, 2, 8)
    torch.testing.assert_close(call(x), rounds(count)(x))
    assert len(call.graphs) == 3


def test_equal_regions_share_one_compilation() -> None:
    def block(x):
        y = (x @ x.t()).softmax(-1) @ x
        return y + 1 if y.sum() > -1e9 else y

    def program(x):
        for _ in range(5):
            x = block(x)
        return x

    call, x = Interpreted(program), torch.linspace(-1, 1, 16).view(4, 4)
    torch.testing.assert_close(call(x), program(x))
    assert len(call.graphs) == 3
