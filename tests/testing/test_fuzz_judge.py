"""What of a result is no property of eager's: rounding of ill-conditioned programs, signs of some zeros, gradients
of a backward that fails.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from lamina.testing.fuzz import backward, check, generate, sample, watched
from lamina.testing.fuzz.check import Verdict, check_capture
from lamina.testing.fuzz.differ import Difference
from lamina.testing.fuzz.observe import observe
from lamina.testing.fuzz.perturbed import ORDERS, PLACES, Elsewhere, OfEqual, RandomRounding
from lamina.testing.fuzz.target import compile_function
from lamina.testing.fuzz.torch_private import PerturbedMode

HEAD = """
import torch
import torch.nn.functional as F
from lamina.testing.fuzz import attempt, backward, sample
"""

ALMOST_EQUAL = """
def f(x):
    v = F.layer_norm(x, x.shape[-1:])
    v = F.linear(v, v)
    return F.layer_norm(v + v, v.shape[-1:]).sigmoid()
def program(compile):
    yield compile(f)(sample(3, 3))
"""

ZEROS = """
def f(x):
    return torch.minimum(x * 0, -x * 0)
def program(compile):
    g = compile(f)
    for n in (4, 10, 33):
        yield g(sample(n))
"""

SIGNED = """
def f(x):
    return x * 0
def program(compile):
    yield compile(f)(sample(10))
