"""Errors that depend on values: raised where the program that eager runs could see them, whoever reads the result."""

from __future__ import annotations

from collections import Counter
from contextvars import ContextVar, copy_context
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import lamina
from lamina.capture.own import segment, trials
from lamina.capture.own.callable import interpreted_callable
from lamina.record import Record

GOOD, BAD = torch.tensor([0, 1]), torch.tensor([0, 9])


class Suppressing:
    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        return kind is not None and issubclass(kind, IndexError)


def unread_and_caught(x, i, log):
    try:
        x[i]
    except IndexError:
        return x - 1
    return x + 1


def unread_beside_a_result(x, i, log):
    y = x * 2
    x[i]
    return y


def unread_alone(x, i, log):
    torch.gather(x, 0, i)
    return 3


def what_was_computed_before_is_kept(x, i, log):
    y = x * 2
    try:
        z = y[i]
        log.append(1)
        y = z
    except IndexError as error:
        log.append(str(error))
        return y.sin()
    return y.cos()


def attributes_after_it_are_not_set(x, i, log):
    class Holder:
        pass

    holder = Holder()
    try:
        z = x[i] * 2
        holder.n = 1
    except IndexError:
        return x, hasattr(holder, "n")
    return z, holder.n


def in_a_function_that_is_called(x, i, log):
    def inner(x):
        return x[i] + 1

    try:
        z = inner(x * 2)
    except (IndexError, RuntimeError):
        z = x - 7
    return z * 2


def under_finally(x, i, log):
    try:
        return x[i] * 2
    except IndexError:
        return x
    finally:
        log.append("finally")


def under_a_manager_that_suppresses(x, i, log):
    with Suppressing():
        y = x[i] * 2
        log.append("within")
        return y
    return x * 3


def before_an_error_of_the_programs(x, i, log):
    try:
        x[i]
        raise KeyError
    except KeyError:
        return x * 5
    except IndexError:
        return x * 7


def in_a_generator(x, i, log):
    def parts():
        try:
            yield x[i] * 2
        except IndexError:
            yield x * 9

    return list(parts())


def of_another_handler(x, i, log):
    try:
        try:
            y = F.embedding(i, x.view(4, 1))
        except KeyError:
            return x
    except IndexError:
        return x * 11
    return y


def of_an_algorithm(x, i, log):
    m = x[:1].view(1, 1) * (-1 if i is BAD else 1)
    try:
        c = torch.linalg.cholesky(m)
        log.append("done")
    except RuntimeError:
        return m
    return c


def uncaught(x, i, log):
    y = x * 3
    log.append(y)
    y[i]
    raise ValueError("later")


def variables_are_as_they_were(x, i, log):
    y = x * 2
    try:
        y, z = x[i], y
        y = y.sin()
    except IndexError:
        return y
    return y, z


def variables_of_a_call_that_raises(x, i, log):
    def inner(y):
        y.view(2, 2)[i]
        return y * 3

    y = x * 2
    for k in range(2):
        try:
            y = inner(y)
        except IndexError:
            y = y + k
    return y


def variables_that_are_not_there(x, i, log):
    try:
        y = torch.linalg.cholesky(x[1:2].view(1, 1) * (1 if i is GOOD else -1))
        z = y + 1
    except RuntimeError:
        log.append(0)
    return z


def within_the_handler_of_a_call(x, i, log):
    def inner():
        try:
            return x[i]
        except IndexError:
            log.append("inner")
            return x

    y = x
    try:
        y = x[GOOD]
        y = inner()
    except IndexError:
        log.append("outer")
    return y


def a_result_written_to_before(x, i, log):
    y = x * 2
    with Suppressing():
        y.mul_(2)
        x[i].sum()
        y.add_(1)
    return x * y


def before_gradients_are_switched_off(x, i, log):
    y = x[i]
    torch.set_grad_enabled(False)
    return y


def while_gradients_are_switched_off(x, i, log):
    torch.set_grad_enabled(False)
    y = x[i]
    torch.set_grad_enabled(True)
    return y


def before_a_block_without_gradients(x, i, log):
    x[i]
    with torch.no_grad():
        y = x * 2
    torch.set_grad_enabled(False)
    return y


def of_a_call_that_eager_refuses(x, i, log):
    i.softmax(-1)
    torch.set_grad_enabled(False)
    return x


def in_a_loop(x, i, log):
    found = []
    for k in range(3):
        try:
            found.append(x[i + k] * k)
        except IndexError:
            found.append(x * k)
            break
    return found


PROGRAMS = [
    unread_and_caught,
    unread_beside_a_result,
    unread_alone,
    what_was_computed_before_is_kept,
    attributes_after_it_are_not_set,
    in_a_function_that_is_called,
    under_finally,
    under_a_manager_that_suppresses,
    before_an_error_of_the_programs,
    in_a_generator,
    of_another_handler,
    of_an_algorithm,
    uncaught,
    variables_are_as_they_were,
    variables_of_a_call_that_raises,
    variables_that_are_not_there,
    within_the_handler_of_a_call,
    a_result_written_to_before,
    before_gradients_are_switched_off,
    while_gradients_are_switched_off,
    before_a_block_without_gradients,
    of_a_call_that_eager_refuses,
    in_a_loop,
]


