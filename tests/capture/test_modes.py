"""Programs that switch modes by hand, or keep a context manager open across a graph break, are eager's."""

from __future__ import annotations

import contextlib
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import lamina
from lamina.errors import LaminaWarning
from lamina.testing.fuzz.torch_private import autocast_depth

seen = []
PROGRAMS = []
pause = torch._dynamo.graph_break


def case(function):
    PROGRAMS.append(function)
    return function


@torch._dynamo.disable
def note():
    seen.append(modes())


def modes():
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.is_autocast_cache_enabled(),
        autocast_depth(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
    )


@case
def set_in_inference_off(x):
    a = x * 2
    with torch.inference_mode(False):
        torch.set_grad_enabled(False)
        pause()
        a = a * 3
        note()
    return a + 1


@case
def set_in_no_grad(x):
    with torch.no_grad():
        a = x * 2
        torch.set_grad_enabled(True)
        pause()
        a = a * 3
        note()
    return a * x


@case
def set_in_no_grad_helper(x):
    def sw():
        torch._C._set_grad_enabled(True)

    with torch.no_grad():
        a = x * 2
        sw()
        pause()
        a = a * 3
        note()
    return a * x


@case
def autocast_in_autocast(x):
    with torch.autocast("cpu", torch.bfloat16):
        torch.set_autocast_enabled("cpu", False)
        a = x @ x
        pause()
        a = a.float() @ x
        note()
        pause()
        return a.float() @ x


@case
def autocast_dtype_in_autocast(x):
    with torch.autocast("cpu", torch.bfloat16):
        torch.set_autocast_dtype("cpu", torch.float16)
        a = x @ x
        pause()
        a = a.float() @ x
        note()
    return a


@case
def autocast_left(x):
    y = x * 2
    torch.set_autocast_enabled("cpu", True)
    return y


@case
def autocast_left_then_matmul(x):
    y = x * 2
    torch.set_autocast_enabled("cpu", True)
    note()
    return y @ x


@case
def an_error_within_autocast(x):
    with torch.autocast("cpu", torch.bfloat16):
        y = x @ x
        return y, torch.linalg.cholesky(-x)


@case
def autocast_dtype_left(x):
    y = x * 2
    torch.set_autocast_dtype("cpu", torch.float16)
    return y


@case
def autocast_cache(x):
    y = x * 2
    torch.set_autocast_cache_enabled(False)
    return y


@case
def hand_enter_break(x):
    c = torch.no_grad()
    c.__enter__()
    a = x * 2
    pause()
    a = a * x
    note()
    c.__exit__(None, None, None)
    return a * x


@case
def hand_enter_left(x):
    c = torch.no_grad()
    c.__enter__()
    return x * 2


@case
def hand_autocast_break(x):
    c = torch.autocast("cpu", torch.bfloat16)
    c.__enter__()
    a = x @ x
    pause()
    a = a.float() @ x
    note()
    c.__exit__(None, None, None)
    return a.float() @ x


@case
def hand_autocast(x):
    c = torch.autocast("cpu", torch.bfloat16)
    c.__enter__()
    a = x @ x
    c.__exit__(None, None, None)
    return a.float() @ x


@case
def hand_inference_break(x):
    c = torch.inference_mode()
    c.__enter__()
    a = x @ x
    pause()
    a = a.float() @ x
    note()
    c.__exit__(None, None, None)
    return a


@case
def hand_inference(x):
    c = torch.inference_mode()
    c.__enter__()
    x @ x
    c.__exit__(None, None, None)
    return x + 1


@case
def lambda_ctx(x):
    def make(v):
        return torch.set_grad_enabled(v)

    with make(False):
        a = x * 2
        pause()
        note()
        a = a * x
    return a * x


@case
def lambda_ctx_made_early(x):
    def make(v):
        return torch.set_grad_enabled(v)

    c = make(False)
    b = x * 3
    pause()
    b = b * x
    note()
    with c:
        a = x * 2
        pause()
        note()
        a = a * x
    note()
    return a * x + b


@case
def ctx_made_early(x):
    c = torch.set_grad_enabled(False)
    b = x * 3
    with c:
        a = x * 2
        pause()
        note()
        a = a * x
    note()
    return a * x + b


@case
def ctx_autocast_early(x):
    c = torch.autocast("cpu", torch.bfloat16)
    x * 3
    pause()
    with c:
        a = x @ x
        pause()
        note()
        a = a @ x
    with c:
        return a @ x


class My:
    def __init__(s, on):
        s.on = on

    def __enter__(s):
        s.b = torch.is_grad_enabled()
        torch.set_grad_enabled(s.on)

    def __exit__(s, *e):
        torch.set_grad_enabled(s.b)


@case
def own(x):
    with My(False):
        a = x * 2
        pause()
        note()
        a = a * x
    note()
    return a * x


@case
def own_in_no_grad(x):
    with torch.no_grad():
        with My(True):
            a = x * 2
            pause()
            note()
            a = a * x
        note()
        pause()
        a = a * x
    return a * x


