"""Objects asked by ways of the user's own: one graph, done again without interpretation, and changes are noticed."""

from __future__ import annotations

import abc
import enum
import functools
import inspect
from collections import OrderedDict
from dataclasses import dataclass, fields

import pytest
import torch
from torch import nn

from lamina.capture.own.callable import interpreted_callable
from lamina.capture.own.reuse.versions import Versions
from lamina.record import Record
from tests.capture.own.changing_programs import difference, protocols, stored_difference
from tests.capture.own.machines import MACHINES

NOTED = []


class Hooked:
    """A class with a way of its own to find attributes, as configurations have."""

    factor = 2

    def __getattribute__(self, name):
        if super().__getattribute__("__dict__").get("special") == name:
            return 9
        return super().__getattribute__(name)

    def __getattr__(self, name):
        if name != "late":
            raise AttributeError(name)
        return 4


class Registry(dict):
    def __setitem__(self, key, value):
        super().__setitem__(str(key), value)

    def get(self, key):
        return super().get(str(key)) or {}


@dataclass
class Output(OrderedDict):
    first: object = None
    second: object = None

    def __post_init__(self):
        for field in fields(self):
            if self.__dict__.get(field.name) is not None:
                self[field.name] = self.__dict__[field.name]

    def __setattr__(self, name, value):
        if name in {field.name for field in fields(self)} and value is not None:
            super().__setitem__(name, value)
        super().__setattr__(name, value)

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(key, value)


class Kind(enum.Enum):
    ONE = 1


class Counted(abc.ABC):  # noqa: B024
    """A class that others are registered with."""


class Layers:
    def __init__(self, *layers):
        self.layers = layers

    def __len__(self):
        return len(self.layers)

    def __iter__(self):
        yield from self.layers


@functools.lru_cache
def remembered(text, times=1):
    NOTED.append(text)
    return len(text) * times


class Logger:
    @functools.lru_cache(None)  # noqa: B019
    def once(self, text):
        return len(text)


logger = Logger()
hooked, registry, layers = Hooked(), Registry(a={"v": 3}), Layers(2, 3)


def attributes_by_code(x):
    return x * hooked.factor * hooked.late + (1 if hasattr(hooked, "none") else 2)


def registry_of_the_users(x):
    return x * registry.get("a").get("v", 1) if "a" in registry else x


def output(x):
    made = Output(first=x.sin())
    made["second"] = x
    return made["first"] + made.second + len(made)


def returned_output(x):
    return Output(first=x.sin())


def cache(x):
    return x.relu() * remembered("text") + remembered("more", times=2)


def cached_method(x):
    return x * logger.once("text")


def limits(x):
    return x.clamp(max=torch.finfo(x.dtype).max)


def enumeration(x):
    return x * Kind(1).value


def abstract(x):
    return x * (2 if isinstance(Layers(1), Counted) else 3)


def signature(x):
    return x * len(inspect.signature(limits).parameters)


def names_of_parameters(x):
    names = set(inspect.signature(limits).parameters)
    return x * (2 if "x" in names else 3) + len([*inspect.signature(enumeration).parameters])


def zipped(x):
    for at, factor in zip(layers, enumerate(layers), strict=True):
        x = x * at + factor[1]
    return x.sin() if all(one for one in layers) and len(layers) else x


def asked_functions(x):
    return x * (2 if callable(limits) else 3) * len(limits.__code__.co_varnames) + len(str(Hooked))


def imported(x):
    from collections import abc as kinds  # noqa: PLC0415

    import torch.nn.functional  # noqa: PLC0415

    return torch.nn.functional.relu(x) if isinstance([], kinds.Sequence) else x


def missing(x):
    return x * getattr(x, "jax", 2) + getattr(None, "late", 3)


def marked(x):
    return MARKED.relu() + x


def partial(x):
    return functools.partial(torch.clamp, min=0)(x.sin())


def modules(x):
    made = nn.ModuleList([nn.ReLU()])
    made += [nn.Tanh()]
    return made[1](x)


