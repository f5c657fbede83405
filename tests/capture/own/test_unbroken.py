"""What Python's and torch's functions do within one graph: how many graphs there are, and that results are eager's."""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import MutableMapping
from contextvars import ContextVar
from dataclasses import dataclass, fields

import pytest
import torch
from torch import nn

from lamina.capture.own.callable import interpreted_callable
from lamina.capture.own.machine import Machine
from lamina.record import Record


def graphs_of(target, *calls, **options):
    """The graphs of ``target`` for calls with these arguments, whose results are compared with eager's."""
    graphs = []

    def backend(gm, fakes):
        graphs.append(gm)
        return gm.forward

    compiled = interpreted_callable(target, backend_callable=backend, record=Record(), **options)
    for args in calls:
        copies = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args]
        torch.testing.assert_close(compiled(*args), target(*copies))
        for arg, copy in zip(args, copies, strict=True):
            if isinstance(arg, torch.Tensor):
                torch.testing.assert_close(arg, copy)
    return graphs


@dataclass
class Output(OrderedDict):
    """A dictionary whose entries are attributes, too, as libraries return them."""

    first: torch.Tensor = None
    second: torch.Tensor = None

    def __post_init__(self):
        for field in fields(self):
            if getattr(self, field.name) is not None:
                self[field.name] = getattr(self, field.name)

    def __setattr__(self, name, value):
        if name in {field.name for field in fields(self)} and value is not None:
            super().__setitem__(name, value)
        super().__setattr__(name, value)

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(key, value)

    def __getitem__(self, key):
        return dict(self.items())[key] if isinstance(key, str) else tuple(self[k] for k in self.keys())[key]


class Registry(MutableMapping):
    def __init__(self):
        self.held = {"double": lambda x: x * 2}

    def __getitem__(self, key):
        return self.held[key]

    def __setitem__(self, key, value):
        self.held[key] = value

    def __delitem__(self, key):
        del self.held[key]

    def __iter__(self):
        return iter(self.held)

    def __len__(self):
        return len(self.held)


class Odd:
    def __contains__(self, x):
        return 2


class Base(ABC):
    @abstractmethod
    def run(self, x): ...


class Child(Base):
    def run(self, x):
        return x + 1


class Bare:
    pass


REGISTRY = Registry()
VARIABLE = ContextVar("variable", default=3)


def outputs(x):
    found = Output(first=x.sin())
    found.second = found.first + 1
    found["first"] = found[1] * 2
    return found.first + found["second"] + len(found)


def registered(x):
    x = x.exp()
    REGISTRY["shift"] = 3
    del REGISTRY["shift"]
    return REGISTRY["double"](x) if "double" in REGISTRY and "triple" not in REGISTRY else x


def odd(x):
    y = x * 2
    return y + (1 if (3 in Odd()) is True else 5)


def made(x):
    y = x * 2
    bare = Bare()
    bare.y = y + 1
    return Child().run(bare.y)


def imported(x):
    y = x.cos()
    import collections.abc as found  # noqa: PLC0415
    import math  # noqa: PLC0415
    from os import path, sep  # noqa: PLC0415

    return y * math.pi + len(sep) + (1 if path and found.Sized else 2)


def environment(x):
    y = x.cos()
    return y + (1 if os.environ.get("LAMINA_NO_SUCH_VARIABLE") is None else 2)


def variable(x):
    y = x * 2
    token = VARIABLE.set(5)
    y = y + VARIABLE.get()
    VARIABLE.reset(token)
    return y + VARIABLE.get()


def numbers(x):
    return x + torch.tensor([1.5, 2.0, -0.0]) + torch.tensor(3) + torch.cat([torch.tensor([]), x * 2])


def marked(x):
    y = x * 2
    torch._dynamo.mark_static_address(y)
    z = y + 1
    return z + (1 if hasattr(y, "_dynamo_static_input_type") else 5)


def ordered(x):
    names = ["bb", "a", "ccc"]
    parts = sorted((x * n for n in (3, 1, 2)), key=lambda part: part.dim(), reverse=True)
    return parts[0] + len(min(names, key=lambda name: len(name))) + len(max(iter(names), key=lambda name: name))


@pytest.mark.parametrize("program", [ordered, outputs, registered, odd, made, imported, environment, variable, numbers])
def test_what_runs_nothing_of_the_users_ends_no_graph(program) -> None:
    assert len(graphs_of(program, (torch.randn(3),), (torch.randn(3),))) == 1


def test_marks_of_tensors_are_there_when_they_are_asked_for() -> None:
    assert len(graphs_of(marked, (torch.randn(3),))) == 2
    kept = []

    def keeps(x):
        kept.append(x * 2)
        torch._dynamo.mark_static_address(kept[-1])
        return kept[-1] + 1

    assert len(graphs_of(keeps, (torch.randn(3),))) == 1
    assert all(hasattr(tensor, "_dynamo_static_input_type") for tensor in kept)


def test_an_import_that_runs_something_does_so_where_the_program_stands(tmp_path, monkeypatch) -> None:
    (tmp_path / "runs_something.py").write_text("import seen\nseen.found = seen.tensor.sum().item()\n")
    (tmp_path / "seen.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    import seen  # noqa: PLC0415

    def program(x):
        seen.tensor = x * 2
        import runs_something  # noqa: PLC0415

        return seen.tensor + seen.found + (runs_something is not None)

    compiled = interpreted_callable(program, backend_callable=lambda gm, fakes: gm.forward, record=Record())
    torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), 9.0))


