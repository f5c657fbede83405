"""Programs whose Python state changes within or between calls: what each yields is compared with eager."""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import functools
import pickle
import threading
import typing
import weakref

import torch

from lamina.testing.fuzz import attempt, backward, pause, sample


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    k: int = 2
    extra: dict = dataclasses.field(default_factory=dict)


class Pair(typing.NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


@dataclasses.dataclass(frozen=True)
class Frozen:
    scale: float
    names: tuple[str, ...] = ()


FACTOR = 2
TABLE = {"a": 1.0}
LOG: list = []


def dataclasses_and_tuples(compile):
    def f(b, p):
        b.k += 1
        b.extra["sum"] = b.x.sum()
        b.x = b.x * b.k
        return Batch(b.x + 1, b.k), p._replace(left=p.right), dataclasses.replace(b, k=0).k

    g = compile(f)
    for k in (2, 3, 2):
        b = Batch(sample(3, 4, grad=True), k)
        out = attempt(g, b, Pair(sample(2), sample(2, seed=1)))
        if isinstance(out, Exception):
            yield out
            continue
        yield out[0].x, out[0].k, out[1], out[2], b.k, b.extra, b.x, type(out[1]).__name__


def generators_as_arguments(compile):
    def f(it, x):
        first = next(it)
        total = x * first
        for value in it:
            total = total + value
            if value > 3:
                break
        return total

    g = compile(f)
    for values in ([1, 2, 5, 7], [2, 9], [4]):
        it = iter(values)
        yield attempt(g, it, sample(3)), list(it)
        made = (v for v in values)
        yield attempt(g, made, sample(3)), list(made)
    yield attempt(g, iter([]), sample(3))
    yield attempt(g, zip([1, 2], [3, 4]), sample(3))
    z = map(float, ["1", "2", "x"])
    yield attempt(g, z, sample(3))
    yield list(attempt(g, enumerate([1]), sample(3))) if False else None


def globals_that_change(compile):
    global FACTOR
    FACTOR = 2

    def f(x):
        global FACTOR
        FACTOR += 1
        TABLE["b"] = TABLE.get("b", 0) + FACTOR
        LOG.append(FACTOR)
        return x * FACTOR + TABLE["a"]

    g = compile(f)
    TABLE.clear()
    TABLE["a"] = 1.0
    LOG.clear()
    for n in range(4):
        yield g(sample(3)), FACTOR, dict(TABLE), list(LOG)
        if n == 1:
            TABLE["a"] = -2.5
        if n == 2:
            FACTOR = -7


def closures_that_change(compile):
    k = 1
    cell = [0.5]

    def f(x):
        nonlocal k
        k = k * 2
        cell.append(cell[-1] + k)
        return x * k + cell[-1]

    g = compile(f)
    for n in range(4):
        yield g(sample(3)), k, list(cell)
        if n == 2:
            k = -1


def exceptions_after_writes(compile):
    log = []

    def f(x, d, n):
        x.add_(1)
        d["n"] = n
        log.append(n)
        if n > 2:
            raise ValueError(f"too many: {n}")
        x.mul_(2)
        return x[n] + 1

    g = compile(f)
    for n in (0, 3, 1, 5, 2):
        x, d = sample(3), {}
        out = attempt(g, x, d, n)
        yield out, x, d, list(log), str(out) if isinstance(out, Exception) else None


def finally_and_exceptions_inside(compile):
    def f(x, n):
        log = []
        try:
            log.append("try")
            if n == 0:
                raise KeyError("a")
            y = x / n
        except KeyError as e:
            log.append(str(e))
            y = x + 1
        else:
            log.append("else")
        finally:
            log.append("finally")
        with contextlib.suppress(IndexError):
            y = y + [1, 2][n]
        return y, log

    g = compile(f)
    for n in (0, 1, 2, 0, -3):
        yield attempt(g, sample(3), n)


def threads(compile):
    g = compile(lambda x, k: (x * k).cumsum(0))
    results = {}

    def work(n):
        with torch.no_grad() if n % 2 else contextlib.nullcontext():
            x = sample(4, seed=n, grad=True)
            results[n] = g(x, n)

    running = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for t in running:
        t.start()
    for t in running:
        t.join()
    yield [results[n] for n in sorted(results)]


def nested_compiled_functions(compile):
    inner = compile(lambda x, k: x.sin() * k)

    def f(x, n):
        y = x
        for k in range(n):
            y = inner(y, k + 1)
            pause()
        return y, [inner(y, -1).sum()]

    g = compile(f)
    for n in (1, 3, 0):
        x = sample(3, grad=True)
        out = g(x, n)
        yield out, backward(out), x.grad


def default_dtype(compile):
    def f(x):
        return torch.zeros(2) + 1, x * 1.5, torch.tensor(2.0), torch.arange(3) / 2, x.int() / 3

    g = compile(f)
    before = torch.get_default_dtype()
    try:
        for d in (torch.float32, torch.float64, torch.bfloat16, torch.float32):
            torch.set_default_dtype(d)
            yield g(sample(2, dtype=torch.float32))
    finally:
        torch.set_default_dtype(before)


def attributes_of_objects(compile):
    class Counter:
        total = 0

        def __init__(self):
            self.calls = []

        @property
        def last(self):
            return self.calls[-1]

        def __call__(self, x):
            self.calls.append(len(self.calls))
            type(self).total += 1
            return x * self.last

    c = Counter()
    g = compile(c)
    for _ in range(3):
        yield attempt(g, sample(3)), c.calls, Counter.total
    Counter.__call__ = lambda self, x: x - 100
    yield attempt(g, sample(3)), c.calls


def containers_of_many_kinds(compile):
    def f(d, s, dq):
        out = collections.OrderedDict()
        for k in sorted(d):
            out[k] = d[k] * len(s)
        dq.append(out["a"])
        dq.rotate(1)
        s.add(len(dq))
        c = collections.Counter("abca")
        dd = collections.defaultdict(list)
        dd[c["a"]].append(d["a"])
        return out, dict(dd), list(out), set(s)

    g = compile(f)
    for n in range(3):
        d = {"b": sample(2), "a": sample(2, seed=n)}
        s, dq = set(range(n)), collections.deque([1, 2], maxlen=3)
        out = attempt(g, d, s, dq)
        yield out if isinstance(out, Exception) else (dict(out[0]), *out[1:3]), sorted(s), list(dq), type(out).__name__


def partials_and_defaults(compile):
    def f(x, k=[], *args, scale=2, **kw):
        k.append(len(k))
        return x * scale + sum(args) + len(kw), k, args, kw

    g = compile(functools.partial(f, scale=3))
    h = compile(f)
    for n in range(3):
        yield g(sample(2)), g(sample(2), [5], 1, 2.5, z=n)
        yield h(sample(2)), h(x=sample(2), scale=n)
    f.__defaults__ = ([7],)
    yield attempt(h, sample(2))
    f.__kwdefaults__ = {"scale": -1}
    yield attempt(h, sample(2))


def weak_references_and_lifetimes(compile):
    g = compile(lambda x: (x + 1, x.sum()))
    x = sample(4, grad=True)
    out = g(x)
    ref = weakref.ref(out[0])
    xr = weakref.ref(x)
    del out
    yield ref() is None
    y = g(x)
    del x, y
    yield xr() is None


def identity_of_results(compile):
    def f(x, lst):
        y = x + 1
        lst.append(y)
        return y, y, [y], {"y": y}, lst, x, None, (), 3, "s", x.shape, x.dtype, x.device, slice(1, 2), range(3)

    g = compile(f)
    lst = []
    x = sample(2, 3)
    out = g(x, lst)
    yield out[:4], out[0] is out[1], out[0] is lst[0], out[4] is lst, out[5] is x
    yield out[6:], [type(o).__name__ for o in out]


def functions_that_return_functions(compile):
    def f(x, k):
        y = x * k

        def later(z):
            return y + z

        return later, lambda: y.sum(), functools.partial(later, x)

    g = compile(f)
    for k in (1, 2, 3):
        out = attempt(g, sample(3), k)
        yield out[0](sample(3, seed=1)), out[1](), out[2]()


def strings_and_formatting(compile):
    def f(x, name):
        text = f"{name}:{x.shape[0]}:{x.dtype}:{x.ndim:>3}"
        return x + len(text), text, name.upper().split(), name * 2, name < "m", hash(name) == hash(name)

    g = compile(f)
    for n, name in enumerate(["a b", "zz", "", "a b"]):
        yield g(sample(n + 1, 2), name)


def user_iterators_and_contexts(compile):
    class Count:
        def __init__(self, n):
            self.n = n

        def __iter__(self):
            return self

        def __next__(self):
            if self.n <= 0:
                raise StopIteration
            self.n -= 1
            return self.n

    @contextlib.contextmanager
    def scaled(log, k):
        log.append(k)
        try:
            yield k * 2
        except RuntimeError as e:
            log.append(str(e)[:5])
        finally:
            log.append(-k)

    def f(x, c, log):
        for v in c:
            with scaled(log, v) as k:
                x = x * k
                if v == 1:
                    raise RuntimeError("inside")
                x = x + 1
        return x

    g = compile(f)
    for n in (3, 1, 0, 4):
        c, log = Count(n), []
        yield attempt(g, sample(2), c, log), c.n, log


def pickled_results(compile):
    g = compile(lambda x: (x.t(), x[1:], x * 2))
    x = sample(3, 4)
    yield pickle.loads(pickle.dumps(g(x)))
    yield copy.deepcopy(g(x))
    y = sample(3, 4, grad=True)
    yield attempt(copy.deepcopy, g(y))