@contextlib.contextmanager
def gen(on):
    b = torch.is_grad_enabled()
    torch.set_grad_enabled(on)
    try:
        yield
    finally:
        torch.set_grad_enabled(b)


@case
def own_gen(x):
    with gen(False):
        a = x * 2
        pause()
        note()
        a = a * x
    note()
    return a * x


@case
def own_hand(x):
    m = My(False)
    m.__enter__()
    a = x * 2
    pause()
    a = a * x
    note()
    m.__exit__(None, None, None)
    return a * x


@case
def stack(x):
    with contextlib.ExitStack() as s:
        s.enter_context(torch.no_grad())
        a = x * 2
        pause()
        note()
        a = a * x
    note()
    return a * x


@case
def stack_pop_all(x):
    with contextlib.ExitStack() as s:
        s.enter_context(torch.no_grad())
        k = s.pop_all()
        a = x * 2
        pause()
        note()
    note()
    k.close()
    note()
    return a * x


@case
def error_in_no_grad(x):
    with torch.no_grad():
        a = x * 2
        return torch.linalg.inv(a * 0)


@case
def error_in_autocast(x):
    with torch.autocast("cpu", torch.bfloat16):
        x @ x
        return torch.linalg.inv(x * 0)


@case
def error_after_set(x):
    x * 2
    torch.set_grad_enabled(False)
    return torch.linalg.inv(x * 0)


@case
def error_before_set(x):
    a = torch.linalg.inv(x * 0)
    torch.set_grad_enabled(False)
    return a


@case
def error_between(x):
    torch.set_grad_enabled(False)
    a = torch.linalg.inv(x * 0)
    torch.set_grad_enabled(True)
    return a


@case
def error_between_twice(x):
    torch.set_grad_enabled(False)
    a = x * 2
    torch.set_grad_enabled(True)
    a = torch.linalg.inv(x * 0)
    torch.set_grad_enabled(False)
    return a


@case
def error_caught(x):
    a = x
    try:
        with torch.no_grad():
            a = torch.linalg.inv(x * 0)
    except RuntimeError:
        a = a * 2
    note()
    return a * x


@case
def error_suppressed(x):
    a = x
    with contextlib.suppress(RuntimeError):
        a = torch.linalg.inv(x * 0)
    return a * x


class Suppressing:
    def __enter__(self):
        return self

    def __exit__(self, *raised):
        return True


@case
def error_suppressed_by_a_class(x):
    a = x
    with Suppressing():
        a = torch.linalg.inv(x * 0)
    return a * x


@contextlib.contextmanager
def suppressing():
    try:
        yield
    except RuntimeError:
        note()


@case
def error_suppressed_by_a_generator(x):
    a = x
    with suppressing():
        a = torch.linalg.inv(x * 0)
    return a * x


@case
def error_caught_further_out(x):
    a = x
    try:
        for _ in range(2):
            try:
                a = torch.linalg.inv(a * 0)
            except ValueError:
                a = a * 3
    except RuntimeError:
        a = a + 1
    return a * x


@case
def error_inference(x):
    with torch.inference_mode():
        a = x * 2
        return torch.linalg.inv(a * 0)


@case
def error_mid_enable(x):
    with torch.no_grad(), torch.enable_grad():
        return torch.linalg.inv(x * 0)


@case
def deterministic(x):
    torch.use_deterministic_algorithms(True)
    a = torch.linalg.inv(x * 0)
    torch.use_deterministic_algorithms(False)
    return a


@case
def deco_break(x):
    @torch.no_grad()
    def h(y):
        z = y * 2
        pause()
        note()
        return z * y

    return h(x) * x


@case
def nested_fn(x):
    def inner(y):
        with torch.autocast("cpu", torch.bfloat16):
            z = y @ y
            pause()
            note()
            return z.float() @ y

    with torch.no_grad():
        a = inner(x)
    return a + x


@case
def for_loop(x):
    a = x
    for on in (True, False):
        with torch.set_grad_enabled(on):
            a = a * x
            pause()
            note()
    return a * x


@case
def default_dt(x):
    with torch.no_grad():
        torch.set_default_dtype(torch.float64)
        a = x * 2
        pause()
        a = a + torch.ones(3, 3)
        note()
    torch.set_default_dtype(torch.float32)
    return a


@case
def store_no_grad(x):
    c = torch.no_grad()
    pause()
    note()
    with c:
        a = x * 2
        pause()
        note()
    note()
    return a * x


@case
def store_no_grad2(x):
    c = torch.no_grad()
    b = x * 2
    pause()
    note()
    with c:
        a = x * 2
    note()
    return a * x * b


@case
def store_set(x):
    c = torch.set_grad_enabled(False)
    pause()
    note()
    with c:
        a = x * 2
        pause()
        note()
    note()
    return a * x


@case
def made_by_lambda(x):
    def make():
        return torch.no_grad()

    c = make()
    b = x * 2
    pause()
    note()
    with c:
        a = x * 2
        pause()
        note()
    note()
    return a * x * b


