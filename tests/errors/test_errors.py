"""Each error class is raised here by the mistake it stands for, through the function that a user calls."""

from __future__ import annotations

import importlib
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from importlib import import_module
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import lamina
from lamina.errors import (
    BackendFailed,
    DoubleBackward,
    GraphBroken,
    LaminaError,
    PassFailed,
    RecompileRefused,
    RuleFailed,
    UnexpectedMatches,
    UnknownGradient,
    WrongLowering,
)
from lamina.extend import Passes, nest_rule, rule
from lamina.ir.index import as_expr
from lamina.ir.loops import BufferView, LoopProgram
from lamina.ir.loops_verify import verify_program
from lamina.options import Options
from lamina.runtime.build import build_kernels
from lamina.runtime.cache import Cache
from lamina.runtime.kernel import KernelError, KernelFunction, KernelUnit
from lamina.runtime.toolchain import NoCompiler, find_compiler, probe
from tests.architecture.source import sources


def errors(base: type[LaminaError] = LaminaError) -> Iterator[type[LaminaError]]:
    for file in sources():
        importlib.import_module(file.module)
    yield from _below(base)


def _below(base: type[LaminaError]) -> Iterator[type[LaminaError]]:
    for found in base.__subclasses__():
        # Not the stand-ins under the same name that Dynamo lets through.
        if getattr(sys.modules.get(found.__module__), found.__name__, None) is found and "lamina." in found.__module__:
            yield found
            yield from _below(found)


