"""Results of another type or layout than torch tells without data: programs that ask for it get what eager gives."""

from importlib import import_module

import pytest
import torch
import torch.nn.functional as F

import lamina
from lamina.errors import StageFailed

BF16, HALF, DOUBLE = torch.bfloat16, torch.float16, torch.float64


def _permuted(*sizes):
    return torch.rand(*reversed(sizes)).permute(*reversed(range(len(sizes)))).requires_grad_()


def _rand(*sizes, dtype=torch.float32, grad=False):
    return torch.rand(*sizes).to(dtype).requires_grad_(grad)


def _of_type(found):
    return found.dtype is BF16, found.to(torch.float32).dtype, found.to(BF16)


def _laid_out(found):
    return found.is_contiguous(), found.contiguous().stride(), found.stride(), found


PROGRAMS = {
    "huber": (lambda x, y: _of_type(F.huber_loss(x, y)), _rand(5, dtype=BF16, grad=True), _rand(5, dtype=HALF)),
    "soft margin": (lambda x, y: _of_type(F.soft_margin_loss(x, y)), _rand(5, dtype=BF16), _rand(5, dtype=HALF)),
    "weights": (
        lambda x, y, w: _of_type(F.binary_cross_entropy(x, y, w)),
        _rand(5, dtype=BF16, grad=True),
        _rand(5, dtype=BF16),
        _rand(5, dtype=DOUBLE),
    ),
    "copysign": (lambda x, y: _laid_out(torch.copysign(x, y)), _permuted(10, 5), torch.tensor(1.0)),
    "batch norm": (
        lambda x, m, v: _laid_out(F.batch_norm(x, m, v, training=True)),
        _permuted(3, 2, 3, 4),
        _rand(2),
        _rand(2),
    ),
    "xlogy": (lambda x, y: _laid_out(torch.xlogy(x, y)), _permuted(5, 10, 5), _rand(5, 10, 5)),
}


def _looks(found):
    return [(one.dtype, one.stride(), one.requires_grad) if isinstance(one, torch.Tensor) else one for one in found]


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_what_a_program_asks_of_such_results(name):
    program, *given = PROGRAMS[name]
    compiled = lamina.compile(program, options={"capture": "own"})
    expected = _looks(program(*given))
    for _ in range(2):  # interpreted, and by what is kept of the first call
        assert _looks(compiled(*given)) == expected


def test_other_calls_stay_in_the_graph():
    def program(x, y):
        a = torch.floor_divide(x, y).cumsum(0)
        return F.huber_loss(x, y), a

    compiled = lamina.compile(program, fullgraph=True, options={"capture": "own"})
    x, y = torch.rand(4, 4) + 1, torch.rand(4, 4) + 1
    torch.testing.assert_close(compiled(x, y), program(x, y))


@pytest.mark.parametrize("strict", [False, True])
def test_a_trial_that_fails_is_not_the_programs_error(strict, monkeypatch):
    def fails(node, laid_out):
        raise KeyError("injected")

    monkeypatch.setattr(import_module("lamina.compile"), "other_kind_in_eager", fails)
    monkeypatch.setattr("lamina.base.recovery._told", set())
    compiled = lamina.compile(lambda x: x.sin().sum() + 1, options={"capture": "own", "strict": strict})
    x = torch.randn(8)
    if strict:
        with pytest.raises(StageFailed, match="trying a call in eager failed: KeyError"):
            compiled(x)
        return
    with pytest.warns(lamina.LaminaWarning, match="trying a call in eager failed: .*made between graphs"):
        torch.testing.assert_close(compiled(x), x.sin().sum() + 1)
    assert any(d.kind == "fallback" and "injected" in str(d.reason) for d in compiled.record.decisions())
