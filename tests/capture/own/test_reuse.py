"""Calls that are done again without interpretation: what they rest on, what they do, and why others are not."""

from __future__ import annotations

import gc
import inspect
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils import _python_dispatch as modes

from lamina.capture.own.callable import interpreted_callable
from lamina.capture.own.machine import Machine
from lamina.capture.own.reuse.facts import Facts, called
from lamina.capture.own.reuse.versions import Versions
from lamina.record import Record
from tests.capture.own.changes import CASES, outcomes
from tests.capture.own.changing_programs import counting, difference
from tests.capture.own.machines import MACHINES, no_machine

SEEDS = 60


class Compiled:
    """A compiled callable with its record and the drivers that it has."""

    def __init__(self, target, monkeypatch, machine=no_machine, **options):
        self.record, self.versions, self.interpreted = Record(), [], 0
        before, run = Versions.__init__, Machine.run

        def kept(versions, *given):
            before(versions, *given)
            self.versions.append(versions)

        def counted(machine, *given):
            self.interpreted += not machine.frames
            return run(machine, *given)

        monkeypatch.setattr(Versions, "__init__", kept)
        monkeypatch.setattr(Machine, "run", counted)
        self.call = interpreted_callable(
            target, backend_callable=lambda gm, fakes: gm.forward, record=self.record, machine=machine, **options
        )

    def drivers(self):
        return [driver for versions in self.versions for driver in versions.drivers]

    def reasons(self, kind="capture"):
        return [str(decision.reason) for decision in self.record.decisions(kind)]


def values():
    return torch.arange(4.0)


def test_a_second_call_is_not_interpreted(monkeypatch) -> None:
    compiled = Compiled(lambda x, k=2: (x * k).relu(), monkeypatch)
    for _ in range(3):
        assert torch.equal(compiled.call(values()), values() * 2)
    assert compiled.interpreted == 1
    assert "without interpretation" in compiled.reasons()[0]


def test_facts_are_printed_with_the_users_line_and_the_first_that_fails_is_named(monkeypatch) -> None:
    held = SimpleNamespace(factor=2)
    compiled = Compiled(lambda x: x * held.factor, monkeypatch)
    compiled.call(values())
    (driver,) = compiled.drivers()
    line = next(line for line in driver.facts.text().splitlines() if "'factor'" in line)
    assert "is 2" in line
    assert __file__ in line
    assert driver.failing((values(),), {}) is None
    held.factor = 3
    failing = driver.failing((values(),), {})
    assert "'factor'" in str(failing.places[0])
    assert torch.equal(compiled.call(values()), values() * 3)
    (reason,) = compiled.reasons("recompile")
    assert "was 2 and is 3" in reason


def test_the_driver_is_one_function_that_can_be_read(monkeypatch) -> None:
    compiled = Compiled(lambda x: (x + 1, x), monkeypatch)
    compiled.call(values())
    (driver,) = compiled.drivers()
    assert driver.source.startswith("def driver(args, kwargs):")
    assert "p1 = args[0]" in driver.source
    compile(driver.source, "driver", "exec")


def test_writes_are_done_again_in_order_and_what_is_returned_is_the_same_object(monkeypatch) -> None:
    held = SimpleNamespace(n=0, seen=[], last=None)

    def function(x, given):
        held.last = [x * 2]
        held.seen.append(x + 1)
        given["k"] = held.last
        return held.last, given, x

    compiled = Compiled(function, monkeypatch)
    for step in range(3):
        x, given = values() + step, {}
        last, same, argument = compiled.call(x, given)
        assert last is held.last
        assert given["k"] is last
        assert same is given
        assert argument is x
        assert torch.equal(last[0], x * 2)
        assert torch.equal(held.seen[step], x + 1)
    assert compiled.interpreted == 1


def test_a_number_that_differs_in_each_call_ends_the_reuse(monkeypatch) -> None:
    compiled = Compiled(lambda x, step: x**step, monkeypatch)
    for step in range(20):
        assert torch.equal(compiled.call(values(), step), values() ** step)
    assert not compiled.drivers()
    assert any("hardly used" in reason and "step is " in reason for reason in compiled.reasons()), compiled.reasons()
    rested = [stage.value for stage in compiled.record.stages if stage.name == "guards"]
    assert len(rested) >= 8
    gc.collect()
    assert not any(value.conditions() for value in rested), "a version that is used no more is kept"


def test_sizes_that_come_again_have_versions_though_others_are_given_up(monkeypatch) -> None:
    """Lengths grow within a round, as in generation; each is traced when it comes for the second time."""
    compiled = Compiled(lambda x: x.relu() * x.shape[0], monkeypatch, dynamic=False)
    counts = []
    for lengths in (range(1, 21), range(1, 21), range(1, 21), range(1, 100), range(1, 100), range(1, 100)):
        compiled.interpreted = 0
        for length in lengths:
            x = torch.randn(length)
            assert torch.equal(compiled.call(x), x.relu() * length)
        counts.append(compiled.interpreted)
    assert counts[0] == 20
    assert counts[1] < 20
    assert counts[2] == 0
    assert counts[-1] == 99 - len(compiled.drivers()) == 99 - 64