MARKED = torch.ones(3)
MARKED.note = "of the library's"
PROGRAMS = (
    attributes_by_code,
    registry_of_the_users,
    output,
    returned_output,
    cache,
    cached_method,
    limits,
    enumeration,
    abstract,
    signature,
    names_of_parameters,
    zipped,
    asked_functions,
    imported,
    missing,
    marked,
    partial,
    modules,
)


@pytest.mark.parametrize("program", PROGRAMS)
def test_one_graph_that_is_run_without_interpretation(program) -> None:
    graphs, record = [], Record()

    def backend(gm, fakes):
        graphs.append(gm)
        return gm.forward

    compiled = interpreted_callable(program, backend_callable=backend, record=record)
    x = torch.randn(3)
    for _ in range(3):
        found, wanted = compiled(x), program(x)
        assert type(found) is type(wanted)
        if isinstance(wanted, dict):
            assert vars(found).keys() == vars(wanted).keys()
            found, wanted = found["first"], wanted["first"]
        torch.testing.assert_close(found, wanted)
    assert len(graphs) == 1
    assert not record.decisions("break")
    told = [str(one.reason) for one in record.decisions("capture")]
    assert told[-1].startswith("a call is done again"), told


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_machine_tells_that_their_facts_hold(program, monkeypatch) -> None:
    made, before = [], Versions.__init__
    monkeypatch.setattr(Versions, "__init__", lambda own, *given: made.append(own) or before(own, *given))
    compiled = interpreted_callable(
        program, backend_callable=lambda gm, fakes: gm.forward, record=Record(), machine=MACHINES["machine"]
    )
    x = torch.randn(3)
    for _ in range(6):
        compiled(x)
    (driver,) = made[0].drivers
    assert driver.guard is None or driver.hits >= 4


def test_modules_are_made_within_a_graph_after_dynamo_has_compiled_something() -> None:
    """It puts a function of its own in place of ``Module.__init__`` then."""
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    test_one_graph_that_is_run_without_interpretation(modules)


def test_what_a_cache_has_forgotten_is_asked_for_where_eager_asks() -> None:
    compiled = interpreted_callable(cache, backend_callable=lambda gm, fakes: gm.forward, record=Record())
    x = torch.randn(3)
    for again in range(4):
        if again in (0, 2):
            remembered.cache_clear()
        NOTED.clear()
        torch.testing.assert_close(compiled(x), x.relu() * 4 + 8)
        wanted = ["text", "more"] if again in (0, 2) else []
        assert wanted == NOTED


def test_a_function_with_a_cache_is_not_asked_by_a_version_that_is_for_another_number() -> None:
    """Which was found by the random programs, with seed 95057."""
    for machine in MACHINES.values():
        assert not difference(95057, machine, protocols).told


class Held:
    """Objects that never change, in attributes that do."""

    code, info = limits.__code__, torch.finfo(torch.float32)


def by_held_objects(x):
    return x * len(Held.code.co_name) + Held.info.bits


def test_objects_that_never_change_are_told_from_others(monkeypatch) -> None:
    compiled = interpreted_callable(by_held_objects, backend_callable=lambda gm, fakes: gm.forward, record=Record())
    x = torch.randn(3)
    for name, value in ((None, None), ("code", marked.__code__), ("info", torch.finfo(torch.float64))):
        if name is not None:
            monkeypatch.setattr(Held, name, value)
        for _ in range(2):
            torch.testing.assert_close(compiled(x), by_held_objects(x))


REFUSED = {0: True}


@functools.lru_cache
def refusing(number):
    if REFUSED[0]:
        raise ValueError(number)
    return number


def by_refusing(x):
    try:
        return x * refusing(2)
    except ValueError:
        return x


def test_a_function_with_a_cache_that_raises_is_asked_again(monkeypatch) -> None:
    compiled = interpreted_callable(by_refusing, backend_callable=lambda gm, fakes: gm.forward, record=Record())
    x = torch.randn(3)
    for refused in (True, True, False, False):
        monkeypatch.setitem(REFUSED, 0, refused)
        torch.testing.assert_close(compiled(x), x if refused else x * 2)


