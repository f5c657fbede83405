"""State that a graph switches is part of its result: the modes it computes in, and those it leaves behind."""

import contextlib
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import lamina
from lamina.aot.state import read_state
from lamina.testing.fuzz.torch_private import autocast_depth
from tests.fuzz.states import OUTER, observed

WAYS = [lamina.compile, lambda f: torch.compile(f, backend="lamina")]


@pytest.fixture(autouse=True, params=WAYS, ids=["lamina", "torch"])
def compiler(request):
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield request.param
    torch._dynamo.reset()
    torch.set_grad_enabled(True)


class OwnGrad:
    def __enter__(self):
        self.before = torch.is_grad_enabled()
        torch.set_grad_enabled(False)

    def __exit__(self, *error):
        torch.set_grad_enabled(self.before)


@contextlib.contextmanager
def own_cast():
    with torch.autocast("cpu", torch.bfloat16):
        yield


def enabled_inside(x, w):
    with torch.enable_grad():
        return (x * w).sum()


@torch.enable_grad()
def enabled_by_decorator(x, w):
    return (x * w).sum()


def left_off(x, w):
    y = x * 2
    torch.set_grad_enabled(False)
    return y


def left_off_first(x, w):
    torch.set_grad_enabled(False)
    return x * 2


def off_across_a_break(x, w):
    y = x * 2
    torch.set_grad_enabled(False)
    torch._dynamo.graph_break()
    z = y * w
    torch.set_grad_enabled(True)
    return z, y * w


def own_mode_across_a_break(x, w):
    with OwnGrad():
        y = x * w
        torch._dynamo.graph_break()
        z = y * w
    return z, x * w


def inference_across_a_break(x, w):
    with torch.inference_mode():
        y = x * w
        torch._dynamo.graph_break()
        z = y * w
    return z, x * w


def cast_across_a_break(x, w):
    with own_cast():
        y = x @ w
        torch._dynamo.graph_break()
        z = y @ w
    return z, x @ w


def nested_across_breaks(x, w):
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        y = x @ w
        print(end="")
        with torch.enable_grad():
            z = y @ w
            torch._dynamo.graph_break()
            u = z @ w
    return y, z, u


def deterministic_left_on(x, w):
    y = x * w
    torch.use_deterministic_algorithms(True)
    return y


def stack_across_a_break(x, w):
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        y = x * w
        torch._dynamo.graph_break()
        z = y * w
    return z, x * w


PROGRAMS = [
    enabled_inside,
    enabled_by_decorator,
    left_off,
    left_off_first,
    off_across_a_break,
    own_mode_across_a_break,
    inference_across_a_break,
    cast_across_a_break,
    nested_across_breaks,
    deterministic_left_on,
    stack_across_a_break,
]


def equal(first, second):
    torch.testing.assert_close(
        [t for t in flat(first) if isinstance(t, torch.Tensor)],
        [t for t in flat(second) if isinstance(t, torch.Tensor)],
        rtol=1e-2,
        atol=1e-2,
    )
    assert [t for t in flat(first) if not isinstance(t, torch.Tensor)] == [
        t for t in flat(second) if not isinstance(t, torch.Tensor)
    ]


def flat(items):
    return [leaf for item in items for leaf in (flat(item) if isinstance(item, (tuple, list)) else [item])]


@pytest.mark.by_dynamo(
    "a backward of AOTAutograd's refuses deterministic algorithms that are switched on since",
    "lamina-deterministic_left_on",
)
@pytest.mark.sampled(one_in=6)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_a_switching_program_is_eagers(program, compiler):
    compiled = compiler(program)
    for outer in (*OUTER.values(), lambda: torch.inference_mode(False)):
        equal(observed(program, [], outer), observed(compiled, [], outer))


def test_gradients_switched_on_where_the_caller_has_them_off(compiler):
    w = torch.ones(3, requires_grad=True)
    compiled = compiler(lambda x: enabled_inside(x, w))
    with torch.no_grad():
        result = compiled(torch.ones(3))
    ((w * w).sum() + result).backward()
    assert w.grad.tolist() == [3.0, 3.0, 3.0]


def test_a_graph_that_raises_leaves_gradients_off(compiler):
    def program(x, i):
        torch.set_grad_enabled(False)
        return x[i] * 2

    compiled = compiler(program)
    with torch.enable_grad():
        compiled(torch.ones(3), torch.tensor([1]))
    torch.set_grad_enabled(True)
    with pytest.raises(IndexError):
        compiled(torch.ones(3), torch.tensor([7]))
    assert not torch.is_grad_enabled()