"""


WRITTEN_AFTER_A_CAST = """
def f(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        v = 3.0 / (F.linear(x, x).abs() + 1)
    return F.layer_norm(v, v.shape[-1:]).sigmoid()
def program(compile):
    x = sample(5, 5, seed=5, grad=True)
    out = compile(f)(x)
    yield attempt(x.detach().zero_)
    yield backward(out)
    yield x.grad
"""


GRADIENT_OF_ZEROS = """
def f(x):
    return CALL
def program(compile):
    x = sample(4, 8, seed=1, grad=True)
    out = compile(f)(x)
    out.backward(torch.full_like(out, ZERO))
    yield x.grad
"""

PRODUCT = """
def f(x, y):
    return x @ y
def program(compile):
    yield compile(f)(torch.zeros(ROWS, 1, dtype=torch.DTYPE), -torch.ones(1, COLUMNS, dtype=torch.DTYPE))
"""

ATTENTION = """
from torch.nn.attention.flex_attention import flex_attention
def f(x):
    return flex_attention(x, x, x, score_mod=lambda s, b, h, i, j: torch.where(i > 1, s, -torch.inf))
def program(compile):
    yield compile(f)(sample(1, 1, 1, 4))
"""


class SumsSeen(PerturbedMode):
    """Inside, remembers what operations it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: set[Any] = set()

    def perturbed(self, func: Any, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        self.operations.add(func)
        return func(*args, **given)


def changed(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    """A compile function whose programs' results are changed."""

    def compile(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *inputs: change(function(*inputs))

    return compile


def _is_mean(result: torch.Tensor) -> torch.Tensor:
    x = sample(3, 8, seed=2).double()
    return (x - x.mean(0)).abs() < 1e-9


class _OtherZeros(torch.autograd.Function):
    """The identity, whose gradient has the other sign where it is zero."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return torch.where(gradient == 0, -gradient, gradient)


def _in_the_middle(result: torch.Tensor) -> torch.Tensor:
    noise = torch.linspace(-1, 1, result.numel()).reshape(result.shape)
    return result + noise * 3e-5


a_little = changed(_in_the_middle)
much = changed(lambda result: result * 1.001)
ones = changed(torch.ones_like)
exact_norm = changed(lambda result: torch.where(result.abs() < 1e-9, 0.0, result))
a_little_everywhere = changed(lambda results: (_in_the_middle(results[0]), results[1]))
exact_norm_divided = changed(lambda result: torch.where(_is_mean(result), torch.nan, result))
other_gradients = changed(lambda result: _OtherZeros.apply(result))
other_signs = changed(lambda result: torch.where(result == 0, -result, result))


@pytest.mark.parametrize("target", ["lamina", "lamina:interp", f"{__name__}:a_little"])
def test_rounding_that_eager_amplifies_is_no_difference(target: str) -> None:
    assert check(HEAD + ALMOST_EQUAL, target).ok


def test_what_a_cast_keeps_from_a_write_is_judged_by_the_values_before_it() -> None:
    assert check(HEAD + WRITTEN_AFTER_A_CAST, "lamina:interp").ok


def test_more_than_what_eager_amplifies_is_a_difference() -> None:
    assert check(HEAD + ALMOST_EQUAL, f"{__name__}:much").kind == "value"
    assert check(HEAD + SIGNED.replace("x * 0", "x.exp()"), f"{__name__}:a_little").kind == "value"


def test_signs_of_zeros_are_compared_where_eager_has_one() -> None:
    assert check(HEAD + ZEROS, f"{__name__}:other_signs").ok
    assert check(HEAD + ZEROS, "lamina").ok
    assert check(HEAD + SIGNED, f"{__name__}:other_signs").kind == "zero sign"


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize(
    "call",
    [
        "x.softmax(-1)",
        "x.log_softmax(-1)",
        "F.layer_norm(x, x.shape[-1:])",
        "F.group_norm(x.reshape(1, 2, -1), 2)",
        "F.batch_norm(x, None, None, training=True)",
    ],
)
def test_signs_of_sums_of_negative_zeros_are_no_property(call: str) -> None:
    """Whether a kernel's sum of -0.0 alone is -0.0, and whether it takes x or its distance from the mean times that."""
    for zero in ("0.0", "-0.0"):
        assert check(HEAD + GRADIENT_OF_ZEROS.replace("CALL", call).replace("ZERO", zero), "lamina:interp").ok
    signed = GRADIENT_OF_ZEROS.replace("CALL", "x * 2").replace("ZERO", "-0.0")
    assert check(HEAD + signed, f"{__name__}:other_gradients").kind == "zero sign"


@pytest.mark.parametrize("shape", ["1, 1", "1, 4", "4, 4", "40, 40"])
def test_signs_of_products_over_one_element_are_no_property(shape: str) -> None:
    rows, columns = shape.split(", ")
    for dtype in ("float32", "bfloat16"):
        product = PRODUCT.replace("ROWS", rows).replace("COLUMNS", columns).replace("DTYPE", dtype)
        assert check(HEAD + product, "lamina:interp").ok


def test_operations_within_attention_with_functions_are_looked_at() -> None:
    assert check(HEAD + ATTENTION, "lamina:interp").ok
    x = torch.zeros(1, 1, 1, 1)
    with torch.no_grad(), SumsSeen() as seen:
        flex_attention(x, x, x)
    assert {torch.ops.aten.bmm.default} <= seen.operations


DIVIDED = """
def f(x):
    return (F.batch_norm(x, None, None, training=True) + MORE) / 0.0
def program(compile):
    yield compile(f)(sample(3, 8, seed=2))
"""


def test_what_rounding_makes_infinite_in_eager_is_not_decided() -> None:
    """An element that is the mean is zero behind a norm, or positive or negative by rounding alone."""
    norm = f"{__name__}:exact_norm_divided"
    verdict = check(HEAD + DIVIDED.replace("MORE", "0"), norm)
    assert verdict.ok
    assert not verdict.decided
    assert check(HEAD + DIVIDED.replace("MORE", "9"), norm).kind == "value"


REFUSED_LATER = """
def f(x, y):
    return F.layer_norm(x, x.shape[-1:]).exp(), x @ y
def program(compile):
    g = compile(f)
    x = sample(4, 8, seed=1)
    yield g(x, x.t())
    yield attempt(g, x, x.t().bfloat16())
"""


def test_results_before_eager_refuses_matrices_of_two_dtypes_are_judged_as_others() -> None:
    """In double precision both are of one dtype, so that nothing is refused; what came before is the reference."""
    program = HEAD + REFUSED_LATER
    assert check(program, f"{__name__}:a_little_everywhere").kind == "value"
    assert check(program, "lamina:interp").ok


def test_exact_results_are_not_rounded_otherwise() -> None:
    x = torch.arange(-8.0, 8.0).reshape(4, 4)
    for dtype in (torch.float32, torch.float64):
        given = x.to(dtype)
        with RandomRounding(0):
            exact, inexact = given @ given, (given / 3).exp()
        assert exact.equal(given @ given)
        right = (given / 3).exp()
        assert not inexact.equal(right)
        torch.testing.assert_close(inexact, right)


EQUAL_VALUES = """
def f(x):
    return F.batch_norm(x * 100, None, None, training=True)
def program(compile):
    yield compile(f)(torch.full((2, 3), 3.0, dtype=torch.float64) + sample(3).double())
"""


def test_what_eager_has_of_rounding_alone_in_float64_is_not_asked_for() -> None:
    exact = f"{__name__}:exact_norm"
    verdict = check(HEAD + EQUAL_VALUES, exact)
    assert verdict.ok
    assert not verdict.decided
    assert check(HEAD + EQUAL_VALUES.replace("2, 3", "3, 3").replace("sample(3)", "sample(3, 3)"), exact).ok
    assert check(HEAD + EQUAL_VALUES, f"{__name__}:ones").kind == "value"


def test_elements_elsewhere_have_the_same_values() -> None:
    x, y = torch.arange(-8.0, 8.0).reshape(4, 4).t(), torch.arange(4.0)
    for place in PLACES:
        with Elsewhere(place):
            result = x * y + 1
            written = torch.ones(4, 4).mul_(y)
        assert result.equal(x * y + 1)
        assert result.stride() == (x * y + 1).stride()
        assert written.equal(torch.ones(4, 4) * y)


def test_a_backward_that_fails_leaves_no_gradients() -> None:
    program = """
def f(x, y):
    return x.exp() * 2, y * 3
def program(compile):
    x, y = sample(3, grad=True), sample(3, seed=1, grad=True)
    out = compile(f)(x, y)
    backward(out[1], retain_graph=True)
    yield y.grad.clone()
    other = x.detach().requires_grad_()
    v = other.exp()
    v.detach().zero_()
    yield attempt(backward, (out[1], v)), y.grad, other.grad
"""
    assert check(HEAD + program, "eager").ok


TERMS = """
def f(x, y):
    t = x.sin() * y
    return t * t, t
def program(compile):
    g = compile(f)
    x, y = sample(2, 17, seed=1, grad=True), sample(2, 17, seed=2, grad=True)
    out = g(x, y)
    first = torch.autograd.grad(loss(out), (x,), create_graph=True)
    yield backward((first, out)), x.grad
"""

ONE_TERM = """
def f(x, y):
    return x * y
def program(compile):
    x, y = sample(2, 17, seed=1, grad=True), -sample(2, 17, seed=2)
    yield backward(compile(f)(x, y)), x.grad
"""


class _Added(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient + 0.0


def adds_zeros(function: Callable[..., Any]) -> Callable[..., Any]:
    """A compile function whose gradients have lost the sign of -0.0."""
    return lambda x, y: function(_Added.apply(x), y)


def test_where_terms_of_a_loss_are_added_is_left_open() -> None:
    head = HEAD.replace("backward,", "backward, loss,")
    assert check(head + TERMS, "lamina:interp").ok
    assert check(head + ONE_TERM, f"{__name__}:adds_zeros").kind == "zero sign"


WRITTEN = """
def f(x):
    x[0].neg_()
    x.add_(1)
def program(compile):
    leaf = sample(2, 17, seed=2, grad=True)
    x = leaf * 1
    compile(f)(x)
    yield backward(x[1:]), leaf.grad
"""


def test_a_zero_that_a_copy_to_an_argument_adds_to_a_gradient_is_left_open() -> None:
    """What a method writes has its gradient alone; one that is copied to an argument has a zero added."""
    assert check(HEAD + WRITTEN, "lamina:interp").ok
    assert check(HEAD + WRITTEN.replace("x[0].neg_()", "x[0].neg_().neg_()"), f"{__name__}:changes_signs").kind


def changes_signs(function: Callable[..., Any]) -> Callable[..., Any]:
    """A compile function whose programs differentiate to zeros of the other sign."""

    def run(x: torch.Tensor) -> None:
        function(x)
        x.register_hook(lambda gradient: torch.where(gradient == 0, -gradient, gradient))

    return run


CANCELLED = """
def f(x, y):
    return x.half() * y - (x * y.half()).half()
def program(compile):
    yield compile(f)(sample(3, 17, seed=2) / 7, sample(3, 17, seed=3))
"""


def test_the_sign_of_a_zero_that_rounding_leaves_is_left_open() -> None:
    """Where eager's zero is the difference of equal rounded values, other roundings leave a value."""
    assert check(HEAD + CANCELLED.replace("- (x * y.half())", "* 0 - (x * y.half() * 0)"), f"{__name__}:negative").kind
    assert check(HEAD + CANCELLED, f"{__name__}:negative").ok


def negative(function: Callable[..., Any]) -> Callable[..., Any]:
    """A compile function whose programs' zeros are -0.0."""
    return changed(lambda result: torch.where(result == 0, -result.abs(), result))(function)


EQUAL = """
def f(x):
    return x.topk(1, 0)[0]
def program(compile):
    x = sample(4, 3, grad=True)
    with torch.no_grad():
        x[:, 0] = 1
    out = compile(f)(x)
    yield out, backward(out), x.grad
"""


def test_which_of_equal_elements_a_selection_takes_is_left_open() -> None:
    """Eager's gradient of four equal elements is the third one's; the first one's is as good, another value is not."""
    x = torch.ones(4, 3, dtype=torch.float64)
    assert x.topk(1, 0)[1].tolist() == [[2, 2, 2]]
    with OfEqual():
        found = x.topk(2, 0)[1], x.kthvalue(2, 0, keepdim=True)[1], x[0].topk(2, largest=False)[1]
    assert [places.flatten().tolist() for places in found] == [[0, 0, 0, 1, 1, 1], [1, 1, 1], [0, 1]]
    verdict = check(HEAD + EQUAL, "lamina")
    assert verdict.ok
    assert not verdict.decided
    verdict = check(HEAD + EQUAL, f"{__name__}:second_of_equal")
    assert [d.where for d in verdict.differences] == ["0[2]"]


def second_of_equal(function: Callable[..., Any]) -> Callable[..., Any]:
    """A compile function whose programs give the gradient of four equal elements to the second one."""
    return lambda x: function(x.flip(0))


def test_what_another_program_has_left_in_the_environment_is_none_of_a_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for seed in range(8):
        monkeypatch.setenv("FUZZED_FACTOR", "4")
        assert check(generate(seed, ("two_names",)), "none").ok


SORTED_ZEROS = """
def f(x):
    z = torch.fmod(x, x)
    return z.sort(1)[0], z.gather(1, z.argsort(1, descending=True)), z.topk(3, 0)[0], z.kthvalue(2, 0)[0]
def program(compile):
    yield compile(f)(torch.tensor(ROWS))
"""
BOTH = [[-1.0, 2.0, -3.0, -4.0, 5.0]] * 4
NEGATIVE = [[-1.0, -2.0, -3.0, -4.0, -5.0]] * 4


def test_in_which_order_zeros_are_sorted_is_left_open() -> None:
    """What has no 0.0, or no -0.0, has none in any order."""
    for target in ("others_first", "others_last"):
        assert check(HEAD + SORTED_ZEROS.replace("ROWS", f"{BOTH}"), f"{__name__}:{target}").ok
    program = HEAD + SORTED_ZEROS.replace("ROWS", f"{NEGATIVE}")
    assert check(program, f"{__name__}:others_first").ok
    assert check(program, f"{__name__}:signless").kind == "zero sign"


def others_first(function: Callable[..., Any]) -> Callable[..., Any]:
    """A compile function whose programs sort zeros by their signs."""
    return sorting(function, ORDERS[1])


def others_last(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same with the other sign first."""
    return sorting(function, ORDERS[2])


def sorting(function: Callable[..., Any], order: Any) -> Callable[..., Any]:
    """The function, which takes equal elements in this order."""

    def run(*args: Any) -> Any:
        with OfEqual(order):
            return function(*args)

    return run


def signless(function: Callable[..., Any]) -> Callable[..., Any]:
    """A compile function whose programs' sorts lose the signs of zeros."""
    return changed(lambda results: tuple(torch.where(t == 0, t.abs(), t) for t in results))(function)  # type: ignore[arg-type,return-value,attr-defined]


NO_CAST_IN_DOUBLE = """
def f(x):
    with torch.no_grad():
        return x.to(torch.float64), x.exp().sum().double()
def program(compile):
    x = sample(99, grad=True)
    out = compile(f)(x)
    yield out
    yield backward(out), x.grad
"""


def test_what_is_shown_beside_a_cast_that_is_none_in_double_precision_is_judged_by_that() -> None:
    """The double-precision run has a gradient more: of the tensor itself, which stands for its cast."""
    assert check(HEAD + NO_CAST_IN_DOUBLE, f"{__name__}:exactly").ok
    assert [d.where for d in check(HEAD + NO_CAST_IN_DOUBLE, f"{__name__}:inexactly").differences] == ["0[1]"]


def exactly(function: Callable[..., Any]) -> Callable[..., Any]:
    """A compile function whose programs' sum is the exact one, which eager rounds."""
    return changed(lambda results: (results[0], results[0].exp().sum()))(function)  # type: ignore[arg-type,return-value]


def inexactly(function: Callable[..., Any]) -> Callable[..., Any]:
    """A compile function whose programs' sum is further off than eager's."""
    return changed(lambda results: (results[0], results[1] * (1 + 2e-5)))(function)  # type: ignore[arg-type,return-value]


ONE_BACKWARD_FAILS = """
def f(x):
    v = x @ x
    return v, v @ v.t()
def program(compile):
    g = compile(f)
    for cast in (False, True):
        x = sample(5, 5, seed=2, grad=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=cast):
            out = g(x)
        x.detach().zero_()
        yield backward(out), x.grad
"""


def test_zeros_of_products_and_extrema_have_the_signs_that_eager_gives_them_elsewhere() -> None:
    zeros = torch.tensor([[0.0, -0.0, 0.0], [-0.0, -0.0, -0.0]])
    one, other = torch.full((1, 1), -1.0), torch.zeros(1, 1)
    found = []
    for place in PLACES:
        with Elsewhere(place):
            products = one @ other, other @ other
            extrema = zeros.amax(1), zeros.aminmax(dim=1)[0], zeros.max(1)[1]
        assert products[1].equal(other)
        assert extrema[2].equal(zeros.max(1)[1])
        found.append([t.signbit().tolist() for t in (*products, *extrema[:2])])
    assert found[0] == [[[True]], [[False]], [False, True], [True, True]]
    assert found[1] == [[[False]], [[False]], [True, True], [False, True]]


def test_a_backward_that_fails_leaves_a_reference_for_the_others() -> None:
    """The cast that autograd saves in eager is none in double precision, where the input itself was written to."""
    program = HEAD + ONE_BACKWARD_FAILS
    eager = observe(program, compile_function("none"))
    assert eager.failed == {1}
    assert check(program, "lamina:interp").ok


def test_a_backward_may_fail_as_in_eager_beside_one_that_need_not() -> None:
    program = """
def program(compile):
    for function in (lambda x: x.diagonal().erf(), lambda x: x.t().sin()):
        x = sample(3, 4, grad=True)
        out = compile(function)(x)
        x.detach().neg_()
        yield backward(out), x.grad
"""
    assert check(HEAD + program, "lamina:interp").ok


@pytest.mark.parametrize("way", ["hooks", "retained"])
def test_what_watchers_saw_of_a_failed_backward_is_the_order_of_the_engine(way: str) -> None:
    x = torch.ones(3, requires_grad=True)
    saved = x * 1.0
    made = saved.square() + 1
    seen = watched((made,), way)
    saved.detach().zero_()
    assert isinstance(backward((made,)), RuntimeError)
    assert seen() == [None]


def test_the_own_front_end_answers_for_what_torch_captures_wrongly_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Verdict((Difference("value", "0", "differs"),))
    monkeypatch.setattr(import_module("lamina.testing.fuzz.check"), "check", lambda *given: wrong)
    assert check_capture("", "lamina:interp+strict=true")
    assert not check_capture("", "lamina:interp+strict=true+capture=own")
