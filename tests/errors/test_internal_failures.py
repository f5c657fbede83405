"""A failure of any stage of ours leaves eager's results, one warning and a decision; strict raises it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import lamina
import lamina.aot.graph_compiler
import lamina.aot.joint_function
import lamina.aot.run
import lamina.backends.cpu
import lamina.backends.regions
import lamina.base.recovery
import lamina.compile
import lamina.rewrite.order
import lamina.rewrite.rewriting
from lamina.base.text import one_line
from lamina.errors import StageFailed
from lamina.extend import rule

STAGES = [
    ("lamina.rewrite.rewriting.Rewriting.captured", "captured rewrites"),
    ("lamina.rewrite.rewriting.aten_form", "rules"),
    ("lamina.rewrite.rewriting.Rewriting.joint", "joint rewrites"),
    ("lamina.rewrite.rewriting.Rewriting.partitioned", "partitioned rewrites"),
    ("lamina.rewrite.order.lower_custom", "own passes"),
    ("lamina.aot.run.trace_joint", "joint tracing"),
    ("lamina.aot.graph_compiler.prepare", "preparation"),
    ("lamina.aot.graph_compiler.partition", "partition"),
    ("lamina.aot.joint_function.training_function", "assembly"),
    ("lamina.compile.lower", "lowering"),
    ("lamina.compile.fuse", "fusion"),
    ("lamina.backends.cpu.make_plan", "plan"),
    ("lamina.backends.cpu.emit_host", "host program"),
    ("lamina.backends.cpu.emit", "kernel text"),
    ("lamina.backends.cpu.build_together", "build"),
    ("lamina.backends.cpu.chosen_compiler", "compiler"),
    ("lamina.backends.cpu.load_program", "load"),
]
ERRORS = [KeyError("files"), AssertionError(), RecursionError("too deep"), MemoryError(), SyntaxError("generated")]


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(lamina.base.recovery, "_told", set())
    monkeypatch.setattr("lamina.backends.caches._warned", set())
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def _program(x: Tensor, w: Tensor) -> Tensor:
    return ((x * w).softmax(-1) + x.sigmoid()).sum(-1)


def _gradients(function: Callable[..., Any]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(5, 7, generator=generator).requires_grad_() for _ in range(2))
    y = function(x, w)
    y.square().sum().backward()
    return [y.detach(), x.grad, w.grad]


def _breaking(monkeypatch: pytest.MonkeyPatch, place: str, error: Exception, after: int = 0) -> list[int]:
    """Let what is at ``place`` raise from its call number ``after`` on; the calls are counted."""
    owner, _, name = place.rpartition(".")
    module = owner if owner in sys.modules else owner.rpartition(".")[0]  # a name in a module or in a class
    target: Any = sys.modules[module]
    for part in owner.removeprefix(module).split(".")[1:]:
        target = getattr(target, part)
    real, calls = getattr(target, name), [0]

    def broken(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] > after:
            raise error
        return real(*args, **kwargs)

    if target is lamina.rewrite.order:
        monkeypatch.setattr(target, "PASSES", target.changed(name, lambda usual: broken))
    else:
        monkeypatch.setattr(target, name, broken)
    return calls


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize(("place", "what"), STAGES, ids=[what for _, what in STAGES])
@pytest.mark.parametrize("after", [0, 1])
def test_any_stage_may_fail(monkeypatch: pytest.MonkeyPatch, place: str, what: str, after: int) -> None:
    expected = _gradients(_program)
    error = ERRORS[len(what) % len(ERRORS)]
    calls = _breaking(monkeypatch, place, error, after)
    compiled = lamina.compile(_program)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = _gradients(compiled)
    torch.testing.assert_close(found, expected)
    if calls[0] > after:
        told = [str(w.message) for w in said if issubclass(w.category, lamina.LaminaWarning)]
        refusals = [d.reason for d in compiled.record.decisions() if type(error).__name__ in d.reason]
        assert refusals or told
        if what not in ("joint tracing",):  # which AOTAutograd stands in for, as fast
            assert told
            assert len(told) == len(set(told))


@pytest.mark.parametrize("place", [place for place, what in STAGES if what in ("rules", "lowering", "plan", "load")])
def test_strict_raises(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    _breaking(monkeypatch, place, KeyError("files"))
    with pytest.raises((StageFailed, KeyError), match="files"):
        _gradients(lamina.compile(_program, options={"strict": True}))


ODD_NAMES = ["a\rb", "a\nb", "a\0b", "a\x0cb", "a\u2028b", "a\x85b", "a*/b", "a\\", 'a"""b', "a" * 5000]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_names_of_rules_reach_programs_as_one_line(name: str) -> None:
    swap = rule(lambda x: x * torch.sigmoid(x), lambda x: torch.nn.functional.silu(x), name=name)
    compiled = lamina.compile(lambda x: x * torch.sigmoid(x) + 1, options={"rules": (swap,), "strict": True})
    x = torch.randn(9)
    torch.testing.assert_close(compiled(x), torch.nn.functional.silu(x) + 1)


def test_a_name_cannot_bring_code_with_it(tmp_path: Any) -> None:
    target = tmp_path / "made"
    name = f"r\r    open({str(target)!r}, 'w').close()#"
    swap = rule(lambda x: x * torch.sigmoid(x), lambda x: torch.nn.functional.silu(x), name=name)
    lamina.compile(lambda x: x * torch.sigmoid(x) + 1, options={"rules": (swap,)})(torch.randn(9))
    assert not target.exists()


def test_one_line_is_one_line() -> None:
    text = one_line("".join(map(chr, range(0x3000))) + "\\")
    assert len(text.splitlines()) == 1
    assert text.isprintable()
    assert not text.endswith("\\")
