"""Sizes and integers that vary: how often graphs are compiled for them, and that results are those of eager."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.fx import Interpreter

from lamina import compile as lamina_compile
from lamina.aot.graph_compiler import GraphCompiler
from lamina.base.symbolic.environment.torch_private import AskedTooLate, answers_settled
from lamina.base.torch_private import storage_of
from lamina.capture.own.callable import interpreted_callable
from lamina.capture.own.sharing.form import Form
from lamina.capture.own.sharing.torch_private import Symbols, evaluated, expression
from lamina.record import Record
from tests.capture.own.machines import MACHINES
from tests.capture.own.sized_programs import difference

SEEDS = 40


class Counted:
    """A callable of the own front end whose backend counts the graphs that it is given."""

    def __init__(self, target, **options):
        self.graphs, self.record = [], Record()

        def backend(gm, fakes):
            self.graphs.append(gm)
            return gm.forward

        self.call = interpreted_callable(target, backend_callable=backend, record=self.record, **options)

    def reasons(self, code):
        return [str(d.reason) for d in self.record.decisions() if d.code == code]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.places, self.project, self.out = nn.Embedding(64, 16), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x):
        batch, length, width = x.shape
        x = x + self.places(torch.arange(length))
        q, k, v = (part.view(batch, length, 4, 4).transpose(1, 2) for part in self.project(x).split(width, 2))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).contiguous().view(batch, length, width))


def test_inputs_of_a_graph_stand_first_wherever_they_are_read_first() -> None:
    def program(x, y, z):
        made = x.sin() * y
        return made.cos() @ z

    counted = Counted(program)
    for rows in (3, 5, 7):  # the graph of the second call has sizes as inputs too
        x, y, z = torch.randn(rows, 4), torch.randn(rows, 4), torch.randn(4, 2)
        torch.testing.assert_close(counted.call(x, y, z), program(x, y, z))
    assert len(counted.graphs) == 2
    for gm in counted.graphs:
        kinds = [node.op == "placeholder" for node in gm.graph.nodes]
        assert kinds == sorted(kinds, reverse=True)
        assert sum(kinds) >= 3


def test_batch_sizes_take_two_compilations() -> None:
    net = nn.Sequential(nn.Linear(16, 8), nn.GELU(), nn.LayerNorm(8))
    counted = Counted(net)
    for batch in (4, 8, 1, 2, 16):
        x = torch.randn(batch, 16)
        torch.testing.assert_close(counted.call(x), net(x))
    assert len(counted.graphs) == 2
    assert "size 0 of tensor 0" in counted.reasons("LM1216")[0]
    assert len(counted.record.decisions("recompile")) == 1


CONVOLUTIONS = {
    "rows": (lambda: nn.Conv1d(3, 4, 3), (3, 9)),
    "images": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1)), (3, 9, 9)),
    "strides": (lambda: nn.Conv2d(4, 4, 3, stride=2, padding=1, groups=2), (4, 9, 9)),
    "transposed": (lambda: nn.ConvTranspose2d(3, 4, 3), (3, 5, 5)),
    "volumes": (lambda: nn.Conv3d(3, 4, 3), (3, 5, 5, 5)),
    "doubles": (lambda: nn.Conv2d(3, 4, 3).double(), (3, 9, 9)),
}


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_batch_sizes_of_convolutions_take_two_compilations(kind: str) -> None:
    make, sizes = CONVOLUTIONS[kind]
    net = make()
    counted = Counted(net)
    dtype = next(net.parameters()).dtype
    for batch in (4, 8, 1, 2, 16, 33):
        x = torch.randn(batch, *sizes, dtype=dtype)
        found, wanted = counted.call(x), net(x)
        torch.testing.assert_close(found, wanted)
        assert found.stride() == wanted.stride()
    assert len(counted.graphs) == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_layouts_of_convolutions_with_the_channels_innermost_are_those_of_eager(dtype: torch.dtype) -> None:
    net = nn.Conv2d(3, 4, 1).to(dtype)
    counted, compiled = Counted(net), lamina_compile(net, options={"capture": "own"})
    for batch in (4, 8, 2, 16, 33):
        x = torch.randn(batch, 3, 5, 6, dtype=dtype).to(memory_format=torch.channels_last)
        wanted = net(x)
        for call in (counted.call, compiled):
            found = call(x)
            torch.testing.assert_close(found, wanted)
            assert found.stride() == wanted.stride()


def test_which_algorithm_a_convolution_takes_is_asked_after_the_guards_are_settled() -> None:
    symbols = Symbols()
    batch = symbols.new(4, True)
    with symbols.mode:
        image, weight = torch.empty(batch, 3, 8, 8), torch.empty(4, 3, 3, 3)
        innermost = torch.empty(batch, 8, 8, 3).permute(0, 3, 1, 2)
    symbols.settle()
    with symbols.mode, answers_settled([image]):
        assert nn.functional.conv2d(image, weight).stride() == (144, 36, 6, 1)
        with pytest.raises(AskedTooLate):
            nn.functional.conv2d(innermost, weight)
    assert symbols.hold((16,))


WITH_SIZES = {
    "the last row": lambda x: x[x.shape[0] - 1],
    "a row and a part": lambda x: x[x.shape[0] // 2, 1:],
    "a column": lambda x: x[:, x.shape[0] % 5].sin(),
    "columns from behind": lambda x: x[None, ..., x.shape[0] % 5, :4].cos() if x.dim() > 2 else x[..., x.shape[0] % 5],
    "a tensor": lambda x: x * torch.tensor(x.shape[0]) + torch.tensor(x.shape[0], dtype=torch.float64),
    "padding": lambda x: nn.functional.pad(x, (0, 0, 1, max(0, 16 - x.shape[0]))).sin(),
    "twice the size": lambda x: nn.functional.interpolate(x[None, None], scale_factor=2.0),
    "nothing dropped": lambda x: nn.functional.dropout(x, 0.5, False).sin(),
}


@pytest.mark.parametrize("name", WITH_SIZES)
def test_sizes_that_choose_and_fill_are_inputs(name: str) -> None:
    program = WITH_SIZES[name]
    counted, compiled = Counted(program), lamina_compile(program, options={"capture": "own"})
    for rows in (4, 8, 1, 2, 16, 5, 9):
        x = torch.randn(rows, 6)
        wanted = program(x)
        for call in (counted.call, compiled):
            found = call(x)
            torch.testing.assert_close(found, wanted)
            assert (found.stride(), found.storage_offset()) == (wanted.stride(), wanted.storage_offset())
    assert len(counted.graphs) == 2


def test_parts_chosen_by_sizes_are_views_where_they_are_written_to() -> None:
    def program(x, n):
        x[n].mul_(2)
        x[..., n, 1:].add_(1)
        x[n - 1, ..., n].sub_(3)
        return x[-n]

    counted = Counted(program)
    for number in (2, 3, 1, 4):
        given = torch.arange(150.0).reshape(5, 6, 5)
        expected = given.clone()
        assert torch.equal(counted.call(given, number), program(expected, number))
        assert torch.equal(given, expected)
    assert len(counted.graphs) == 2


def test_new_dimensions_have_the_strides_of_what_they_are_put_before() -> None:
    def program(x, k):
        return x[None, k, ::2], x[None, :, k], x[None, None, k, k], x[..., None, k], x[k, None, k:], x[None, ..., k]

    compiled = lamina_compile(program, options={"capture": "own"})
    for number in (2, 3, 1, 0, -1):
        for x in (torch.randn(5, 6, 5), torch.randn(5, 7, 6).transpose(0, 2)):
            for found, wanted in zip(compiled(x, number), program(x, number), strict=True):
                assert torch.equal(found, wanted)
                assert (found.stride(), found.storage_offset()) == (wanted.stride(), wanted.storage_offset())


def test_a_form_does_not_ask_for_what_is_only_noted() -> None:
    compiled = lamina_compile(lambda x: x[x.shape[0] - 1] * 2, options={"capture": "own"})
    for rows in (4, 8, 1, 2):
        x = torch.randn(rows, 6)
        torch.testing.assert_close(compiled(x), x[-1] * 2)
    assert not [d for d in compiled.record.decisions() if d.code == "LM1222"]


def test_mixed_batches_and_sequences_take_three_compilations() -> None:
    torch.manual_seed(0)
    net = Attention()
    counted = Counted(net)
    for batch, length in ((4, 8), (2, 8), (2, 16), (1, 32), (8, 1), (3, 5)):
        x = torch.randn(batch, length, 16)
        torch.testing.assert_close(counted.call(x), net(x))
    assert len(counted.graphs) <= 3


def ends_without(x):
    y = x * 2
    torch.set_grad_enabled(False)
    return y, y + 1


def begins_without(x):
    with torch.no_grad():
        y = x * 2
    return y, x + y


def has_a_part_without(x):
    y = x * 2
    with torch.no_grad():
        z = y + x
    return y, z, z * x


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("program", [ends_without, begins_without, has_a_part_without])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("grad", [False, True])
def test_switches_of_the_grad_mode_within_graphs_for_several_sizes(program, dynamic, grad) -> None:
    compiled = lamina_compile(program, dynamic=dynamic, options={"capture": "own"})
    for size in (3, 4, 5, 5):
        x, told = torch.randn(size, requires_grad=True), []
        for call in (program, compiled):
            with torch.set_grad_enabled(grad):
                results = call(x)
                told.append((torch.is_grad_enabled(), [(y.requires_grad, y.tolist()) for y in results]))
            if grad:
                total = sum(y.sum() for y in results if y.requires_grad)
                told.append(torch.autograd.grad(total, x)[0].tolist())
        assert told[: len(told) // 2] == told[len(told) // 2 :]


@pytest.mark.parametrize("grad", [False, True])
def test_compiled_graphs_with_sizes_as_inputs_compute_what_eager_does(grad: bool) -> None:
    torch.manual_seed(0)
    net = Attention()
    compiled = lamina_compile(net, options={"capture": "own"})
    for batch, length in ((4, 8), (2, 16), (1, 8), (3, 1)):
        x = torch.randn(batch, length, 16)
        with torch.set_grad_enabled(grad):
            found, wanted = compiled(x), net(x)
        torch.testing.assert_close(found, wanted)
        if grad:
            given = torch.randn_like(wanted)
            parameters = list(net.parameters())
            for one, other in zip(
                torch.autograd.grad(found, parameters, given),
                torch.autograd.grad(wanted, parameters, given),
                strict=True,
            ):
                torch.testing.assert_close(one, other)


def test_dynamic_false_compiles_each_size() -> None:
    counted = Counted(lambda x: x * 2 + 1, dynamic=False)
    for size in (2, 3, 4):
        counted.call(torch.randn(size))
    assert len(counted.graphs) == 3


def test_sizes_that_were_equal_by_accident_are_told_apart() -> None:
    counted = Counted(lambda x, y: x.sum() + y.sum() + x.shape[0] * 2 - y.shape[0])
    for one, other in ((2, 2), (3, 3), (3, 5), (7, 4)):
        x, y = torch.randn(one), torch.randn(other)
        torch.testing.assert_close(counted.call(x, y), x.sum() + y.sum() + one * 2 - other)
    assert len(counted.graphs) == 3


def test_integers_are_inputs_and_those_that_decide_are_not() -> None:
    counted = Counted(lambda x, n: torch.ones(3, 3).addr(x, x, alpha=n))
    for number in (2, 3, -4, 0, 1, 5):
        assert torch.equal(counted.call(torch.ones(3), number), torch.ones(3, 3) * (1 + number))
    assert len(counted.graphs) == 2
    counted = Counted(lambda x, n: x.sum(n))
    x = torch.randn(2, 3, 4)
    for number in (0, 1, 2, -1, 0, 1, 2):
        assert torch.equal(counted.call(x, number), x.sum(number))
    assert len(counted.graphs) == 4


def test_a_size_of_one_shares_no_memory_that_others_would_not() -> None:
    def written(x):
        y = x.t().reshape(-1)
        y.add_(1)
        return y

    counted = Counted(written)
    for rows in (3, 4, 1, 5):
        x = torch.zeros(rows, 3)
        y = x.clone()
        assert torch.equal(counted.call(x), written(y))
        assert torch.equal(x, y)


def test_growing_lengths_take_three_compilations() -> None:
    def step(x, cache):
        cache = torch.cat([cache, x], 1)
        scores = (x @ cache.transpose(1, 2)).softmax(-1)
        return scores @ cache, cache

    counted = Counted(step)
    cache = other = torch.randn(1, 3, 8)
    for _ in range(12):
        x = torch.randn(1, 1, 8)
        (found, cache), (wanted, other) = counted.call(x, cache), step(x, other)
        torch.testing.assert_close(found, wanted)
    assert len(counted.graphs) <= 3


class Checking(Interpreter):
    """Runs a graph with integers as inputs and notes in ``wrong`` what is not as its fake tensors say for these."""

    def __init__(self, gm, wrong):
        super().__init__(gm, garbage_collect_values=False)
        self.wrong, self.memories, self.fakes = wrong, {}, {}

    def run(self, *given):
        self.known, self.memories, self.fakes = {}, {}, {}
        tensors = [value for value in given if isinstance(value, torch.Tensor)]
        self.apart = len({storage_of(t) for t in tensors}) == len(tensors)
        found = super().run(*given)
        self.env.clear()  # whose results would be kept: views of them were given out
        return found

    def run_node(self, n):
        found, example = super().run_node(n), n.meta.get("example_value")
        if isinstance(example, torch.SymInt) and example.node.expr.is_symbol:
            self.known[example.node.expr] = found
        if isinstance(found, torch.Tensor) and isinstance(example, torch.Tensor):
            sizes = tuple(evaluated(expression(size), self.known) for size in example.shape)
            memory = self.memories.setdefault(storage_of(found), len(self.memories))
            told = self.fakes.setdefault(storage_of(example), len(self.fakes))
            if sizes != tuple(found.shape) or (self.apart and memory != told):
                self.wrong.append(f"{n}: {sizes} in memory {told}, {tuple(found.shape)} in {memory}")
        return found


def checking(wrong):
    """A backend that notes in ``wrong`` what graphs with integers as inputs do otherwise than their fake tensors."""

    def backend(gm, fakes):
        symbolic = any(isinstance(fake, torch.SymInt) for fake in fakes)
        return Checking(gm, wrong).run if symbolic else gm.forward

    return backend


def checked(seed: int) -> list[str]:
    """What is wrong with the graphs of a random program that have integers as inputs."""
    wrong: list[str] = []
    told = difference(seed, backend=checking(wrong)).told
    return [*wrong, *([told] if told else [])]


def test_graphs_with_integers_as_inputs_do_what_their_fake_tensors_say() -> None:
    assert [found for seed in range(SEEDS) for found in checked(seed)] == []


def test_all_that_was_asked_of_integers_has_to_hold() -> None:
    symbols = Symbols()
    size, number = symbols.new(4, True), symbols.new(3, False)
    assert symbols.hold((1, -5))
    assert not symbols.hold((0, 3))
    assert size > number
    assert symbols.hold((9, 8))
    assert not symbols.hold((3, 3))
    assert number % 2 == 1
    assert symbols.hold((9, -3))
    assert not symbols.hold((9, 4))
    assert symbols.fixed() == []
    assert number == 3
    assert symbols.fixed() == [1]
    assert not symbols.hold((9, 5))


@pytest.mark.parametrize("part", ["dtype", "numbers", "memory"])
def test_a_form_whose_tensors_look_otherwise_stands_for_no_graph(part: str, monkeypatch) -> None:
    before = Form.__init__

    def changed(form, *given):
        before(form, *given)
        dtype, numbers, group = form.looks[-1]
        other = {"dtype": torch.float64, "numbers": (3, *numbers[1:]), "memory": group - 1}
        known = {"dtype": dtype, "numbers": numbers, "memory": group}
        form.looks[-1] = tuple({**known, part: other[part]}.values())

    monkeypatch.setattr(Form, "__init__", changed)
    counted = Counted(lambda x: x * 2 + 1)
    for size in (4, 5, 6):
        counted.call(torch.randn(size))
    assert len(counted.graphs) == 3


@pytest.mark.parametrize("machine", MACHINES)
def test_random_programs_with_sizes_that_vary_do_what_eager_does(machine: str) -> None:
    outcomes = [difference(seed, MACHINES[machine]) for seed in range(SEEDS)]
    wrong = [outcome for outcome in outcomes if outcome.told]
    assert not wrong, "\n".join(f"{outcome.told}\n{outcome.text}" for outcome in wrong)
    assert sum(outcome.reused for outcome in outcomes) > SEEDS


@pytest.mark.slow
def test_thousands_of_random_programs_with_sizes_that_vary() -> None:
    outcomes = (difference(seed, MACHINES["machine"]) for seed in range(SEEDS, 4000))
    assert [outcome.text for outcome in outcomes if outcome.told] == []


@pytest.mark.parametrize("capture", ["own", "dynamo"])
def test_backwards_that_are_compiled_later_hold_for_calls_in_progress(capture: str, monkeypatch) -> None:
    """A backward that asks for the sizes when it is first needed, and is right only for those of the answer."""
    compiled_region = GraphCompiler._compiled_region
    asked, calls_made, reached = [], [], []

    def asking(self, region):
        sizes = [n for v in region.example_inputs if isinstance(v, torch.Tensor) for n in v.shape]
        if not calls_made or not any(isinstance(n, torch.SymInt) for n in sizes):
            return compiled_region(self, region)
        stages = self.stages
        reached.append(region)

        class Asking:
            def compile_region(self, region):
                few = all(n < 7 for n in sizes if isinstance(n, torch.SymInt))
                asked.append(few)
                found = stages.compile_region(region)

                def run(args):
                    right = all(a.shape[0] < 7 for a in args if isinstance(a, torch.Tensor)) == few
                    return [r if right or r is None else r * 0 for r in found(args)]

                return run

        self.stages = Asking()
        try:
            return compiled_region(self, region)
        finally:
            self.stages = stages

    monkeypatch.setattr(GraphCompiler, "_compiled_region", asking)

    def both(x):
        return x.sin() * 2, x.exp().sum(1)

    compiled = lamina_compile(
        both,
        options={"capture": capture},
    )
    given = [torch.randn(n, 3, requires_grad=True) for n in (4, 5, 6, 9, 12)]
    found, wanted = [compiled(x) for x in given], [both(x) for x in given]
    calls_made.append(True)
    for place in (1, 0):
        for x, ours, eagers in zip(given, found, wanted, strict=True):
            (one,) = torch.autograd.grad(ours[place].sum(), x, retain_graph=True)
            (other,) = torch.autograd.grad(eagers[place].sum(), x, retain_graph=True)
            torch.testing.assert_close(one, other)
    assert reached
    assert not asked


def test_with_dynamic_true_sizes_are_inputs_from_the_first_graph_on() -> None:
    net = nn.Sequential(nn.Linear(16, 8), nn.GELU(), nn.LayerNorm(8))
    counted = Counted(net, dynamic=True)
    for batch in (4, 8, 2, 16, 3):
        x = torch.randn(batch, 16)
        torch.testing.assert_close(counted.call(x), net(x))
    assert len(counted.graphs) == 1
    counted = Counted(lambda x, y: x.sum() + y.sum() + x.shape[0] * 2 - y.shape[0], dynamic=True)
    for one, other in ((2, 2), (3, 3), (3, 5), (7, 4)):
        x, y = torch.randn(one), torch.randn(other)
        torch.testing.assert_close(counted.call(x, y), x.sum() + y.sum() + one * 2 - other)
    assert len(counted.graphs) == 3  # sizes that were equal by accident, and twice one of them, are no inputs at first
    counted = Counted(lambda x: x.sum(2), dynamic=True)
    for sizes in ((2, 2, 2), (3, 2, 4), (4, 5, 6)):
        x = torch.randn(sizes)
        torch.testing.assert_close(counted.call(x), x.sum(2))


def test_what_dynamic_true_compiles_computes_what_eager_does() -> None:
    torch.manual_seed(0)
    net = Attention()
    compiled = lamina_compile(net, dynamic=True, options={"capture": "own"})
    for batch, length in ((4, 8), (2, 16), (3, 5), (1, 3)):
        x = torch.randn(batch, length, 16)
        found, wanted = compiled(x), net(x)
        torch.testing.assert_close(found, wanted)
        one, other = (torch.autograd.grad(y.square().sum(), [*net.parameters()]) for y in (found, wanted))
        torch.testing.assert_close(one, other)
    assert not any("TorchDynamo" in str(d.reason) for d in compiled.record.decisions("capture"))


@pytest.mark.parametrize("mark", [torch._dynamo.mark_dynamic, torch._dynamo.maybe_mark_dynamic])
def test_sizes_marked_dynamic_are_inputs_from_the_first_graph_on(mark) -> None:
    counted = Counted(lambda x: x.sin() * x.shape[0] + x.shape[1])
    for rows in (4, 8, 2, 5):
        x = torch.randn(rows, 3)
        mark(x, 0)
        torch.testing.assert_close(counted.call(x), x.sin() * rows + 3)
    assert len(counted.graphs) == 1
    for columns in (4, 5, 6):
        x = torch.randn(4, columns)
        mark(x, 0)
        torch.testing.assert_close(counted.call(x), x.sin() * 4 + columns)
    assert len(counted.graphs) == 2


@pytest.mark.parametrize("dynamic", [None, True])
def test_sizes_marked_static_are_no_inputs(dynamic: bool | None) -> None:
    counted = Counted(lambda x: x.sin() * 2, dynamic=dynamic)
    for rows in (4, 8, 2, 5):
        x = torch.randn(rows, 3)
        torch._dynamo.mark_static(x, 0)
        torch.testing.assert_close(counted.call(x), x.sin() * 2)
    assert len(counted.graphs) == 4
    assert dynamic or any("size 0 of tensor 0" in told for told in counted.reasons("LM1222"))


def test_why_a_graph_is_compiled_by_itself_is_told(monkeypatch) -> None:
    def fails(*given):
        raise ValueError("no form of it")

    counted = Counted(lambda x, n: x.sum(n))
    for number in (0, 1, 2, -1):
        counted.call(torch.randn(2, 3, 4), number)
    assert any("an argument of sum decides" in told for told in counted.reasons("LM1222"))
    monkeypatch.setattr(Form, "_trace", fails)
    counted = Counted(lambda x: x * 2)
    for rows in (2, 3, 4):
        counted.call(torch.randn(rows))
    assert len(counted.graphs) == 3
    assert [told for told in counted.reasons("LM1222") if "ValueError: no form of it" in told]


@pytest.mark.parametrize("growing", [False, True])
def test_random_programs_that_compute_with_sizes_do_what_eager_does(growing: bool) -> None:
    seeds = range(7, 7 + SEEDS)
    outcomes = [difference(seed, MACHINES["machine"], growing=growing, computing=True) for seed in seeds]
    assert [outcome.told for outcome in outcomes if outcome.told] == []
    assert sum(outcome.reused for outcome in outcomes) > 40