def test_versions_are_bounded_and_what_is_forgotten_is_said(monkeypatch) -> None:
    compiled = Compiled(lambda x, step: x**step, monkeypatch)
    for step in range(70):
        for _ in range(6):
            compiled.call(values(), step)
    assert len(compiled.drivers()) == 64
    assert any("is forgotten" in reason for reason in compiled.reasons())


def test_what_is_not_understood_is_interpreted_and_named(monkeypatch) -> None:
    given = iter(range(10))
    compiled = Compiled(lambda x: x * next(given), monkeypatch)
    for step in range(3):
        assert torch.equal(compiled.call(values()), values() * step)
    assert compiled.interpreted == 3
    assert any("next" in reason and __file__ in reason for reason in compiled.reasons())


ANSWERED = {
    "is_tracing": (torch.jit, lambda x: x + torch.jit.is_tracing(), lambda: True),
    "is_compiling": (torch.compiler, lambda x: x + torch.compiler.is_compiling(), lambda: 0),
    "is_exporting": (torch.compiler, lambda x: x + torch.compiler.is_exporting(), lambda: 5),
    "is_scripting": (torch.jit, lambda x: x + torch.jit.is_scripting(), lambda: True),
    "_get_current_dispatch_mode_stack": (
        modes,
        lambda x: x + len(modes._get_current_dispatch_mode_stack()),
        lambda: "ab",
    ),
    "signature": (inspect, lambda x: x + len(inspect.signature(values).parameters), inspect.Signature.from_callable),
}
"""Functions of Python's that are answered without entering them, where they are, and what is put in their place."""


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", ANSWERED)
def test_a_function_that_is_answered_is_a_fact(name: str, machine: str, monkeypatch) -> None:
    """It was not: what a program, or a test of its, had put in its place was not called."""
    owner, function, other = ANSWERED[name]
    compiled = Compiled(function, monkeypatch, MACHINES[machine])
    compiling = name == "is_compiling"  # which it is, unlike in eager
    for _ in range(3):
        assert torch.equal(compiled.call(values()), function(values()) + compiling)
    assert compiled.interpreted == 1
    monkeypatch.setattr(owner, name, other if name != "signature" else lambda given: other(lambda a, b: None))
    assert torch.equal(compiled.call(values()), function(values()))
    monkeypatch.undo()


@pytest.mark.parametrize("machine", MACHINES)
def test_the_code_of_a_function_that_is_answered_is_a_fact(machine: str, monkeypatch) -> None:
    compiled = Compiled(ANSWERED["is_exporting"][1], monkeypatch, MACHINES[machine])
    assert torch.equal(compiled.call(values()), values())
    monkeypatch.setattr(torch.compiler.is_exporting, "__code__", (lambda: 7).__code__)
    assert torch.equal(compiled.call(values()), values() + 7)
    monkeypatch.undo()


def test_a_graph_that_raises_is_raised_as_eager_does(monkeypatch) -> None:
    def function(x, at):
        return x[at] * 2

    compiled = Compiled(function, monkeypatch)
    table = torch.arange(4.0)
    assert torch.equal(compiled.call(table, torch.tensor([1])), table[[1]] * 2)
    with pytest.raises(IndexError):
        compiled.call(table, torch.tensor([9]))
    assert torch.equal(compiled.call(table, torch.tensor([2])), table[[2]] * 2)


def test_gradients_and_modules(monkeypatch) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.LayerNorm(4))
    compiled = Compiled(model, monkeypatch)
    for _ in range(3):
        found, wanted = compiled.call(values()), model(values())
        assert torch.allclose(found, wanted)
        one, other = (torch.autograd.grad(out.sum(), list(model.parameters())) for out in (found, wanted))
        assert all(map(torch.allclose, one, other))
    assert compiled.interpreted == 1


@pytest.mark.parametrize("machine", MACHINES)
def test_objects_of_the_users_are_not_kept(machine: str, monkeypatch) -> None:
    held = SimpleNamespace(layer=nn.Linear(4, 4))
    compiled = Compiled(lambda x: held.layer(x), monkeypatch, MACHINES[machine])
    compiled.call(values())
    compiled.call(values())
    gone = weakref.ref(held.layer)
    held.layer = None
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", CASES)
def test_changes_are_noticed_by_facts(name: str, machine: str, monkeypatch) -> None:
    """Each step is done three times, so that the second and the third may be done by the driver."""

    def thrice():
        function, steps = CASES[name]()
        return function, [(None if again else change, args) for change, args in steps for again in range(3)]

    def found_by(wrap):
        torch.manual_seed(0)
        return [one.clone() if isinstance(one, torch.Tensor) else one for one in outcomes(thrice, wrap)]

    wanted = found_by(lambda function: function)
    got = found_by(lambda f: Compiled(f, monkeypatch, MACHINES[machine]).call)
    for one, other in zip(got, wanted, strict=True):
        if isinstance(other, torch.Tensor):
            assert one.dtype == other.dtype
            assert torch.equal(torch.signbit(one), torch.signbit(other))
            assert torch.allclose(one, other)
        else:
            assert one == other


