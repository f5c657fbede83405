"""Parts of models: found wherever they are held, replaced without a change to the model, tuned and put together."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lamina
from lamina.errors import BadArgument
from lamina.testing.state import reachable
from lamina.tuner.building import build
from lamina.tuner.identity import model_key
from lamina.tuner.mixes import candidates_for_parts, mixed, parts_named, refined
from lamina.tuner.parts import modules_in, replaced, tensors_of
from lamina.tuner.shares import parts_of
from lamina.tuner.values import Candidate, Figures, Interval, Part, Row, mix_of, parts_in
from tests.tuner.models import Pipeline, Slow, TwoParts, batch, pipeline, two_parts

LAMINA = Candidate("lamina", "lamina", cost=2)
QUICK = Candidate("quick", "import", {"target": "tests.tuner.models:quick"}, 2)

net = nn.Linear(16, 16)
shared = nn.Linear(16, 16)


def calls_net(x: Tensor) -> Tensor:
    return net(x) * 2


def closing(inner: nn.Module) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        return inner(x) * 2

    return run


class Marked(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.full_like(x, 7.0)


def holders() -> list[tuple[Any, nn.Module]]:
    inner, listed = nn.Linear(16, 16), nn.ModuleList([nn.Linear(16, 16)])
    whole = nn.Sequential(inner, nn.ReLU())
    pipe = Pipeline(inner, [listed[0]])
    return [
        (whole, inner),
        (whole.forward, inner),
        (calls_net, net),
        (closing(inner), inner),
        (functools.partial(closing(inner)), inner),
        (pipe, inner),
        (pipe, listed[0]),
        (pipe.__call__, listed[0]),
    ]


@pytest.mark.parametrize("place", range(8))
def test_a_module_is_found_and_replaced_in_what_holds_it(place: int) -> None:
    holder, inner = holders()[place]
    x = torch.randn(4, 16)
    before = holder(x)
    assert any(module is inner for module in modules_in(holder).values())
    assert any(t is inner.weight for t in tensors_of(holder))
    other = replaced(holder, {id(inner): Marked()})
    assert not torch.equal(other(x), before)
    assert torch.equal(holder(x), before)
    assert replaced(holder, {0: Marked()}) is holder


def test_a_module_that_is_held_twice_is_replaced_twice() -> None:
    model = nn.ModuleDict({"a": shared, "b": nn.Sequential(shared)})
    other = replaced(model, {id(shared): Marked()})
    assert isinstance(other["a"], Marked)
    assert other["b"][0] is other["a"]


def test_layouts_of_modules_in_a_pipeline_are_part_of_its_key() -> None:
    assert model_key(pipeline(16)) == model_key(pipeline(16))
    assert model_key(pipeline(16)) != model_key(pipeline(32))


def test_what_the_modules_of_a_pipeline_hold_is_its_state() -> None:
    held = reachable(pipeline(16)).tensors
    assert len(held) == 4
    assert len(reachable(pipeline(16).__call__).tensors) == 4


def test_a_mix_shares_weights_and_buffers_and_calls_hooks_once() -> None:
    model = two_parts()
    called = []
    model.heavy.register_forward_hook(lambda *given: called.append("heavy"))
    built = build(mix_of({Part(("heavy",), 0.5): Candidate("eager", "eager")}), model)
    x = batch()
    assert torch.equal(built.call(x), model(x))
    assert called == ["heavy", "heavy"]
    assert built.call is not model
    assert [id(p) for p in built.call.parameters()] == [id(p) for p in model.parameters()]
    with pytest.raises(BadArgument, match="holds no module 'nowhere'"):
        build(mix_of({Part(("nowhere",), 0.5): LAMINA}), model)


def test_parts_are_modules_by_their_share_of_the_time_and_equal_ones_are_one_part() -> None:
    model = nn.Sequential(Slow(0.004), Slow(0.002), Slow(0.002), nn.Identity())
    found = parts_of(model, lambda: model(batch()), torch.device("cpu"))
    assert {part.modules for part in found} == {("0",), ("1", "2")}
    assert sum(part.share for part in found) > 0.8
    wrapped = nn.Sequential(TwoParts(0.004, 0.004))
    found = parts_of(wrapped, lambda: wrapped(batch()), torch.device("cpu"))
    assert {part.modules for part in found} == {("0.heavy",), ("0.light",)}


def test_parts_can_be_named_and_a_wrong_name_is_said() -> None:
    known = modules_in(two_parts())
    assert parts_named(["light"], (), known) == (Part(("light",), 0.0),)
    assert parts_named(False, (Part(("light",), 0.5),), known) == ()
    with pytest.raises(BadArgument, match="no module 'ligth'") as raised:
        parts_named(["ligth"], (), known)
    assert "light" in raised.value.remedy


def test_candidates_of_parts_come_back_from_plain_data() -> None:
    modes = Candidate("lamina, max-autotune", "lamina", {"mode": "max-autotune"}, 3)
    found = candidates_for_parts((Part(("a", "b"), 0.6), Part(("c",), 0.3)), (LAMINA, modes))
    assert [c.name for c in found] == ["a and 1 alike: lamina", "c: lamina"]
    again = Candidate.from_json(found[0].to_json())
    assert parts_in(again) == ((("a", "b"), LAMINA),)


def test_modes_are_tried_for_a_part_where_their_compiler_helps() -> None:
    a, b = Part(("a",), 0.6), Part(("b",), 0.3)
    other = Candidate("torch.compile, max-autotune", "torch.compile", {"mode": "max-autotune"}, 3)
    frozen = Candidate("frozen", "lamina", {"options": {"freeze": True}}, 3)
    narrow = Candidate("narrow", "autocast", {"dtype": "bfloat16", "compiled": "lamina"}, 3, True)
    innermost = Candidate("innermost", "channels-last", {"compiled": "lamina"}, 3)
    modes = Candidate("max-autotune", "lamina", {"mode": "max-autotune"}, 3)
    whole = (LAMINA, modes, frozen, other, narrow, innermost)
    first = candidates_for_parts((a, b), whole)
    of_a = ["a: lamina", "a: torch.compile, max-autotune", "a: narrow", "a: innermost"]
    assert [c.name for c in first] == [*of_a, *(name.replace("a: ", "b: ", 1) for name in of_a)]
    speeds = {"a: lamina": 1.5, "a: innermost": 1.2}
    rows = [row(c, "faster" if c.name in speeds else "tie", speeds.get(c.name, 1.0)) for c in first]
    assert [c.name for c in refined(rows, whole)] == ["a: max-autotune", "a: frozen"]
    assert refined([row(c, "tie", 1.0) for c in first], whole) == ()
    better = [row(c, "faster", 1.515 if "auto" in c.name else 1.8) for c in refined(rows, whole)]
    last = row(first[4], "faster", 1.3)
    mixes = mixed([*rows[:4], *better, last], lambda mix: row(mix, "faster", 2.0))
    assert [r.candidate.name for r in mixes] == ["a: frozen; b: lamina"]


def row(candidate: Candidate, verdict: str, speed: float) -> Row:
    figures = Figures(1 / speed, 1, 1, 1, Interval(speed, speed, speed), 0.0, 9, 1.0, None, 1.0, 1.0, 0.0)
    return Row(candidate, verdict, "", figures)


def test_a_part_that_does_not_help_the_mix_is_rolled_back() -> None:
    a, b, c, d = (mix_of({Part((name,), 0.2): LAMINA}) for name in "abcd")
    speeds = {("a", "b"): 1.9, ("a", "b", "c"): 1.8}
    singles = [row(a, "faster", 1.5), row(b, "faster", 1.4), row(c, "faster", 1.2), row(d, "tie", 1.1)]
    rows = mixed(singles, lambda mix: row(mix, "faster", speeds[mix.modules]))
    assert [(r.candidate.modules, r.reason) for r in rows] == [
        (("a", "b"), ""),
        (("a", "b", "c"), "c rolled back: 1.80x, 1.90x without it"),
    ]
    assert mixed(singles[3:], lambda mix: row(mix, "faster", 1.0)) == []


def test_the_mix_of_what_helps_is_chosen_and_what_does_not_is_not_in_it(tmp_path: Path) -> None:
    result = lamina.tune(
        two_parts(), batch(), candidates=(QUICK,), modules=True, seconds=3, journal=tmp_path / "journal"
    )
    assert {part.modules for part in result.rows[0].parts} == {("heavy",), ("light",)}, result.rows[0]
    names = {r.candidate.name: r.verdict for r in result.rows}
    assert names["quick"] == "tie", str(result)
    assert set(result.chosen.candidate.modules) == {"heavy", "light"}, str(result)
    assert torch.equal(result.model(batch()), two_parts()(batch()))
    again = lamina.tune(
        two_parts(), batch(), candidates=(QUICK,), modules=True, seconds=3, journal=tmp_path / "journal"
    )
    assert again.rows == result.rows


def test_a_pipeline_object_is_tuned_by_its_modules(tmp_path: Path) -> None:
    result = lamina.tune(
        pipeline(16), batch(), candidates=(LAMINA,), modules=["first"], seconds=0.3, journal=tmp_path / "journal"
    )
    verdicts = {r.candidate.name: r.verdict for r in result.rows}
    assert verdicts["first: lamina"] in ("faster", "slower", "tie"), str(result)
    built = build(result.rows[-1].candidate, result.original).call
    assert isinstance(built, Pipeline)
    assert torch.allclose(built(batch()), pipeline(16)(batch()), atol=1e-6)


def test_training_of_parts_gives_gradients_to_the_models_own_parameters(tmp_path: Path) -> None:
    result = lamina.tune(
        pipeline(16),
        batch(),
        loss=torch.sum,
        candidates=(LAMINA,),
        modules=["first"],
        seconds=0.3,
        journal=tmp_path / "journal",
    )
    assert result.rows[-1].verdict in ("faster", "slower", "tie"), str(result)
    built = build(result.rows[-1].candidate, result.original).call
    built(batch()).sum().backward()
    assert result.original.first.weight.grad is not None


def test_a_number_that_a_module_holds_is_part_of_its_key() -> None:
    assert model_key(TwoParts(0.1, 0.2)) == model_key(TwoParts(0.1, 0.2))
    assert model_key(TwoParts(0.1, 0.2)) != model_key(TwoParts(0.2, 0.1))
