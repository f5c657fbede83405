"""What is not compiled is said: programs that capture, lowering or Python's own rules leave to others, in a table."""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import lamina
from lamina.capture.frame_reasons import NOT_STORED
from lamina.errors import BadArgument, LaminaWarning


def scaled(x: Tensor, k: int = 2) -> Tensor:
    return (x * k).sin()


class CallableObject:
    def __init__(self) -> None:
        self.weight = torch.ones(4)

    def __call__(self, x: Tensor) -> Tensor:
        return (x * self.weight).sin()


class OwnCall(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def __call__(self, x: Tensor) -> Tensor:
        return self.linear(x).relu()


def generator(x: Tensor) -> Iterator[Tensor]:
    yield x.sin()
    yield x.cos()


def sum_of_generator(x: Tensor) -> Tensor:
    def parts() -> Iterator[Tensor]:
        yield x.sin()
        yield x.cos()

    return sum(parts(), torch.zeros(4))


async def coroutine(x: Tensor) -> Tensor:
    return x.sin()


def broken_try(x: Tensor) -> Tensor:
    try:
        y = x.sin()
        print(end="")
    finally:
        y = x.cos()
    return y


def broken_loop(x: Tensor) -> Tensor:
    for _ in range(2):
        x = x * x.sum().item()
    return x


def branch(x: Tensor) -> Tensor:
    return x.sin() if x.sum() > 0 else x.cos()


def logs(x: Tensor) -> Tensor:
    logging.getLogger("a").info("b")
    return x.sin()


def backward_within(x: Tensor) -> Tensor:
    y = (x * x).sum()
    y.backward()
    return x.detach() + 1


def opens(x: Tensor) -> Tensor:
    with open("/dev/null") as file:
        return x.sin() + len(file.read())


def in_manager(x: Tensor) -> Tensor:
    with torch.profiler.record_function("a"):
        print(end="")
        return x.sin()


def hashed(x: Tensor) -> Tensor:
    return x + len(inspect.getsource(test_it_is_said_behind_torch_compile)) % 2


def own_generator(x: Tensor) -> Tensor:
    return x + torch.randn(4, generator=torch.Generator().manual_seed(0))


def quantised() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 4)), {nn.Linear})


def nested(x: Tensor) -> Tensor:
    return torch.nested.nested_tensor([x, x])


def quantised_tensor() -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(x(), 0.1, 0, torch.qint8)


def hooked() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    module[0].register_full_backward_hook(lambda *_: None)
    return module


def hooks_a_tensor(x: Tensor) -> Tensor:
    y = x.sin()
    y.register_hook(lambda g: g * 2)
    return y * y


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * 2


def steps() -> Callable[..., Any]:
    weight = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], 0.1)

    def step(x: Tensor) -> Tensor:
        loss = (x * weight).sum()
        weight.grad = torch.ones(4)
        optimizer.step()
        return loss

    return step


@torch.compiler.disable
def disabled(x: Tensor) -> Tensor:
    return x.sin()


def x() -> Tensor:
    return torch.linspace(0.1, 1.6, 16).reshape(4, 4)


