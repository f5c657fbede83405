"""Calls captured by our own front end: no change is missed, nothing runs twice, breaks split and skip nothing."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch
from torch import nn

import lamina
from lamina.capture.own.callable import interpreted_callable
from lamina.capture.own.pending import Pending
from lamina.cli.demo_models import Attention
from lamina.errors import GraphBroken
from lamina.record import Record
from lamina.summary import user_kernels
from tests.capture.own.changes import CASES, outcomes

OWN = {"capture": "own", "strict": True}


def own(function):
    return lamina.compile(function, options=OWN)


class Graphs:
    """A backend that keeps the graphs it is given and runs them as they are."""

    def __init__(self):
        self.graphs = []

    def __call__(self, gm, example_inputs):
        self.graphs.append(gm)
        return gm.forward

    @property
    def calls(self):
        return sum(node.op.startswith("call") for gm in self.graphs for node in gm.graph.nodes)


def captured(function):
    graphs = Graphs()
    return interpreted_callable(function, backend_callable=graphs, record=Record()), graphs


def opaque(x):
    torch._dynamo.graph_break()
    return x


def values(n=4):
    return torch.arange(1.0, n + 1)


def same(a, b):
    if not isinstance(a, torch.Tensor):
        return a == b
    return a.dtype == b.dtype and torch.equal(torch.signbit(a), torch.signbit(b)) and torch.allclose(a, b)


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("name", CASES)
def test_every_change_between_calls_is_noticed(name: str) -> None:
    torch.manual_seed(0)
    expected = [
        x.clone() if isinstance(x, torch.Tensor) else x for x in outcomes(CASES[name], lambda function: function)
    ]
    torch.manual_seed(0)
    for step, (found, wanted) in enumerate(zip(outcomes(CASES[name], own), expected, strict=True)):
        assert same(found, wanted), step


def test_a_break_in_a_loop_splits_it_and_compiles_its_body_once() -> None:
    def loop(x, n):
        for _ in range(n):
            x = (x * 0.5).sin() + 1
            if x.sum().item() > 3:
                x = x - 1
            x = opaque(x.cos() * x)
        return x

    counts = []
    for n in (8, 80):
        f, graphs = captured(loop)
        assert torch.allclose(f(values(), n), loop(values(), n))
        counts.append(len(graphs.graphs))
    assert counts[0] == counts[1] <= 4


@pytest.mark.parametrize("kind", ["try", "with", "generator", "comprehension", "nested"])
def test_breaks_anywhere_leave_all_calls_in_graphs(kind: str) -> None:
    def handled(x):
        try:
            return opaque(x.sin() * 2).cos() * x
        except ValueError:
            return x

    def managed(x):
        with torch.no_grad():
            y = opaque(x.sin() * 2).cos()
        return y * y

    def generated(x):
        def parts():
            for i in range(3):
                yield opaque(x * i).sin()

        return sum(parts())

    def comprehended(x):
        return torch.stack([opaque(x.sin() * i) + 1 for i in range(4)]).sum(0)

    def nested(x):
        def inner(x):
            return opaque(x.sin() * 2).cos()

        return inner(inner(x) + 1).tanh()

    program, calls = {
        "try": (handled, 4),
        "with": (managed, 6),  # of which two switch the gradients
        "generator": (generated, 9),
        "comprehension": (comprehended, 14),
        "nested": (nested, 8),
    }[kind]
    f, graphs = captured(program)
    for _ in range(2):
        assert torch.allclose(f(values()), program(values()))
    made = sum(len([n for n in gm.graph.nodes if n.op.startswith("call")]) for gm in graphs.graphs)
    assert 0 < made <= calls
    before = len(graphs.graphs)
    f(values())
    assert len(graphs.graphs) == before


def test_nothing_runs_twice_and_effects_keep_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    log = []

    def program(x):
        log.append("begin")
        print("a", end="")
        y = x * 2
        log.append(y)
        print("b", end="")
        if y.sum().item() > 0:
            log.append("positive")
        return y + 1

    assert torch.equal(own(program)(values()), values() * 2 + 1)
    assert capsys.readouterr().out == "ab"
    assert log[0] == "begin"
    assert log[2] == "positive"
    assert type(log[1]) is torch.Tensor
    assert torch.equal(log[1], values() * 2)


def test_pending_tensors_look_like_tensors_and_none_is_left() -> None:
    seen = []

    def program(x):
        y = x * 2
        seen.extend((type(y) is torch.Tensor, isinstance(y, torch.Tensor), y.shape, y.dtype, y.__class__, len(y)))
        y.tag = "kept"
        z = y + 1
        seen.append(y.tag)
        return {"a": [z], "b": (y, x)}

    found = own(program)(values())
    assert seen == [True, True, (4,), torch.float32, torch.Tensor, 4, "kept"]
    assert found["b"][0].tag == "kept"
    assert not any(type(t) is Pending for t in (found["a"][0], *found["b"]))


def test_results_that_are_arguments_are_the_arguments() -> None:
    x = values()
    a, b = own(lambda x: (x.contiguous(), x.view(2, 2)))(x)
    assert a is x
    assert b._base is x
    b.add_(1)
    assert torch.equal(x, values() + 1)


@pytest.mark.parametrize("compile", [own, lambda function: captured(function)[0]], ids=["compiled", "as captured"])
def test_writes_through_views_reach_all_who_share_the_memory(compile) -> None:
    def program(x, y):
        part = x.view(2, 2)
        part.add_(1)
        z = y * 2
        w = z[1:]
        z.mul_(3)
        return x + 0, z, w

    for shared in (False, True):
        outcomes = []
        for function in (program, compile(program)):
            x = values()
            y = x[:] if shared else values()
            found = function(x, y)
            found[1].sub_(5)
            outcomes.append([t.clone() for t in (x, y, *found)])
        assert all(torch.equal(a, b) for a, b in zip(*outcomes, strict=True))


def test_running_statistics_are_written_once() -> None:
    model, twin = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    compiled, x = own(model), torch.randn(6, 4)
    for _ in range(3):
        assert torch.allclose(compiled(x), twin(x), atol=1e-6)
    assert torch.allclose(model.running_mean, twin.running_mean)
    assert int(model.num_batches_tracked) == 3


def test_a_result_that_is_an_argument_or_given_twice_keeps_the_users_tensor() -> None:
    def backend(gm, example_inputs):
        return lambda x: (x, x)

    x = values()
    a, b = interpreted_callable(lambda x: (x * 1, x * 1.0), backend_callable=backend, record=Record())(x)
    assert type(x) is type(a) is type(b) is torch.Tensor
    assert a is not b
    assert all(torch.equal(t, values()) for t in (x, a, b))


def test_training_gives_eagers_gradients() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Dropout(0.0), nn.Linear(8, 2))
    compiled, x = own(model), torch.randn(3, 4, requires_grad=True)
    for function in (model, compiled):
        model.zero_grad()
        x.grad = None
        function(x).square().sum().backward()
        gradients = [x.grad, *(p.grad for p in model.parameters())]
        if function is model:
            expected = [g.clone() for g in gradients]
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(gradients, expected, strict=True))


def test_a_view_that_a_graph_returns_leads_to_its_base() -> None:
    """Of the base the graph computes nothing else."""
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True) * 1
    part, total = own(lambda x, w: (x[1:], w.sum()))(x, w)
    (part.sum() + total).backward()
    assert torch.equal(x.grad, torch.tensor([[0.0], [1.0], [1.0]]).expand(3, 4))


def test_whoever_watches_a_result_sees_its_whole_gradient() -> None:
    def program(x):
        y = torch.tanh(x)[:, -1]
        return y, y / 2

    seen = []
    with pytest.raises(lamina.BadArgument):  # from then on Dynamo runs frames, and calls hold their arguments longer
        torch.compile(lambda x: x + 1, backend="lamina", options={"report": "report.txt"})(torch.ones(2))
    for function in (program, own(program)):
        x = torch.arange(6.0).reshape(2, 3).requires_grad_()
        y, z = function(x)
        y.retain_grad()
        y.register_hook(lambda gradient: seen.append(gradient) or None)
        (y.sum() + 3 * z.sum()).backward()
        seen.append(y.grad)
    assert all(torch.allclose(gradient, torch.full((2,), 2.5)) for gradient in seen)
    assert len(seen) == 4


def test_a_graph_that_switches_gradients_begins_as_the_program_does() -> None:
    def program(x):
        y = x * 2
        with torch.no_grad():
            z = y * 3
        return opaque(y), z, (y * z).sum()

    f, x = own(program), values().requires_grad_()
    for _ in range(2):
        found, wanted = f(x), program(x)
        assert [t.requires_grad for t in found] == [t.requires_grad for t in wanted] == [True, False, True]
        assert torch.is_grad_enabled()
    found[2].backward()
    assert torch.allclose(x.grad, 12 * values())


def test_a_result_has_one_object_for_python_and_a_weak_reference_to_it() -> None:
    references = []

    def program(x):
        y = x * 2
        references.append(weakref.ref(y))
        return y

    y = own(program)(values())
    assert references[0]() is y
    assert torch.equal(y, values() * 2)


def test_results_end_when_nobody_holds_them() -> None:
    gc.collect()
    gc.disable()
    try:
        found = own(lambda x: (x + 1, x.sum()))(values())
        reference = weakref.ref(found[0])
        del found
        assert reference() is None
    finally:
        gc.enable()


def test_autograd_functions_and_hooks_of_the_users_run() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 7

    def program(x):
        y = Twice.apply(x.sin())
        y.register_hook(lambda gradient: gradient * 3)
        return (y + 1).sum()

    x = values().requires_grad_()
    own(program)(x).backward()
    assert torch.allclose(x.grad, 21 * values().cos())


def test_autograd_functions_in_what_a_native_function_calls_back() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 7

    def program(x):
        y, found = x.sin(), []
        [0].sort(key=lambda k: found.append(Twice.apply(y)) or 0)
        return (found[0] + next(map(Twice.apply, (y,)))).sum()

    x = values().requires_grad_()
    own(program)(x).backward()
    assert torch.allclose(x.grad, 14 * values().cos())


def test_an_error_of_a_call_is_eagers_and_names_the_line() -> None:
    def program(x):
        y = x * 2
        return y @ torch.ones(3)

    with pytest.raises(RuntimeError) as expected:
        program(values())
    with pytest.raises(RuntimeError) as found:
        own(program)(values())
    assert str(found.value) == str(expected.value)
    entries = [entry for entry in found.traceback if entry.frame.code.raw.co_filename == __file__]
    assert entries[-1].lineno == program.__code__.co_firstlineno + 1


def test_modes_and_transforms_outside_leave_the_call_to_python() -> None:
    def program(x):
        return x.sum() * 2 + x

    f = own(program)
    batch = torch.arange(8.0).reshape(2, 4)
    assert torch.equal(torch.func.vmap(f)(batch), torch.func.vmap(program)(batch))
    assert any("mode, a transform" in str(d.reason) for d in f.record.decisions())
    assert torch.equal(f(values()), program(values()))


def test_modes_entered_within_are_followed() -> None:
    def program(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ x
        with torch.inference_mode():
            z = x @ x
        with torch.no_grad():
            w = x * 2
        return y, z, w, torch.is_grad_enabled()

    x = torch.randn(4, 4, requires_grad=True)
    for found, wanted in zip(own(program)(x), program(x), strict=True):
        if isinstance(wanted, torch.Tensor):
            assert (found.dtype, found.requires_grad) == (wanted.dtype, wanted.requires_grad)
            assert found.is_inference() == wanted.is_inference()
            assert torch.allclose(found.float(), wanted.float(), rtol=2e-2)
        else:
            assert found == wanted


def test_random_numbers_that_nobody_reads_are_drawn() -> None:
    def program(x):
        torch.svd_lowrank(x.view(2, 2), 1)
        return len(x)

    torch.manual_seed(3)
    program(values())
    expected = torch.rand(2)
    torch.manual_seed(3)
    own(program)(values())
    assert torch.equal(torch.rand(2), expected)


def test_random_numbers_are_drawn_in_order() -> None:
    def program(x):
        a = torch.rand(4)
        torch.rand(3)
        b = torch.rand(4) if a.sum().item() > 0 else x
        return a + x, b

    f, _ = captured(program)
    torch.manual_seed(3)
    expected = (*program(values()), torch.rand(2))
    torch.manual_seed(3)
    found = (*f(values()), torch.rand(2))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_threads_share_graphs() -> None:
    def program(x):
        return (x * 2 + 1).relu().sum() * x

    f = own(program)
    found = [None] * 6

    def call(place):
        found[place] = f(values() + place)

    threads = [threading.Thread(target=call, args=(place,)) for place in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.allclose(x, program(values() + place)) for place, x in enumerate(found))


def test_a_failing_graph_fails_the_call_and_what_it_was_to_compute() -> None:
    kept = []

    def backend(gm, example_inputs):
        def run(*args):
            raise ZeroDivisionError("in a graph")

        return run

    memory = torch.zeros(4)

    def program(x):
        kept.append(torch.rand(4) * x)
        memory.add_(kept[0])  # which may have been done by then: nothing is computed again
        return kept[0] + 1

    with pytest.raises(ZeroDivisionError):
        interpreted_callable(program, backend_callable=backend, record=Record())(values())
    with pytest.raises(RuntimeError, match="the graph that was to compute this tensor failed"):
        kept[0].sum()


def test_an_interrupt_leaves_the_users_tensors_computed() -> None:
    kept = []

    def program(x):
        kept.append(x * 2)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        own(program)(values())
    assert type(kept[0]) is torch.Tensor
    assert torch.equal(kept[0], values() * 2)


def test_what_it_does_not_do_is_left_to_dynamo_and_said() -> None:
    net = torch.jit.trace(torch.nn.ReLU(), values())
    f = lamina.compile(net, options={"capture": "own"})
    assert torch.equal(f(values()), values().relu())
    assert any("it is a TorchScript module" in str(d.reason) for d in f.record.decisions())


def test_graphs_are_counted_and_kept_in_the_record() -> None:
    @own
    def parted(x):
        y = x.sin()
        return y.cos() if y.sum() > 0 else y

    parted(values())
    assert parted.stats().graphs == 2
    stages = [stage.name for stage in parted.record.stages]
    assert stages.count("capture") == 3  # what the callable is, and each of its graphs
    assert stages.count("other") == 2


def test_a_result_of_several_that_nothing_reads_leaves_nothing_to_eager() -> None:
    @own
    def halved(x):
        first, _ = x.chunk(2)
        return first.cos()

    halved(values())
    assert not halved.record.decisions("eager")
    assert halved.stats().kernels == 1


def test_fullgraph_is_one_graph() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 2))
    f = lamina.compile(model, fullgraph=True, options=OWN)
    x = torch.randn(3, 4)
    assert torch.allclose(f(x), model(x), atol=1e-6)


def test_fullgraph_names_what_ends_the_graph_with_its_line() -> None:
    kept = []

    def asks_for_a_number(x):
        return (x * 2).sum().item()

    def calls_what_is_not_known(x):
        y = x * 2
        try:
            return opaque(y) + 1
        except Exception:
            return y

    def branches(x):
        y = x * 2
        kept.append(y)
        return y if y.sum() > 0 else x

    for program, what, line in (
        (asks_for_a_number, "item", 1),
        (calls_what_is_not_known, "graph_break", -1),
        (branches, "__bool__", 3),
    ):
        f = lamina.compile(program, fullgraph=True, options=OWN)
        for _ in range(2):
            with pytest.raises(GraphBroken, match=what) as raised:
                f(values())
            if line > 0:
                assert f"line {program.__code__.co_firstlineno + line}," in str(raised.value)
            assert "without fullgraph" in raised.value.remedy
    assert torch.equal(kept[-1], values() * 2)


def test_what_ends_a_graph_is_a_decision_with_its_code_and_line():
    def function(x):
        y = x.sin()
        scale = float(y.sum())
        places = y.nonzero()
        if y.sum() > 100:
            return y
        z = opaque(y + 1)
        return z.numpy() * scale, places

    compiled = own(function)
    for _ in range(2):
        compiled(values())
    start = function.__code__.co_firstlineno
    found = [
        (d.code, int(d.subject[0].rpartition(":")[2]) - start, d.taken, bool(d.remedy))
        for d in compiled.record.decisions("break")
    ]
    asked = opaque.__code__.co_firstlineno + 1 - start
    assert found == [
        ("LM1001", 2, False, True),
        ("LM1003", 3, False, True),
        ("LM1002", 4, False, True),
        ("LM1010", asked, False, True),
        ("LM1022", 7, False, True),
    ]
    assert compiled.stats().breaks == 5
    assert not any("Dynamo" in d.remedy or "_dynamo" in d.remedy for d in compiled.record.decisions("break"))


def test_a_graph_that_returns_ends_by_nothing():
    compiled = own(lambda x: x.sin() + 1)
    compiled(values())
    assert compiled.record.decisions("break") == []


@pytest.mark.parametrize("parts", [lambda x: x.chunk(2), lambda x: x.unbind(), lambda x: (x[0], x[1])])
def test_views_of_a_parameter_are_written_without_gradients(parts):
    """The other views of it cannot be asked for their history then."""

    def scaled(w):
        first, second = parts(w)
        first.mul_(3)
        return second + 1, first * 2

    for _ in range(2):
        w, wanted = (torch.nn.Parameter(torch.arange(4.0).reshape(2, 2)) for _ in range(2))
        with torch.no_grad():
            found = own(scaled)(w)
            assert all(map(torch.equal, found, scaled(wanted)))
        assert torch.equal(w, wanted)


@pytest.mark.parametrize("capture", ["dynamo", "own"])
def test_what_a_callable_of_this_front_end_was_made_of_is_captured(capture):
    function, module = own(lambda x: x.sin() * 2), own(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()))

    def outer(x):
        return module(function(x)).cos()

    torch.compiler.reset()
    compiled = lamina.compile(outer, options={"compare_eager": "off", "progress": False, "capture": capture})
    x = torch.linspace(-1, 1, 16).reshape(4, 4)
    wanted = outer(x)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), wanted)
    assert compiled.stats().graphs == 1
    assert compiled.record.decisions("break") == []
    places = [place for work in user_kernels(compiled.record) for place in work.places]
    assert places
    assert all(place.startswith("test_capturing.py:") for place in places), places


def test_weak_references_die_when_they_do_in_eager():
    def function(x):
        y = x.relu()
        reference = weakref.ref(y)
        z = reference() + 1
        del y
        return z, reference() is None

    compiled = own(function)
    for _ in range(2):
        z, dead = compiled(values())
        assert same(z, values().relu() + 1)
        assert dead


def test_models_of_the_demo_are_interpreted_though_they_are_of_lamina() -> None:
    model, x = Attention(8, 2).eval(), torch.randn(2, 3, 8)
    compiled, graphs = captured(lambda x: model(x, x, x) + 1)
    with torch.no_grad():
        assert torch.equal(compiled(x), model(x, x, x) + 1)
    assert len(graphs.graphs) == 1
    assert graphs.calls > 10