@pytest.mark.parametrize("machine", MACHINES)
def test_random_programs_and_changes(machine: str) -> None:
    outcomes = [difference(seed, MACHINES[machine]) for seed in range(SEEDS)]
    assert not [outcome.told for outcome in outcomes if outcome.told]
    assert sum(outcome.reused for outcome in outcomes) > 200


@pytest.mark.parametrize("machine", MACHINES)
def test_random_programs_whose_numbers_are_others_in_each_step(machine: str) -> None:
    outcomes = [difference(seed, MACHINES[machine], counting) for seed in range(SEEDS // 4)]
    assert not [outcome.told for outcome in outcomes if outcome.told]
    assert sum(outcome.reused for outcome in outcomes) > SEEDS // 2


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
def test_many_random_programs_and_changes(machine: str) -> None:
    outcomes = (difference(seed, MACHINES[machine]) for seed in range(SEEDS, 4000))
    assert not [outcome.told for outcome in outcomes if outcome.told]
    outcomes = (difference(seed, MACHINES[machine], counting) for seed in range(SEEDS, 2000))
    assert not [outcome.told for outcome in outcomes if outcome.told]


FAULTS = {
    "type": 305, "is": 3068, "constant": 7, "length": 427, "keys": 63, "absent": 22, "look": 621, "same": 52,
    "state": 40, "apart": 980,
}  # fmt: skip
"""Kinds of facts, each with a program that comes out wrong without it."""


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fact_that_is_not_noted_is_found_out(kind: str, monkeypatch) -> None:
    """The random programs see it if facts of one kind are left out."""
    assert not difference(FAULTS[kind]).told
    note = Facts.note

    def without(facts, noted, *given):
        if noted != kind:
            note(facts, noted, *given)

    monkeypatch.setattr(Facts, "note", without)
    assert difference(FAULTS[kind]).told


def test_what_a_call_was_given_is_let_go_where_no_version_is_for_it(monkeypatch) -> None:
    def refused(x):
        if x.dim() > 1:
            raise ValueError("two dimensions")
        return x * 2

    compiled = Compiled(refused, monkeypatch)
    compiled.call(values())
    x = torch.ones(2, 2)
    gone = weakref.ref(x)
    with pytest.raises(ValueError, match="two dimensions"):
        compiled.call(x)
    del x
    gc.collect()
    assert gone() is None


class Loud:
    """Reading a name of it is noticed, and raises."""

    def __getattr__(self, name):
        if name in ("__qualname__", "__name__"):
            READ.append(name)
            raise ValueError(name)
        raise AttributeError(name)


READ = []


def test_names_of_objects_are_not_asked_of_their_own_code(monkeypatch) -> None:
    """An object that a fact is about is called by its class."""
    held = SimpleNamespace(one=Loud())
    compiled = Compiled(lambda x: x * 2 if isinstance(held.one, Loud) else x, monkeypatch)
    compiled.call(values())
    held.one = Loud()
    compiled.call(values())
    held.one = 3
    assert torch.equal(compiled.call(values()), values())
    assert called(Loud) == "Loud"
    assert called(len) == "len"
    assert called(gc) == "gc"
    assert called(Loud()) == ""
    assert READ == []


def test_a_class_beside_the_marks_is_no_mark(monkeypatch) -> None:
    compiled = Compiled(lambda x: torch.compiler.set_stance("default")(torch.sin)(x), monkeypatch)
    assert torch.equal(compiled.call(values()), values().sin())


def first_of_two(x):
    first, second = x * 2
    return first - second


def heads(x):
    q, k, v = x.view(2, 3, -1).permute(1, 0, 2)
    return q * k + v


def rest(x):
    first, *others = x
    return first, [one + 1 for one in others]


def two_or_none(x):
    try:
        first, second = x
    except ValueError:
        return x - 1
    return first + second


def written_part(x):
    first, second = x
    first.add_(1)
    return first * second


@pytest.mark.parametrize("program", [first_of_two, heads, rest, two_or_none, written_part])
def test_unpacked_tensors_need_no_interpretation(program, monkeypatch) -> None:
    compiled = Compiled(program, monkeypatch)
    shapes = [(2, 6), (2, 6), (2, 12), (2, 6)] + ([(4, 6), (3, 6), (4, 6)] if program in (rest, two_or_none) else [])
    interpreted = []
    for shape in shapes:
        x = torch.randn(shape)
        ours, eagers = x.clone(), x.clone()
        torch.testing.assert_close(compiled.call(ours), program(eagers))
        assert torch.equal(ours, eagers)
        interpreted.append(compiled.interpreted)
    assert interpreted[1] == interpreted[0] == 1
    assert interpreted[3] == interpreted[2]


def test_too_few_to_unpack_is_eagers_error_each_time(monkeypatch) -> None:
    compiled = Compiled(first_of_two, monkeypatch)
    for _ in range(2):
        assert compiled.call(torch.ones(2, 3)).shape == (3,)
        for bad in (torch.ones(3, 2), torch.ones(1, 2)):
            with pytest.raises(ValueError, match="values to unpack"):
                compiled.call(bad)
