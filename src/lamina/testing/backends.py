"""A fixed suite of small programs that every backend must run as eager does."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lamina.base.accuracy import tensors
from lamina.base.tables import Table, plain_console
from lamina.compile import compile
from lamina.errors import BadArgument
from lamina.testing.compare import compare

__all__ = ["BackendCheck", "BackendReport", "check_backend"]

IS_A_PROGRAM = True
"""The own front end interprets the functions of this file as it does the user's."""
_WIDTH = 140
"""Characters of a line of a report that no terminal shows."""
_LONGEST = 300
"""Characters of an error's text in a report."""


@dataclass(frozen=True, slots=True)
class BackendCheck:
    """One program of the suite: whether the backend ran it as eager does, and if not what differed, in words.

    ``left`` says why the backend left parts of it to its fallback, in words; empty when it took all of it.
    """

    name: str
    ok: bool
    fault: str
    left: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class BackendReport:
    """What ``check_backend`` found, a row for each program."""

    backend: str
    rows: tuple[BackendCheck, ...]

    @property
    def ok(self) -> bool:
        """Whether every program ran as in eager."""
        return all(row.ok for row in self.rows)

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the programs that did not."""
        return tuple(row.name for row in self.rows if not row.ok)

    def __str__(self) -> str:
        """One line, and one more for each program that failed."""
        passed = sum(row.ok for row in self.rows)
        head = f"{self.backend}: {passed} of {len(self.rows)} programs run as in eager"
        return "\n".join([head, *(f"  {row.name}: {row.fault}" for row in self.rows if not row.ok)])

    def table(self) -> Table:
        """The rows as a table to print."""
        table = Table(title=str(self).splitlines()[0], title_justify="left")
        for column in ("program", "result", "what differs", "left to the fallback"):
            table.add_column(column, overflow="fold")
        for row in self.rows:
            table.add_row(row.name, "ok" if row.ok else "FAILED", row.fault, "; ".join(row.left))
        return table


@dataclass(frozen=True, slots=True)
class _Program:
    """A callable, the arguments of its calls one after another, and how it is compiled and compared."""

    name: str
    function: Callable[..., Any]
    calls: tuple[tuple[Any, ...], ...]
    grads: bool = True
    dynamic: bool | None = None
    complaint: Callable[[Callable[..., Any], tuple[Any, ...]], str] | None = None


def check_backend(
    backend: Any, *, device: str = "cpu", show: bool = True, programs: Sequence[str] | None = None
) -> BackendReport:
    """Run small programs on ``backend`` (anything ``lamina.compile`` takes) and in eager, and compare all they leave.

    Covers values, gradients, writes to inputs and buffers, dtypes, sizes that change, outputs that share memory with
    inputs, several graphs in one function, inputs that are not contiguous or empty, and results that must outlive
    later calls. Errors are judged against a double-precision run: at most twice eager's. Prints a table unless
    ``show`` is False; ``programs`` names some of the suite, for a quicker look. Never raises for what the backend does
    wrong: that is in the rows. Raises ``BadArgument`` for what is no backend, and for a program that is not there.
    Takes some seconds; resets torch.compile's caches.
    """
    name = backend if isinstance(backend, str) else getattr(backend, "name", getattr(backend, "__name__", "backend"))
    compile(abs, backend=backend)  # raises for what no program could be compiled with
    rows = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for program in _chosen(_suite(torch.device(device)), programs):
            torch.compiler.reset()
            rows.append(_row(program, backend))
    torch.compiler.reset()
    report = BackendReport(str(name), tuple(rows))
    if show:
        console = plain_console()
        plain_console(width=None if console.is_terminal else _WIDTH).print(report.table())
    return report


def _chosen(suite: list[_Program], names: Sequence[str] | None) -> list[_Program]:
    known = [program.name for program in suite]
    if isinstance(names, str):
        raise BadArgument(f"programs is the text {names!r}", remedy=f"pass a list: [{names!r}]")
    for name in names or ():
        if name not in known:
            raise BadArgument(f"no program is called {name!r}", remedy=f"use some of {', '.join(known)}")
    return [program for program in suite if names is None or program.name in names]


def _row(program: _Program, backend: Any) -> BackendCheck:
    start = time.perf_counter()
    record = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled = compile(program.function, backend=backend, dynamic=program.dynamic)
            record = getattr(compiled, "record", None)
            fault = _fault(program, compiled)
    except Exception as error:
        fault = _plainly(error)
    left = [] if record is None else [d.reason for d in record.decisions("backend") if not d.taken]
    return BackendCheck(program.name, not fault, fault, tuple(dict.fromkeys(left)), time.perf_counter() - start)


def _fault(program: _Program, compiled: Callable[..., Any]) -> str:
    """What the compiled program does otherwise than eager; "" for nothing."""
    raised: list[Exception] = []

    def watched(*args: Any) -> Any:
        try:
            return compiled(*args)
        except Exception as error:
            raised.append(error)
            raise

    for args in program.calls:
        if program.complaint is not None:
            fault = program.complaint(compiled, args)
            if fault:
                return fault
            continue
        run = compiled if isinstance(program.function, nn.Module) else watched
        found = compare(program.function, run, args, grads=program.grads)
        if raised:
            return _plainly(raised[0])
        if not found.ok:
            return _in_words(found.complaints[0])
    return ""


def _in_words(complaint: str) -> str:
    return f"it wrote to its inputs or lost an output: {complaint}" if complaint.startswith("results:") else complaint


def _plainly(error: BaseException) -> str:
    """The error of the backend itself, without what others wrapped around it."""
    inner = getattr(error, "inner_exception", None)
    if inner is not None:
        return _plainly(inner)
    text = getattr(error, "what", "") or f"{type(error).__name__}: {error}"
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."


def _suite(device: torch.device) -> list[_Program]:
    return [*_values(device), *_writes(device), *_dtypes(device), *_layouts(device), *_lifetimes(device)]


def _randn(device: torch.device, *shape: int, grad: bool = False) -> Tensor:
    return torch.randn(*shape, device=device).requires_grad_(grad)


def _arithmetic(x: Tensor, y: Tensor) -> Tensor:
    return (x + y).relu() * torch.sigmoid(x) - y.exp() / 3


def _mixed(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    weights = torch.softmax(x @ w, dim=-1)
    return weights, (weights * 2 + 1).mean(dim=0)


def _values(device: torch.device) -> list[_Program]:
    x, y, w = _randn(device, 5, 8), _randn(device, 5, 8), _randn(device, 8, 6)
    gx, gw = _randn(device, 5, 8, grad=True), _randn(device, 8, 6, grad=True)
    mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)).to(device)

    def nested(x: Tensor, factor: float) -> dict[str, Any]:
        return {"scaled": (x * factor, None), "sum": [x.sum(), 3]}

    def picked(x: Tensor, index: Tensor) -> Tensor:
        return x[index].cumsum(0) + torch.where(x[index] > 0, 1.0, -1.0)

    index = torch.tensor([0, 2, 2, 4], device=device)
    return [
        _Program("forward", _arithmetic, ((x, y),), grads=False),
        _Program("products and reductions", _mixed, ((x, w),), grads=False),
        _Program("numbers, and outputs in a dict", nested, ((x, 2.5), (x, -1.0)), grads=False),
        _Program("indexing", picked, ((x, index),), grads=False),
        _Program("gradients", _mixed, ((gx, gw),)),
        _Program("a module with parameters", mlp, ((gx,), (_randn(device, 5, 8),))),
    ]


def _writes(device: torch.device) -> list[_Program]:
    def accumulate(total: Tensor, x: Tensor) -> Tensor:
        total.add_(x * 2)
        x[0] = 1.0
        return total.sum()

    norm = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)).to(device)
    return [
        _Program("writes to inputs", accumulate, ((_randn(device, 5, 8), _randn(device, 5, 8)),), grads=False),
        _Program("writes to buffers while training", norm, ((_randn(device, 5, 8, grad=True),),)),
    ]


def _dtypes(device: torch.device) -> list[_Program]:
    def arithmetic(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x * 2 + y, x > y, (x + y).sum()

    programs = []
    for dtype in (torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8):
        pair = tuple((torch.rand(5, 8, device=device) * 9).to(dtype) for _ in range(2))
        programs.append(_Program(str(dtype).removeprefix("torch."), arithmetic, (pair,), grads=False))

    def logical(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x & ~y, (x | y).any(dim=0)

    pair = tuple(torch.rand(5, 8, device=device) > 0.5 for _ in range(2))
    mixed = (_randn(device, 5, 8), torch.arange(8, device=device))
    programs.append(_Program("bool", logical, (pair,), grads=False))
    programs.append(_Program("promotion", arithmetic, (mixed,), grads=False))
    return programs


def _layouts(device: torch.device) -> list[_Program]:
    wide = _randn(device, 8, 12)
    strided = (wide.t()[:, ::2], _randn(device, 4).expand(12, 4))
    empty = (_randn(device, 0, 8), _randn(device, 0, 8))
    scalar = (torch.tensor(2.0, device=device), torch.tensor(-1.5, device=device))
    sizes = tuple((_randn(device, n, 8, grad=True), _randn(device, 8, 6, grad=True)) for n in (3, 7, 12))

    def transposed(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (x + y).t() * 2, (x * y).permute(1, 0) + 1

    return [
        _Program("inputs that are not contiguous", _arithmetic, (strided,), grads=False),
        _Program("strides of outputs", transposed, ((_randn(device, 5, 8), _randn(device, 5, 8)),), grads=False),
        _Program("empty inputs", _arithmetic, (empty,), grads=False),
        _Program("zero-dimensional inputs", _arithmetic, (scalar,), grads=False),
        _Program("other sizes later", _mixed, sizes),
        _Program("symbolic sizes", _mixed, sizes, dynamic=True),
    ]


def _lifetimes(device: torch.device) -> list[_Program]:
    def views(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return x.t(), x, y * 2, y

    outside: Callable[[Tensor], Tensor] = torch.compiler.disable(torch.exp)  # type: ignore[no-untyped-call]

    def broken(x: Tensor, w: Tensor) -> Tensor:
        return outside(torch.tanh(x @ w)) * 2

    pair = (_randn(device, 4, 6), _randn(device, 4, 6))
    graded = (_randn(device, 5, 8, grad=True), _randn(device, 8, 6, grad=True))
    same = _randn(device, 5, 8)
    return [
        _Program("outputs that share memory with inputs", views, (pair,), complaint=_shares_otherwise),
        _Program("one tensor given twice", _arithmetic, ((same, same),), grads=False),
        _Program("several graphs in one function", broken, (graded,)),
        _Program("results that outlive the next call", _arithmetic, (pair,), complaint=_overwrites),
        _Program("steps of training", _step, ((device,),), complaint=_trains_otherwise),
    ]


def _shares_otherwise(compiled: Callable[..., Any], args: tuple[Any, ...]) -> str:
    """Whether the outputs lie in other memory than eager's: view of an input, the input itself, or fresh."""
    x, y = (t.clone() for t in args)
    view, itself, fresh, other = compiled(x, y)
    if itself is not x or other is not y:
        return "an output that is an input is another tensor"
    if view.untyped_storage().data_ptr() != x.untyped_storage().data_ptr():
        return "a view of an input is a copy of it"
    if fresh.untyped_storage().data_ptr() in (x.untyped_storage().data_ptr(), y.untyped_storage().data_ptr()):
        return "a computed output lies in the memory of an input"
    return "" if torch.equal(fresh, args[1] * 2) else "wrong values"


def _overwrites(compiled: Callable[..., Any], args: tuple[Any, ...]) -> str:
    first = compiled(*args)
    before = [t.clone() for t in tensors(first)]
    compiled(*(t * 3 + 1 for t in args))
    same = all(torch.equal(a, b) for a, b in zip(before, tensors(first), strict=True))
    return "" if same else "a second call changed the result of the first"


def _step(model: nn.Module, x: Tensor) -> Tensor:
    return nn.functional.mse_loss(model(x), torch.ones_like(x))


def _trains_otherwise(compiled: Callable[..., Any], args: tuple[Any, ...]) -> str:
    """Whether three steps of gradient descent lead elsewhere than in eager."""
    ends: list[Sequence[Tensor]] = []
    for step in (_step, compiled):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(6, 6), nn.Tanh()).to(args[0])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            step(model, torch.randn(4, 6, device=args[0])).backward()
            optimizer.step()
        ends.append([p.detach() for p in model.parameters()])
    for number, (mine, theirs) in enumerate(zip(ends[1], ends[0], strict=True)):
        if not torch.allclose(mine, theirs, rtol=1e-4, atol=1e-5):
            return f"parameter {number} is {(mine - theirs).abs().max():.2g} away from eager's after three steps"
    return ""
