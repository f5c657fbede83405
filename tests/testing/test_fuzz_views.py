"""Programs about views that random ones were reduced to: windows, stale views, strides of results."""

from __future__ import annotations

import pytest
import torch

import lamina
from lamina.base.overlap import may_overlap
from lamina.testing.fuzz import check, generate

HEAD = """
import torch
import torch.nn.functional as F
from lamina.testing.fuzz import attempt, backward, pause, sample
"""

DIFFERENTIATED = """
def program(compile):
    g = compile(f, dynamic=DYNAMIC)
    for p in (2, 1, 3):
        x = sample(9, grad=True)
        out = g(x, p)
        yield out, backward(out), x.grad
"""

WINDOWS = {
    "a write through windows": """
def f(x, p):
    v = x * 2
    v.as_strided((3, 3), (p, 1)).mul_(3)
    return v
"""
    + DIFFERENTIATED,
    "a write to a part of windows": """
def f(x, p):
    v = x * 2
    w = v.as_strided((3, 3), (p, 1))
    w[0] = 5.0
    w[1].mul_(2)
    return v, w
def program(compile):
    g = compile(f, dynamic=DYNAMIC)
    for p in (1, 2, 3):
        yield g(sample(9), p)
""",
    "windows onto an argument": """
def f(x, p):
    x.as_strided((3, 3), (p, 1)).mul_(3)
    return x + 1
def program(compile):
    g = compile(f, dynamic=DYNAMIC)
    for p in (1, 2, 3):
        x = sample(9)
        yield g(x, p), x
""",
    "an argument that is windows": """
def f(x):
    x.mul_(3)
    return x + 1
def program(compile):
    g = compile(f, dynamic=DYNAMIC)
    for p in (3, 2, 1):
        x = sample(9)
        yield g(x.as_strided((3, 3), (p, 1))), x
""",
    "windows that are returned": """
def f(x, p):
    return (x * 2).unfold(0, 2, p), (x + 1).as_strided((3, 3), (1, 1)), x[:2]
"""
    + DIFFERENTIATED,
    "windows that are returned, in eager's order": """
def f(x):
    return (x * 2).unfold(0, 2, 1)
def program(compile):
    g = compile(f, dynamic=DYNAMIC, options={"numerics": "eager"})
    x = sample(9, grad=True)
    out = g(x)
    yield out, backward(out), x.grad
""",
    "windows that look beside their operand": """
def f(x, p):
    v = (x - p).as_strided((2,), (p,))
    return v, v.as_strided((2, 2), (p, 1))
"""
    + DIFFERENTIATED,
    "windows of an argument that look beside their operand": """
def f(x, p):
    return x.as_strided((2,), (p,)).as_strided((2, 2), (p, 1))
"""
    + DIFFERENTIATED,
}

