from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import lamina
from lamina.explain.explanation import Explanation
from lamina.report import recording
from lamina.report.assembly import Assembler, listings, shared_out
from lamina.report.document import document
from lamina.report.texts import LEVELS, Texts
from lamina.runtime.kernel import KernelFunction, KernelUnit
from tests.report.programs import link_pairs, reaching, trained


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return document(trained())


def texts(report: dict[str, Any], level: str) -> list[tuple[int, dict[str, Any]]]:
    return [(number, text) for number, text in enumerate(report["texts"]) if text["level"] == level]


def pass_text(report: dict[str, Any], number: int) -> str:
    """A text of the passes, put together from the lines that all of them share."""
    runs, lines = report["pass_texts"][number], report["pass_lines"]
    return "\n".join(line for a, n in zip(runs[::2], runs[1::2], strict=True) for line in lines[a : a + n])


def test_all_levels_are_there(report: dict[str, Any]) -> None:
    assert report["faults"] == []
    wanted = {*LEVELS} - {"ptx", *(["assembly"] if Assembler().why else [])}
    assert list(dict.fromkeys(text["level"] for text in report["texts"])) == [one for one in LEVELS if one in wanted]
    assert json.loads(json.dumps(report)) == report


def test_links_lead_to_lines_that_are_there(report: dict[str, Any]) -> None:
    pairs = list(link_pairs(report))
    lengths = [text["text"].count("\n") + 1 for text in report["texts"]]
    assert len(pairs) > 300
    for upper, line, lower, other in pairs:
        assert 1 <= line <= lengths[upper]
        assert 1 <= other <= lengths[lower]
        assert LEVELS.index(report["texts"][upper]["level"]) < LEVELS.index(report["texts"][lower]["level"])


def test_nodes_and_statements_reach_a_line_of_python(report: dict[str, Any]) -> None:
    reached = reaching(report, "python")
    assert not report["lost"]
    for level in ("forward", "backward"):
        for number, text in texts(report, level):
            assert all(
                (number, line) in reached
                for line, name in text["names"]
                if not name.startswith(("primals", "tangents", "output"))
            )
    for number, text in texts(report, "kernel"):
        for line, code in enumerate(text["text"].split("\n"), 1):
            if " = v" in code or "load_f32(" in code or "store_f32(" in code:
                assert (number, line) in reached, code


def test_a_line_of_python_reaches_forward_backward_and_kernels(report: dict[str, Any]) -> None:
    ((python, text),) = texts(report, "python")
    (line,) = [n for n, code in enumerate(text["text"].split("\n"), 1) if "functional.gelu(" in code]
    down: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for upper, a, lower, b in link_pairs(report):
        down.setdefault((upper, a), set()).add((lower, b))
    found, waiting = set(), [(python, line)]
    while waiting:
        for place in down.get(waiting.pop(), ()):
            if place not in found:
                found.add(place)
                waiting.append(place)
    levels = {report["texts"][number]["level"] for number, _ in found}
    assert set(LEVELS[1:6]) <= levels
    names = {dict(map(tuple, report["texts"][n]["names"])).get(at, "") for n, at in found}
    assert {"gelu", "gelu_1", "gelu_backward"} <= names


def test_steps_have_costs_modules_and_reasons(report: dict[str, Any]) -> None:
    forward, backward = report["regions"]
    assert (forward["kind"], backward["kind"]) == ("forward", "backward")
    assert {step["module"] for step in forward["steps"]} >= {"blocks.0.up", "blocks.1.down"}
    up = next(step for step in forward["steps"] if step["calls"] == "aten.addmm.default")
    assert up["flops"] == 2 * 32 * 32 * 64
    assert up["bytes_written"] == 32 * 64 * 4
    for region in report["regions"]:
        for edge in region["fusion"][""]["edges"]:
            assert edge["why"], edge


