"""Which of the library's algorithms for a product with GELU is called, if any: what the clock says, and why not."""

import contextlib
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph

from lamina.base.target import nvidia
from lamina.library_algorithms import clock, gelu_choice
from lamina.library_algorithms.cublas_lt import Refused
from lamina.library_algorithms.gelu_choice import GeluChoice
from lamina.library_algorithms.gelu_operations import addmm_gelu, mm_gelu_backward
from lamina.tuning.values import policy_of

TARGET = nvidia("NVIDIA H200", 132, 90, 4250.0, 62914560)


class Notes:
    """Winners in memory, where the cache has them on disk."""

    def __init__(self):
        self.notes = {}

    def note(self, name):
        return self.notes.get(name)

    def write_note(self, name, content):
        self.notes[name] = content

    def lock(self, stripe):
        return contextlib.nullcontext()


class Clocked(GeluChoice):
    """The real choice with times that are given: by label, or the error that comes up."""

    def __init__(self, notes, clock, told):
        super().__init__(0, TARGET, notes, policy_of("default"), told.append)
        self.clock, self.asked = clock, 0

    def _samplers(self, operation, values, summed):
        self.asked += 1
        assert type(torch.empty(1)) is torch.Tensor
        if isinstance(self.clock, Exception):
            raise self.clock
        return {label: self._sample(us) for label, us in self.clock.items()}

    @staticmethod
    def _sample(us):
        def sample(samples):
            if isinstance(us, Exception):
                raise us
            return [us] * samples

        return sample


@pytest.fixture(autouse=True)
def library(monkeypatch):
    """A library that is there."""
    monkeypatch.setattr(clock, "is_capturing", lambda: False)
    for module in (gelu_choice, clock):
        monkeypatch.setattr(module, "loaded", lambda device: SimpleNamespace(version=130100))


def node():
    return Graph().create_node("call_function", torch.mm, name="product")


def values(m=16384, k=2048, n=8192):
    """A bias and two operands of a product, or the operands and what GELU was applied to."""
    with torch.device("meta"):
        left, right, kept = (torch.empty(s, dtype=torch.bfloat16) for s in ((m, k), (k, n), (m, n)))
        return [kept[0], left, right], [left, right, kept]


def answer(clock, notes=None, operation=addmm_gelu, sizes=(), summed=False):
    told = []
    choice = Clocked(Notes() if notes is None else notes, clock, told)
    found = choice(node(), operation, values(*sizes)[operation is mm_gelu_backward], summed)
    (decision,) = told
    assert (decision.kind, decision.subject, decision.taken) == ("library epilogue", ("product",), found is not None)
    return found, decision, choice.asked


@pytest.mark.parametrize("operation", [addmm_gelu, mm_gelu_backward])
def test_the_fastest_is_taken(operation):
    times = {"product": 850.0, "algorithm 0": 790.0, "algorithm 1": 770.0, "algorithm 2": Refused("2 algorithms")}
    found, decision, _ = answer(times, operation=operation)
    assert found == 1
    assert dict(decision.facts) == {"product": 850.0, "algorithm 0": 790.0, "algorithm 1": 770.0}


def test_the_product_stays_where_nothing_is_clearly_faster():
    assert answer({"product": 850.0, "algorithm 0": 845.0})[0] is None
    assert answer({"product": 850.0, "algorithm 0": Refused("no algorithm")})[0] is None


def test_a_winner_is_remembered():
    notes, times = Notes(), {"product": 850.0, **{f"algorithm {k}": 800.0 - k for k in range(8)}}
    assert answer(times, notes)[::2] == (7, 1)
    assert answer(times, notes)[::2] == (7, 0)
    assert answer(times, notes, sizes=(8192, 4096, 8192))[::2] == (7, 1)
    assert answer(times, notes, operation=mm_gelu_backward)[::2] == (7, 1)
    assert answer(times, notes, operation=mm_gelu_backward, summed=True)[::2] == (7, 1)


def test_what_is_not_asked(monkeypatch):
    times = {"product": 850.0, "algorithm 0": 1.0}
    found, decision, asked = answer(times, sizes=(8192, 768, 3072))
    assert (found, asked) == (None, 0)
    assert "small" in decision.reason

    def missing(device):
        raise Refused("libcublasLt.so.13 is not loaded")

    for module in (gelu_choice, clock):
        monkeypatch.setattr(module, "loaded", missing)
    found, decision, asked = answer(times)
    assert (found, asked) == (None, 0)
    assert "is not loaded" in decision.reason
    monkeypatch.setattr(clock, "is_capturing", lambda: True)
    assert "recording" in answer(times)[1].reason
    torch.use_deterministic_algorithms(True)
    try:
        assert "deterministic" in answer(times)[1].reason
    finally:
        torch.use_deterministic_algorithms(False)


def test_operands_are_real_where_torch_traces():
    """As AOTAutograd does around the compiler: a fake tensor's address is zero."""
    with FakeTensorMode():
        found, decision, asked = answer({"product": 850.0, "algorithm 0": 790.0})
    assert (found, asked) == (0, 1), decision.reason


def test_memory_that_is_not_free():
    found, decision, _ = answer(torch.OutOfMemoryError("900 MiB of scratch memory"))
    assert found is None
    assert "900 MiB" in decision.reason