PROGRAMS: dict[str, tuple[Callable[[], Callable[..., Any]], Callable[[], tuple[Any, ...]], bool, str]] = {
    "LSTM": (lambda: nn.LSTM(4, 4), lambda: (torch.randn(2, 3, 4),), False, "LM1005"),
    "GRU": (lambda: nn.GRU(4, 4), lambda: (torch.randn(2, 3, 4),), False, "LM1005"),
    "sparse": (lambda: lambda x: torch.sparse.mm(x, torch.ones(4, 4)), lambda: (x().to_sparse(),), False, "LM1006"),
    "quantised": (quantised, lambda: (x(),), False, "LM1014"),
    "quantised tensor": (lambda: lambda x: x.dequantize().sin(), lambda: (quantised_tensor(),), False, "LM1025"),
    "backward hooks": (hooked, lambda: (x(),), False, "LM1026"),
    "complex": (lambda: lambda x: (x.to(torch.complex64) * 1j).sin(), lambda: (x(),), True, "LM4502"),
    "view as complex": (lambda: lambda x: torch.view_as_complex(x.view(8, 2)).abs(), lambda: (x(),), True, "LM4502"),
    "eigenvalues": (lambda: lambda x: torch.linalg.eigvals(x).abs(), lambda: (x(),), True, "LM4501"),
    "singular values": (lambda: lambda x: torch.linalg.svd(x)[1] * 2, lambda: (x(),), True, "LM4501"),
    "item": (lambda: lambda x: x * x.sum().item(), lambda: (x(),), True, "LM1001"),
    "tolist": (lambda: lambda x: x * x[0].tolist()[0], lambda: (x(),), True, "LM1001"),
    "branch": (lambda: branch, lambda: (x(),), True, "LM1002"),
    "nonzero": (lambda: lambda x: x.nonzero().float().sum(), lambda: (x(),), True, "LM1003"),
    "mask": (lambda: lambda x: x[x > 0].sum(), lambda: (x(),), True, "LM1003"),
    "unique": (lambda: lambda x: torch.unique(x), lambda: (x(),), False, "LM1003"),
    "loop": (lambda: broken_loop, lambda: (x(),), False, "LM1004"),
    "try": (lambda: broken_try, lambda: (x(),), False, "LM1011"),
    "manager": (lambda: in_manager, lambda: (x(),), True, "LM1011"),
    "open": (lambda: opens, lambda: (x(),), False, "LM1012"),
    "text": (lambda: lambda x: str(x), lambda: (x(),), False, "LM1011"),
    "optimizer": (steps, lambda: (x(),), True, "LM1027"),
    "logger": (lambda: logs, lambda: (x(),), True, "LM1013"),
    "backward": (lambda: backward_within, lambda: (x().requires_grad_(),), True, "LM1019"),
    "own generator": (lambda: own_generator, lambda: (x(),), True, "LM1014"),
    "generator": (lambda: generator, lambda: (x(),), False, "LM1201"),
    "coroutine": (lambda: coroutine, lambda: (x(),), False, "LM1020"),
    "file passed over": (lambda: hashed, lambda: (x(),), True, "LM1021"),
    "C method": (lambda: x().add, lambda: (x(),), False, "LM1008"),
    "no tensor": (lambda: lambda a, b: a + b, lambda: (1, 2), False, "LM1202"),
    "identity": (nn.Identity, lambda: (x(),), False, "LM1202"),
    "no argument": (lambda: lambda: torch.ones(4).sin(), lambda: (), True, ""),
    "inner generator": (lambda: sum_of_generator, lambda: (x(),), True, ""),
    "partial": (lambda: functools.partial(scaled, k=3), lambda: (x(),), True, ""),
    "callable": (CallableObject, lambda: (x(),), True, ""),
    "C function": (lambda: torch.sin, lambda: (x(),), True, ""),
    "lambda": (lambda: lambda x: x.sin(), lambda: (x(),), True, ""),
    "own __call__": (OwnCall, lambda: (x(),), True, ""),
    "disabled": (lambda: disabled, lambda: (x(),), True, ""),
}
"""What makes a program and its arguments, whether a graph of it is captured, and a code that is among its decisions."""

_LINE = re.compile(r":\d+\)?$")


def _check_left(compiled: Any, code: str) -> None:
    """What is left to others has a remedy, a code and a line, and ``code`` is among the decisions."""
    told = [d for d in compiled.record.decisions() if not d.taken and d.kind in ("break", "capture")]
    left = [d for d in told if d.code != NOT_STORED.number]  # which leaves nothing to others
    assert bool(left) == (code != "" and not code.startswith("LM45"))
    for decision in left:
        assert decision.remedy, decision
        assert decision.code, decision
        facts = dict(decision.facts)
        assert _LINE.search(decision.subject[0]) or _LINE.search(str(facts.get("called at", "")))
    assert not code or code in {d.code for d in compiled.record.decisions()}


@pytest.mark.sampled(one_in=2)
@pytest.mark.by_dynamo("asks for Dynamo's codes and warnings")
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_left_to_others_is_said(name: str) -> None:
    make, arguments, captured, code = PROGRAMS[name]
    torch.compiler.reset()
    compiled = lamina.compile(make(), options={"compare_eager": "off", "progress": False})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            result = compiled(*arguments())
            if name == "coroutine":
                with pytest.raises(StopIteration):
                    result.send(None)
    told = [w for w in caught if issubclass(w.category, LaminaWarning)]
    assert len(told) == (not captured), [str(w.message) for w in told]
    assert all(w.filename == __file__ and ". " in str(w.message) for w in told)
    assert (compiled.stats().graphs > 0) == captured
    _check_left(compiled, code)


