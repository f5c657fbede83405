"""The names of AITune: the flow of its guide, graphs by input structure, inputs that were not tuned for, files."""

from __future__ import annotations

import copy
import dataclasses
import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import lamina
import lamina.aitune as ait
from lamina.aitune.backend import (
    Backend,
    LaminaBackend,
    LaminaBackendConfig,
    TorchAOBackend,
    TorchEagerBackend,
    TorchEagerBackendConfig,
    TorchInductorBackend,
    TorchInductorBackendConfig,
)
from lamina.aitune.graphs import Graph, key_of, leaves_of, outside
from lamina.aitune.tune_strategy import TuneStrategy
from lamina.errors import BadArgument, LaminaWarning
from lamina.tuner.building import build
from lamina.tuner.compiled import before_compiled
from lamina.tuner.samples import samples_of
from lamina.tuner.values import Candidate
from tests.architecture.source import ROOT
from tests.processes import python
from tests.tuner.compiled import BY
from tests.tuner.models import Pipeline, batch, pipeline, small, two_parts

GUIDE = """
from {package}.backend import TorchInductorBackend, TorchInductorBackendConfig
import {package} as ait
import torch

# Configure backend
config = TorchInductorBackendConfig(mode="max-autotune")
backend = TorchInductorBackend(config)

# Use in tuning
from {package}.tune_strategy import OneBackendStrategy
strategy = ait.OneBackendStrategy(backend=backend)

model = ait.Module(model, "my-model", strategy=strategy)
ait.tune(model, input_data)
"""


class Planted(Backend):
    """A backend that makes sleepers quick."""

    name = "planted"

    def __init__(self, target: str = "tests.tuner.models:quick") -> None:
        super().__init__()
        self.target = target

    def candidate(self) -> Candidate:
        return Candidate("planted", "import", {"target": self.target}, 2)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return self.layer(x) * scale


@pytest.fixture
def given(tmp_path: Path) -> dict[str, Any]:
    return {"journal": tmp_path / "journal", "seconds": 0.2}


def test_the_quick_start_of_the_guide_runs_with_another_import_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMINA_CACHE_DIR", "")
    names: dict[str, Any] = {"model": small(), "input_data": batch()}
    tune = ait.tune
    monkeypatch.setattr(ait, "tune", lambda *args: tune(*args, journal=False, seconds=0.2))
    exec(GUIDE.format(package="lamina.aitune"), names)
    model = names["model"]
    assert model.state == "tuned"
    (result,) = model.results.values()
    assert [row.candidate.name for row in result.rows] == ["eager", "torch.compile (mode=max-autotune)"]
    assert result.rows[1].verdict in ("faster", "slower", "tie"), str(result)
    assert torch.allclose(model(batch()), small()(batch()), atol=1e-6)


def test_the_package_is_loaded_when_it_is_asked_for() -> None:
    program = "import sys, lamina; assert 'torch' not in sys.modules; print(lamina.aitune.OneBackend.__name__)"
    said = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert said.split() == ["OneBackend"]