OTHERS = {
    "a part of a tensor whose whole is written to": """
def f(x):
    v = torch.sin(x)
    w = [t * 0 for t in v.unbind()]
    v.add_(1)
    return v, w
def program(compile):
    x = sample(3, grad=True)
    out = compile(f)(x)
    yield out, backward(out), x.grad
""",
    "a view under no_grad that is written to": """
def f(x):
    with torch.no_grad():
        x.transpose(0, 1).neg_()
    return x * 2
def program(compile):
    x = sample(2, 3, grad=True)
    out = compile(f)(x)
    yield out, backward(out), x, x.grad
""",
    "a write to what is read": """
def f(x):
    v = x ** 0.25
    v.mul_(v)
    w = x + 3
    w.addcmul_(w, x)
    return v, w
def program(compile):
    x = sample(5, grad=True).abs() + 1
    out = compile(f)(x)
    yield out
    yield attempt(backward, out)
""",
    "a tensor and views of all of it": """
def f(x):
    v = x * 2
    return v, v.view(v.shape), v[:], v.view(-1)
def program(compile):
    for grad in (False, True):
        yield compile(f)(sample(3, 4, grad=grad))
""",
    "a detached result before and after views that have a history": """
def f(x):
    v, w, u = x * 2, x * 3, x * 4
    return v.detach(), v.unsqueeze(0), w.t(), w.detach(), w, u.data.view(-1), u.view(-1)
def program(compile):
    x = sample(3, 4, grad=True)
    out = compile(f)(x)
    yield out, backward(out), x.grad
""",
    "a detached result before the only view that has a history": """
def f(x):
    v = x * 2
    return v.detach(), v.unsqueeze(0)
def program(compile):
    x = sample(3, 4, grad=True)
    out = compile(f)(x)
    yield out, backward(out), x.grad
""",
    "a write that gives another argument a history": """
def f(x, y, w):
    y.add_(w)
    return x * 2, x + y
def program(compile):
    for dynamic in (False, True):
        for share in (lambda x: x.view_as(x), lambda x: x[:], lambda x: x, lambda x: x[1:]):
            x, w = sample(4, 3), sample(3, seed=1, grad=True)
            y = share(x)
            out = attempt(compile(f, dynamic=dynamic), x, y, w)
            yield out, x, y, backward((out, x)), w.grad
""",
    "a write of nothing to an argument": """
def f(x, k):
    x.view(1)[0:0].zero_()
def program(compile):
    x = sample(1, 1)
    yield compile(f)(x, 0), x
""",
    "a copy whose every second element is returned": """
def f(x):
    return x[:-1].t().reshape(-1)[::2]
def program(compile):
    g = compile(f, dynamic=True)
    for n in (3, 5):
        yield g(sample(n, 2))
""",
}

SAME_OBJECTS = {
    "an argument in whose memory another is written to": """
def f(x, y):
    y.mul_(2)
    return x, x.add_(1), torch.add(y, 1, out=y), x.detach()
def program(compile):
    for share in (lambda x: x.view_as(x), lambda x: x[:], lambda x: x, lambda x: x.clone()):
        g = compile(f, dynamic=DYNAMIC)
        x = sample(3, 4, seed=1)
        y = share(x)
        yield x, y, g(x, y)
    x = sample(8, 4, seed=1)
    yield x, g(x[:4], x[1:5]), g(x[:4], x[4:])
""",
    "nothing but an argument in whose memory another is written to": """
def f(x, y):
    y[1:].copy_(y[:-1] + 1)
    return x
def program(compile):
    g = compile(f, dynamic=DYNAMIC)
    x = sample(8, 4, seed=1)
    y = x[:]
    yield x, y, g(x, y), g(x[:4], x[4:]), g(sample(3, 3), y)
""",
    "calls that return what they write to": """
def f(x):
    v = x * 2
    w = v + 1
    return v, v.mul_(3), torch.add(v, 1, out=v), w.t_(), w
def program(compile):
    g = compile(f, dynamic=DYNAMIC)
    yield g(sample(3, 4)), g(sample(5, 5))
""",
    "equal views of a part": """
def f(x, p):
    v = x * 2
    return v, v[1::p], v[1:4:p], v[1::1], v[1:], v[:3]
def program(compile):
    for grad in (False, True):
        g = compile(f, dynamic=DYNAMIC)
        for p in (2, 1):
            x = sample(4, grad=grad)
            out = g(x, p)
            yield x, out
""",
}

POINTWISE = """
def f(x, y):
    return (torch.copysign(x, y), torch.xlogy(x, y), x // y, torch.div(x, y, rounding_mode="trunc"),
            torch.logical_and(x, y), torch.heaviside(x, y), torch.logaddexp(x, y), torch.ldexp(x, y), 2 ** x,
            F.logsigmoid(y), torch.complex(x, y), x * y)
def program(compile):
    g = compile(f, dynamic=DYNAMIC)
    yield g(sample(3, 4).abs() + 1, sample(4, 3).t().abs() + 1)
    yield g(sample(4, 3).t().abs() + 1, sample(3, 4).abs() + 1)
    yield g(sample(4, 3).t().abs() + 1, sample(1).reshape(()) + 9)
    yield g(sample(1).reshape(()) + 9, sample(4, 3).t().abs() + 1)
"""


