"""Saved results: data that is checked when it is read, and runs nothing that it names without leave."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import lamina
import lamina.aitune as ait
from lamina.errors import BadArgument, LaminaWarning
from lamina.tuner import search
from lamina.tuner.identity import device_facts, model_key, versions
from lamina.tuner.objective import Objective
from lamina.tuner.result import Environment, Result
from lamina.tuner.values import EAGER, Candidate, Interval, Part, Row, mix_of
from tests.tuner.models import small, two_parts
from tests.tuner.test_resume import QUICK, Planned
from tests.tuner.test_search import WRONG, row_of, tuned

HERE = Environment(device_facts(torch.device("cpu"), torch.get_num_threads()), versions())


@pytest.fixture
def book(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def test_a_saved_result_is_data_and_is_loaded(book: Path, tmp_path: Path) -> None:
    result = tuned(book)
    path = tmp_path / "tuned.json"
    result.save(path)
    again = lamina.load(path, small(), torch.randn(4, 16))
    assert again.rows == result.rows
    assert again.pick("throughput").chosen.candidate.name == "eager"
    with pytest.raises(BadArgument, match="another model"):
        lamina.load(path, small(8))
    data = json.loads(path.read_text())
    data["device"]["processor"] = "another"
    path.write_text(json.dumps(data))
    with pytest.raises(BadArgument, match="measured on another device: processor is"):
        lamina.load(path, small())
    path.write_text("[")
    with pytest.raises(BadArgument, match="no saved result and no package"):
        lamina.load(path, small())


def test_a_choice_of_two_rows_of_one_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    twin = Candidate("twin", "lamina")
    rows = (row_of(EAGER, "baseline"), row_of(twin, "tie"), row_of(replace(twin, kind="torch.compile"), "faster"))
    result = Result(small(), rows, Objective(), HERE)
    result.chosen = rows[2]
    result.save(path)
    with pytest.raises(BadArgument, match="its choice is more than one of its rows"):
        lamina.load(path, small())


@pytest.mark.parametrize("to", ["a full disk", "a page on a full disk", "a folder that is a file"])
def test_a_file_that_cannot_be_written_is_said_and_nothing_is_left(
    to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = Result(small(), (row_of(EAGER, "baseline"),), Objective(), HERE)
    place = tmp_path / "file"
    place.write_text("")
    path = place / "tuned.html" if "folder" in to else tmp_path / "tuned.html"

    def full(*given: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(BadArgument, match=r"tuned.html cannot be written: .*\n  do: name another file"):
        (result.report if "page" in to else result.save)(path)
    assert [*tmp_path.iterdir()] == [place]


@pytest.mark.parametrize("by", [lamina.compile, torch.compile], ids=["lamina", "torch"])
def test_a_model_that_was_compiled_is_the_same_model(by: Callable[..., Any]) -> None:
    """What is chosen is compiled before the result is saved, and another process has a model that is not."""
    model = small()
    before = model_key(model)
    by(model)(torch.randn(4, 16))
    assert model_key(model) == before
    model.compile()
    model(torch.randn(4, 16))
    assert model_key(model) == before


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data.pop("objective"),
        lambda data: data.update(objective="speed"),
        lambda data: data.pop("rows"),
        lambda data: data.update(rows=3),
        lambda data: data.update(device=7),
        lambda data: data.update(chosen="another"),
        lambda data: data.update(chosen="constant"),
        lambda data: data["rows"][0].update(verdict="best"),
        lambda data: data["rows"][0]["figures"].update(p50="fast"),
        lambda data: data["rows"][0].update(candidate=[]),
    ],
)
def test_a_saved_result_that_is_damaged_is_refused(book: Path, tmp_path: Path, damage: Callable[[Any], None]) -> None:
    path = tmp_path / "saved.json"
    Result(small(), (row_of(EAGER, "baseline"), Row(WRONG, "refused")), Objective(), HERE).save(path)
    assert lamina.load(path, small()).chosen.candidate == EAGER
    data = json.loads(path.read_text())
    damage(data)
    path.write_text(json.dumps(data))
    with pytest.raises(BadArgument, match=r"(?s)is damaged: .*tune again"):
        lamina.load(path, small())


def marks(model: Callable[..., Any], file: str = "") -> Callable[..., Any]:
    """A candidate that leaves a mark where it is built."""
    Path(file).touch()
    return model


def saved(path: Path, candidate: Candidate, environment: Environment = HERE) -> Path:
    """A file whose choice is a candidate."""
    rows = (row_of(EAGER, "baseline"), row_of(candidate, "faster", speedup=Interval(2, 2, 2)))
    result = Result(two_parts(), rows, Objective(), environment)
    assert result.chosen.candidate == candidate
    result.save(path)
    return path


def lists(candidate: Candidate) -> Candidate:
    """The candidate as that of the second of two parts."""
    return mix_of({Part(("heavy",), 0.5): Candidate("lamina", "lamina"), Part(("light",), 0.5): candidate})


@pytest.mark.parametrize("within", [lambda c: c, lists, lambda c: mix_of({Part(("heavy",), 0.5): c})])
def test_code_that_a_file_names_runs_with_leave_only(tmp_path: Path, within: Callable[[Candidate], Candidate]) -> None:
    mark = tmp_path / "mark"
    settings = {"target": "tests.tuner.test_saved:marks", "file": str(mark)}
    path = saved(tmp_path / "saved.json", within(Candidate("mine", "import", settings)))
    for given in (None, torch.ones(2)):
        with pytest.raises(BadArgument, match=r"(?s)runs code: tests.tuner.test_saved:marks.*allow_code=True"):
            lamina.load(path, two_parts(), given)
    assert not mark.exists()
    assert callable(lamina.load(path, two_parts(), allow_code=True).model)
    assert mark.exists()


@pytest.mark.parametrize(
    ("kind", "settings", "allowed"),
    [
        ("lamina", {"mode": "max-autotune", "options": {"freeze": True, "numerics": "eager"}}, True),
        ("lamina", {"options": {"cxx": "/tmp/evil"}}, False),
        ("lamina", {"options": {"cache_dir": "/tmp/evil"}}, False),
        ("lamina", {"options": {"passes": ["evil"]}}, False),
        ("lamina", {"options": "evil"}, False),
        ("lamina", {"backend": "onnx"}, False),
        ("lamina", {"backend": "aten", "dynamic": None}, True),
        ("torch.compile", {"mode": "default", "fullgraph": True}, True),
        ("torch.compile", {"options": {"cpp.cxx": ["/tmp/evil"]}}, False),
        ("torch.compile", {"options": {"fallback_random": True}}, True),
        ("torch.compile", {"backend": "inductor"}, False),
        ("autocast", {"dtype": "bfloat16", "compiled": "lamina"}, True),
        ("torchao", {"config": "os.system"}, False),
        ("exec", {}, False),
    ],
)
def test_settings_of_a_file_are_numbers_and_known_names(
    tmp_path: Path, kind: str, settings: Mapping[str, Any], allowed: bool
) -> None:
    path = saved(tmp_path / "saved.json", Candidate("c", kind, settings))
    if allowed:
        assert lamina.load(path, two_parts()).chosen.candidate.settings == settings
    else:
        with pytest.raises(BadArgument, match=r"may name code or files|runs code"):
            lamina.load(path, two_parts())


def test_another_choice_of_a_file_runs_no_code_either(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    mine = Candidate("mine", "import", {"target": "tests.tuner.test_saved:marks", "file": str(mark)})
    rows = (row_of(EAGER, "baseline"), row_of(mine, "tie", peak_memory=0.1))
    Result(two_parts(), rows, Objective(), HERE).save(tmp_path / "saved.json")
    loaded = lamina.load(tmp_path / "saved.json", two_parts()).pick("memory")
    assert loaded.chosen.candidate == mine
    with pytest.raises(BadArgument, match="runs code"):
        _ = loaded.model
    assert not mark.exists()


def test_a_journal_does_not_say_what_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "Processes", lambda subject, preload: Planned(lambda name: None, lambda name: None))
    book = tmp_path / "journal"
    given = {"candidates": (QUICK,), "modules": False, "journal": book}
    lamina.tune(two_parts(), torch.ones(2), **given)
    other = Candidate(QUICK.name, "import", {"target": "tests.tuner.test_saved:marks", "file": str(tmp_path / "mark")})
    text = book.read_text().replace(json.dumps(QUICK.to_json(), sort_keys=True), json.dumps(other.to_json()))
    assert "marks" in text
    book.write_text(text)
    assert [row.candidate for row in lamina.tune(two_parts(), torch.ones(2), **given).rows] == [EAGER, QUICK]


def test_other_versions_are_said(tmp_path: Path) -> None:
    before = {**versions(), "torch": "1.0", "openvino": "1"}
    path = saved(tmp_path / "saved.json", Candidate("c", "lamina"), Environment(HERE.device, before))
    here = versions()["torch"]
    with pytest.warns(
        LaminaWarning, match=f"other versions: torch is {here.replace('+', '.')} here and was 1.0"
    ) as told:
        lamina.load(path, two_parts())
    assert "openvino" not in str(told[0].message)
    assert "with inputs" in str(told[0].message)
    before = {**versions(), "python": ".".join([*versions()["python"].split(".")[:2], "99"])}
    lamina.load(saved(path, Candidate("c", "lamina"), Environment(HERE.device, before)), two_parts())


def test_a_choice_whose_package_is_gone_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "saved.json", Candidate("c", "lamina", {"backend": "torch_tensorrt"}))
    with pytest.raises(BadArgument, match=r"(?s)needs what is not installed.*pip install"):
        lamina.load(path, two_parts())


def test_a_mix_is_saved_and_verified(tmp_path: Path) -> None:
    mix = mix_of({Part(("heavy",), 0.6): Candidate("lamina", "lamina"), Part(("light",), 0.4): Candidate("e", "eager")})
    loaded = lamina.load(saved(tmp_path / "saved.json", mix), two_parts(), torch.ones(4))
    assert loaded.chosen.candidate.modules == ("heavy", "light")
    assert torch.equal(loaded.model(torch.ones(3)), torch.full((3,), 3.0))


def test_aitunes_file_runs_no_code_either(tmp_path: Path) -> None:
    mine = Candidate("mine", "import", {"target": "tests.tuner.test_saved:marks", "file": str(tmp_path / "mark")})
    result = json.loads(saved(tmp_path / "saved.json", mine).read_text())
    graphs = [{"key": "k", "shapes": [], "result": result}]
    path = tmp_path / "tuned.json"
    path.write_text(json.dumps({"aitune": 1, "modules": {"": {"name": "m", "graphs": graphs}}}))
    with pytest.raises(BadArgument, match="runs code"):
        ait.load(two_parts(), path)
    assert ait.load(two_parts(), path, allow_code=True).results["k"].chosen.candidate == mine
