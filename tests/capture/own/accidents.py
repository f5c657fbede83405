"""Calls of our own front end that an exception ends anywhere: what they leave behind is what eager leaves somewhere.

A call is interrupted at one of the lines of Lamina that run in it. What the program's objects hold afterwards must be
what they hold when eager is interrupted before some line of the program, no tensor may be left uncomputed, torch's
state must be as it was, and the next call must give what eager gives.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import grad_mode

import lamina
from lamina.capture.own.callable import interpreted_callable
from lamina.capture.own.pending import Pending
from lamina.capture.own.torch_private import in_ordinary_state
from lamina.record import Record

__all__ = ["PROGRAMS", "Accident", "Lines", "accident", "draw"]

_OURS = lamina.__path__[0]
_PROGRAMS = __file__, grad_mode.__file__
"""What the programs consist of, contexts of torch's included."""


@dataclass
class Subject:
    """A function, its arguments, and what a user may look at: objects that it changes."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    seen: Callable[[], Any]


class Counting(nn.Module):
    """A module that changes its attributes in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.last = 0, None
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        """Twice ``x``, with notes."""
        self.calls += 1
        doubled = x * 2
        self.last = doubled
        self.total.add_(x)
        self.total = self.total + doubled
        self.calls += 1
        return doubled.relu()


def _module() -> Subject:
    module = Counting()
    return Subject(module, (values(),), lambda: (module.calls, module.last, module.total))


def _appended() -> Subject:
    kept: list[Any] = []

    def function(x: Tensor) -> Tensor:
        kept.append(x + 1)
        y = x * 2
        kept.append(y)
        kept.append(float(y.sum()))
        kept.append(y.relu())
        return y - 1

    return Subject(function, (values(),), lambda: list(kept))


def _cleaned_up() -> Subject:
    state: dict[str, Any] = {}

    def function(x: Tensor) -> Tensor:
        state["open"] = True
        try:
            state["doubled"] = x * 2
            if x.sum() > 0:
                state["sign"] = 1
            y = state["doubled"] + 1
        finally:
            state["open"] = False
        return y.exp()

    return Subject(function, (values(),), lambda: dict(state))


def _written() -> Subject:
    memory = torch.zeros(4)

    def function(x: Tensor) -> Tensor:
        memory[0] = 1.0
        y = x.sin() + memory[0]
        memory[1:].add_(y)
        memory.mul_(2)
        return y * memory.sum()

    return Subject(function, (values(),), lambda: memory)


def _looped() -> Subject:
    found: list[Any] = []

    def each(x: Tensor) -> Iterator[Tensor]:
        for k in range(3):
            found.append(k)
            yield x * k

    def function(x: Tensor) -> Tensor:
        total = x
        for one in each(x):
            total = total + one
            found.append(total)
            if total.sum().item() > 20:
                break
        return total

    return Subject(function, (values(),), lambda: list(found))


def _without_gradients() -> Subject:
    seen: list[Any] = []
    weight = nn.Parameter(torch.ones(3))

    def function(x: Tensor) -> Tensor:
        with torch.no_grad():
            norm = weight.norm()
            seen.append(norm)
        y = (x * weight).sum() / norm
        seen.append(y.requires_grad)
        return y

    return Subject(function, (values(),), lambda: list(seen))


def _set() -> Subject:
    class Holder:
        pass

    holder = Holder()

    def function(x: Tensor) -> Tensor:
        holder.first = x.cos()  # type: ignore[attr-defined]
        holder.second = holder.first * 2, [holder.first]  # type: ignore[attr-defined]
        print(end="")
        del holder.first  # type: ignore[attr-defined]
        return holder.second[0] + 1  # type: ignore[attr-defined, no-any-return]

    return Subject(function, (values(),), lambda: dict(vars(holder)))


PROGRAMS: dict[str, Callable[[], Subject]] = {
    "module": _module,
    "list": _appended,
    "finally": _cleaned_up,
    "memory": _written,
    "loop": _looped,
    "no_grad": _without_gradients,
    "attributes": _set,
}


def values() -> Tensor:
    """Three numbers, each time as a new tensor."""
    return torch.tensor([0.5, -1.0, 2.0])


@dataclass
class Accident:
    """What is wrong after an interrupted call; ``hit``: whether the call came to the line at all."""

    hit: bool
    wrong: tuple[str, ...]


def lines_of_a_call(program: str, calls: int = 0) -> int:
    """How many lines a program's call after so many others runs that it can be interrupted at."""
    subject = PROGRAMS[program]()
    watch = Lines(sys.maxsize, KeyboardInterrupt)
    compiled = _compiled(subject)
    for _ in range(calls):
        compiled(*subject.args)
    _run(compiled, subject.args, watch)
    return watch.count