def test_no_backend_is_imported_that_is_not_tried() -> None:
    program = (
        "import sys, lamina.aitune, lamina.aitune.backend\n"
        "print([n for n in ('onnxruntime', 'openvino', 'torchao', 'torch_tensorrt') if n in sys.modules])"
    )
    said = subprocess.run([*python(), "-c", program], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert said.split() == ["[]"]


def test_configs_are_frozen_and_say_what_does_not_go_together() -> None:
    config = TorchInductorBackendConfig(fullgraph=True, dynamic=False, mode="default")
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.mode = None  # type: ignore[misc]
    names = ["fullgraph", "dynamic", "mode", "options", "autocast_enabled", "autocast_dtype"]
    assert [f.name for f in dataclasses.fields(config)] == names
    assert TorchInductorBackend(config).candidate().settings == {"fullgraph": True, "dynamic": False, "mode": "default"}
    with pytest.raises(BadArgument, match=r"(?s)both mode='default' and options.*give one of them"):
        LaminaBackendConfig(mode="default", options={})
    with pytest.raises(BadArgument, match="max-autotune"):
        TorchInductorBackendConfig(mode="fastest")
    with pytest.raises(BadArgument, match="autocast_enabled=True too"):
        TorchInductorBackendConfig(autocast_dtype=torch.float16)
    with pytest.raises(BadArgument, match=r"torch\.bfloat16 or torch\.float16"):
        TorchEagerBackendConfig(True, torch.float64)
    with pytest.raises(BadArgument, match="give a TorchInductorBackendConfig"):
        TorchInductorBackend(LaminaBackendConfig())


def test_backends_in_fewer_bits_need_an_error_that_is_allowed() -> None:
    narrow = LaminaBackend(LaminaBackendConfig(fullgraph=True, autocast_enabled=True))
    with pytest.raises(BadArgument, match="allow an error"):
        ait.OneBackend(narrow)
    with pytest.raises(BadArgument, match="allow an error"):
        ait.MinLatency([TorchAOBackend()])
    assert ait.OneBackend(narrow, error=1e-1).objective == "latency, error<=0.1"
    built = build(narrow.candidate(), small()).call
    assert built(batch()).dtype == torch.float32
    assert torch.allclose(built(batch()), small()(batch()), atol=1e-2)
    assert not torch.equal(built(batch()), small()(batch()))


def test_strategies_say_what_is_no_backend_or_budget() -> None:
    with pytest.raises(BadArgument, match=r"such as TorchInductorBackend\(\)"):
        ait.MinLatency(["inductor"])  # type: ignore[list-item]
    with pytest.raises(BadArgument, match="no backend"):
        ait.FirstWins([])
    with pytest.raises(BadArgument, match="more than 0 ms"):
        ait.LatencyBudget(0)
    assert ait.LatencyBudget(5).objective == "throughput, latency<=5ms"
    with pytest.raises(BadArgument, match="as a strategy"):
        ait.Module(small(), strategy="fast")  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match="1 <= min <= opt <= max"):
        ait.DynamicDim("n", 4, 2)


def test_a_graph_is_the_structure_of_inputs_however_they_are_passed() -> None:
    forward = Counting().forward
    x = torch.ones(2, 16)
    assert key_of(leaves_of(forward, (x,), {})) == key_of(leaves_of(forward, (), {"x": torch.ones(5, 16)}))
    others = [((x, 2.0), {}), ((x.double(),), {}), ((x[0],), {}), (((x, x),), {})]
    keys = {key_of(leaves_of(forward, args, kwargs)) for args, kwargs in others}
    assert len(keys | {key_of(leaves_of(forward, (x,), {}))}) == 5


def test_axes_that_vary_are_found_by_varying_inputs() -> None:
    graph = Graph("")
    for rows, length in ((2, 7), (3, 7), (3, 9)):
        leaves = {"x": torch.ones(rows, length, 16), "mask": torch.ones(rows, length), "w": torch.ones(4)}
        graph.add(leaves, (), leaves)
    assert graph.axes() == {"x": ("batch", "dim0", 16), "mask": ("batch", "dim0"), "w": (4,)}
    assert len(graph.samples) == 3


def test_declared_axes_are_held_to_their_bounds() -> None:
    declared = {"x": (ait.BatchDim("rows", 1, 4), 16), "y": (ait.BatchDim("rows", 1, 4),)}
    assert outside(declared, {"x": (2, 16), "y": (2,)}) == ""
    assert "rows has 1 to 4" in outside(declared, {"x": (5, 16), "y": (5,)})
    assert "rows has 2 elsewhere" in outside(declared, {"x": (2, 16), "y": (3,)})
    assert "16 were declared" in outside(declared, {"x": (2, 8), "y": (2,)})
    with pytest.raises(BadArgument, match="give one entry for each axis"):
        outside({"z": (1,)}, {"x": (2, 16)}, "encoder")