OWN_CODES = {
    "GRU": "",  # its calls are recorded
    "quantised": "LM1025",
    "loop": "LM1001",
    "try": "",  # what is printed waits for no tensor
    "manager": "",
    "open": "LM1022",
    "optimizer": "",
    "logger": "",
    "own generator": "LM1022",
    "coroutine": "LM1020",
    "file passed over": "",  # which is interpreted
    "C method": "",
    "disabled": "LM1009",
}
"""The codes that the own front end has for programs for which Dynamo has others."""
OWN_PROGRAMS: dict[str, tuple[Callable[[], Callable[..., Any]], Callable[[], tuple[Any, ...]], str]] = {
    **{name: (make, given, OWN_CODES.get(name, code)) for name, (make, given, _, code) in PROGRAMS.items()},
    "masked in a graph": (lambda: lambda x: x.sin()[x > 0] * 2, lambda: (x(),), "LM1003"),
    "places": (lambda: lambda x: torch.where(x.sin() > 0)[0] * 2, lambda: (x(),), "LM1003"),
    "counts": (lambda: lambda x: torch.bincount((x > 0).long().flatten()) * 2, lambda: (x(),), "LM1003"),
    "repeated": (lambda: lambda x: x.repeat_interleave((x[0] > 0).long() + 1, 0) * 2, lambda: (x(),), "LM1003"),
    "equal": (lambda: lambda x: x.sin() * torch.equal(x, x), lambda: (x(),), "LM1001"),
    "made sparse": (lambda: lambda x: (x.sin().to_sparse() @ x).sin(), lambda: (x(),), "LM1006"),
    "operator that writes": (lambda: lambda x: torch.ops.aten.sin_(x.cos()) * 2, lambda: (x(),), "LM1023"),
    "nested": (lambda: lambda x: nested(x).sin().to_padded_tensor(0.0), lambda: (x(),), "LM1007"),
    "branch of torch": (
        lambda: lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)),
        lambda: (x(),),
        "",
    ),
    "mapped": (lambda: lambda x: torch.vmap(torch.sin)(x), lambda: (x(),), ""),
    "differentiated": (lambda: lambda x: torch.func.grad(lambda y: y.sin().sum())(x), lambda: (x(),), ""),
    "checkpointed": (
        lambda: lambda x: checkpoint(torch.sin, x, use_reentrant=True),
        lambda: (x().requires_grad_(),),
        "LM1024",
    ),
    "function of autograd": (lambda: lambda x: Doubled.apply(x).sin(), lambda: (x().requires_grad_(),), "LM1024"),
    "hook of a tensor": (lambda: hooks_a_tensor, lambda: (x().requires_grad_(),), "LM1024"),
    "disabled within": (lambda: lambda x: disabled(x.cos()) * 2, lambda: (x(),), "LM1009"),
    "pooled": (lambda: lambda x: torch.nn.functional.max_pool2d(x[None], 2).relu(), lambda: (x(),), ""),
}


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("name", OWN_PROGRAMS)
def test_what_the_own_front_end_leaves_to_others_is_said(name: str, tmp_path: Path) -> None:
    make, arguments, code = OWN_PROGRAMS[name]
    torch.compiler.reset()
    given = arguments()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = make()(*given) if name in ("nested", "pooled", "masked in a graph") else None
    options = {"compare_eager": "off", "progress": False, "capture": "own", "cache_dir": str(tmp_path)}
    compiled = lamina.compile(make(), options=options)  # whose calls no other process has stored
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            result = compiled(*given)
            if name == "coroutine":
                with pytest.raises(StopIteration):
                    result.send(None)
    if wanted is not None:
        torch.testing.assert_close(result, wanted)
    told = [w for w in caught if issubclass(w.category, LaminaWarning)]
    assert len(told) == (compiled.stats().graphs == 0), [str(w.message) for w in told]
    assert all(w.filename == __file__ and ". " in str(w.message) for w in told)
    _check_left(compiled, code)


@pytest.mark.by_dynamo("asks for Dynamo's codes and warnings")
def test_nothing_is_said_of_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_by_a_test.py").write_text("TWO = 2\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)

    @functools.partial(torch.compiler.disable, recursive=False)
    def imported() -> Any:
        return importlib.import_module("imported_by_a_test")

    def multiplied(x: Tensor) -> Tensor:
        return x.sin() * imported().TWO

    torch.compiler.reset()
    compiled = lamina.compile(multiplied, options={"compare_eager": "off", "progress": False})
    with warnings.catch_warnings():
        warnings.simplefilter("error", LaminaWarning)
        torch.testing.assert_close(compiled(x()), x().sin() * 2)
    told = [d for kind in ("break", "capture") for d in compiled.record.decisions(kind)]
    assert {d.code for d in told} == {"LM1009"}, told


def test_a_module_of_torchscript_is_run_or_refused_in_our_words() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
        try:  # as the version of torch will have it
            torch.compile(module, backend="eager")
        except RuntimeError:
            with pytest.raises(BadArgument, match="has no Python that could be captured"):
                lamina.compile(module)
        else:
            torch.testing.assert_close(lamina.compile(module)(x()), module(x()))


@pytest.mark.parametrize(
    "name", ["sparse", "generator", "LSTM", "no tensor", "unique", "loop", "quantised", "item", "lambda"]
)
def test_it_is_said_behind_torch_compile(name: str) -> None:
    make, arguments, captured, _ = PROGRAMS[name]
    torch.compiler.reset()
    behind = torch.compile(make(), backend="lamina")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            behind(*arguments())
    told = [w for w in caught if issubclass(w.category, LaminaWarning)]
    assert len(told) == (not captured), [str(w.message) for w in told]
    assert all(w.filename == __file__ for w in told)