def test_a_program_is_told_that_it_is_captured_and_torch_is_not() -> None:
    asked = []

    def program(x):
        asked.append(torch.compiler.is_compiling())
        return nn.functional.relu(x)

    interpreted_callable(program, backend_callable=lambda gm, fakes: gm.forward, record=Record())(torch.randn(3))
    assert asked == [True]
    assert not torch.compiler.is_compiling()


def test_only_what_looks_at_frames_keeps_a_function_from_being_captured() -> None:
    def reading(x):
        return x * len(inspect.signature(reading).parameters)

    def looking(x):
        return x * len(inspect.stack()[0].function)

    for program, graphs in ((reading, 1), (looking, 0)):
        made = []
        compiled = interpreted_callable(
            program, backend_callable=lambda gm, fakes, m=made: m.append(gm) or gm.forward, record=Record()
        )
        torch.testing.assert_close(compiled(torch.ones(2)), program(torch.ones(2)))
        assert len(made) == graphs


def test_errors_name_tensors_as_eager_does() -> None:
    with pytest.raises(TypeError, match="'Tensor' and 'dict'"):
        interpreted_callable(lambda x: x.sin() + {}, backend_callable=lambda gm, fakes: gm.forward, record=Record())(
            torch.ones(2)
        )


@pytest.mark.parametrize("machine", MACHINES)
def test_random_programs_that_ask_by_ways_of_their_own(machine: str) -> None:
    outcomes = [difference(seed, MACHINES[machine], protocols) for seed in range(40)]
    assert not [outcome.told for outcome in outcomes if outcome.told]
    assert sum(outcome.reused for outcome in outcomes) > 100


def test_random_programs_that_ask_by_ways_of_their_own_in_other_processes() -> None:
    outcomes = [stored_difference(seed, protocols) for seed in range(2)]
    assert not [outcome.told for outcome in outcomes if outcome.told]


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
def test_many_random_programs_that_ask_by_ways_of_their_own(machine: str) -> None:
    outcomes = (difference(seed, MACHINES[machine], protocols) for seed in range(40, 2000))
    assert not [outcome.told for outcome in outcomes if outcome.told]


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "vit", "clip", "distilbert", "demo_gpt"])
def test_models_of_transformers_are_one_graph_each(name: str) -> None:
    pytest.importorskip("transformers")
    from tests.models.architectures import ARCHITECTURES, case  # noqa: PLC0415

    made = case(next(one for one in ARCHITECTURES if one.name == name), torch.float32)
    graphs, record = [], Record()

    def backend(gm, fakes):
        graphs.append(gm)
        return gm.forward

    compiled = interpreted_callable(made.model, backend_callable=backend, record=record)
    wanted = made.model(**made.inputs)
    for _ in range(2):
        found = compiled(**made.inputs)
        assert type(found) is type(wanted)
        for key, value in wanted.items() if isinstance(wanted, dict) else ():
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(found[key], value)
    assert len(graphs) == 1
    assert str(record.decisions("capture")[-1].reason).startswith("a call is done again")


@pytest.mark.parametrize("base", [object, nn.Module])
def test_what_sets_an_attribute_runs_once_in_a_call_that_is_not_interpreted(base) -> None:
    class Logging(base):
        def __init__(self):
            super().__init__()
            self.__dict__["log"] = []

        def __setattr__(self, name, value):
            self.log.append(name)
            super().__setattr__(name, value)

    def program(x, held):
        held.last, held.count = (x * 2, 1), 3
        return x + 1

    made = []
    compiled = interpreted_callable(
        program, backend_callable=lambda gm, fakes: made.append(gm) or gm.forward, record=Record()
    )
    eager, own = Logging(), Logging()
    for _ in range(4):
        program(torch.ones(2), eager)
        compiled(torch.ones(2), own)
        assert own.log == eager.log