@case
def made_conditional(x):
    c = torch.no_grad() if x.shape[0] == 3 else contextlib.nullcontext()
    with c:
        a = x * 2
        pause()
        note()
    note()
    return a * x


@case
def made_conditional2(x):
    with torch.no_grad() if x.shape[0] == 3 else contextlib.nullcontext():
        a = x * 2
        pause()
        note()
    note()
    return a * x


@case
def empty_graph_switch(x):
    with torch.no_grad():
        torch.set_grad_enabled(True)
        pause()
        note()
        a = x * 2
    return a * x


@case
def list_of_ctx(x):
    cs = [torch.no_grad(), torch.enable_grad()]
    b = x * 2
    pause()
    note()
    for c in cs:
        with c:
            b = b * x
            pause()
            note()
    return b


@case
def ctx_attr(x):
    class Holder:
        pass

    o = Holder()
    o.c = torch.no_grad()
    b = x * 2
    pause()
    note()
    with o.c:
        b = b * x
        pause()
        note()
    return b * x


held = torch.no_grad()


@case
def global_ctx(x):
    with held:
        b = x * 2
        pause()
        note()
    note()
    return b * x


@case
def arg_ctx(x):
    def h(c, y):
        with c:
            z = y * 2
            pause()
            note()
            return z * y

    return h(torch.no_grad(), x) * x


@case
def opaque_switch(x):
    with torch.no_grad():
        a = x * 2
        sw()
        note()
        a = a * x
    return a * x


@torch._dynamo.disable
def sw():
    torch.set_grad_enabled(True)


OUTER = {
    "plain": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "again": contextlib.nullcontext,
}


def observed(function, outer):
    """Results or the class of the error, and the modes that were noted and are left."""
    seen.clear()
    found = []
    with outer():
        x = torch.arange(9.0).reshape(3, 3).requires_grad_()
        try:
            result = function(x)
            found.append((result.dtype, result.requires_grad, result.is_inference(), result.double().tolist()))
        except Exception as error:
            found.append(type(error).__name__)
        found.append(modes())
    torch.use_deterministic_algorithms(False)
    torch.set_default_dtype(torch.float32)
    torch.set_autocast_cache_enabled(True)
    return found + seen


def fresh(task, *arguments):
    """The result of ``task`` in a thread of its own, whose modes are the usual ones."""
    with ThreadPoolExecutor(1) as thread, warnings.catch_warnings():
        warnings.simplefilter("ignore", LaminaWarning)
        return thread.submit(task, *arguments).result()


def parts(x, mode):
    with mode:
        yield x * 2
        yield x @ x


@case
def a_generator_is_left_within_no_grad(x):
    return next(parts(x, torch.no_grad())) + x @ x


@case
def a_generator_is_left_within_autocast(x):
    return next(parts(x, torch.autocast("cpu", torch.bfloat16))) + x @ x


@case
def a_loop_over_a_generator_ends_early(x):
    kept = []
    for y in parts(x, torch.no_grad()):
        kept.append(y)
        break
    return kept[0] + x @ x


@case
def a_generator_within_a_mode_ends(x):
    return sum(parts(x, torch.no_grad())) + x @ x


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_modes_are_eagers(program):
    torch._dynamo.reset()
    compiled = lamina.compile(program)
    for name, outer in OUTER.items():
        assert fresh(observed, compiled, outer) == fresh(observed, program, outer), name


def test_a_finally_and_exceptions_that_data_do_not_raise_leave_a_function_compiled() -> None:
    def function(table, i):
        seen = []
        try:
            try:
                rows = table[i]
            except NotImplementedError:
                rows = table.index_select(0, i)
        except (KeyError, TypeError):
            rows = table
        finally:
            seen.append(1)
        return rows * len(seen)

    table = torch.arange(6.0).view(3, 2)
    compiled = lamina.compile(function)
    with warnings.catch_warnings():
        warnings.simplefilter("error", LaminaWarning)
        assert torch.equal(compiled(table, torch.tensor([2, 0])), function(table, torch.tensor([2, 0])))
    with pytest.raises(IndexError):
        compiled(table, torch.tensor([5]))


@pytest.mark.parametrize(
    ("call", "handled"),
    [
        (lambda i: i.softmax(-1), Exception),
        (lambda i: i.softmax(-1) + 1, NotImplementedError),
        (lambda i: i.to(torch.uint16) * i.to(torch.uint16), (TypeError, NotImplementedError)),
        (lambda i: torch.layer_norm(i, (2,)), RuntimeError),
    ],
)
def test_a_call_that_only_tracing_takes_is_left_to_the_handler(call, handled) -> None:
    """The program handles what eager raises, and what it would do after the call is not done."""

    def function(x, i):
        y = x * 2
        try:
            call(i)
            y = y + 1
        except handled:
            y = y.sin()
        return y

    x, i = torch.ones(3), torch.tensor([2, 0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LaminaWarning)
        assert torch.equal(lamina.compile(function)(x, i), function(x, i))
