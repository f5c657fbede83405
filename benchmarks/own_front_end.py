"""The figures that our own front end has to reach, each beside its goal: what is measured is added to what is known.

``python -m benchmarks.own_front_end --parts breaks sizes [--count 20000]``

Each part runs in a fresh process. The file keeps the rows of the parts that are not asked for, and says of each row
when it was measured and how busy the machine was. Warm starts are those of ``benchmarks.warm_start``, whose file is
read. ``--acceptance`` names a folder with programs that change something between calls, if there is one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

import lamina
from benchmarks import own_calls
from benchmarks.first_call_models import build
from benchmarks.gpt import batch, private_gpt
from benchmarks.report import RESULTS, machine, print_table, write_results
from benchmarks.sanitizers import reports_in, sanitized
from lamina.bench import alternate
from lamina.capture.own.callable import interpreted_callable
from lamina.record import Record
from tests.capture.own import (
    accidents,
    broken_programs,
    changing_programs,
    programs_that_break,
    python_programs,
    sized_programs,
)
from tests.capture.own.machines import guard_machine
from tests.capture.own.test_regions import Counting, Interpreted

__all__ = ["PARTS", "Figure", "main"]

_MARK = "RESULT "
_ROWS = (4, 8, 1, 2, 16)
_PAIRS = ((4, 8), (2, 8), (2, 16), (3, 5), (1, 7), (8, 4))
_OF_VALUES = ("item", "_set_grad_enabled")
"""Calls that compute nothing: they read what a graph has computed, and switch the grad mode."""
_LENGTH = 9
"""Tokens that are generated."""


@dataclass
class Figure:
    """What was ``found`` for a goal, whether that ``holds``, and ``how`` it was measured."""

    name: str
    goal: str
    found: str
    holds: bool
    how: str


def _breaks(count: int, acceptance: str) -> Iterable[Figure]:
    """Programs with graph breaks: what is in graphs, and that nothing of a first call is done twice."""
    captured = made = without = twice = 0
    programs = [*programs_that_break.PROGRAMS, *broken_programs.PROGRAMS]
    for program in programs:
        call, x = Interpreted(program), torch.linspace(-1, 2, 8)
        with Counting() as eager:
            program(x)
        regions, ran = call.interpreting.regions, Counting()
        regions.backend = partial(_counting, regions.backend, ran)
        call(x)
        captured, made = captured + min(regions.calls, eager.calls), made + eager.calls
        without += not call.graphs
        twice += any(name not in _OF_VALUES for name in ran.names - eager.names)
    how = f"{len(programs)} programs, each of which ends graphs"
    yield Figure("calls of torch's in graphs", "80 %", f"{captured} of {made}", captured >= 0.8 * made, how)
    yield Figure("programs without a graph", "0", str(without), without == 0, how)
    yield Figure("programs whose first call computes something twice", "0", str(twice), twice == 0, how)
    found = {}
    for rounds in (8, 8000):
        call = Interpreted(broken_programs.rounds(rounds))
        call(torch.linspace(-1, 2, 8))
        found[rounds] = len(call.graphs)
    told = f"{found[8]}, {found[8000]}"
    yield Figure("graphs of a loop of 8 and of 8,000 rounds", "equal", told, found[8] == found[8000], "a break in each")


def _counting(backend: Callable[..., Any], mode: Any, gm: Any, fakes: Any) -> Callable[..., Any]:
    """What ``backend`` makes of a graph, with calls of torch's that it makes seen by ``mode``."""
    run = backend(gm, fakes)

    def counted(*given: Any) -> Any:
        with mode:
            return run(*given)

    return counted


def _graphs(target: Any) -> tuple[Any, list[Any]]:
    """A callable of the own front end, and the graphs that it is going to have."""
    graphs: list[Any] = []

    def backend(gm: Any, fakes: Any) -> Any:
        graphs.append(gm)
        return gm.forward

    return interpreted_callable(target, backend_callable=backend, record=Record()), graphs