def looked_up(x, table, at):
    seen = []
    try:
        y = table[at] + x
        seen.append(1)
        y = y * 2
    except IndexError:
        y = x
    return y + len(seen)


def embedded(x, table, at):
    held = Bare()
    with contextlib.suppress(IndexError):
        y = nn_embedding(at, table)
        held.y = y * 2
    return x + (held.y if hasattr(held, "y") else 100)


def written(x, table, at):
    held = Bare()
    places = at + 1 - 1
    at.add_(1)
    try:
        table.index_copy_(0, places, x)
        held.done = 1
    except IndexError:
        held.failed = 2
    return table * 2 + (1 if hasattr(held, "done") else 2)


def selected(x, table, at):
    held = Bare()
    try:
        y = table.index_select(0, at)
        held.done = 1
    except IndexError:
        y = x
    return y + (1 if hasattr(held, "done") else 2)


def of_written(x, table, at):
    at[0] = 7
    return selected(x, table, at)


def through_a_view(x, table, at):
    view = at.view(-1)[:1]
    places = at[:2]
    view.fill_(9)
    return selected(x, table, places)


def of_the_caller(x, table, at):
    base = at.expand(2, 2)[0]
    at.mul_(3)
    return selected(x, table, base)


def of_shifted(x, table, at):
    with contextlib.suppress(IndexError):
        shifted = at.new_zeros(at.shape)
        shifted[1:] = at[:-1].clone()
        shifted[0] = at[-1]
        shifted.masked_fill_(shifted == 9, 1)
        return selected(x, table, shifted)
    return x - 3


def of_shifted_part(x, table, at):
    with contextlib.suppress(IndexError):
        shifted = torch.zeros(4, dtype=at.dtype)
        part = shifted[1:3]
        part[:] = at
        return selected(x, table, shifted[:3:2])
    return x - 3


nn_embedding = torch.nn.functional.embedding


@pytest.mark.parametrize("places", [(0, 1), (2, 0), (4, 1), (1, 9), (-1, 0)])
@pytest.mark.parametrize(
    "program", [looked_up, embedded, written, of_written, through_a_view, of_the_caller, of_shifted, of_shifted_part]
)
def test_lookups_raise_where_they_do_in_eager(program, places) -> None:
    x, table = torch.randn(2, 3), torch.randn(5, 3)
    graphs_of(program, (x, table, torch.tensor(places)), (x, table, torch.tensor((1, 1))))


def test_lookups_that_do_not_raise_end_no_graph() -> None:
    given = torch.randn(2, 3), torch.randn(5, 3), torch.tensor((1, 2))
    for program in (looked_up, embedded, written, of_shifted, of_shifted_part):
        assert len(graphs_of(program, given)) == 1


def test_conversions_end_no_graph() -> None:
    def program(x):
        with contextlib.suppress(ValueError):
            x = x.sin().type(torch.float64)
        return x * 2

    assert len(graphs_of(program, (torch.randn(3),))) == 1


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generation_compiles_three_graphs_and_is_not_interpreted_again(cache: str, monkeypatch) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.randint(1, 32, (1, 5))
    options = {"cache_implementation": "static", "disable_compile": True} if cache == "static" else {}
    wanted = model.generate(ids, max_new_tokens=9, do_sample=False, pad_token_id=0, **options)
    graphs = []

    def backend(gm, fakes):
        graphs.append(gm)
        return gm.forward

    run, interpreted = Machine.run, []
    monkeypatch.setattr(Machine, "run", lambda machine, *given: interpreted.append(1) or run(machine, *given))
    model.forward = interpreted_callable(model.forward, backend_callable=backend, record=Record())
    for _ in range(3):
        interpreted.clear()
        assert torch.equal(model.generate(ids, max_new_tokens=9, do_sample=False, pad_token_id=0, **options), wanted)
    assert len(graphs) <= 3
    assert not interpreted


class Residuals(nn.Module):
    """Equal blocks, each of which writes to what it has computed."""

    def __init__(self, write: str) -> None:
        super().__init__()
        self.layers, self.write = nn.ModuleList(nn.Linear(6, 6) for _ in range(4)), write

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, 6) in and out."""
        for layer in self.layers:
            y = layer(layer(layer(x)))  # the last two of which look the same
            if self.write == "sum":
                y += x
            elif self.write == "part":
                y[:, 1:3] = x[:, :2]
            elif self.write == "view":
                y.view(-1, 3, 2).mul_(2)
            elif self.write == "by nobody's":
                with torch.no_grad():
                    y = y * 2
                y.add_(layer.bias)
            else:
                y = y.sin().clamp_(-0.5, 0.5)
            x = y.relu()
        return x


@pytest.mark.parametrize("write", ["sum", "part", "view", "by nobody's", "clamped"])
def test_equal_blocks_that_write_to_what_they_compute_are_one_graph(write: str) -> None:
    torch.manual_seed(0)
    net, graphs = Residuals(write), []

    def backend(gm, fakes):
        graphs.append(gm)
        return gm.forward

    call = interpreted_callable(net, backend_callable=backend, record=Record())
    for rows in (5, 5, 7):
        x = torch.randn(rows, 6, requires_grad=True)
        found, wanted = call(x), net(x)
        assert torch.equal(found, wanted)
        given = (x, *net.parameters())
        of = [torch.autograd.grad(one.square().sum(), given, allow_unused=True) for one in (found, wanted)]
        for one, other in zip(*of, strict=True):
            assert (one is None and other is None) or torch.equal(one, other)
    assert len(graphs) <= 2