def test_maps_of_many_steps_are_drawn_by_module(report: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamina.report.fusion._MOST_BOXES", 4)
    drawn = document(trained(), assembly=False)["regions"][0]["fusion"]
    assert len(drawn[""]["boxes"]) <= 4
    assert {box["label"] for box in drawn[""]["boxes"]} >= {"blocks.0", "blocks.1"}
    inner = [box["step"] for name, one in drawn.items() if name for box in one["boxes"]]
    assert sorted(inner) == list(range(len(inner)))


def test_advice_and_bytes_are_those_of_the_explanation() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        x = torch.softmax(x, -1)
        return x * 2 if x.sum() > 1 else x.exp()

    compiled = lamina.compile(broken, dynamic=True)
    compiled(torch.randn(6, 40))
    found, explained = document(compiled.record, assembly=False), Explanation(compiled.record).to_dict()
    assert found["advice"] == json.loads(json.dumps(explained["advice"]))
    assert found["advice"][0]["code"] == "LM1002"
    for region, graph in zip(found["regions"], explained["graphs"], strict=True):
        assert (region["name"], region["launches"]) == (graph["region"], graph["launches"])
        moved = sum(step["bytes_read"] + step["bytes_written"] for step in region["steps"])
        assert moved == graph["nbytes"] > 0


def test_kernels_of_one_code_have_their_assembly_each() -> None:
    if why := Assembler().why:
        pytest.skip(why)
    unit = next(stage.value for stage in trained().stages if stage.name == "codegen")[0]
    found = Texts()
    made = Assembler().add(found, [("kernel:one", unit), ("kernel:two", replace(unit, name="two"))])
    one, two = found.of_level("assembly")
    assert (one.key, two.key, two.title) == ("assembly:one", "assembly:two", "two")
    assert one.lines == two.lines
    assert made.failed == {}
    assert made.needs["kernel:one"] == made.needs["kernel:two"]
    assert (made.needs["kernel:one"].registers or 0) > 1


def test_launches_are_timed_where_a_report_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "_waiting", recording._Waiting())
    torch.compiler.reset()
    compiled = lamina.compile(lambda x: torch.softmax(x, -1), options={"report": str(tmp_path / "out.json")})
    x = torch.randn(64, 256)
    want = torch.softmax(x, -1)
    for _ in range(30):
        torch.testing.assert_close(compiled(x), want)
    found = document(compiled.record, assembly=False)
    (kernel,) = found["kernels"]
    assert kernel["runs"] == 20
    assert 0 < kernel["seconds"] < 1
    (peaks,) = found["peaks"].values()
    assert kernel["share"] == pytest.approx(
        max(kernel["bytes"] / peaks["bytes_per_second"], kernel["flops"] / peaks["flops_per_second"])
        / kernel["seconds"],
        rel=0.01,
        abs=1e-4,
    )


def test_a_region_that_is_left_to_aten_has_no_kernels() -> None:
    record = trained()
    record.add("Model0_forward", "aten", 0.0, None)
    forward, backward = document(record, assembly=False)["regions"]
    assert "steps" not in forward
    assert backward["steps"]
    assert document(record, assembly=False)["faults"] == []


def test_boxes_of_a_map_do_not_overlap(report: dict[str, Any]) -> None:
    for region in report["regions"]:
        boxes = region["fusion"][""]["boxes"]
        for i, a in enumerate(boxes):
            for b in boxes[:i]:
                assert a["y"] != b["y"] or a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]


def test_memory_is_what_the_plan_places(report: dict[str, Any]) -> None:
    memory = report["regions"][0]["memory"]
    assert memory["arena"] >= max(memory["temporary"])
    assert memory["results"] == sorted(memory["results"])


def test_steps_of_fusion_are_shown_one_by_one(report: dict[str, Any]) -> None:
    passes = [one for one in report["passes"] if one["region"] == "Model0_forward"]
    assert [one["name"] for one in passes][:2] == ["lower", "update in place"]
    grouped = next(one for one in passes if one["name"] == "group")
    before, after = (pass_text(report, grouped[side]) for side in ("before", "after"))
    assert before.count("= Nest(") > after.count("= Nest(")
    loops = next(text for text in report["texts"] if text["key"] == "loops:Model0_forward")
    assert pass_text(report, passes[-1]["after"]).strip() == loops["text"].strip()


