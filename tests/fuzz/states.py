"""Random programs that switch modes, with graph breaks between: what a compiled one computes and leaves is eager's."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

__all__ = ["OUTER", "observed", "program_of", "run_program"]

_MODES = (
    "torch.no_grad()",
    "torch.enable_grad()",
    "torch.set_grad_enabled(False)",
    "torch.set_grad_enabled(True)",
    "torch.inference_mode()",
    "torch.inference_mode(False)",
    "torch.autocast('cpu', torch.bfloat16)",
    "torch.autocast('cpu', torch.float16, cache_enabled=False)",  # eager finds casts to bfloat16 in its cache otherwise
    "torch.autocast('cpu', enabled=False)",
    "torch.autocast('cpu', torch.bfloat16, cache_enabled=False)",
    "own_grad(False)",
    "own_grad(True)",
    "OwnGrad(False)",
    "OwnCast()",
    "own_cast()",
    "default_dtype()",
    "deterministic()",
    "torch.autograd.profiler.record_function('part')",
    "torch.autograd.graph.saved_tensors_hooks(pack, unpack)",
    "torch.autograd.forward_ad.dual_level()",
    "torch.autograd.set_multithreading_enabled(False)",
    "contextlib.nullcontext()",
    "torch.device('cpu')",
    "stacked(torch.no_grad(), torch.autocast('cpu', torch.bfloat16))",
)
_BREAKS = (
    "torch._dynamo.graph_break()",
    "print(end='')",
    "seen.append(float(a.detach().sum().item()))",
    "opaque(a)",
    "seen.append(torch.is_grad_enabled())",
    "seen.append(torch.is_autocast_enabled('cpu'))",
)
_CALLS = (
    "{0} = a.to(w.dtype) @ w",
    "{0} = b.float() @ a.float()",
    "{0} = a * 2 + b",
    "{0} = (a.float() * w).tanh()",
    "{0} = a.sin() + torch.ones(3, 3)",
    "{0} = torch.nn.functional.linear(a.to(w.dtype), w)",
    "{0} = {0}.detach() * w + {0}",
    "{0} = ({0} + w).clone()",
    "{0} = helper({0}, w)",
    "{0} = helper_without({0}, w)",
    "{0} = helper_with({0}, w)",
    "{0} = helper_cast({0}, w)",
    "{0} = helper_break({0}, w)",
)
_SWITCHES = (
    "torch.set_grad_enabled(False)",
    "torch.set_grad_enabled(True)",
    "torch.set_grad_enabled(not torch.is_grad_enabled())",
)

_PRELUDE = """
import contextlib
import torch

seen = []

class OwnGrad:
    def __init__(self, on): self.on = on
    def __enter__(self):
        self.before = torch.is_grad_enabled()
        torch.set_grad_enabled(self.on)
    def __exit__(self, *error):
        torch.set_grad_enabled(self.before)

class OwnCast:
    def __enter__(self):
        self.mode = torch.autocast('cpu', torch.bfloat16)
        self.mode.__enter__()
    def __exit__(self, *error):
        return self.mode.__exit__(*error)

@contextlib.contextmanager
def own_grad(on):
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(on)
    try:
        yield
    finally:
        torch.set_grad_enabled(before)

@contextlib.contextmanager
def own_cast():
    with torch.autocast('cpu', torch.bfloat16):
        yield

@contextlib.contextmanager
def default_dtype():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)

@contextlib.contextmanager
def deterministic():
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(not before)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)

@contextlib.contextmanager
def stacked(*modes):
    with contextlib.ExitStack() as stack:
        for mode in modes:
            stack.enter_context(mode)
        yield

def pack(x): return x * 2
def unpack(x): return x / 2
def helper(x, w): return x * w + 1
@torch.no_grad()
def helper_without(x, w): return x * w + 1
@torch.enable_grad()
def helper_with(x, w): return x * w + 1
@torch.autocast('cpu', torch.bfloat16)
def helper_cast(x, w): return x.to(w.dtype) @ w
def helper_break(x, w):
    y = x + w
    torch._dynamo.graph_break()
    return y * w