def accident(program: str, line: int, error: type[BaseException], *, calls: int = 0) -> Accident:
    """Interrupt a call of a program at a line by number; it has been called ``calls`` times before."""
    allowed = _states(program, calls)
    subject = PROGRAMS[program]()
    compiled = _compiled(subject)
    for _ in range(calls):
        compiled(*subject.args)
    wrong = []
    watch = Lines(line, error)
    raised = _run(compiled, subject.args, watch)
    hit = watch.count >= line
    if hit and raised is not None and type(raised) is not error:
        wrong.append(f"raised {type(raised).__name__}: {raised}"[:300])
    del raised
    if not in_ordinary_state():
        wrong.append("torch's state is another one")
    grad, left = torch.is_grad_enabled(), subject.seen()
    torch.set_grad_enabled(True)
    if any(type(t) is Pending for t in _tensors(left)):
        wrong.append("a tensor was never computed")
    elif (grad, plain(left)) not in allowed:
        wrong.append(f"left {grad, plain(left)}")
    if not wrong:
        wrong += _afterwards(program, subject, compiled)
    return Accident(hit, tuple(wrong))


def _afterwards(program: str, subject: Subject, compiled: Callable[..., Any]) -> list[str]:
    """What is wrong with a call after the interrupted one: eager is given the objects as they are now."""
    other = PROGRAMS[program]()
    _take_over(other, subject)
    try:
        found, expected = plain(compiled(*subject.args)), plain(other.function(*other.args))
    except Exception as error:
        return [f"the next call raises {type(error).__name__}: {error}"[:300]]
    return [] if found == expected else [f"the next call gives {found}, eager's is {expected}"]


def _take_over(other: Subject, subject: Subject) -> None:
    """Give the objects of ``other`` the state of those of ``subject``, as far as results depend on it."""
    mine, theirs = subject.seen(), other.seen()
    if isinstance(theirs, Tensor):
        theirs.copy_(mine)


def _compiled(subject: Subject) -> Callable[..., Any]:
    return interpreted_callable(  # type: ignore[no-any-return]
        subject.function, backend_callable=lambda gm, examples: _prepared(gm), record=Record()
    )


def _prepared(gm: torch.fx.GraphModule) -> Callable[..., Any]:
    """The graph as a function; a compiler runs lines of Python before it gives one, and the function does."""
    names = [node.name for node in gm.graph.nodes]

    def run(*inputs: Tensor) -> Any:
        given = list(inputs)
        results = gm.forward(*given)
        return tuple(results)

    return run if names else gm.forward


def _states(program: str, calls: int) -> list[Any]:
    """Whether gradients are recorded, and what the objects hold, in eager when the program's call ends, or is
    interrupted before one of its lines.
    """
    found: list[Any] = []
    line, ended = 0, False
    while not ended:
        line += 1
        subject = PROGRAMS[program]()
        for _ in range(calls):
            subject.function(*subject.args)
        watch = Lines(line, KeyboardInterrupt, _PROGRAMS)
        _run(subject.function, subject.args, watch)
        ended = watch.count < line
        found.append((torch.is_grad_enabled(), plain(subject.seen())))
        torch.set_grad_enabled(True)
    return found


class Lines:
    """Counts lines of ours, or those of ``files``, and raises an error at one of them."""

    def __init__(self, line: int, error: type[BaseException], files: str | tuple[str, ...] = _OURS) -> None:
        self.line, self.error, self.files, self.count = line, error, files, 0
        self.events = ("line",) if files is _OURS else ("line", "return")

    def happens(self) -> None:
        """What happens at the line."""
        raise self.error("an accident")

    def __call__(self, frame: Any, event: str, arg: Any) -> Any:
        """A trace function."""
        if not frame.f_code.co_filename.startswith(self.files):
            return None
        if event in self.events:
            self.count += 1
            if self.count == self.line:
                sys.settrace(None)
                self.happens()
        return self


def _run(compiled: Callable[..., Any], args: tuple[Any, ...], watch: Lines) -> BaseException | None:
    sys.settrace(watch)
    try:
        compiled(*args)
    except BaseException as error:
        return error.with_traceback(None)
    finally:
        sys.settrace(None)
    return None


def plain(value: Any) -> Any:
    """A value with its tensors as nested tuples of numbers, rounded as float32 allows."""
    if isinstance(value, Tensor):
        with torch.no_grad():
            return "tensor", tuple(value.shape), tuple(round(x, 4) for x in value.detach().flatten().tolist())
    if isinstance(value, list | tuple):
        return type(value).__name__, tuple(plain(one) for one in value)
    if isinstance(value, dict):
        return "dict", tuple((key, plain(one)) for key, one in value.items())
    return round(value, 4) if isinstance(value, float) else value


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def draw(seed: int, count: int) -> list[tuple[str, int, int]]:
    """Programs, calls before, which are often none, and lines, at random."""
    chosen = random.Random(seed)
    cases = [(name, calls) for name in PROGRAMS for calls in (0, 0, 0, 1, 2)]
    lengths = {case: lines_of_a_call(*case) for case in set(cases)}
    return [(*case, chosen.randint(1, max(1, lengths[case]))) for case in chosen.choices(cases, k=count)]


if __name__ == "__main__":
    bad = 0
    for name, calls, line in draw(int(sys.argv[1]), int(sys.argv[2])):
        kind = KeyboardInterrupt if len(sys.argv) < 4 else RuntimeError
        found = accident(name, line, kind, calls=calls)
        if found.wrong:
            bad += 1
            print(name, calls, line, *found.wrong, flush=True)
    print(bad, "wrong of", sys.argv[2])