def _sizes(count: int, acceptance: str) -> Iterable[Figure]:
    """Batch sizes, and pairs of a batch size and a length."""
    net = nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.LayerNorm(5), nn.Linear(5, 2))
    call, graphs = _graphs(net)
    for rows in _ROWS:
        call(torch.randn(rows, 6))
    yield Figure(f"compilations for batch sizes {_ROWS}", "2", str(len(graphs)), len(graphs) <= 2, "linear layers")
    for name in ("hf_bert", "hf_gpt2", "hf_llama"):
        model, _ = build(name)
        call, graphs = _graphs(model.eval())
        for rows, length in _PAIRS:
            call(torch.randint(2, 120, (rows, length)))
        told = f"compilations for six pairs of batch and length, {name}"
        yield Figure(told, "3", str(len(graphs)), len(graphs) <= 3, "four layers, no gradient of the words")
    for name in ("hf_bert", "hf_resnet"):
        model, given = build(name)
        call, graphs = _graphs(model.eval())
        for rows in _ROWS:
            call(*(one[:1].expand(rows, *one.shape[1:]).contiguous() for one in given.values()))
        told = f"compilations for batch sizes {_ROWS}, {name}"
        yield Figure(told, "2", str(len(graphs)), len(graphs) <= 2, "a model of transformers")


def _generation(count: int, acceptance: str) -> Iterable[Figure]:
    """``generate`` of a Llama whose ``forward`` is compiled, and of one that is compiled itself."""
    transformers = import_module("transformers")
    for whole in (False, True):
        for cache in ("dynamic", "static"):
            torch.manual_seed(0)
            config = transformers.LlamaConfig(
                vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
                num_key_value_heads=1, max_position_embeddings=64,
            )  # fmt: skip
            model = transformers.LlamaForCausalLM(config).eval()
            ids = torch.randint(1, 32, (1, 5))
            given: dict[str, Any] = {"max_new_tokens": _LENGTH, "do_sample": False, "pad_token_id": 0}
            given |= {"cache_implementation": "static", "disable_compile": True} if cache == "static" else {}
            wanted = model.generate(ids, **given)
            call, graphs = _graphs(model.generate if whole else model.forward)
            if not whole:
                model.forward = call
            right = all(torch.equal((call if whole else model.generate)(ids, **given), wanted) for _ in range(3))
            what = "generate" if whole else "forward within generate"
            told = str(len(graphs)) if right else "other tokens than eager's"
            yield Figure(
                f"graphs of {what}, {cache} cache", "3", told, right and len(graphs) <= 3,
                f"Llama, two layers, {_LENGTH} tokens, three generations",
            )  # fmt: skip


def _interpreter(count: int, acceptance: str) -> Iterable[Figure]:
    """Random programs of plain Python."""
    warnings.simplefilter("ignore")
    wrong = sum(python_programs.difference(seed) != "" for seed in range(count))
    goal, version = "0 of 20,000", sys.version.partition(" ")[0]
    yield Figure(
        "programs of plain Python that differ from CPython", goal, f"{wrong} of {count:,}",
        wrong == 0 and count >= 20_000, f"Python {version}",
    )  # fmt: skip


def _guards(count: int, acceptance: str) -> Iterable[Figure]:
    """Random changes between two questions to the guard machine, which is built with AddressSanitizer."""
    program = ["-m", "tests.capture.own.guard_changes", str(random.randrange(1 << 20)), str(count)]
    with tempfile.TemporaryDirectory() as folder:
        environment = sanitized(Path(folder))
        done = subprocess.run([sys.executable, *program], env=environment, capture_output=True, text=True, check=False)
        built = any(b"__asan_init" in one.read_bytes() for one in Path(folder).rglob("library.so"))
    built = built and "tensors are compared by the machine" in done.stdout
    found = re.search(r"(\d+) changes, (\d+) times facts held, (\d+) known to the machine; (\d+) wrong", done.stdout)
    reports = len(reports_in(done.stderr))
    goal = "1,000,000 without a fault"
    if found is None:
        yield Figure("changes seen by the guard machine", goal, done.stderr[-200:], False, "AddressSanitizer")
        return
    changes, held, known, wrong = map(int, found.groups())
    told = f"{changes:,}: {wrong} wrong, {reports} reports; {known:,} of {held:,} calls whose facts held were known"
    right = built and not wrong and not reports and known > 0
    yield Figure("changes seen by the guard machine", goal, told, right and changes >= 1_000_000, "AddressSanitizer")


def _accidents(count: int, acceptance: str) -> Iterable[Figure]:
    """Calls that are interrupted anywhere."""
    warnings.simplefilter("ignore")
    for error in (KeyboardInterrupt, RuntimeError):
        found = [accidents.accident(name, line, error, calls=calls) for name, calls, line in accidents.draw(2, count)]
        wrong, hit = sum(bool(one.wrong) for one in found), sum(one.hit for one in found)
        told = f"{wrong} of {hit}"
        yield Figure(f"accidents ({error.__name__}) that leave what eager never does", "0 of 100", told,
                     wrong == 0 and hit >= 100, "random lines of the compiler within a call")  # fmt: skip


