"""Rows that are read where they were returned, and loaded otherwise only where their digest is another one."""

import pytest
import torch

from lamina.base.row_digest import row_digest, unless_changed
from lamina.codegen.triton.emit import emit
from lamina.ir.loops import Load
from lamina.lower import row_digest as row_digest_rules
from lamina.lower.to_loops import lower
from lamina.schedule.fuse import fuse
from lamina.schedule.plan import make_plan
from lamina.tuning.kernels import memory, moved_bytes
from tests.codegen.triton.compiling import compiled
from tests.codegen.triton.test_plans import SMALL, run
from tests.lower.torch_private import traced


def forward(x, residual):
    total = x + residual
    return total, row_digest(total)


def backward(x, residual, digest, seen, gradient):
    total = unless_changed(seen, digest, x + residual).float()
    scale = torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-6)
    wide = gradient.float()
    dot = (wide * total).mean(-1, keepdim=True)
    return (scale * (wide - total * scale * scale * dot)).to(x.dtype), (wide * total * scale).sum(0)


@pytest.fixture(autouse=True)
def _as_for_a_gpu(monkeypatch):
    """Graphs of a CPU's tensors are lowered as those of a GPU's."""
    monkeypatch.setattr(row_digest_rules, "_on_gpu", lambda low, value: None)


def made(function, *arguments):
    """A plan for a GPU of eight processors."""
    return make_plan(fuse(lower(traced(function, arguments), "test")), SMALL)


def inputs(rows, columns, dtype, seed=0):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, columns, generator=g).to(dtype) for _ in range(3)]


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        *(((5, 300), torch.float16), ((5, 300), torch.float32)),
        *(((70, 256), torch.bfloat16), ((3, 40000), torch.bfloat16)),
    ],
)
def test_changed_rows_are_computed_again(shape, dtype, interpreter):
    x, residual, gradient = inputs(*shape, dtype)
    total, digest = run(made(forward, x, residual), interpreter, (x, residual))
    assert torch.allclose(total.double(), (x + residual).double(), rtol=2 * torch.finfo(dtype).eps)  # it truncates
    assert torch.equal(digest, row_digest(total))
    seen = total.clone()
    seen[1] = -seen[1]
    seen[2, 17] += 1
    arguments = (x, residual, digest, seen, gradient)
    found = run(made(backward, *arguments), interpreter, arguments)
    wanted = exact(x, residual, gradient)
    for mine, true in zip(found, wanted, strict=True):
        limit = 4 * torch.finfo(dtype).eps * true.abs().max() + 1e-5 * true.abs().max()
        assert (mine.double() - true).abs().max() <= limit


def exact(x, residual, gradient):
    total, wide = (x + residual).double(), gradient.double()
    scale = torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-6)
    dot = (wide * total).mean(-1, keepdim=True)
    return scale * (wide - total * scale * scale * dot), (wide * total * scale).sum(0)


def test_what_is_loaded_for_changed_rows_waits_in_a_branch(tmp_path):
    """Nothing of it is read ahead, and rows as they were cost one read."""
    x, residual, gradient = inputs(4096, 4096, torch.bfloat16)
    arguments = (x, residual, row_digest(x), x, gradient)
    plan = made(backward, *arguments)
    kernel = next(k for k in plan.kernels if len(k.dtypes) > 5)
    (nest,) = kernel.nests
    masked = [e for e in nest.body if isinstance(e, Load) and e.mask is not None]
    assert len(masked) == 2
    source = emit(kernel, SMALL)
    before, _, after = source.text.partition("if ")
    assert "mask=" not in before
    assert after.count("mask=") == 2
    assert compiled(source, tmp_path).asm["ptx"]


def test_kernels_are_timed_on_rows_as_they_were():
    """Their candidates would otherwise be judged by what they do when everything has changed."""
    x, residual, gradient = inputs(512, 1024, torch.bfloat16)
    plan = made(backward, x, residual, row_digest(x), x, gradient)
    call = next(step for step in plan.steps if len(step.buffers) > 5)
    kernel = next(k for k in plan.kernels if k.name == call.kernel)
    held = memory(call, kernel.nests, plan.buffer_map(), torch.Generator())
    assert not held[plan.inputs[3]].any(), "what was seen"
    assert torch.equal(row_digest(held[plan.inputs[3]]), held[plan.inputs[2]])
    assert held[plan.inputs[4]].any()
    dtypes = {f"b{k}": d for k, d in enumerate(kernel.dtypes)}
    moved = moved_bytes(kernel.nests, call, dtypes, plan.buffer_map())
    assert 3 * x.nbytes < moved < 4 * x.nbytes


def test_choices_by_element_load_both(tmp_path):
    def function(x, y):
        return torch.where(x > x.mean(-1, keepdim=True), x, y)

    x, y, _ = inputs(64, 512, torch.float32)
    (kernel,) = made(function, x, y).kernels
    assert not [e for nest in kernel.nests for e in nest.body if isinstance(e, Load) and e.mask is not None]


def test_a_choice_within_another_s_rare_branch(interpreter):
    def function(x, y, z):
        def positive(rows):
            return rows.sum(-1, keepdim=True) > 0

        return torch.where(positive(x), x, torch.where(positive(y), y, z))

    arguments = inputs(300, 512, torch.float32)
    (found,) = run(made(function, *arguments), interpreter, tuple(arguments))
    assert torch.equal(found, function(*arguments))