def test_unseen_inputs_run_are_counted_and_warned_of_once(given: dict[str, Any]) -> None:
    model = ait.Module(Counting(), strategy=ait.OneBackend(LaminaBackend()), dynamic_shapes=None)
    found = ait.tune(model, DataLoader(torch.randn(6, 16), batch_size=3), **given)
    assert list(found) == [""]
    (graph,) = model.graphs.values()
    assert len(graph.samples) == 2
    plain = model.module
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(torch.ones(3, 16))
    with pytest.warns(LaminaWarning, match="it was not tuned for x: float32 with 1 axes"):
        assert torch.equal(model(torch.ones(16)), plain(torch.ones(16)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.allclose(model(torch.ones(9, 16)), plain(torch.ones(9, 16)))
        assert torch.equal(model(torch.ones(3, 16), 2.0), plain(torch.ones(3, 16), 2.0))
        assert torch.equal(model(torch.ones(3, 16), scale=3), plain(torch.ones(3, 16), 3))
    assert model.unseen == 4
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model(torch.ones(3, 8))


def test_what_was_chosen_and_fails_for_another_size_runs_as_eager(given: dict[str, Any]) -> None:
    strategy = ait.OneBackend(Planted("tests.aitune.test_aitune:only_four_rows"))
    model = ait.Module(two_parts(), strategy=strategy)
    ait.tune(model, batch(), **{**given, "seconds": 2})
    (result,) = model.results.values()
    assert result.chosen.candidate.name == "planted", str(result)
    with pytest.warns(LaminaWarning, match=r"not tuned for x \[2, 16\]"):
        assert torch.equal(model(torch.ones(2, 16)), torch.ones(2, 16) + 2)
    assert torch.equal(model(torch.ones(2, 16)), torch.ones(2, 16) + 2)
    assert model.unseen == 2


def only_four_rows(model: Any) -> Any:
    def run(x: Tensor) -> Tensor:
        if len(x) != 4:
            raise ValueError("four rows only")
        return x + 1 + 1

    return run


def test_a_pipeline_is_inspected_wrapped_tuned_saved_and_loaded(tmp_path: Path, given: dict[str, Any]) -> None:
    pipe = pipeline(16)
    info = ait.inspect(pipe, batch(), number_of_iterations=2, warmup_iterations=1)
    assert [m.name for m in info.get_modules()] == ["first", "others.0"]
    assert all(m.calls == 2 and m.precisions == ("float32",) for m in info.modules)
    assert "first" in str(info)
    wrapped = ait.wrap(pipe, info.get_modules(), strategies={"first": ait.OneBackend(LaminaBackend())})
    assert isinstance(wrapped, Pipeline)
    assert isinstance(wrapped.first, ait.Module)
    assert isinstance(pipe.first, nn.Linear)
    wrapped.others[0].strategy = ait.FirstWins([Planted(), LaminaBackend()])
    found = ait.tune(wrapped, batch(), batch_sizes=(1, 4), **given)
    assert {path: len(results) for path, results in found.items()} == {"first": 1, "others.0": 1}
    (graph,) = wrapped.first.graphs.values()
    assert list(graph.axes().values()) == [("batch", 16)]
    again = ait.tune(wrapped, batch(), batch_sizes=(1, 4), **given)
    assert {p: [r.rows for r in rs] for p, rs in again.items()} == {p: [r.rows for r in rs] for p, rs in found.items()}
    assert torch.allclose(wrapped(batch()), pipe(batch()), atol=1e-6)
    ait.save(wrapped, tmp_path / "tuned.json")
    assert "inf" not in (tmp_path / "tuned.json").read_text()
    loaded = ait.load(pipeline(16), tmp_path / "tuned.json")
    assert loaded.first.state == "tuned"
    assert torch.allclose(loaded(batch()), pipe(batch()), atol=1e-6)
    assert loaded.first.unseen == 0
    with pytest.raises(BadArgument, match="another model"):
        ait.load(pipeline(32), tmp_path / "tuned.json")
    with pytest.raises(BadArgument, match="which is not in this object"):
        ait.load(two_parts(), tmp_path / "tuned.json")
    (tmp_path / "other.json").write_text(json.dumps({"version": 1}))
    with pytest.raises(BadArgument, match="no saved choices"):
        ait.load(small(), tmp_path / "other.json")


def test_first_wins_stops_at_the_first_that_is_faster(given: dict[str, Any]) -> None:
    planted = Planted("tests.aitune.test_aitune:only_four_rows")
    model = ait.Module(two_parts(), strategy=ait.FirstWins([planted, LaminaBackend()]))
    ait.tune(model, batch(), **{**given, "seconds": 2})
    (result,) = model.results.values()
    assert [row.candidate.name for row in result.rows] == ["eager", "planted"], str(result)


def test_what_is_missing_is_said_with_a_remedy(given: dict[str, Any]) -> None:
    with pytest.raises(BadArgument, match=r"wrap it: ait\.Module\(model\)"):
        ait.tune(small(), batch())
    with pytest.raises(BadArgument, match=r"call ait\.tune"):
        ait.save(ait.Module(small()), "nowhere.json")
    with pytest.raises(BadArgument, match="holds no module"):
        ait.inspect(len, batch())
    with pytest.raises(BadArgument, match="there is no input in int"):
        ait.tune(ait.Module(small()), 3)
    info = ait.inspect(pipeline(16), batch(), number_of_iterations=1).get_modules()
    with pytest.raises(BadArgument, match=r"no module 'others\.0' to wrap"):
        ait.wrap(small(), info)
    with pytest.raises(BadArgument, match="no module 'frist' to wrap"):
        ait.wrap(pipeline(16), info, strategies={"frist": ait.MinLatency()})
    many = ait.Module(small(), strategies=[ait.MinLatency(), ait.MinLatency()])
    with pytest.raises(BadArgument, match="has 1 graphs and strategies for"):
        ait.tune(many, batch(), **given)
    narrow = ait.Module(small(), dynamic_shapes={"x": (ait.BatchDim("rows", 1, 2), 16)})
    with pytest.raises(BadArgument, match="rows has 1 to 2"):
        ait.tune(narrow, batch(), **given)
    with pytest.raises(BadArgument, match=r"give a torch\.nn\.Module"):
        ait.Module(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"device": "cpu"}, "no argument 'device'.*move the model"),
        ({"clear_cache": True}, "no argument 'clear_cache'.*resume=False"),
        ({"objective": "memory"}, "no argument 'objective'.*MaxThroughput"),
        ({"speed": 3}, "no argument 'speed'.*give some of budget"),
        ({"batch_sizes": 4}, r"batch_sizes is 4.*such as \(4,\)"),
    ],
)
def test_arguments_that_tune_does_not_take_are_said(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(BadArgument, match=f"(?s){said}"):
        ait.tune(ait.Module(small()), batch(), **wrong)


def test_a_module_that_cannot_be_tuned_stays_as_it_is(given: dict[str, Any]) -> None:
    model = ait.Module(small(), strategy=ait.LatencyBudget(1e-6, [TorchEagerBackend()]))
    with pytest.warns(LaminaWarning, match="runs as eager"):
        assert ait.tune(model, batch(), **given) == {"": []}
    assert torch.equal(model(batch()), small()(batch()))
    with pytest.raises(BadArgument, match="no candidate keeps the limits"):
        ait.tune(model, batch(), ignore_failing_modules=False, **given)


def test_a_dry_run_records_and_tunes_nothing() -> None:
    model = ait.Module(Counting(), strategy=TuneStrategy())
    assert ait.tune(model, [(torch.ones(2, 16),), {"x": torch.ones(3, 16)}], dry_run=True) == {}
    assert model.state == "init"
    assert [graph.axes() for graph in model.graphs.values()] == [{"x": ("batch", 16)}]
    assert model.layer.weight is model.module.layer.weight


def test_a_profile_has_the_whole_and_its_modules() -> None:
    found = ait.profile(pipeline(16), batch(), measured_runs=3)
    assert {name: len(times) for name, times in found.data.items()} == {"": 3, "first": 3, "others.0": 3}
    assert "| whole |" in found.markdown()
    with pytest.raises(BadArgument, match="measure one call or more"):
        ait.profile(pipeline(16), batch(), measured_runs=0)


def test_a_profile_of_compiled_code_runs_it_compiled() -> None:
    """Hooks that take the time must not be compiled with the modules, nor end their graphs."""
    block = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(10))).eval()

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = lamina.compile(block, options={"strict": True})

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    model = Whole()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = ait.profile(model, torch.ones(2, 8), measured_runs=3)
    assert list(found.data) == ["", "inner"]  # what is within compiled code has no time of its own
    assert len(found.data[""]) == len(found.data["inner"]) == 3
    assert len({s.region for s in model.inner.record.stages if s.name == "plan"}) == 1  # one graph of the whole


