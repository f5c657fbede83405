"""Graphs between breaks: small ones beside a large one are not compiled, and what ends none goes into the next."""

from __future__ import annotations

import contextlib
import enum
from collections import OrderedDict

import pytest
import torch
from torch import nn

from lamina.capture.frame_reasons import BY_CALLS, REUSED
from lamina.capture.own.callable import interpreted_callable
from lamina.record import Record


class Compiled:
    """``target`` by our own front end, with the graphs that are compiled and the decisions."""

    def __init__(self, target, **options):
        self.target, self.graphs, self.record = target, [], Record()
        self.call = interpreted_callable(target, backend_callable=self._backend, record=self.record, **options)

    def _backend(self, gm, fakes):
        self.graphs.append(gm)
        return gm.forward

    def check(self, *args, **kwargs):
        """A call, compared with eager's."""
        torch.testing.assert_close(self.call(*args, **kwargs), self.target(*args, **kwargs), equal_nan=True)

    def codes(self):
        return [one.reason.code for one in self.record.decisions()]


def many_calls(x):
    for _ in range(200):
        x = x * 0.5 + 1
    return x


def checked_before(x):
    if (x.isnan() | x.isinf()).any():
        return x
    return many_calls(x)


def checked_after(x):
    x = many_calls(x)
    if x.isnan().any():
        return x
    return x.sin() + 1


class Unhashable(nn.Sequential):
    """Modules that are compared by code of theirs."""

    def __eq__(self, other):
        raise AssertionError

    __hash__ = None


class Blocks(nn.Module):
    """A model of many modules."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Unhashable(nn.Linear(4, 4), nn.Tanh()) for _ in range(20))

    def forward(self, x):
        """Looks at a value first."""
        if x.isnan().any():
            return x
        for layer in self.layers:
            x = layer(x)
        return x


def test_a_small_graph_after_one_of_many_calls_is_not_compiled() -> None:
    compiled = Compiled(checked_after)
    for _ in range(2):
        compiled.check(torch.ones(4))
    assert len(compiled.graphs) == 1
    assert BY_CALLS.number in compiled.codes()
    compiled.check(torch.full((4,), float("nan")))
    compiled.check(torch.ones(4))


def test_a_small_graph_before_many_modules_is_not_compiled() -> None:
    with torch.no_grad():
        compiled = Compiled(Blocks())
        for rows in (2, 2, 3, 5, 2):
            compiled.check(torch.ones(rows, 4))
        compiled.check(torch.full((2, 4), float("nan")))
    assert len(compiled.graphs) == 2  # one of them for all numbers of rows
    assert BY_CALLS.number in compiled.codes()


def test_calls_that_are_made_one_by_one_are_reused() -> None:
    with torch.no_grad():
        compiled = Compiled(Blocks())
        for _ in range(2):
            compiled.check(torch.ones(2, 4))
    assert REUSED.number in compiled.codes()


@pytest.mark.parametrize("why", ["alone", "large tensors", "gradients"])
def test_others_are_compiled(why) -> None:
    compiled = Compiled(checked_before if why == "alone" else checked_after)
    x = torch.ones(100_000 if why == "large tensors" else 4, requires_grad=why == "gradients")
    compiled.check(x)
    assert len(compiled.graphs) == 2
    assert BY_CALLS.number not in compiled.codes()


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generate_compiles_three_graphs(cache) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64,
    )  # fmt: skip
    compiled = Compiled(transformers.LlamaForCausalLM(config).eval().generate)
    options = {"cache_implementation": "static", "disable_compile": True} if cache == "static" else {}
    ids = torch.randint(1, 32, (1, 5))
    for _ in range(2):
        compiled.check(ids, max_new_tokens=9, do_sample=False, pad_token_id=0, **options)
    assert len(compiled.graphs) == 3


class Outputs(OrderedDict):
    """A dictionary with methods of its own."""

    def __getitem__(self, key):
        return super().__getitem__(key)


class Asked(dict):
    """One that is asked by Python's code."""

    asked = 0

    def __contains__(self, key):
        Asked.asked += 1
        return super().__contains__(key)


def test_whether_a_subclass_of_a_dictionary_has_a_key_ends_no_graph() -> None:
    def program(x, held):
        y = x.sin()
        return y + 1 if "a" in held else y - 1

    compiled = Compiled(program)
    for held in (Outputs(a=1), Outputs(a=1), Outputs(b=1)):
        compiled.check(torch.ones(3), held)
    assert len(compiled.graphs) == 2