def outcome(function: Any, i: torch.Tensor) -> Any:
    log: list[Any] = []
    try:
        found = function(torch.arange(1.0, 5.0), i, log)
    except Exception as error:
        found = type(error).__name__, str(error), error.__context__, error.__suppress_context__
    finally:
        log.append(torch.is_grad_enabled())
        torch.set_grad_enabled(True)
    return found, log


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.shape == b.shape and torch.allclose(a, b)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@pytest.mark.parametrize("program", PROGRAMS)
def test_it_is_raised_where_the_program_sees_it(program: Any) -> None:
    compiled = lamina.compile(program, backend="interp", options={"capture": "own", "strict": True})
    for i in (GOOD, BAD, GOOD):
        found, wanted = outcome(compiled, i), outcome(program, i)
        assert same(found, wanted), (found, wanted)


def test_what_raises_for_no_values_ends_no_graph() -> None:
    def program(x):
        try:
            y = (x * 2).relu() @ x
        except RuntimeError:
            return x
        with torch.no_grad():
            z = F.softmax(x, -1)
        return y + z

    graphs = []

    def backend(gm, example_inputs):
        graphs.append(gm)
        return gm.forward

    f = interpreted_callable(program, backend_callable=backend, record=Record())
    assert torch.allclose(f(torch.ones(4)), program(torch.ones(4)))
    assert len(graphs) == 1


def test_what_is_printed_or_set_after_an_error_is_not(capsys) -> None:
    variable = ContextVar("variable", default=0)

    def program(x, places):
        try:
            y = x[places]
            print("no error")
            variable.set(variable.get() + 1)
        except IndexError:
            return x, variable.get()
        return y, variable.get()

    compiled = lamina.compile(program, options={"capture": "own"})
    x = torch.arange(4.0)
    for places, count in ((GOOD, 1), (BAD, 1), (GOOD, 2), (BAD, 2)):
        found = copy_context().run(lambda count=count, places=places: (variable.set(count), compiled(x, places)))[1]
        wanted = copy_context().run(lambda count=count, places=places: (variable.set(count), program(x, places)))[1]
        assert torch.equal(found[0], wanted[0])
        assert found[1] == wanted[1]
        assert capsys.readouterr().out in ("", "no error\n" * 2)


def test_each_node_is_asked_once_whether_it_raises(monkeypatch) -> None:
    asked = Counter()

    def is_quiet(node):
        asked[node] += 1
        return node.op != "placeholder" and "getitem" not in str(node.target)

    monkeypatch.setattr(segment, "is_quiet", is_quiet)

    def program(x, i, found):
        y = x
        for _ in range(40):
            try:
                y = y + x[i].sum()
                found["last"] = 1
            except IndexError:
                return x
        return y

    compiled = lamina.compile(program, backend="eager", options={"capture": "own"})
    assert torch.equal(compiled(torch.ones(4), GOOD, {}), torch.full((4,), 81.0))
    assert asked
    assert max(asked.values()) <= 2  # once more for its result, which nobody may read


@pytest.mark.parametrize(
    "at",
    [
        torch.tensor([0, 2]),
        torch.tensor([0, 3]),
        torch.tensor([[1], [-3]]),
        torch.tensor([True, False, True]),
        torch.tensor([True, False]),
        (slice(None), torch.tensor([4])),
        (slice(None), torch.tensor([3])),
        (torch.tensor([0, 1]), slice(None), torch.tensor([5, 4])),
        (torch.tensor([0, 1]), slice(None), torch.tensor([4, 4])),
        (torch.tensor([0, 1]), torch.tensor([0, 1, 2])),
        (torch.tensor([0, 1]), None, 3),
        (torch.tensor([0, 1]), None, 4),
        (slice(1), torch.tensor([[True, False, False, True, False]] * 4)),
        (slice(None), torch.tensor([[True, False, False, True, False]] * 3)),
        (..., torch.tensor([5])),
        (True, torch.tensor([2])),
        (True, torch.tensor([3])),
        (0, 0, 0, torch.tensor([0])),
    ],
)
def test_lookups_are_tried_at_a_shape_that_is_as_good(at: Any) -> None:
    """What is read along dimensions of which a lookup takes all does not decide whether it raises."""
    shape = (3, 4, 5)

    def raised(lookup: Any) -> str:
        try:
            lookup()
        except Exception as error:
            return type(error).__name__
        return ""

    needed = trials._needed(shape, at)
    assert raised(lambda: torch.empty(needed)[at]) == raised(lambda: torch.empty(shape)[at])
    assert len(needed) == 3


def test_a_tried_lookup_is_small() -> None:
    assert trials._needed((9, 7, 5, 3), torch.tensor([1])) == [9, 1, 1, 1]
    assert trials._needed((9, 7, 5, 3), (slice(None), torch.tensor([1]))) == [1, 7, 1, 1]