WRITES = """
def writes(v, o):
    i = torch.tensor([2, 0])
    z = torch.zeros(1, 4, dtype=torch.int64)
    return {
        "masked_fill_": lambda: v.masked_fill_(o > 0, 3.0),
        "masked_scatter_": lambda: v.masked_scatter_(o > 0, o.flatten()),
        "index_add_": lambda: v.index_add_(0, i, o[:2]),
        "index_copy_": lambda: v.index_copy_(0, i, o[:2]),
        "scatter_": lambda: v.scatter_(0, z, o),
        "scatter_reduce_": lambda: v.scatter_reduce_(0, z, o, "amax"),
        "addmm_": lambda: v.addmm_(o, o),
        "tril_": lambda: v.tril_(),
        "cumsum_": lambda: v.cumsum_(0),
        "copysign_": lambda: v.copysign_(o),
        "floor_divide_": lambda: v.__ifloordiv__(o + 10),
        "div_": lambda: v.div_(o + 10, rounding_mode="floor"),
        "bernoulli_": lambda: v.bernoulli_(0.5),
        "alpha_dropout": lambda: v.copy_(F.alpha_dropout(v, 0.5, True)),
        "out": lambda: torch.add(o, 1, out=v) if not v.requires_grad else v,
        "t_": lambda: v.t_(),
        "setitem": lambda: v.__setitem__(o > 0, 2.0),
    }["NAME"]()
def f(x, o):
    v = x * 2
    writes(v, o)
    return v, v * 3
def g(x, o):
    writes(x, o)
    return x * 3
def h(x, o):
    v = x * 2
    writes(v.t(), o)
    return v, v * 3, v.t() + 1
def program(compile):
    for fn in FUNCTIONS:
        compiled = compile(fn, dynamic=DYNAMIC)
        for o, x in ((sample(4, 4, seed=1), sample(4, 4).t()), (sample(4, 4, seed=1).t(), sample(4, 4)),
                     (sample(4, 4, seed=1), sample(8, 4)[::2].t())):
            yield compiled(x, o), x
"""
NAMES = str.split(
    "masked_fill_ masked_scatter_ index_add_ index_copy_ scatter_ scatter_reduce_ addmm_ tril_ cumsum_ copysign_"
    " floor_divide_ div_ bernoulli_ alpha_dropout out t_ setitem"
)
DRAWS = """
def f(x):
    return F.rrelu(x), F.rrelu(x, training=True), torch.normal(x, x.abs()), F.alpha_dropout(x, 0.5, True)
def program(compile):
    yield compile(f, options={"numerics": "eager"})(sample(3, 4).t())
"""
SCATTERS = """
def f(x):
    return (torch.slice_scatter(x, x[:2] * 2, 0, 0, 2), torch.select_scatter(x, x[1], 0, 2), x.clone(),
            torch.diagonal_scatter(x, x[1]), torch.select_scatter(x, x[1], 0, 2) + 1)
def program(compile):
    g = compile(f, dynamic=DYNAMIC)
    for x in (sample(4, 4).t(), sample(4, 8)[:, ::2], sample(8, 4)[::2].t(), sample(4, 1).expand(4, 4)):
        yield g(x)
"""


@pytest.mark.sampled(one_in=6)
@pytest.mark.parametrize("name", NAMES)
def test_a_write_keeps_the_layout(name: str) -> None:
    program = WRITES.replace("NAME", name).replace("FUNCTIONS", "(f, )").replace("DYNAMIC", "False")
    assert check(HEAD + program, "lamina:interp").differences == ()


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", ["masked_fill_", "out"])
def test_a_write_to_an_argument_or_a_view_keeps_the_layout(name: str, dynamic: bool) -> None:
    program = WRITES.replace("NAME", name).replace("FUNCTIONS", "(f, g, h)").replace("DYNAMIC", str(dynamic))
    assert check(HEAD + program, "lamina:interp").differences == ()