def test_a_record_that_keeps_what_passes_by_says_the_same_of_fusion(
    report: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "_waiting", recording._Waiting())
    kept = trained(report=str(tmp_path / "kept.json"))
    assert kept.fusions
    monkeypatch.setattr("lamina.report.passes.Fusion", None)  # nothing is fused again
    found = document(kept, assembly=False)
    assert not found["faults"]
    for region in ("Model0_forward", "Model0_backward"):
        own, other = (
            [
                (one["name"], pass_text(data, one["before"]), pass_text(data, one["after"]), bool(one["stages"]))
                for one in data["passes"]
                if one["region"] == region
            ]
            for data in (report, found)
        )
        assert own == other


def test_what_cannot_be_shown_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise RuntimeError("planted")

    record = trained()
    monkeypatch.setattr("lamina.report.document.memory_of", broken)
    found = document(record, assembly=False)
    assert {fault["region"] for fault in found["faults"]} == {"Model0_forward", "Model0_backward"}
    assert all("planted" in fault["what"] for fault in found["faults"])
    assert found["decisions"]


def test_dynamic_sizes_are_shown_as_they_were_first() -> None:
    compiled = lamina.compile(lambda x: torch.softmax(x * 2, -1), dynamic=True)
    compiled(torch.randn(6, 40))
    (region,) = document(compiled.record, assembly=False)["regions"]
    assert sum(step["bytes_written"] for step in region["steps"]) == 6 * 40 * 4


def test_a_program_without_anything_compiled_is_an_empty_report() -> None:
    compiled = lamina.compile(lambda x: x + 1)
    found = document(compiled.record)
    assert not found["texts"]
    assert not found["regions"]


def test_instructions_belong_to_the_innermost_line_of_their_kernel() -> None:
    first, second = "0123456789abcdef", "fedcba9876543210"
    output = [
        f"0000000000000010 <kernel_{first}::f_{first}(float*)>:",
        f"kernel_{first}::f_{first}(float*):",
        "/tmp/prelude:7",
        "inlined by /tmp/f_0:3 (operator())",
        "inlined by /tmp/prelude:9 (strip)",
        "inlined by /tmp/f_0:2 (f)",
        "  14:\tvaddps ymm0,ymm0,ymm1",
        f"  18:\tjl     14 <kernel_{first}::f_{first}(float*)+0x4>",
        "/tmp/f_0:5",
        "  1a:\tcall   30 <settle(float)>",
        f"0000000000000020 <lamina_{second}_0>:",
        "/tmp/f_0:1",
        "  20:\tret    ",
        "0000000000000030 <settle(float)>:",
        "/tmp/prelude:8",
        "  30:\tret    ",
    ]
    found = listings(output, {first: "f_0", second: "g_0"})
    lines, origins = found[first]
    assert lines == [
        "f(float*):",
        "     4:  vaddps ymm0,ymm0,ymm1",
        "     8:  jl     4",
        "     a:  call   <settle(float)>",
        "settle(float):",
        "     0:  ret",
    ]
    assert origins == [0, 3, 3, 5, 0, 0]
    assert found[second] == (["lamina_0:", "     0:  ret"], [0, 0])


def test_kernels_of_one_header_are_compiled_in_as_many_files_as_there_are_cores() -> None:
    def unit(name: str, source: str = "", flags: tuple[str, ...] = ()) -> KernelUnit:
        return KernelUnit(name, source, (KernelFunction("f", "p"),), flags=flags)

    units = {name: unit(name) for name in "abc"} | {"d": unit("d", "#define x 1\n"), "e": unit("e", "", ("-g",))}
    assert sorted(map(sorted, shared_out(units, 2))) == [["a", "c"], ["b"], ["d"], ["e"]]


def test_versions_of_a_function_have_their_guards() -> None:
    compiled = lamina.compile(lambda x, n: x * n + 1)
    x = torch.randn(4)
    for n in (2, 3):
        compiled(x, n)
    found = document(compiled.record, assembly=False)
    assert any(d["kind"] == "recompile" and d["code"] for d in found["decisions"])
    assert len(found["guards"]) == 2
    assert all(one["lines"] and "lambda" in one["function"] for one in found["guards"])


@pytest.mark.parametrize("capture", ["dynamo", "own"])
def test_modules_of_calls_are_told_by_either_front_end(capture: str) -> None:
    forward = document(trained(capture=capture), assembly=False)["regions"][0]
    assert {step["module"] for step in forward["steps"]} >= {"blocks.0.up", "blocks.1.down"}
