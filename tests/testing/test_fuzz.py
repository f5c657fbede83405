"""The fuzzer of programs: what it writes, what it sees, and what it makes of a program that differs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.program_fuzz import CLASSES
from lamina.base.torch_private import version_of
from lamina.cli.app import app
from lamina.errors import BadArgument
from lamina.testing.fuzz import INGREDIENTS, check, fuzz, generate, minify, minify_file
from lamina.testing.fuzz.campaign import target_of
from lamina.testing.fuzz.minify import reduce
from lamina.testing.fuzz.pool import Job, Worker
from lamina.testing.fuzz.target import compile_function
from lamina.testing.fuzz.torch_private import unbacked
from tests.processes import python

WRONG = "tests.testing.wrong_compilers"
CLASS_ROWS = json.loads((Path(__file__).parents[2] / "benchmarks" / "results" / "fuzz_classes.json").read_text())

PROGRAM = """
import torch
from lamina.testing.fuzz import attempt, backward, sample

def f(x, y):
    a = x.sin() + y
    return a, a * 0

def program(compile):
    g = compile(f)
    x, y = sample(4, 5, grad=True), sample(5)
    yield x, y
    out = attempt(g, x, y)
    yield out
    yield backward(out), x.grad
"""

VIEW = PROGRAM.replace("return a, a * 0", "return y[1:]")


@pytest.mark.parametrize(
    ("wrong", "kind", "program"),
    [
        ("value", "value", PROGRAM),
        ("rounding", "value", PROGRAM.replace(", a * 0", ", a.exp()")),
        ("nan", "value", PROGRAM),
        ("zero", "zero sign", PROGRAM),
        ("dtype", "structure", PROGRAM),
        ("strides", "layout", PROGRAM),
        ("detached", "requires_grad", PROGRAM),
        ("copied", "sharing", VIEW),
        ("written", "version", VIEW.replace(", grad=True", "")),
        ("doubled_input", "value", VIEW.replace(", grad=True", "")),
        ("mode", "state", PROGRAM),
        ("draws", "state", PROGRAM),
        ("error", "error", PROGRAM),
    ],
)
def test_what_a_wrong_compiler_does_is_seen(wrong: str, kind: str, program: str) -> None:
    assert check(program, "none").ok
    verdict = check(program, f"{WRONG}:{wrong}")
    assert verdict.decided
    assert verdict.kind == kind


def test_random_numbers_are_compared_where_they_must_be_eagers() -> None:
    drawing = PROGRAM.replace("a = x.sin() + y", "a = x.sin() + y.bernoulli()")
    assert check(drawing, f"{WRONG}:rounding").ok
    assert not check(drawing, f"{WRONG}:error").ok


def test_a_step_that_rounding_turns_decides_nothing() -> None:
    # 0.1 is no float32, so the sum is above 0.3 in one precision and not in the other.
    program = PROGRAM.replace("a = x.sin() + y", "a = (x * 0 + 0.1 + 0.2 > 0.3) + y")
    assert not check(program, "none").decided


@pytest.mark.parametrize(("wrong", "kind"), [("crash", "crash"), ("hang", "hang")])
def test_a_process_that_ends_or_hangs_is_a_finding(wrong: str, kind: str) -> None:
    with Worker(seconds=300.0) as worker:
        worker.ask(Job("none", PROGRAM))
        if wrong == "hang":
            worker.seconds = 1.0  # what does not hang is not to depend on how busy the machine is
        verdict = worker.ask(Job(f"{WRONG}:{wrong}", PROGRAM)).verdict
        assert verdict.kind == kind
        if wrong == "hang":
            assert "wrong_compilers.py:" in str(verdict.differences[0]), "where it hangs is told"
        worker.seconds = 300.0
        assert worker.ask(Job("none", PROGRAM)).verdict.ok


def test_draws_that_take_long_together_are_no_hang() -> None:
    with Worker(seconds=300.0) as worker:
        worker.ask(Job("none", PROGRAM))
        worker.seconds = 2.5
        answer = worker.ask(Job(f"{WRONG}:slow_rounding", PROGRAM))
    assert answer.verdict.drawn > 1
    assert answer.seconds > worker.seconds


def test_a_script_that_its_processes_run_again_is_told(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("from lamina.testing.fuzz import fuzz\nprint(fuzz(1, target='none'))\n")
    ran = subprocess.run([*python(), script], capture_output=True, text=True, timeout=300)
    assert ran.returncode != 0
    assert "__name__ == '__main__'" in ran.stderr.splitlines()[-1]
    assert "crash" not in ran.stdout


def test_a_seed_has_one_program() -> None:
    assert generate(7) == generate(7)
    assert len({generate(seed) for seed in range(20)}) == 20


@pytest.mark.sampled(one_in=16)
@pytest.mark.parametrize("name", INGREDIENTS)
def test_every_ingredient_makes_programs_that_run(name: str) -> None:
    for seed in range(3):
        text = generate(seed, (name,))
        verdict = check(text, "none")
        assert verdict.ok, text
    assert "def program(compile):" in text


def test_a_program_that_differs_is_reduced() -> None:
    made = minify(generate(5, ("views", "reduce")), f"{WRONG}:mode")
    assert made.lines <= 10
    assert made.answer.verdict.kind == "state"
    assert not check(made.source, f"{WRONG}:mode").ok
    assert "report(__file__)" in made.source


def test_reducing_asks_no_more_often_than_allowed() -> None:
    asked: list[str] = []
    reduce(generate(3), lambda text: bool(asked.append(text)), most=20)
    assert len(asked) == 20


def test_wrong_files_are_told(tmp_path: Path) -> None:
    for name, text, told in (
        ("no_python.py", "def (", "not Python"),
        ("no_program.py", "x = 1\n", "no function 'program'"),
        ("right.py", PROGRAM, "nothing differs"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(BadArgument, match=told):
            minify_file(tmp_path / name, "none")
    with pytest.raises(BadArgument, match="cannot be read"):
        minify_file(tmp_path / "missing.py")


@pytest.mark.parametrize(
    "name", ["nothing", "lamina:nothing", "no.module:f", f"{WRONG}:nothing", f"{WRONG}:NOT_CALLABLE"]
)
def test_wrong_compile_functions_are_told(name: str) -> None:
    with pytest.raises(BadArgument):
        fuzz(1, target=name)


def test_wrong_ingredients_are_told() -> None:
    with pytest.raises(BadArgument, match="no ingredient is called 'salt'"):
        fuzz(1, only=("salt",))


def test_commands(tmp_path: Path) -> None:
    run = CliRunner()
    found = run.invoke(app, ["fuzz", "--programs", "3", "--compile", f"{WRONG}:mode", "--to", str(tmp_path / "found")])
    assert found.exit_code == 1, found.output
    assert "2 differ" in found.output  # the other raises in eager
    file = sorted((tmp_path / "found").glob("seed_*.py"))[0]
    reduced = run.invoke(app, ["minify", str(file), "--compile", f"{WRONG}:mode", "--to", str(tmp_path / "small.py")])
    assert reduced.exit_code == 0, reduced.output
    assert len((tmp_path / "small.py").read_text()) < len(file.read_text())
    assert run.invoke(app, ["fuzz", "--programs", "2", "--compile", "none"]).exit_code == 0


def test_options_reach_the_compile_function(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def compiled(function: Any, **keywords: Any) -> Any:
        asked.append(keywords)
        return function

    monkeypatch.setattr("lamina.testing.fuzz.target.compile", compiled)
    of_target = compile_function("lamina:interp+dynamic=true+numerics=eager+recompute=false")
    of_target(abs)
    of_target(abs, dynamic=False, options={"numerics": "fast"})
    first, second = asked[-2:]
    assert first["backend"] == second["backend"] == "interp"
    assert (first["dynamic"], second["dynamic"]) == (True, False)
    assert (first["options"]["numerics"], second["options"]["numerics"]) == ("eager", "fast")
    assert first["options"]["recompute"] is False
    assert first["options"]["strict"]
    assert "dynamic" not in first["options"]


def test_options_of_the_command() -> None:
    run = CliRunner()
    options = ["--options", "dynamic=true", "--options", "numerics=eager"]
    done = run.invoke(app, ["fuzz", "--programs", "1", "--only", "pointwise", "--seed", "1", *options])
    assert done.exit_code == 0, done.output
    assert "1 programs from seed 1: 0 differ" in done.output
    told = run.invoke(app, ["fuzz", "--programs", "1", "--compile", f"{WRONG}:mode", "--json"])
    assert told.exit_code == 1
    read = json.loads(told.stdout)
    assert (read["programs"], read["own"], read["findings"][0]["seed"]) == (1, 1, 0)
    assert "seed 0" in told.stderr
    wrong = run.invoke(app, ["fuzz", "--programs", "1", "--options", "numerics"])
    assert isinstance(wrong.exception, BadArgument)
    assert "sets no option" in str(wrong.exception)
    assert target_of("lamina+dynamic=true", 1) == "lamina:interp+dynamic=true"
    assert target_of("lamina+dynamic=true", 3) == "lamina+dynamic=true"


def test_the_classes_of_faults_are_all_within_reach() -> None:
    rows = {row["class"]: row for row in CLASS_ROWS}
    assert [c.name for c in CLASSES] == list(rows)
    assert all(set(row["only"]) <= set(INGREDIENTS) for row in rows.values())
    assert all(row["lines"] <= 20 for row in rows.values() if row["seed"] is not None)


def test_private_names() -> None:
    with unbacked():
        assert version_of(__import__("torch").zeros(2).add_(1)) == 1