@pytest.mark.parametrize("numbers", ["fast", "eager"])
def test_a_write_to_a_transposed_tensor_has_eagers_gradients(numbers: str) -> None:
    program = """
def f(x, y):
    v = x.t() * 2
    v.masked_fill_(y > 0, 3.0)
    v.t().index_add_(0, torch.tensor([2, 0]), y[:2])
    return v, v * y
def program(compile):
    x, y = sample(4, 4, grad=True), sample(4, 4, seed=1, grad=True)
    out = compile(f, options={"numerics": "NUMBERS"})(x, y)
    yield out, backward(out), x.grad, y.grad
"""
    assert check(HEAD + program.replace("NUMBERS", numbers), "lamina:interp").differences == ()


def test_draws_for_a_transposed_tensor() -> None:
    assert check(HEAD + DRAWS, "lamina:interp").differences == ()


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_a_copy_with_gaps_is_eagers(dynamic: bool) -> None:
    assert check(HEAD + SCATTERS.replace("DYNAMIC", str(dynamic)), "lamina:interp").differences == ()


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", WINDOWS)
def test_windows_are_eagers(name: str, dynamic: bool) -> None:
    assert check(HEAD + WINDOWS[name].replace("DYNAMIC", str(dynamic)), "lamina:interp").differences == ()


@pytest.mark.sampled(one_in=6)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("numbers", ["fast", "eager"])
@pytest.mark.parametrize("name", SAME_OBJECTS)
def test_results_are_the_objects_that_eagers_are(name: str, numbers: str, dynamic: bool) -> None:
    program = SAME_OBJECTS[name].replace("DYNAMIC", f"{dynamic}, options={{'numerics': '{numbers}'}}")
    assert check(HEAD + program, "lamina:interp").differences == ()


@pytest.mark.sampled(one_in=6)
@pytest.mark.parametrize("target", ["lamina", "lamina:interp"])
@pytest.mark.parametrize("name", OTHERS)
def test_a_program_runs_as_in_eager(name: str, target: str) -> None:
    assert check(HEAD + OTHERS[name], target).differences == ()


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_strides_of_operands_in_several_layouts(dynamic: bool) -> None:
    assert check(HEAD + POINTWISE.replace("DYNAMIC", str(dynamic)), "lamina:interp").differences == ()


LAYOUTS = [
    *(((3,), (1,)), ((3,), (0,)), ((1,), (0,)), ((3, 0), (0, 0)), ((2, 3), (0, 1)), ((2, 3), (3, 1)), ((), ())),
    *(((3, 2), (1, 3)), ((2, 1, 3), (3, 0, 1)), ((3, 3), (2, 1)), ((3, 3), (1, 1)), ((2, 2), (3, 1))),
]


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize(("shape", "strides"), LAYOUTS, ids=str)
def test_windows_are_tensors_with_fewer_places_than_elements(shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    places = torch.arange(16).as_strided(shape, strides).flatten().tolist()
    assert may_overlap(torch.zeros(16).as_strided(shape, strides)) == (len(set(places)) < len(places))


@pytest.mark.by_dynamo("is about what Dynamo and AOTAutograd leave to eager")
def test_usual_views_are_compiled() -> None:
    """Writes to parts of tensors whose sizes vary, and results that are expanded, stay with the kernels."""

    def f(x: torch.Tensor, k: int) -> tuple[torch.Tensor, ...]:
        x[k:].mul_(2)
        x[:, ::2] += 1
        y = x * 2
        y.t()[1:].mul_(3)
        y.view(-1)[k:].add_(1)
        return y, (y.sum(0) * 2)[None].expand(3, -1), y.as_strided((2, 2), (2, 1))

    compiled = lamina.compile(f, dynamic=True)
    for n, m, k in ((4, 6, 1), (8, 10, 2), (6, 7, 3)):
        x = torch.randn(n, m)
        expected = f(x.clone(), k)
        torch.testing.assert_close(compiled(x.clone(), k), expected)
    assert not [d for stage in compiled.record.stages for d in stage.decisions if d.kind in ("eager", "fallback")]
    assert len([s for s in compiled.record.stages if s.name == "aot"]) == 1


@pytest.mark.parametrize("seed", [1, 3, 4])
def test_a_sample_of_chains_is_eagers(seed: int) -> None:
    assert check(generate(seed, ["chains"]), "lamina:interp").differences == ()
