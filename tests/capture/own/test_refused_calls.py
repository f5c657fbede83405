"""Calls that the stance of torch's compiler, or ``fullgraph``, ends: nothing of the program handles that."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch

import lamina
from lamina.errors import GraphBroken, RecompileRefused


def bare(x, log):
    try:
        y = (x * 2).sum() + 1
        torch._dynamo.graph_break()
    except:  # noqa: E722
        log.append("handled")
        return "swallowed"
    return y


def of_all(x, log):
    try:
        y = (x * 2).sum() + 1
        torch._dynamo.graph_break()
    except (BaseException, ValueError) as error:
        log.append(error)
        return "swallowed"
    return y


def by_a_manager(x, log):
    with suppress(BaseException):
        y = (x * 2).sum() + 1
        torch._dynamo.graph_break()
        return y
    log.append("handled")
    return "swallowed"


def nested(x, log):
    try:
        try:
            y = (x * 2).sum() + 1
            torch._dynamo.graph_break()
        except:  # noqa: E722
            log.append("handled")
            return "swallowed"
    finally:
        log.append("finally")
    return y


def returned_from_finally(x, log):
    try:
        (x * 2).sum().item()
    finally:
        return "swallowed"  # noqa: B012


def by_native_code(x, log):
    class Asked:
        def __getattr__(self, name):
            torch._dynamo.graph_break()
            raise AttributeError(name)

    y = x * 2
    try:
        hasattr(Asked(), "it")
    except BaseException:
        return "swallowed"
    return y


PROGRAMS = {bare: [], of_all: [], by_a_manager: [], nested: ["finally"], returned_from_finally: [], by_native_code: []}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.filterwarnings("ignore")
def test_the_stance_ends_the_call(program: Callable[..., Any]) -> None:
    compiled = lamina.compile(program, backend="eager", options={"capture": "own"})
    log: list[Any] = []
    with torch.compiler.set_stance("fail_on_recompile"), pytest.raises(RecompileRefused):
        compiled(torch.ones(3), log)
    assert log == PROGRAMS[program]
    found, wanted = compiled(torch.ones(3), []), program(torch.ones(3), [])
    assert found == wanted if isinstance(wanted, str) else torch.equal(found, wanted)


@pytest.mark.parametrize("program", [bare, of_all, by_a_manager, nested])
def test_fullgraph_ends_the_call(program: Callable[..., Any]) -> None:
    compiled = lamina.compile(program, backend="eager", fullgraph=True, options={"capture": "own"})
    log: list[Any] = []
    with pytest.raises(GraphBroken):
        compiled(torch.ones(3), log)
    assert log == PROGRAMS[program]