def _changes(count: int, acceptance: str) -> Iterable[Figure]:
    """Random programs, random changes of what they read, and sizes that are others in each call."""
    drawn: dict[str, Callable[[int], Any]] = {
        "programs that read a world which changes": lambda seed: changing_programs.difference(seed, guard_machine),
        "programs with sizes and integers that vary": lambda seed: sized_programs.difference(seed, guard_machine),
        "programs with sizes that grow": lambda seed: sized_programs.difference(seed, guard_machine, growing=True),
        "programs that compute with sizes": lambda seed: sized_programs.difference(
            seed, guard_machine, growing=True, computing=True
        ),
    }
    calls = 0
    for name, difference in drawn.items():
        found = [difference(seed) for seed in range(count)]
        wrong, made = sum(bool(one.told) for one in found), sum(one.calls for one in found)
        told = f"{wrong} of {count:,} ({sum(one.reused for one in found):,} of {made:,} calls not interpreted)"
        calls += made
        yield Figure(f"{name}: those that differ from eager", "0", told, wrong == 0, "random, seeds from 0 on")
    yield Figure("calls after a change compared with eager", "10,000", f"{calls:,}", calls >= 10_000, "the rows above")
    if acceptance:
        yield _mutated(Path(acceptance))


def _mutated(folder: Path) -> Figure:
    environment = {**os.environ, "LAMINA_CAPTURE": "own"}
    command = [sys.executable, str(folder / "mutate_after_compile.py"), "lamina"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    last = [line for line in done.stdout.splitlines() if line.startswith("lamina ")][-1:]
    found = re.search(r"lamina (\d+) .*'ok': (\d+)", last[0]) if last else None
    told = f"{found[2]} of {found[1]}" if found else done.stderr[-200:]
    holds = found is not None and found[1] == found[2]
    return Figure("programs that change something between calls: right", "172 of 172", told, holds, "compiled")


def _cold_child(rival: str, layers: int) -> None:
    """One training step in this process, whose caches are empty; prints CPU seconds of it and of what it starts."""
    model, data = private_gpt(layers), batch()
    compile_function: dict[str, Callable[[Any], Any]] = {
        "eager": lambda one: one, "torch": lambda one: torch.compile(one, dynamic=False), "own": _own,
    }  # fmt: skip
    started, clock = os.times(), time.perf_counter()
    compile_function[rival](model)(*data).backward()
    ended = os.times()
    seconds = sum(ended[:4]) - sum(started[:4])
    print(_MARK + json.dumps({"cpu": seconds, "clock": time.perf_counter() - clock}))


def _own(model: Any) -> Any:
    return lamina.compile(model, options={"capture": "own"})


def _cold(count: int, acceptance: str) -> Iterable[Figure]:
    """First training steps of a GPT with empty caches."""
    found = {
        (rival, layers): _cold_process(rival, layers)
        for rival, layers in (("eager", 12), ("torch", 12), ("own", 12), ("own", 24))
    }
    twelve, other, more = (found[key]["cpu"] for key in (("own", 12), ("torch", 12), ("own", 24)))
    how = "CPU seconds with those of compilers that are started, fresh processes, caches empty"
    told = f"{twelve:.1f} s of {other:.1f} s: 1/{other / twelve:.1f} (eager {found['eager', 12]['cpu']:.2f} s)"
    yield Figure("cold first step of a GPT of 12 layers, of torch.compile's", "1/20", told, twelve * 20 <= other, how)
    yield Figure("that of 24 layers, of that of 12", "1.2", f"{more / twelve:.2f}", more <= 1.2 * twelve, how)


def _cold_process(rival: str, layers: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        caches = {f"{name}_CACHE_DIR": f"{folder}/{name}" for name in ("LAMINA", "TORCHINDUCTOR", "TRITON")}
        environment = {**os.environ, **caches, "LAMINA_PROGRESS": "0", "OMP_WAIT_POLICY": "passive"}
        command = [sys.executable, "-m", "benchmarks.own_front_end", "--cold", rival, str(layers)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    line = next((line for line in done.stdout.splitlines() if line.startswith(_MARK)), "")
    if not line:
        raise RuntimeError(done.stderr[-2000:])
    found: dict[str, float] = json.loads(line.removeprefix(_MARK))
    return found


def _calls(count: int, acceptance: str) -> Iterable[Figure]:
    """Microseconds a call, over eager's: both by turns, graphs run as they were captured."""
    goals = {"one operation": 2.0, "one operation, needs grad": 7.0, "facts of 96 blocks": 15.0}
    own: dict[str, float] = {}
    for name in (*goals, "facts of 12 blocks"):
        build_case = own_calls.CASES[name]
        ways = {way: build_case(own_calls.WAYS[way]) for way in ("eager", "own")}
        timed = alternate(ways, seconds=3.0, warmup=200)
        own[name], eager = timed["own"].median * 1e6, timed["eager"].median * 1e6
        if name in goals:
            more, told = own[name] - eager, f"{own[name] - eager:.1f} (eager {eager:.1f})"
            title = f"microseconds a call over eager's, {name}"
            yield Figure(title, f"{goals[name]:.0f}", told, more <= goals[name], "medians, by turns with eager")
    few, many = own["facts of 12 blocks"], own["facts of 96 blocks"]
    told = f"{many / few:.1f} times for 8 times the blocks"
    yield Figure("microseconds of 96 blocks, of those of 12", "linear", told, many <= 1.2 * 8 * few, "as above")


def _warm(count: int, acceptance: str) -> Iterable[Figure]:
    """CPU seconds of warm first steps and whole processes over eager's, as ``warm_start.json`` has them."""
    kept = json.loads((RESULTS / "warm_start.json").read_text(encoding="utf-8"))
    how = f"warm_start.json, load {kept['load']:.0f}"
    models = [model for model in kept["models"] if "error" not in model]
    for key, what, goal in (("first_cpu_more", "first step", 0.15), ("whole_cpu_more", "whole process", 0.3)):
        late = {one["model"]: one[key] for one in models if not one["loaded"] or one[key] > goal}
        told = f"{len(models) - len(late)} of {len(models)}" + "".join(f"; {n} {s:.2f}" for n, s in late.items())
        name = f"models whose warm {what} takes at most {goal} s more than eager's"
        yield Figure(name, "12 of 12", told, not late and len(models) >= 12, how)


PARTS: dict[str, Callable[[int, str], Iterable[Figure]]] = {
    "breaks": _breaks, "sizes": _sizes, "generation": _generation, "interpreter": _interpreter, "guards": _guards,
    "accidents": _accidents, "changes": _changes, "cold": _cold, "calls": _calls, "warm": _warm,
}  # fmt: skip
_COUNTS = {"interpreter": 20_000, "guards": 1_000_000, "accidents": 110, "changes": 300}
"""How many random cases a part has, unless that is said."""


def _part(name: str, count: int | None, acceptance: str) -> list[dict[str, Any]]:
    """The rows of one part, measured by a process of its own."""
    number = _COUNTS.get(name, 0) if count is None else count
    command = [sys.executable, "-m", "benchmarks.own_front_end", "--part", name, "--count", str(number)]
    command += ["--acceptance", acceptance] if acceptance else []
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    line = next((line for line in done.stdout.splitlines() if line.startswith(_MARK)), "")
    if not line:
        raise RuntimeError(f"the part {name} ended with {done.returncode}")
    found, here = json.loads(line.removeprefix(_MARK)), machine()
    about = {"part": name, "time": here["time"], "commit": here["commit"], "load": here["load_1min"]}
    return [{**row, **about} for row in found]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the parts that are asked for, print all rows and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="*", default=[*PARTS], choices=PARTS, metavar="PART", help=" ".join(PARTS))
    parser.add_argument("--count", type=int, help="random cases of each part that has such, in place of its own number")
    parser.add_argument("--acceptance", default="", metavar="FOLDER")
    parser.add_argument("--json", type=Path, default=RESULTS / "own_front_end.json")
    parser.add_argument("--part", default="", help=argparse.SUPPRESS)
    parser.add_argument("--cold", nargs=2, default=[], help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.cold:
        _cold_child(args.cold[0], int(args.cold[1]))
        return 0
    if args.part:
        torch.set_num_threads(1)
        print(_MARK + json.dumps([asdict(one) for one in PARTS[args.part](args.count, args.acceptance)]))
        return 0
    rows = json.loads(args.json.read_text(encoding="utf-8"))["figures"] if args.json.exists() else []
    for name in args.parts:
        found = _part(name, args.count, args.acceptance)
        rows = [*(row for row in rows if row["part"] != name), *found]
        rows.sort(key=lambda row: [*PARTS].index(row["part"]))
        write_results(args.json, {"figures": rows})
    columns = ["figure", "goal", "found", "holds"]
    table = ([row["name"], row["goal"], row["found"], "yes" if row["holds"] else "no"] for row in rows)
    print_table("Figures of our own front end", columns, table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