def test_one_that_is_asked_by_code_of_its_own_is() -> None:
    held = Asked(x=1)
    compiled = Compiled(lambda x: x.sin() + 1 if "x" in held else x.cos())
    for count in (1, 2, 3):
        Asked.asked = 0
        compiled.call(torch.ones(3))
        assert Asked.asked == 1, count


def _given(x, **more):
    return x + len(more)


def test_arguments_in_the_making_end_no_graph_where_errors_are_handled() -> None:
    def program(x, at, options):
        try:
            y = x[at] * 2
            return _given(y, **options) + sum([*(1, 2), 3]) + len({"a": 1, **options})
        except IndexError:
            return x

    compiled = Compiled(program)
    compiled.check(torch.ones(3), torch.tensor([0, 2]), {"b": 2})
    assert len(compiled.graphs) == 1
    compiled.check(torch.ones(3), torch.tensor([0, 7]), {"b": 2})


def test_differences_from_numbers_raise_nothing() -> None:
    class Counts:
        n = 0

    def program(x):
        with contextlib.suppress(ValueError):
            y = 1 - torch.isin(x.argmax(-1), torch.tensor([1, 2])).long()
            counts = Counts()
            counts.n = 1
            return y * 2 + counts.n

    compiled = Compiled(program)
    compiled.check(torch.randn(3, 4))
    assert len(compiled.graphs) == 1


class State(type):
    """A class of classes with a property."""

    held: object = None

    @property
    def current(cls):
        return State.held


class Group(metaclass=State):
    """One of them."""


class Kind(enum.Enum):
    """Keys of a dictionary."""

    ONE = "one"
    TWO = "two"


def _by_metaclass(x):
    return x.sin() if Group.current is None else x.cos()


TABLE = {Kind.ONE: 1.0, Kind.TWO: 2.0}
CHOSEN = [Kind.ONE]


def _by_member(x):
    return x + TABLE[CHOSEN[0]] + (Kind.TWO is CHOSEN[0])


def _by_keys(x, **given):
    names = set(given.keys())
    return x + len(names) + ("b" in names)


def test_properties_of_metaclasses_are_reused(monkeypatch) -> None:
    compiled = Compiled(_by_metaclass)
    for _ in range(2):
        compiled.check(torch.ones(3))
    assert REUSED.number in compiled.codes()
    monkeypatch.setattr(State, "held", 1)
    compiled.check(torch.ones(3))
    monkeypatch.setattr(State, "current", property(lambda cls: None))
    compiled.check(torch.ones(3))


def test_a_metaclass_that_is_asked_for_what_is_missing_is_not_passed_over() -> None:
    class Meta(type):
        @property
        def current(cls):
            raise AttributeError

        def __getattr__(cls, name):
            return 3.0

    class Of(metaclass=Meta):
        other = 2.0

    compiled = Compiled(lambda x: x * Of.current + Of.other)
    for _ in range(2):
        compiled.check(torch.ones(3))
    Of.other = 4.0
    compiled.check(torch.ones(3))


def test_items_by_members_of_enumerations_are_reused(monkeypatch) -> None:
    compiled = Compiled(_by_member)
    for _ in range(2):
        compiled.check(torch.ones(3))
    assert REUSED.number in compiled.codes()
    monkeypatch.setitem(TABLE, Kind.ONE, 5.0)
    compiled.check(torch.ones(3))
    monkeypatch.setattr(f"{__name__}.CHOSEN", [Kind.TWO])
    compiled.check(torch.ones(3))


def test_keys_as_a_set_are_reused() -> None:
    compiled = Compiled(_by_keys)
    for given in ({"a": 1}, {"a": 1}, {"b": 1}, {"a": 1, "b": 2}, {"a": 1}):
        compiled.check(torch.ones(3), **given)
    assert REUSED.number in compiled.codes()


def test_tensors_full_of_a_truth_value_share_a_graph() -> None:
    def program(x, one, other):
        stop = torch.full((x.shape[0],), one, dtype=torch.bool) | torch.full((x.shape[0],), other, dtype=torch.bool)
        return x.masked_fill(stop[:, None], 0.0).sin(), stop

    compiled = Compiled(program)
    for rows, one, other in ((2, False, False), (3, False, False), (3, True, False), (4, False, True), (2, True, True)):
        compiled.check(torch.ones(rows, 3), one, other)
    assert len(compiled.graphs) == 2
