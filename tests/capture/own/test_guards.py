"""The guard machine: it never says that facts hold where one does not, and says so where they do."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from lamina.backends.caches import guard_machine as machine_of_options
from lamina.capture.own.callable import interpreted_callable
from lamina.capture.own.guards.layouts import layouts
from lamina.capture.own.guards.library import machine_of, machine_source
from lamina.capture.own.guards.tensor_layouts import in_used_memory
from lamina.capture.own.reuse.driver import Driver
from lamina.options import Options
from lamina.record import Record
from lamina.runtime.cache import Cache
from lamina.runtime.source import load_source
from lamina.runtime.toolchain import find_compiler
from tests.capture.own.guard_changes import compared
from tests.capture.own.machines import guard_machine

needs_machine = pytest.mark.skipif(
    find_compiler() is None or sys.version_info >= (3, 13), reason="no compiler, or dictionaries without versions"
)


def test_layouts_are_found_where_dictionaries_have_versions() -> None:
    found = layouts()
    assert (found is not None) == (sys.version_info < (3, 13))
    assert found is None or found.tensor is not None


@needs_machine
def test_random_changes_are_seen_as_python_sees_them() -> None:
    outcome = compared(3, 4000)
    assert not outcome.wrong
    assert outcome.held > 300
    assert outcome.known > 0.95 * outcome.held, (outcome.known, outcome.held)


@needs_machine
def test_what_nobody_sets_of_a_tensor_is_no_look() -> None:
    machine = guard_machine()
    assert machine is not None
    tensors = [in_used_memory(content, lambda: torch.ones(4)) for content in (0, 0xFF, 0x5A, 0x11, 0xEE)]
    assert len({machine.head(tensor) for tensor in tensors}) == 1


FAULTS = {
    "if (*stamps[place].at != stamps[place].value) return false;": "",
    "case LOOK: return looks(a,": "case LOOK: return true || looks(a,",
}
"""What is left out of the machine."""


@needs_machine
@pytest.mark.parametrize("left_out", FAULTS)
def test_a_machine_that_does_not_compare_is_found_out(left_out: str) -> None:
    source = machine_source()
    faulty = source.replace(left_out, FAULTS[left_out])
    assert faulty != source
    kept = Cache(None)
    compiler = find_compiler("", kept)
    assert compiler is not None
    handle = load_source("faulty machine", faulty, compiler, kept)
    assert handle is not None
    assert compared(3, 2000, lambda: machine_of(handle)).wrong


class Checked:
    """The driver of a call."""

    def __init__(self, program: Callable[..., Any], *args: Any) -> None:
        before, self.args = Driver.__init__, args

        def kept(driver: Driver, *given: Any) -> None:
            before(driver, *given)
            self.driver = driver

        Driver.__init__ = kept  # type: ignore[method-assign]
        try:
            interpreted_callable(
                program, backend_callable=lambda gm, _: gm.forward, record=Record(), machine=guard_machine
            )(*args)
        finally:
            Driver.__init__ = before  # type: ignore[method-assign]

    def holds(self, *args: Any) -> bool:
        assert self.driver.guard is not None
        return self.driver.guard.check(args or self.args, {}) is not None


@contextlib.contextmanager
def changed(get: Callable[[], Any], put: Callable[[Any], Any], value: Any) -> Iterator[None]:
    before = get()
    put(value)
    try:
        yield
    finally:
        put(before)


STATES: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "no grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "autocast's dtype": lambda: changed(
        lambda: torch.get_autocast_dtype("cpu"), lambda d: torch.set_autocast_dtype("cpu", d), torch.float16
    ),
    "default dtype": lambda: changed(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "threads": lambda: changed(torch.get_num_threads, torch.set_num_threads, torch.get_num_threads() + 1),
    "deterministic": lambda: changed(
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True
    ),
    "precision": lambda: changed(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"),
    "cudnn": lambda: torch.backends.cudnn.flags(enabled=not torch.backends.cudnn.enabled),
    "benchmark": lambda: torch.backends.cudnn.flags(benchmark=not torch.backends.cudnn.benchmark),
    "device": lambda: torch.device("meta"),
    "dual level": torch.autograd.forward_ad.dual_level,
}


@needs_machine
@pytest.mark.parametrize("state", STATES)
def test_states_are_seen(state: str) -> None:
    checked = Checked(lambda x: x.relu() + 1, torch.ones(4))
    assert checked.holds()
    with STATES[state]():
        assert not checked.holds()
    assert checked.holds()


@needs_machine
def test_transforms_and_traces_are_seen() -> None:
    checked = Checked(lambda x: x.relu() + 1, torch.ones(4))
    seen = []

    def asks(x: torch.Tensor) -> torch.Tensor:
        seen.append(checked.holds())
        return x

    torch.func.vmap(asks)(torch.ones(2, 4))
    torch.func.grad(lambda x: asks(x).sum())(torch.ones(4))
    torch.jit.trace(asks, (torch.ones(4),), check_trace=False)
    assert seen == [False] * 3
    assert checked.holds()


@needs_machine
def test_looks_of_arguments_are_learnt() -> None:
    checked = Checked(lambda x: x + 1, torch.ones(2, 3))
    assert checked.holds()
    for other in (
        torch.ones(3, 2),
        torch.ones(2, 3).double(),
        torch.ones(2, 3, requires_grad=True),
        torch.ones(3, 2).t(),
    ):
        assert not checked.holds(other)
    view = torch.ones(4, 3, requires_grad=True).detach()[:2]
    for given in (view, torch.ones(1, 2, 3).squeeze(0)):
        if not checked.holds(given):
            checked.driver.learn((given,), {})
        assert checked.holds(given)
    assert not checked.holds(torch.ones(3, 2))


@needs_machine
def test_an_equal_number_in_another_place_is_learnt() -> None:
    held: dict[str, Any] = {"a": (1, 2.5)}
    checked = Checked(lambda x: x * held["a"][1], torch.ones(4))
    assert checked.holds()
    held["a"] = (1, float("2.5"))
    assert checked.driver.holds(checked.args, {})
    if not checked.holds():
        checked.driver.learn(checked.args, {})
    assert checked.holds()
    held["a"] = (1, 2.0)
    assert not checked.holds()


@pytest.mark.parametrize("state", [torch.no_grad, torch.inference_mode])
def test_the_machine_works_whichever_state_it_is_first_wanted_in(state: Callable[[], Any]) -> None:
    machine = guard_machine()
    assert machine is not None
    with state():
        assert machine_of(machine.handle) is not None


def test_without_a_compiler_facts_are_asked_in_python(tmp_path) -> None:
    assert machine_of_options(Options(cxx=str(tmp_path / "none"), cache=False)) is None
    call = interpreted_callable(lambda x: x + 1, backend_callable=lambda gm, _: gm.forward, record=Record())
    for _ in range(3):
        assert torch.equal(call(torch.ones(2)), torch.full((2,), 2.0))
