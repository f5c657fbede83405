"""The names that all benchmark commands take for compile functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import lamina
from benchmarks import call_overhead, compile_time, compilers, cpu_patterns, gpu_profile, opinfo
from benchmarks.compilers import compile_function
from benchmarks.gpu_arguments import arguments
from benchmarks.report import RESULTS

CALLS: list[dict[str, Any]] = []


def doubled(function: Callable[..., Any], *, dynamic: bool = True) -> Callable[..., Any]:
    """A compile function of the user's, wrong so that it can be told from others."""
    CALLS.append({"dynamic": dynamic})
    return lambda *args: 2 * function(*args)


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: 3 * function(*args)


THREE = 3


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What torch.compile is called with."""
    given: list[dict[str, Any]] = []

    def compile(model: Any, **keywords: Any) -> Any:
        given.append(keywords)
        return model

    monkeypatch.setattr(torch, "compile", compile)
    return given


@pytest.mark.parametrize("name", ["max-autotune", "reduce-overhead", "default"])
def test_modes_of_torch(name: str, asked: list[dict[str, Any]]) -> None:
    compile_function(name)(abs, dynamic=False)
    assert asked == [{"mode": name, "dynamic": False, "fullgraph": False}]


def test_a_mode_of_torch_keeps_what_it_stands_for_beside_eager_s_numerics(asked: list[dict[str, Any]]) -> None:
    compile_function("max-autotune-no-cudagraphs")(abs, options={"numerics": "eager"})
    (given,) = asked
    assert given["options"]["max_autotune"] is True
    assert given["options"]["emulate_precision_casts"] is True
    assert "mode" not in given  # torch.compile takes only one of them


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("aot_eager", "aot_eager"),
        ("dynamo:aot_eager", "aot_eager"),
        ("dynamo", "eager"),
        ("dynamo:eager", "eager"),
        ("lamina_backend", "lamina"),
        ("dynamo:lamina", "lamina"),
        ("inductor", "inductor"),
    ],
)
def test_backends_of_dynamo(name: str, backend: str, asked: list[dict[str, Any]]) -> None:
    compile_function(name)(abs, dynamic=False)
    assert [given["backend"] for given in asked] == [backend]


def test_modes_of_lamina(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(lamina, "compile", lambda model, **keywords: given.append(keywords))
    compile_function("lamina")(abs, dynamic=False)
    compile_function("lamina:max-autotune")(abs, dynamic=False)
    assert given == [{"dynamic": False}, {"dynamic": False, "mode": "max-autotune"}]


def test_functions_of_the_user_s() -> None:
    CALLS.clear()
    found = compile_function(f"{__name__}:doubled")(abs, dynamic=False, fullgraph=True)
    assert found(-4) == 8
    assert CALLS == [{"dynamic": False}]  # it has no parameter for fullgraph
    assert compile_function(f"{__name__}:plain")(abs, dynamic=False, options={"strict": True})(-4) == 12


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("lamina:quick", r"lamina has no mode 'quick'; there are default, reduce-overhead"),
        ("lamina:", r"lamina has no mode ''"),
        ("lamina_back", r"no compile function is called 'lamina_back'; there are lamina, .*aot_eager.*max-autotune"),
        ("aot_eagre", r"no compile function is called 'aot_eagre'"),
        ("dynamo:aot_eagre", r"torch.compile has no backend 'aot_eagre'; there are aot_eager"),
        ("no_such_package.module:function", r"No module named 'no_such_package'"),
        (f"{__name__}:absent", r"has no attribute 'absent'"),
        (f"{__name__}:THREE", r"is a int, which cannot be called"),
        (":function", r"no compile function is called ':function'"),
        ("", r"no compile function is called ''"),
    ],
)
def test_other_names_are_refused(name: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        compile_function(name)


COMMANDS: dict[str, Callable[[list[str]], Any]] = {
    "call_overhead": call_overhead.main,
    "compile_time": compile_time.main,
    "cpu_patterns": cpu_patterns.main,
    "opinfo": opinfo.main,
    "gpu_overhead": lambda argv: pytest.importorskip("benchmarks.gpu_overhead", reason="it needs Triton").main(argv),
    "gpu_profile": gpu_profile.main,
    "gpu_driver": lambda argv: arguments(None, RESULTS / "none.json", argv),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_them_at_once(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    option = "--rivals" if command in ("gpu_overhead", "gpu_profile") else "--compile"
    rows = ["layer_norm.forward"] if command == "gpu_profile" else []
    with pytest.raises(SystemExit):
        COMMANDS[command]([*rows, option, "aot_eagre"])
    assert "no compile function is called 'aot_eagre'; there are" in capsys.readouterr().err


def test_the_gpu_driver_takes_any_compile_function() -> None:
    args = arguments(None, RESULTS / "none.json", ["--compile", f"{__name__}:plain", "--rivals", "aot_eager", "eager"])
    assert (args.compile, args.rivals) == (f"{__name__}:plain", ["aot_eager", "eager"])


def test_a_name_with_a_backend_names_a_file() -> None:
    kind = opinfo._Kind("dynamo:aot_eager", "float32", largest=False, dynamic=False, device="cpu")
    assert kind.name == "dynamo_aot_eager"
    assert compilers.compiler_name("dynamo:aot_eager") == "dynamo:aot_eager"