@pytest.mark.parametrize("by", BY)
def test_a_module_that_was_compiled_has_a_row_of_its_own(by: Callable[[nn.Module], nn.Module]) -> None:
    model = nn.Sequential(by(nn.Sequential(nn.Linear(8, 8), nn.GELU())), nn.Linear(8, 8)).eval()
    given = torch.ones(2, 8)
    expected = model(given)
    before = vars(model[0]).copy()
    found = ait.profile(model, given, measured_runs=3)
    assert {path: len(times) for path, times in found.data.items()} == {"": 3, "0": 3, "1": 3}
    assert [m.calls for m in ait.inspect(model, given).modules if m.name == "0"] == [10]
    assert vars(model[0]) == before
    assert torch.equal(model(given), expected)
    assert vars(model[0]) == before


def test_the_first_of_no_compiler_is_eager_as_it_was_before_it_was_compiled() -> None:
    model = nn.Linear(16, 4).eval()
    with pytest.warns(LaminaWarning, match="the model was compiled already"):
        result = ait.FirstWins([TorchEagerBackend()]).run(
            lamina.compile(model), samples_of(batch()), journal=False, seconds=0.1, modules=False
        )
    assert [row.verdict for row in result.rows] == ["baseline"]
    assert before_compiled(result.model) == (result.model, [])