@torch._dynamo.disable
def opaque(x): seen.append((x.dtype, x.requires_grad, torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
"""


class _Writer:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.left = self.random.randint(4, 12)

    def say(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def block(self, depth: int) -> None:
        for _ in range(self.random.randint(1, 4)):
            self.statement(depth)

    def statement(self, depth: int) -> None:
        draw = self.random.random()
        self.left -= 1
        nests = self.left > 0 and depth < 5
        if draw < 0.35 or (not nests and draw < 0.7):
            self.say(depth, self.random.choice(_CALLS).format(self.random.choice("ab")))
        elif draw < 0.5 or not nests:
            self.say(depth, self.random.choice(_BREAKS))
        elif draw < 0.8:
            self.say(depth, f"with {self.random.choice(_MODES)}:")
            self.block(depth + 1)
        elif draw < 0.84:
            self.say(depth, self.random.choice(_SWITCHES))
        elif draw < 0.89:
            self.say(depth, "try:")
            self.block(depth + 1)
            if self.random.random() < 0.3:
                self.say(depth + 1, "raise KeyError")
                self.say(depth, "except KeyError:")
            else:
                self.say(depth, "finally:")
            self.block(depth + 1)
        elif draw < 0.93:
            self.say(depth, f"for _ in range({self.random.randint(1, 2)}):")
            self.block(depth + 1)
        elif draw < 0.96:
            self.say(depth, "with contextlib.ExitStack() as stack:")
            self.say(depth + 1, f"stack.enter_context({self.random.choice(_MODES)})")
            self.block(depth + 1)
        elif draw < 0.98:
            self.say(depth, f"{self.random.choice('ab')}.sum() if a.sum() > 0 else None")
        else:
            self.say(depth, "if w.shape[0] == 3:")
            self.block(depth + 1)


def program_of(seed: int) -> str:
    """The text of a module with a function ``program(x, w)``."""
    writer = _Writer(seed)
    decorated = writer.random.random()
    if decorated < 0.15:
        writer.say(0, f"@{writer.random.choice(_MODES[:8])}")
    writer.say(0, "def program(x, w):")
    writer.say(1, "a, b = x, x + 1")
    for _ in range(writer.random.randint(1, 3)):
        writer.block(1)
    writer.say(1, "c = a * 1")
    writer.say(1, writer.random.choice(("return a + 0, b + 0, c", "return c")))
    return _PRELUDE + "\n".join(writer.lines) + "\n"


OUTER: dict[str, Callable[[], Any]] = {
    "plain": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "inference": torch.inference_mode,
    "again": contextlib.nullcontext,
}


def _state() -> tuple[Any, ...]:
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
    )


def _restore(before: tuple[Any, ...]) -> None:
    torch.set_grad_enabled(before[0])
    torch.set_autocast_enabled("cpu", before[2])
    torch.set_autocast_dtype("cpu", before[3])
    torch.set_default_dtype(before[4])
    torch.use_deterministic_algorithms(before[5])


def _described(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.requires_grad, tensor.is_inference(), tensor.detach().double().clone()


def observed(function: Callable[..., Any], seen: list[Any], outer: Callable[[], Any]) -> list[Any]:
    """What one call of ``function`` within the mode ``outer`` shows: results, state left behind, gradients, errors."""
    base = torch.arange(9.0).reshape(3, 3) / 7 - 0.4
    x, w = base.clone().requires_grad_(), (base.t() / 3 + 0.2).clone().requires_grad_()
    seen.clear()
    before = _state()
    found: list[Any] = []
    try:
        with outer():
            try:
                results = function(x, w)
            finally:
                found.append(_state())
        results = results if isinstance(results, tuple) else (results,)
        found += [_described(t) for t in results]
        torch.set_grad_enabled(True)
        wanted = [t.float().sum() for t in results if t.requires_grad]
        if wanted:
            torch.stack(wanted).sum().backward()
            found += [None if t.grad is None else _described(t.grad) for t in (x, w)]
    except Exception as error:
        found.append(type(error).__name__)
    finally:
        _restore(before)
    return [*found, *seen]


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return torch.allclose(first, second, rtol=2e-2, atol=1e-2, equal_nan=True)
    if isinstance(first, (tuple, list)) and isinstance(second, (tuple, list)):
        return len(first) == len(second) and all(_same(a, b) for a, b in zip(first, second, strict=True))
    if isinstance(first, float) and isinstance(second, float):
        return abs(first - second) <= 1e-2 + 2e-2 * abs(first)
    return type(first) is type(second) and bool(first == second)


def run_program(text: str, compiler: Callable[[Any], Any]) -> str:
    """How what ``compiler`` makes of the program differs from eager; "" if it does not.

    Modes belong to a thread: the program gets one of its own, so that what it leaves switched ends with it.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_run_program, text, compiler).result()


def _run_program(text: str, compiler: Callable[[Any], Any]) -> str:
    plain: dict[str, Any] = {}
    traced: dict[str, Any] = {}
    exec(compile(text, "<program>", "exec"), plain)
    exec(compile(text, "<program>", "exec"), traced)
    torch._dynamo.reset()
    compiled = compiler(traced["program"])
    for name, outer in OUTER.items():
        expected = observed(plain["program"], plain["seen"], outer)
        got = observed(compiled, traced["seen"], outer)
        if not _same(expected, got):
            return f"within {name}: expected {expected}\n     got {got}"
    return ""
