"""Writes whose operand lies in the memory of their target: computed, or refused, where eager does so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import lamina
from lamina.base.aliasing import is_elementwise
from tests.ops.torch_private import operators

Views = Callable[[Tensor], tuple[Tensor, Tensor]]
I = torch.tensor([0, 2, 1, 3])  # noqa: E741 - indices
MASK = torch.tensor([True, False, True, True])
ONES = torch.ones(4, 4)

WRITES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "add_": lambda t, s: t.add_(s),
    "addmm_": lambda t, s: t.unsqueeze(0).addmm_(s[None], ONES),
    "addmv_": lambda t, s: t.addmv_(ONES, s),
    "clamp_": lambda t, s: t.clamp_(s, s),
    "copy_": lambda t, s: t.copy_(s),
    "fill_": lambda t, s: t.fill_(s[1]),
    "index_add_": lambda t, s: t.index_add_(0, I, s),
    "index_copy_": lambda t, s: t.index_copy_(0, I, s),
    "index_fill_": lambda t, s: t.index_fill_(0, I, s[0]),
    "index_put_": lambda t, s: t.index_put_((I,), s),
    "index_put_ that adds": lambda t, s: t.index_put_((I,), s, accumulate=True),
    "lerp_": lambda t, s: t.lerp_(s, s),
    "masked_fill_": lambda t, s: t.masked_fill_(MASK, s[0]),
    "masked_scatter_": lambda t, s: t.masked_scatter_(MASK, s),
    "put_": lambda t, s: t.put_(I, s),
    "scatter_": lambda t, s: t.scatter_(0, I, s),
    "scatter_add_": lambda t, s: t.scatter_add_(0, I, s),
    "t[i] = s": lambda t, s: t.__setitem__(I, s),
    "t[1:] = s[:-1]": lambda t, s: t[1:].copy_(s[:-1]),
    "add(out=)": lambda t, s: torch.add(t, s, out=t),
    "cat(out=)": lambda t, s: torch.cat([s[:2], s[2:]], out=t),
    "cumsum(out=)": lambda t, s: torch.cumsum(s, 0, out=t),
    "gather(out=)": lambda t, s: torch.gather(s, 0, I, out=t),
}
VIEWS: dict[str, Views] = {
    "itself": lambda b: (t := b[:4], t),
    "all of it": lambda b: (b[:4], b[:4].view(2, 2).view(4)),
    "one further": lambda b: (b[:4], b[1:5]),
    "one before": lambda b: (b[1:5], b[:4]),
    "another step": lambda b: (b[:4], b[:8:2]),
    "beside it": lambda b: (b[:4], b[4:8]),
    "every second": lambda b: (b[:8:2], b[:8:2]),
    "the others": lambda b: (b[:8:2], b[1:9:2]),
    "every second, one further": lambda b: (b[:8:2], b[2:10:2]),
    "every second, one before": lambda b: (b[2:10:2], b[:8:2]),
}


def _programs(write: Callable[..., Any], views: Views) -> Iterator[tuple[Callable[..., Any], Callable[..., Any]]]:
    """Programs with what makes their arguments from a tensor."""

    def within(b: Tensor) -> Tensor:
        write(*views(b))
        return b * 1

    def handled(b: Tensor) -> Tensor:
        t, s = views(b)
        t.mul_(1)
        try:
            write(t, s)
        except RuntimeError:
            return b * 2
        return b * 1

    def given(t: Tensor, s: Tensor) -> Tensor:
        write(t, s)
        return t * 1

    def given_and_handled(t: Tensor, s: Tensor) -> Tensor:
        try:
            write(t, s)
        except RuntimeError:
            return t * 2
        return t * 1

    def noted(b: Tensor, notes: list[str]) -> Tensor:
        b.add_(1)
        write(*views(b))
        notes.append("written")
        return b * 1

    yield within, lambda b: (b,)
    yield handled, lambda b: (b,)
    yield given, views
    yield given_and_handled, views
    yield noted, lambda b: (b, [])


def _outcome(program: Callable[..., Any], make: Callable[..., Any]) -> tuple[Any, ...]:
    base = torch.arange(1.0, 13)
    arguments = make(base)
    try:
        found: Any = program(*arguments).tolist()
    except RuntimeError as error:
        found = str(error).partition("\n")[0]
    return found, base.tolist(), arguments[-1] if isinstance(arguments[-1], list) else None


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_own_front_end(write: Callable[..., Any]) -> None:
    for name, views in VIEWS.items():
        for program, make in _programs(write, views):
            wanted = _outcome(program, make)
            compiled = lamina.compile(program, backend="eager", options={"capture": "own"})
            for _ in range(2):
                assert _outcome(compiled, make) == wanted, (name, program.__name__)


@pytest.mark.parametrize("write", ["index_copy_", "masked_scatter_", "put_", "add_", "t[i] = s", "cat(out=)", "addmm_"])
def test_dynamo(write: str) -> None:
    for name in ("itself", "all of it", "one before", "every second"):
        for program, make in [*_programs(WRITES[write], VIEWS[name])][:3]:
            torch.compiler.reset()
            wanted = _outcome(program, make)
            compiled = lamina.compile(program, backend="interp")
            for _ in range(2):
                assert _outcome(compiled, make) == wanted, (name, program.__name__)


def test_calls_taken_for_elementwise_read_no_element_elsewhere() -> None:
    tried = set()
    for operator in operators().values():
        write = operator.inplace_variant
        name = getattr(write, "__name__", "")
        if write is None or not is_elementwise(name) or torch.float64 not in operator.supported_dtypes("cpu"):
            continue
        for sample in operator.sample_inputs("cpu", torch.float64, requires_grad=False):
            target, (args, kwargs) = sample.input, (list(sample.args), sample.kwargs)
            for k, operand in enumerate(args):
                if not isinstance(operand, Tensor) or operand.shape != target.shape or operand.dtype != target.dtype:
                    continue
                one, other = target.clone(), target.clone()
                try:
                    write(other, *args[:k], target, *args[k + 1 :], **kwargs)
                except RuntimeError:  # of another shape than the result
                    continue
                write(one, *args[:k], one, *args[k + 1 :], **kwargs)
                torch.testing.assert_close(one, other, equal_nan=True, rtol=0, atol=0, msg=name)
                tried.add(name)
    assert {"add_", "lerp_", "addcmul_", "clamp_"} <= tried
    assert len(tried) > 20


@pytest.mark.parametrize("capture", ["dynamo", "own"])
def test_parts_of_one_storage_have_one_version(capture: str) -> None:
    def program(a: Tensor, b: Tensor, w: Tensor) -> Tensor:
        y = (b * w).sum()
        a.add_(1)
        return y

    torch.compiler.reset()
    compiled = lamina.compile(program, backend="interp", options={"capture": capture})
    for parts in (False, True, False):
        base, w = torch.arange(8.0).view(2, 4), torch.ones(4, requires_grad=True)
        a, b = base if parts else base.clone(), base
        loss = compiled(a[0], b[1], w)
        if parts:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()
        else:
            loss.backward()
            assert w.grad is not None
            assert w.grad.tolist() == [4, 5, 6, 7]
        assert a[0].tolist() == [1, 2, 3, 4]
