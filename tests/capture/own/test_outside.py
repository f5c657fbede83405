"""What a call prints, and the clocks that it reads: done again by each call, which is not interpreted for it."""

from __future__ import annotations

import contextlib
import io
import time

import pytest
import torch

from lamina.capture.own.callable import interpreted_callable
from lamina.capture.own.machine import Machine
from lamina.record import Record


class Interpreted:
    """A program that is captured, with how many of its calls were interpreted."""

    def __init__(self, program, monkeypatch):
        self.count, self.record, run, self.ran = 0, Record(), Machine.run, []

        def counted(machine, *given):
            self.count += not machine.frames
            return run(machine, *given)

        def backend(gm, fakes):
            def ran(*inputs):
                self.ran.append(gm)
                return gm.forward(*inputs)

            return ran

        monkeypatch.setattr(Machine, "run", counted)
        self.call = interpreted_callable(program, backend_callable=backend, record=self.record)


def told(function, x):
    with contextlib.redirect_stdout(io.StringIO()) as stream:
        result = function(x)
    return result, stream.getvalue()


class Counts(io.StringIO):
    """A stream of the user's, which does something else as well."""

    written = 0

    def write(self, text):
        Counts.written += 1
        return super().write(text)


def texts(x):
    print("begin", 1, None, (2, "a"), sep="-", end=";")
    y = x * 2
    print("sum", y.sum().item())
    return y + 1


def changed_later(x):
    parts = [1]
    print(parts)
    parts.append(2)
    print(parts, flush=True)
    return x * len(parts)


@pytest.mark.parametrize("program", [texts, changed_later])
def test_what_a_call_prints_is_printed_by_each(program, monkeypatch) -> None:
    compiled = Interpreted(program, monkeypatch)
    for call in range(4):
        x = torch.full((3,), float(call))
        assert [str(one) for one in told(compiled.call, x)] == [str(one) for one in told(program, x)]
    assert compiled.count == 1


def test_a_stream_of_the_users_is_written_to_by_python(monkeypatch) -> None:
    def program(x):
        print("a", "b")
        return x + Counts.written

    compiled = Interpreted(program, monkeypatch)
    told(compiled.call, torch.zeros(1))
    for _ in range(2):
        Counts.written = 0
        with contextlib.redirect_stdout(Counts()):
            assert compiled.call(torch.zeros(1)).item() == Counts.written > 0


def test_a_print_of_a_graph_that_raises_comes_before_its_error(monkeypatch) -> None:
    def program(x, i):
        print("before")
        return x[i] * 2

    compiled = Interpreted(program, monkeypatch)
    x = torch.randn(3)
    for index in (1, 2, 7):
        i = torch.tensor(index)
        with contextlib.redirect_stdout(io.StringIO()) as stream:
            if index < 3:
                assert torch.equal(compiled.call(x, i), x[i] * 2)
            else:
                with pytest.raises(IndexError):
                    compiled.call(x, i)
        assert stream.getvalue() == "before\n"


@pytest.mark.parametrize("clock", [time.time, time.perf_counter, time.monotonic])
def test_a_clock_is_read_when_what_came_before_is_computed(clock, monkeypatch) -> None:
    seen = []

    def program(x):
        begin = clock()
        y = x.sin().cos()
        seconds = clock() - begin
        return y + 1, seconds

    compiled = Interpreted(program, monkeypatch)
    for call in range(3):
        x = torch.randn(3)
        compiled.ran.clear()
        y, seconds = compiled.call(x)
        torch.testing.assert_close(y, x.sin().cos() + 1)
        assert type(seconds) is float
        assert seconds >= 0
        seen.append(seconds)
        assert len(compiled.ran) == 2, call
    assert compiled.count == 1
    assert len({*seen}) == 3
    assert any("clock" in str(decision.reason) for decision in compiled.record.decisions("break"))