@pytest.mark.parametrize("mode", [lambda: torch.autocast("cpu", torch.bfloat16), torch.inference_mode])
def test_a_captured_graph_that_raises_leaves_the_modes_it_has_entered(mode, compiler):
    def program(x, i):
        y = x * 2
        with torch.autocast("cpu", torch.float16), mode():
            y = y + F.multilabel_margin_loss(torch.ones(2, 2), torch.tensor([[0, -1], [1, -1]]))  # eager's to run
            return y + (x @ x)[i].sum()

    compiled, x, kept = compiler(program), torch.ones(2, 2), []
    for i in ([0], [7], [1]):
        try:
            kept.append(compiled(x, torch.tensor(i)))
        except IndexError as error:
            kept.append(error)  # and what its traceback holds
        assert autocast_depth() == 0
        assert not torch.is_inference_mode_enabled()
    assert isinstance(kept[1], IndexError)


def test_a_graph_that_is_not_differentiated_leaves_no_autocast(compiler):
    """AOTAutograd runs the graph's calls, and raises at a write to windows, within the autocast that they entered."""

    def program(x):
        with torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu", torch.float16):
            x.unfold(0, 2, 1).add_(1)
        return x @ x

    compiled = compiler(program)
    for _ in range(2):
        x, y = torch.ones(3, 3), torch.ones(3, 3)
        torch.testing.assert_close(compiled(x), program(y))
        assert autocast_depth() == 0
        assert not torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") == torch.bfloat16


def test_inference_mode_around_a_whole_graph_is_compiled():
    @torch.inference_mode()
    def program(x):
        return x.sin() + 1

    def outer(x):
        return program(x)

    compiled = lamina.compile(outer)
    result = compiled(torch.ones(3, requires_grad=True))
    assert result.is_inference()
    assert "eager" not in [s.name for s in compiled.record.stages]


@pytest.mark.by_dynamo("counts Dynamo's graphs, or asks what it leaves to eager", "lamina", "torch")
def test_a_part_in_inference_mode_is_run_as_captured_and_told():
    def program(x):
        with torch.inference_mode():
            y = x.sin()
        return y, x.cos()

    compiled = lamina.compile(program)
    first, second = compiled(torch.ones(3, requires_grad=True))
    assert first.is_inference()
    assert second.requires_grad
    assert any("inference mode" in d.reason for s in compiled.record.stages for d in s.decisions)


class Router(nn.Module):
    """Sends each row to the expert that ``argmax`` chooses, to a depth that the data choose."""

    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(8, 3), nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])

    def forward(self, x):
        chosen = self.gate(x).argmax(-1)
        out = torch.zeros_like(x)
        for place, expert in enumerate(self.experts):
            taken = chosen == place
            if taken.any():
                out[taken] = expert(x[taken])
        for _ in range(int(self.gate(x).sum().abs().item()) % 3):
            out = self.experts[0](out).relu()
        return out


class Undifferentiated(nn.Module):
    """Products of parameters that require a gradient, with results that do not."""

    def __init__(self):
        super().__init__()
        self.linear, self.convolution = nn.Linear(8, 8), nn.Conv1d(1, 2, 3)

    def forward(self, x):
        weight = self.linear.weight
        return (
            torch.bmm(self.linear(x)[None], x.t()[None]).argmax(-1),
            (self.convolution(x[:, None]) > 0).sum(),
            self.linear(x).detach(),
            torch.baddbmm(weight[None], x.t()[None], x[None]) > 0,
            torch.addmv(self.linear.bias, weight, x[0]).detach(),
        )


@pytest.mark.parametrize("kind", [Router, Undifferentiated])
def test_results_without_gradient_of_parameters_with_one(kind, compiler):
    torch.manual_seed(0)
    module = kind()
    compiled = compiler(module)
    for rows in (6, 4):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(compiled(x), module(x))


@pytest.mark.parametrize("program", [left_off, left_off_first])
def test_the_mode_is_left_whatever_the_compiled_graph_does(program):
    """AOTAutograd's wrapper switches gradients as well; a graph compiled without it relies on ``applied``."""
    states = []

    def backend(gm, example_inputs):
        states.append(read_state(gm))
        return gm.forward

    x = torch.ones(3)
    torch.compile(program, backend=backend)(x, x)
    torch.set_grad_enabled(True)
    (state,) = states
    assert state.applied(lambda x: x)(x) is x
    assert not torch.is_grad_enabled()