def _sin(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


def _cos(x: torch.Tensor) -> torch.Tensor:
    return x.cos()


def _rewritten(**options: object) -> object:
    """A small function compiled with some rules or passes, without kernels."""
    torch.compiler.reset()
    return lamina.compile(lambda x: x.sin() + 1, backend="aten", options=options)(torch.ones(3))


def _slope(x: torch.Tensor) -> torch.Tensor:
    (found,) = torch.autograd.grad((x * x.sin() + 0.0 * F.dropout(x)).sum(), x, create_graph=True)
    return found.square().sum()


def _differentiated_twice(backend: str = "lamina") -> torch.Tensor:
    """The gradient of a gradient that is taken within a compiled function."""
    torch.compiler.reset()
    x = torch.ones(3, requires_grad=True)
    lamina.compile(_slope, backend=backend)(x).backward()
    assert x.grad is not None
    return x.grad


def _asked_past_a_dropout() -> object:
    """The gradient that a result gets from another one by random numbers, which cannot be drawn again."""
    torch.compiler.reset()

    def between(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = x * 2
        return made, F.dropout(made).sum()

    made, total = lamina.compile(between)(torch.ones(3, requires_grad=True))
    return torch.autograd.grad(total, made)


MISTAKES: dict[str, tuple[type[LaminaError], Callable[[], object]]] = {
    "a negative count": (lamina.BadArgument, lambda: lamina.benchmark(int, repeats=-1)),
    "no call to warm up": (lamina.BadArgument, lambda: lamina.warmup(int, calls=0)),
    "nothing to time": (lamina.BadArgument, lambda: lamina.alternate({})),
    "a list to time": (lamina.BadArgument, lambda: lamina.alternate([int])),
    "a text for seconds": (lamina.BadArgument, lambda: lamina.alternate({"int": int}, seconds="1")),
    "half a repeat": (lamina.BadArgument, lambda: lamina.benchmark(int, repeats=2.5)),
    "seconds without end": (lamina.BadArgument, lambda: lamina.benchmark(int, seconds=float("inf"))),
    "a text for a count": (lamina.BadArgument, lambda: lamina.warmup(int, calls="2")),
    "timing a number": (lamina.BadArgument, lambda: lamina.benchmark(3)),
    "timing a mapping of numbers": (lamina.BadArgument, lambda: lamina.alternate({"a": 3})),
    "warming up a number": (lamina.BadArgument, lambda: lamina.warmup(3)),
    "not a callable": (lamina.BadArgument, lambda: lamina.compile(3)),
    "an option that does not exist": (lamina.UnknownOption, lambda: lamina.compile(abs, options={"speed": 11})),
    "an option that is no name": (lamina.UnknownOption, lambda: lamina.compile(abs, options={3: 4})),
    "two modes": (
        lamina.BadArgument,
        lambda: lamina.compile(abs, mode="reduce-overhead", options={"mode": "max-autotune"}),
    ),
    "two modes, one in Options": (
        lamina.BadArgument,
        lambda: lamina.compile(abs, mode="reduce-overhead", options=Options(mode="max-autotune")),
    ),
    "a rule to leave out that is not there": (
        lamina.UnknownOption,
        lambda: lamina.compile(abs, options={"without_rules": ("nope",)}),
    ),
    "a rule that is expected and not there": (
        UnexpectedMatches,
        lambda: lamina.compile(abs, options={"expect_matches": {"nope": 1}}),
    ),
    "a right side that fails, with the option strict": (
        RuleFailed,
        lambda: _rewritten(rules=[rule(lambda x: x.sin(), lambda x: x / 0 + 1 // 0, name="z")], strict=True),
    ),
    "a second differentiation": (DoubleBackward, _differentiated_twice),
    "a gradient past random numbers": (UnknownGradient, _asked_past_a_dropout),
    "an option of the wrong type": (lamina.UnknownOption, lambda: lamina.compile(abs, options={"verify": "yes"})),
    "a mode that does not exist": (lamina.UnknownOption, lambda: lamina.compile(abs, mode="ludicrous")),
    "a value that is no choice": (lamina.UnknownOption, lambda: Options().replace(numerics="sloppy")),
    "an option below zero": (lamina.UnknownOption, lambda: lamina.compile(abs, options={"jobs": -4})),
    "an object with no such value": (
        lamina.UnknownOption,
        lambda: lamina.compile(abs, options=Options(numerics="eagr")),
    ),
    "an object of a wrong type": (lamina.UnknownOption, lambda: lamina.compile(abs, options=Options(fuel="x"))),  # type: ignore[arg-type]
    "a change of an unknown option": (lamina.UnknownOption, lambda: Options().replace(speed=11)),
    "options that are no mapping": (lamina.BadArgument, lambda: lamina.compile(abs, options=["strict"])),
    "a word for a switch": (lamina.BadArgument, lambda: lamina.compile(abs, fullgraph="yes")),
    "dynamic that is neither": (lamina.BadArgument, lambda: lamina.compile(abs, dynamic=1)),
    "a backend that is no backend": (lamina.BadArgument, lambda: lamina.compile(abs, backend=3)),
    "a backend that nobody knows": (lamina.BadArgument, lambda: lamina.compile(abs, backend="laminar")),
    "a mode that a backend has no use for": (
        lamina.BadArgument,
        lambda: lamina.compile(abs, backend="aten", mode="max-autotune"),
    ),
    "a class of torch's": (lamina.BadArgument, lambda: lamina.compile(torch.nn.Linear)),
    "a class that is no module": (lamina.BadArgument, lambda: lamina.compile(dict)),
    "a backend that loses an output": (
        BackendFailed,
        lambda: lamina.compile(torch.sin, backend=lambda gm, inputs: lambda x: ())(torch.ones(2)),
    ),
    "a rule that goes in circles": (
        RuleFailed,
        lambda: _rewritten(rules=[rule(lambda x: x.sin(), lambda x: x.sin() + 0, name="again")]),
    ),
    "a condition that raises": (
        RuleFailed,
        lambda: _rewritten(
            rules=[rule(lambda x: x.sin(), lambda x: x.cos(), where=lambda match: match["y"], name="y")]
        ),
    ),
    "a rule that does not match": (UnexpectedMatches, lambda: _rewritten(expect_matches={"silu": 1})),
    "a rule that runs with freeze alone": (
        UnexpectedMatches,
        lambda: _rewritten(expect_matches={"merge_projections": 1}),
    ),
    "what is no module to thaw": (lamina.BadArgument, lambda: lamina.thaw(abs)),
    "a pass that returns nothing": (PassFailed, lambda: _rewritten(passes=Passes(joint=lambda gm: None))),
    "a rule without a tensor": (lamina.BadArgument, lambda: rule(lambda: 1, lambda: 2)),
    "rules that are no rules": (lamina.UnknownOption, lambda: lamina.compile(abs, options={"rules": [abs]})),
    "two rules of one name": (
        lamina.BadArgument,
        lambda: Options().replace(rules=[rule(before, lambda x: x, name="mine") for before in (_sin, _cos)]),
    ),
    "a backend that compiles to nothing": (
        BackendFailed,
        lambda: lamina.compile(torch.sin, backend=lambda gm, inputs: None)(torch.ones(2)),
    ),
    "a compiler that is not there": (NoCompiler, lambda: probe("no-such-compiler")),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_raises_its_class_and_says_what_to_do(mistake: str) -> None:
    with pytest.raises(LaminaError) as caught:
        MISTAKES[mistake][1]()
    error = caught.value
    expected = MISTAKES[mistake][0]
    assert isinstance(error, expected)
    assert type(error).__name__ == expected.__name__  # Dynamo lets a class of its own through, which this then is too
    assert error.what
    assert error.remedy
    assert str(error).startswith(f"{error.code} {type(error).__name__}: {error.what}")
    assert f"do: {error.remedy}" in str(error)


def test_a_rewrite_that_cannot_run_is_told_from_one_that_nobody_knows() -> None:
    for options, reason in (
        ({}, 'needs the option "freeze"'),
        ({"without_rules": ["merge_projections"]}, "it is in without_rules"),
        ({"numerics": "eager"}, 'none runs with numerics="eager"'),
    ):
        torch.compiler.reset()
        with pytest.raises(UnexpectedMatches, match="'merge_projections' did not run in lambda0") as caught:
            _rewritten(expect_matches={"merge_projections": 1}, **options)
        assert reason in caught.value.remedy
    torch.compiler.reset()
    with pytest.raises(UnexpectedMatches, match="no rule is called 'merge_projection'\n  do: did you mean"):
        _rewritten(expect_matches={"merge_projection": 1})


def _raises(gm: object, inputs: object) -> Callable[..., object]:
    raise ValueError("oh")


def _gives_text(gm: object, inputs: object) -> Callable[..., object]:
    return lambda x: "text"


def test_an_error_of_a_backend_names_its_line() -> None:
    for backend, line in ((_raises, 0), (_gives_text, 1)):
        torch.compiler.reset()
        with pytest.raises(BackendFailed, match=backend.__name__) as caught:
            lamina.compile(torch.sin, backend=backend)(torch.ones(2))
        assert caught.value.where == f"test_errors.py:{backend.__code__.co_firstlineno + line}"


def test_help_describes_every_option() -> None:
    lines = (Options.__doc__ or "").splitlines()
    for field in fields(Options):
        (line,) = [line for line in lines if line.startswith(f"    {field.name} = ")]
        assert field.metadata["help"] in line
        assert field.metadata["env"] in line


def test_a_failing_stage_runs_eager_with_one_warning_unless_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> object:
        raise ZeroDivisionError("a bug of the compiler")

    monkeypatch.setattr(import_module("lamina.compile"), "lower", fail)
    x = torch.randn(5)
    with pytest.warns(UserWarning, match="a bug of the compiler"):
        assert torch.equal(lamina.compile(lambda x: x * 2 + 1)(x), x * 2 + 1)
    torch.compiler.reset()
    with pytest.raises(Exception, match=r"LM011 StageFailed.*a bug of the compiler"):
        lamina.compile(lambda x: x * 2 + 1, options={"strict": True})(x)


def test_an_ill_formed_value_is_refused_by_its_verifier() -> None:
    good = LoopProgram("region", (), (), (), ())
    verify_program(good)
    nowhere = BufferView("nowhere", (), (), as_expr(0))
    with pytest.raises(lamina.InvalidIR, match=r"LM010 InvalidIR: .*nowhere"):
        verify_program(replace(good, outputs=(nowhere,)))


def test_a_kernel_that_does_not_compile_is_reported_with_the_compilers_words(tmp_path: Path) -> None:
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C++ compiler")
    unit = KernelUnit("bad", "static void bad(float* x) { x[0] = undeclared; }", (KernelFunction("bad", "p"),))
    built = build_kernels([unit], compiler=compiler, isa="plain", cache=Cache(tmp_path), jobs=1)
    error = built.errors["bad"]
    assert isinstance(error, KernelError)
    assert error.code == "LM031"
    assert "undeclared" in str(error)


def test_every_class_of_the_errors_module_is_raised_here() -> None:
    raised = {expected for expected, _ in MISTAKES.values()} | {lamina.InvalidIR, lamina.StageFailed, LaminaError}
    raised |= {WrongLowering, RecompileRefused, GraphBroken}  # in tests/kernels and tests/capture
    classes = {getattr(lamina.errors, name) for name in lamina.errors.__all__} - {lamina.LaminaWarning}
    assert classes <= raised


def test_the_environment_is_checked_like_an_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMINA_JOBS", "many")
    with pytest.raises(lamina.UnknownOption, match="LAMINA_JOBS is 'many'"):
        Options.from_environment()
    for name, value in (("LAMINA_MODE", "quick"), ("LAMINA_CACHE", "maybe"), ("LAMINA_JOBS", "-3")):
        with monkeypatch.context() as only:
            only.delenv("LAMINA_JOBS")
            only.setenv(name, value)
            with pytest.raises(lamina.UnknownOption, match=f"{name} is '?{value}.*\n  do: "):
                lamina.compile(abs)
    monkeypatch.setenv("LAMINA_JOBS", "3")
    monkeypatch.setenv("LAMINA_VERIFY", "true")
    options = Options.from_environment({"verify": False})
    assert (options.jobs, options.verify) == (3, False)


def test_instructions_that_the_machine_lacks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["lamina.backends.settings"], "host_isa", lambda: "plain")
    with pytest.raises(
        lamina.UnknownOption, match=r"'avx2', which this machine does not have\n  do: use auto or plain"
    ):
        lamina.compile(abs, options={"simd": "avx2"})


def test_an_error_shows_the_users_line() -> None:
    error = lamina.StageFailed("no rule", where="model.py:41", remedy="unset strict")
    assert str(error) == "LM011 StageFailed: no rule\n  at model.py:41\n  do: unset strict"


def test_codes_are_stable_and_distinct() -> None:
    codes = {LaminaError: LaminaError.code} | {error: error.code for error in errors()}
    assert len(set(codes.values())) == len(codes), codes
    assert all(re.fullmatch(r"LM\d{3}", code) for code in codes.values())
    assert {error.__name__: code for error, code in codes.items()}.items() >= {
        "LaminaError": "LM000",
        "BadArgument": "LM001",
        "UnknownOption": "LM002",
        "InvalidIR": "LM010",
        "StageFailed": "LM011",
    }.items()


def test_every_class_says_which_mistake_it_stands_for() -> None:
    for error in errors():
        assert error.__doc__
        assert "code" in vars(error), f"{error.__name__} has no code of its own"


def test_a_misspelt_option_is_told_which_was_meant() -> None:
    with pytest.raises(lamina.UnknownOption, match="did you mean 'numerics'"):
        lamina.compile(abs, options={"numeric": "fast"})
    with pytest.raises(lamina.UnknownOption) as caught:
        lamina.compile(abs, options={"speed": 11})
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"freeze": "yes"}, "write True or False"),
        ({"fuel": "many"}, "write a whole number, 0 or more"),
        ({"fuel": -3}, "write a whole number, 0 or more"),
        ({"jobs": -1}, "write a whole number, 0 or more"),
        ({"mode": 3}, "use one of default, reduce-overhead, max-autotune, max-autotune-no-cudagraphs"),
        ({"rules": abs}, "lamina.extend.rule or nest_rule, and write (that_rule,)"),
        ({"rules": 3}, "write (rule(before, after),)"),
        ({"without_rules": "nope"}, 'write ("nope",)'),
        ({"without_rules": 3}, 'write a tuple of names, such as ("silu of sigmoid",)'),
        ({"expect_matches": 3}, 'give a mapping such as {"rule name": 2}'),
        ({"cxx": 3}, "write a text"),
        ({"dump_dir": Path("a")}, "write 'a'"),
        ({"passes": abs}, "make one with lamina.extend.Passes"),
    ],
)
def test_an_option_of_the_wrong_type_is_told_what_to_write(options: dict[str, object], remedy: str) -> None:
    with pytest.raises(lamina.UnknownOption) as caught:
        lamina.compile(abs, options=options)
    assert remedy in caught.value.remedy


def test_the_same_mode_twice_is_no_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Options.of("reduce-overhead", {"mode": "reduce-overhead"}).mode == "reduce-overhead"
    assert Options.of("reduce-overhead", Options()).mode == "reduce-overhead"
    monkeypatch.setenv("LAMINA_MODE", "max-autotune")
    assert Options.of("reduce-overhead", {}).mode == "reduce-overhead"


def test_a_rule_on_nests_cannot_be_expected() -> None:
    mine = nest_rule(lambda nest: None, name="mine")
    with pytest.raises(UnexpectedMatches, match="'mine' is one on loop nests") as caught:
        lamina.compile(abs, options={"rules": [mine], "expect_matches": {"mine": 1}})
    assert caught.value.where == mine.place


@pytest.mark.parametrize("entry", [lamina.compile, torch.compile])
def test_an_error_at_the_first_call_ends_with_its_remedy(entry: Callable[..., object], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    there = str(tmp_path / "file" / "below")
    torch.compiler.reset()
    with pytest.raises(lamina.BadArgument, match="dump_dir") as caught:
        entry(lambda x: x + 1, backend="lamina", options={"dump_dir": there})(torch.ones(3))
    printed = "".join(traceback.format_exception_only(caught.value)).rstrip()
    assert printed == f"lamina.errors.BadArgument: {caught.value}"
    assert printed.endswith(f"do: {caught.value.remedy}")


def test_differentiating_twice_names_the_region_and_what_to_do() -> None:
    with pytest.raises(RuntimeError, match=r"LM013 DoubleBackward: double backward: slope0") as caught:
        _differentiated_twice()
    assert isinstance(caught.value, DoubleBackward)
    line = _slope.__code__.co_firstlineno + 1
    assert caught.value.where == f"test_errors.py:{line}, where it begins"
    x = torch.ones(3, requires_grad=True)
    assert 'backend="eager"' in caught.value.remedy
    wanted = torch.autograd.grad(_slope(x), x)[0]
    torch.testing.assert_close(_differentiated_twice("eager"), wanted)
    assert "torch.compiler.disable" in caught.value.remedy
    apart = torch.compiler.disable(_slope)
    torch.testing.assert_close(torch.autograd.grad(lamina.compile(lambda x: apart(x) * 1)(x), x)[0], wanted)
