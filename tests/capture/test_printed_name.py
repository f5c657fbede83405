"""A compiled function says that it is compiled when it is printed, and stays the function that it was to all else."""

import copy
import functools
import gc
import inspect
import pickle
import subprocess
import weakref
from types import FunctionType

import pytest
import torch

import lamina
from tests.processes import python

CAPTURES = ("dynamo", "own")
by_capture = pytest.mark.parametrize("capture", CAPTURES)


def _doubled(x: torch.Tensor, times: int = 1) -> torch.Tensor:
    """Twice as much."""
    return x * 2 * times


def _of(function, name):
    """``function`` as a function whose qualified name is ``name``."""
    function.__name__, function.__qualname__ = name.rpartition(".")[2], name
    return function


@lamina.compile(options={"capture": "dynamo"})
def by_dynamo(x):
    return x + 1


@lamina.compile(options={"capture": "own"})
def by_own(x):
    return x + 1


@torch.no_grad()
@lamina.compile
def decorated_again(x):
    return x + 1


class Model:
    @lamina.compile(options={"capture": "dynamo"})
    def by_dynamo(self, x):
        return x + 1

    @lamina.compile(options={"capture": "own"})
    def by_own(self, x):
        return x + 1

    @staticmethod
    @lamina.compile
    def static(x):
        return x + 1

    assigned = lamina.compile(_of(lambda self, x: x + 2, "Model.assigned"))


@by_capture
def test_its_text_says_so_and_names_it(capture):
    compiled = lamina.compile(_doubled, options={"capture": capture})
    assert str(compiled).startswith("<function _doubled.<compiled by Lamina>.call at ")
    assert repr(compiled) == str(compiled)
    assert "compiled" not in str(_doubled)
    assert "<compiled by Lamina>" in str(getattr(Model(), f"by_{capture}"))


@by_capture
@pytest.mark.parametrize("target", [lambda x: x + 1, functools.partial(_doubled, times=3), torch.sin])
def test_other_callables_say_so(target, capture):
    compiled = lamina.compile(target, options={"capture": capture})
    assert "<compiled by Lamina>" in str(compiled)
    assert torch.equal(compiled(torch.ones(3)), target(torch.ones(3)))


@by_capture
def test_it_is_named_once_when_it_is_compiled_twice(capture):
    compiled = lamina.compile(lamina.compile(_doubled, options={"capture": capture}), options={"capture": capture})
    assert str(compiled).count("<compiled by Lamina>") == 1


def test_what_is_not_compiled_does_not_say_so():
    assert lamina.compile(_doubled, disable=True) is _doubled
    assert _doubled.__qualname__ == "_doubled"


@by_capture
def test_it_is_the_function_that_it_was(capture):
    compiled = lamina.compile(_doubled, options={"capture": capture})
    assert isinstance(compiled, FunctionType)
    assert inspect.isfunction(compiled)
    assert (compiled.__name__, compiled.__doc__, compiled.__module__) == ("_doubled", "Twice as much.", __name__)
    assert compiled.__wrapped__ is _doubled
    assert inspect.signature(compiled) == inspect.signature(_doubled)
    assert inspect.getsource(compiled) == inspect.getsource(_doubled)
    assert copy.copy(compiled) is compiled
    assert copy.deepcopy([compiled])[0] is compiled


@by_capture
def test_its_name_keeps_nothing_alive(capture):
    gc.collect()
    gc.disable()
    try:
        compiled = lamina.compile(_of(lambda x: x + 1, "short_lived"), options={"capture": capture})
        gone = weakref.ref(compiled)
        del compiled
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("dumps", [pickle.dumps, pickle._dumps])
def test_it_is_pickled_by_its_name(protocol, dumps):
    held = [by_dynamo, by_own, decorated_again, Model.by_dynamo, Model.by_own, Model.static, Model.assigned]
    assert all(a is b for a, b in zip(pickle.loads(dumps(held, protocol)), held, strict=True))
    bound = pickle.loads(dumps(Model().by_own, protocol))
    assert bound.__func__ is Model.by_own


def test_another_process_reads_the_pickle(tmp_path):
    (tmp_path / "functions.py").write_text("import lamina\n@lamina.compile\ndef f(x):\n    return x + 1\n")
    write = "import functions, pickle, sys; sys.stdout.buffer.write(pickle.dumps(functions.f, 2))"
    read = "import pickle, sys; f = pickle.load(sys.stdin.buffer); print(f(1), f.__module__)"
    text = subprocess.run([*python(), "-c", write], cwd=tmp_path, capture_output=True, check=True).stdout
    told = subprocess.run([*python(), "-c", read], cwd=tmp_path, input=text, capture_output=True, check=True)
    assert told.stdout.split() == [b"2", b"functions"]


@by_capture
def test_one_that_is_not_what_its_name_says_is_not_pickled(capture):
    compiled = lamina.compile(_doubled, options={"capture": capture})  # _doubled is the name of what is not compiled
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(compiled)


@by_capture
def test_it_binds_its_object(capture):
    model = Model()
    assert torch.equal(getattr(model, f"by_{capture}")(torch.ones(3)), torch.full((3,), 2.0))
    assert torch.equal(model.assigned(torch.ones(3)), torch.full((3,), 3.0))
