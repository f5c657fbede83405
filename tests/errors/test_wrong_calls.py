"""Calls of the interface that are wrong, or that ask for nothing: told at once, with what to do."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import lamina
from lamina.errors import BadArgument, LaminaWarning, RuleFailed, UnknownOption
from lamina.extend import Backend, Passes, rule


class Odd:
    """Cannot be compared."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not comparable")

    __hash__ = None  # type: ignore[assignment]


def _sine(x: Tensor) -> Tensor:
    return torch.sin(x) + 1


@pytest.mark.parametrize("value", ["yes", 1, None, Odd(), np.array([1, 2])], ids=lambda v: type(v).__name__)
def test_disable_is_a_switch(value: Any) -> None:
    with pytest.raises(BadArgument, match="disable is"):
        lamina.compile(_sine, disable=value)


@pytest.mark.parametrize("value", [-1, "2", 2.5, (1, "a"), None, [[]], (True,), np.array([1])], ids=repr)
def test_ranks_of_a_rule_are_numbers_of_dimensions(value: Any) -> None:
    with pytest.raises(BadArgument, match="ranks of a rule are"):
        rule(_sine, _sine, ranks=value)


@pytest.mark.parametrize("value", [1, None, 2.0, ["a"]], ids=repr)
def test_the_version_of_a_backend_is_a_text(value: Any) -> None:
    with pytest.raises(BadArgument, match="the version of backend 'b' is"):
        Backend("b", print, version=value)


@pytest.mark.parametrize("value", [Odd(), np.array([1, 2]), torch.ones(2), 3], ids=lambda v: type(v).__name__)
@pytest.mark.parametrize("name", ["mode", "numerics", "simd", "verify", "cache", "dump_dir", "cxx"])
def test_values_of_other_types_are_told_with_the_name(name: str, value: Any) -> None:
    with pytest.raises(UnknownOption, match=name):
        lamina.compile(_sine, options={name: value})


@pytest.mark.parametrize("name", ["dump_dir", "cxx", "cache_dir"])
def test_texts_hold_no_nul(name: str) -> None:
    with pytest.raises(UnknownOption, match=f"{name}.*NUL"):
        lamina.compile(_sine, options={name: "a\0b"})


def test_a_condition_says_true_or_false() -> None:
    one = rule(_sine, lambda x: torch.cos(x), name="silent", where=lambda match: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(RuleFailed, match="'silent' returned None"):
        lamina.compile(_sine, options={"rules": (one,)})(torch.ones(3))


def test_a_decorator_takes_one_function() -> None:
    with pytest.raises(TypeError, match="model"):
        lamina.compile()()
    with pytest.raises(BadArgument, match="given None"):
        lamina.compile()(None)
    assert torch.equal(lamina.compile(disable=False)(_sine)(torch.ones(3)), _sine(torch.ones(3)))


def test_inductor_takes_a_mode_or_options() -> None:
    with pytest.raises(BadArgument, match="mode 'max-autotune' and options"):
        lamina.compile(_sine, backend="inductor", mode="max-autotune", options={"max_autotune": True})


def test_a_pass_that_has_no_graph_to_run_on_is_told() -> None:
    def fails(gm: Any) -> None:
        raise ValueError("never called")

    compiled = lamina.compile(_sine, options={"passes": Passes(partitioned=fails)})
    compiled(torch.ones(3))
    assert any("no pass runs at 'partitioned'" in d.reason for d in compiled.record.decisions("pass"))


@pytest.mark.by_dynamo("is about Dynamo's limit of recompiles")
def test_a_function_compiled_as_often_as_may_be_says_so() -> None:
    torch._dynamo.reset()
    compiled = lamina.compile(lambda x, text: x * len(text))
    x = torch.ones(3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", LaminaWarning)
        results = [compiled(x, "a" * number) for number in range(14)]
    assert all(torch.equal(result, x * number) for number, result in enumerate(results))
    (said,) = [str(w.message) for w in caught if "recompile_limit" in str(w.message)]
    assert re.search("test_wrong_calls.py.*recompile_limit.*did not fit because.*raise the limit", said)
    assert any("recompile_limit" in d.reason for d in compiled.record.decisions("capture"))


@pytest.mark.parametrize("compare", [lamina.verify, lamina.bisect], ids=["verify", "bisect"])
class TestComparisons:
    @pytest.mark.parametrize("value", [3, "f", None, torch.ones(2)], ids=lambda v: type(v).__name__)
    def test_what_cannot_be_called_is_not_compared(self, compare: Any, value: Any) -> None:
        with pytest.raises(BadArgument, match=f"compared with eager is a {type(value).__name__}"):
            compare(value, torch.ones(2))

    @pytest.mark.parametrize("options", [3, "strict", [1], lamina.Options()], ids=lambda v: type(v).__name__)
    def test_options_are_a_mapping(self, compare: Any, options: Any) -> None:
        with pytest.raises(BadArgument, match="pass a mapping"):
            compare(_sine, torch.ones(2), options=options)


@pytest.mark.parametrize("path", [3, None, b"a", ["a"]], ids=repr)
def test_what_is_no_path_is_told(path: Any) -> None:
    compiled = lamina.compile(_sine)
    for give in (
        compiled.record.dump,
        compiled.report,
        lambda path: lamina.package(compiled, path),
        lambda path: lamina.load(path, _sine),
        lambda path: lamina.bisect(_sine, torch.ones(2), to=path),
    ):
        with pytest.raises(BadArgument, match="give a path"):
            give(path)


def test_a_report_that_cannot_be_written_is_told_with_a_remedy(tmp_path: Path) -> None:
    compiled = lamina.compile(_sine)
    (tmp_path / "file").write_text("")
    with pytest.raises(BadArgument, match=r"cannot be written\n  do: name a file in a folder"):
        compiled.report(tmp_path / "file" / "page.html")
    with pytest.raises(BadArgument, match="cannot be read"):
        compiled.report(tmp_path / "page.html", against=tmp_path / "none.json")


def test_what_is_no_backend_is_not_registered() -> None:
    with pytest.raises(BadArgument, match="the backend to register is 3"):
        lamina.register_backend(3, name="three")
    for name in (3, "", b"n"):
        with pytest.raises(BadArgument, match="the name of the backend"):
            lamina.register_backend(name=name)


@pytest.mark.parametrize("given", [3, None, _sine], ids=lambda v: type(v).__name__)
def test_the_backend_of_torch_compile_takes_graphs(given: Any) -> None:
    with pytest.raises(BadArgument, match="in place of a graph"):
        lamina.lamina_backend(given, [torch.ones(2)])