def test_a_wrapped_module_keeps_modes_within() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).train()
    model[1].eval()
    assert ait.Module(model).training
    assert [part.training for part in model] == [True, False]


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def test_a_wrapped_module_has_the_names_of_the_module() -> None:
    plain = Deep().eval()
    wrapped = ait.wrap(plain, [m for m in ait.inspect(plain, torch.ones(2, 4)).modules if m.name in ("body", "head")])
    whole = ait.Module(plain)
    for other in (wrapped, whole):
        assert list(other.state_dict()) == list(plain.state_dict())
        assert other.state_dict()._metadata == plain.state_dict()._metadata
        assert [name for name, _ in other.named_parameters()] == [name for name, _ in plain.named_parameters()]
        assert [name for name, _ in other.named_buffers()] == [name for name, _ in plain.named_buffers()]
        assert [name for name, _ in other.named_modules()] == [name for name, _ in plain.named_modules()]
        assert other.get_parameter("body.0.weight") is plain.body[0].weight
        assert len(list(other.parameters())) == len(list(plain.parameters()))
        state = {key: torch.full_like(value, 2.0) for key, value in Deep().state_dict().items()}
        assert not any(other.load_state_dict(state))
        assert plain.body[0].weight[0, 0] == 2.0
        plain.load_state_dict(other.state_dict())
        del state["body.0.bias"]
        state["head.more"] = torch.ones(1)
        found = other.load_state_dict(state, strict=False)
        assert (found.missing_keys, found.unexpected_keys) == (["body.0.bias"], ["head.more"])
        with pytest.raises(RuntimeError, match=r'Missing key.*"body\.0\.bias"'):
            other.load_state_dict(state)
        again = copy.deepcopy(other)
        again.load_state_dict({key: torch.full_like(v, 3.0) for key, v in plain.state_dict().items()})
        assert again.get_parameter("head.bias")[0] == 3.0
        assert plain.head.bias[0] == 2.0
    assert next(wrapped.double().parameters()).dtype == torch.float64
    assert plain.head.weight.dtype == torch.float64


def test_an_attribute_that_is_set_is_the_modules() -> None:
    model = Counting()
    model.scale = 2.0  # type: ignore[assignment]
    wrapped = ait.Module(model)
    wrapped.scale = 3.0
    assert model.scale == 3.0
    wrapped.layer = nn.Identity()
    assert torch.equal(wrapped(torch.ones(2)), torch.ones(2))
    del wrapped.scale
    assert not hasattr(model, "scale")
    wrapped.name = "another"
    assert not hasattr(model, "name")
    assert wrapped.eval().training is model.training is False


@pytest.mark.parametrize(
    ("give", "said"),
    [
        (lambda: ait.wrap(nn.Linear(4, 4), ["weight"]), "wrap was given 'weight'"),
        (lambda: ait.wrap(nn.Linear(4, 4), 3), "wrap was given 3"),
        (lambda: ait.Module(nn.Linear(4, 4), 3), "the name 3"),
        (lambda: ait.FirstWins(3), "given 3 as backends"),
        (lambda: ait.MinLatency(error="small"), "the error 'small'"),
        (lambda: ait.MinLatency(error=-1), "the error -1"),
        (lambda: ait.LatencyBudget("5ms"), "the latency budget is '5ms'"),
        (lambda: ait.LatencyBudget(float("nan")), "the latency budget is nan"),
        (lambda: ait.BatchDim(3, 1, 8), "an axis is 3"),
        (lambda: ait.BatchDim("rows", "1", 8), "min='1'"),
        (lambda: ait.profile(3, torch.ones(2)), "a int cannot be called"),
        (lambda: ait.load(nn.Linear(4, 4), 3), "the file to load is 3"),
    ],
)
def test_wrong_arguments_are_told_with_what_to_do(give: Any, said: str) -> None:
    with pytest.raises(BadArgument, match=f"(?s){said}.*do: "):
        give()
