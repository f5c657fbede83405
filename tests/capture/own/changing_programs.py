"""Random programs that read a small world, and random changes of that world between calls: own front end against eager.

``python -m tests.capture.own.changing_programs FIRST COUNT [stored] [counting | protocols]`` prints what differs.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from lamina.artefacts.constants import Unstorable
from lamina.artefacts.documents import Stored, written_driver
from lamina.capture.own.callable import interpreted_callable
from lamina.capture.own.guards.library import Library
from lamina.capture.own.reuse.driver import Driver
from lamina.capture.own.reuse.versions import Versions
from lamina.record import Record
from tests.capture.own.machines import guard_machine, no_machine

__all__ = ["Outcome", "counting", "difference", "protocols", "stored_difference"]

sys.modules.setdefault("world", ModuleType("world"))  # where data classes look for what is of theirs

WORLD = """
import abc
import enum
import functools
import inspect
import io
import math
from collections import OrderedDict
from dataclasses import dataclass, fields
import torch
from torch import nn
NUMBER = 2
REAL = 0.5
TEXT = "aa"
LIST = [1, 2.0, 3]
OTHER_LIST = [1]
DICT = {"a": 1, "b": 2.0}
OTHER_DICT = {"n": 0}
NESTED = {"w": [1, [2, 3]], "t": (1, 2)}
TENSOR = torch.arange(4.0)
COUNT = 0
def helper(x, k=2, *, j=1): return x * k + j
def replacement(x, k=3, *, j=2): return x - k * j
def keeper(value):
    def kept(x):
        return x * value
    def keep(new):
        nonlocal value
        value = new
    return kept, keep
kept, keep = keeper(3)
def counter():
    n = 0
    def count(x):
        nonlocal n
        n += 1
        return x + n % 2
    return count
counting = counter()
class Base:
    k = 2
    def method(self, x): return x + self.k
    @property
    def prop(self): return self.v * 2
    @staticmethod
    def static(x): return x - 1
    @classmethod
    def of_class(cls, x): return x * cls.k
class Thing(Base):
    def __init__(self, v): self.v, self.n, self.items = v, 0, [1, 2]
    def __call__(self, x): return x * self.v
    def __len__(self): return 3
    def __bool__(self): return self.v > 1
    def __getitem__(self, key): return self.items[key]
    def __iter__(self): return iter(self.items)
class Cousin(Base):
    def method(self, x): return x * 5
    def __call__(self, x): return x - self.v
class Slotted:
    __slots__ = ("s",)
class Dynamic:
    def __getattr__(self, name):
        if name.startswith("z"): return self.base + 1
        raise AttributeError(name)
thing, other, same = Thing(2), Thing(3), None
slotted = Slotted(); slotted.s = 2
dynamic = Dynamic(); dynamic.base = 1
class Net(nn.Module):
    scale = 2
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Tanh())
        self.n, self.flag, self.extra = 0, True, {"k": 1}
        self.register_buffer("held", torch.ones(4))
    def forward(self, x):
        x = self.b(self.a(x.float())) * self.scale
        if self.training: x = x + 1
        return x + self.held if self.held is not None else x
net = Net().eval()
norm = nn.BatchNorm1d(4)
VIEW = TENSOR[1:3]
BUFFER = torch.zeros(2, 4)
out = io.StringIO()
part = functools.partial(helper, k=3)
@dataclass
class Pair:
    one: object
    two: object = 2
    @property
    def sum(self): return self.one + self.two
class Hooked:
    factor = 3
    def __init__(self): self.h = 2
    def __getattribute__(self, name):
        spec = super().__getattribute__("__dict__").get("spec")
        if spec is not None and name in spec: return 7
        return super().__getattribute__(name)
class Fallback(Hooked):
    def __getattr__(self, name):
        if name.startswith("z"): return self.h + 1
        raise AttributeError(name)
hooked, fallback = Hooked(), Fallback()
class Registry(dict):
    def __setitem__(self, key, value): super().__setitem__(str(key), value)
    def get(self, key): return super().get(str(key)) or {}
registry = Registry(); registry["a"] = {"v": 2}
@dataclass
class Output(OrderedDict):
    first: object = None
    second: object = None
    def __post_init__(self):
        for field in fields(self):
            value = self.__dict__.get(field.name)
            if value is not None: self[field.name] = value
    def __setattr__(self, name, value):
        if name in {field.name for field in fields(self)} and value is not None: super().__setitem__(name, value)
        super().__setattr__(name, value)
    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(key, value)
    def __getitem__(self, key): return dict(self.items())[key] if isinstance(key, str) else self.to_tuple()[key]
    def to_tuple(self): return tuple(self[key] for key in self.keys())
@functools.lru_cache
def remembered(n, k=1):
    noted.append(("asked", n, k))
    return n * 2 + k + REAL
@functools.lru_cache(1)
def small(n):
    noted.append(("small", n))
    return n + 1
class Logger:
    @functools.lru_cache(None)
    def once(self, text): noted.append(text)
logger = Logger()
class Kind(enum.Enum): A, B = 1, 2
class Countable(abc.ABC): pass
class Walk:
    def __init__(self, n): self.n = n
    def __iter__(self):
        for at in range(self.n): yield at + 1
walk = Walk(2)
code, info, limits = helper.__code__, torch.finfo(torch.float32), {"i": torch.iinfo(torch.int8)}
@functools.lru_cache
def refusing(n):
    noted.append(("refused", n))
    if REAL < 1: raise ValueError(n)
    return n
"""

READS = """
x = x * NUMBER
x = x + REAL
x = x * len(TEXT)
x = x * LIST[1]
x = x * LIST[-1]
x = x * len(LIST)
for v in LIST: x = x + v
x = x + sum([v * 2 for v in LIST])
x = x * DICT["a"]
x = x * DICT.get("q", 3)
for k, v in DICT.items(): x = x * 2 + v
for v in DICT.values(): x = x * 3 + v
x = x + 1 if "q" in DICT else x * 3
x = x * NESTED["w"][1][0]
x = x * NESTED["t"][1]
x = x + TENSOR
x = x + TENSOR.sum()
x = helper(x)
x = helper(x, 4)
x = helper(x, j=NUMBER)
x = kept(x)
x = x * thing.k
x = x * Thing.k
x = thing.method(x)
x = x + thing.prop
x = thing(x)
x = Thing.static(x)
x = Thing.of_class(x)
x = x * getattr(thing, "late", 2)
x = x * 2 if hasattr(thing, "late") else x * 7
x = x + thing[0]
for v in thing: x = x + v
x = x * 2 if thing else x - 1
x = x * 2 if thing is other else x * 3
x = x * 2 if thing is same else x + 3
x = x * 2 if LIST is OTHER_LIST else x + 3
x = x * 2 if isinstance(thing, Thing) else x - 5
x = x * slotted.s
x = x * dynamic.zero
x = net(x)
x = net.a(x.float())
x = x * net.scale
x = x + net.extra["k"]
x = x + 2 if net.flag else x
x = x.float() @ net.a.weight
x = x * a
x = torch.full_like(x, a) + x
x = x - a if a > 1 else x / (a + 3)
x = x * (a * 0.5 + REAL)
x = x.clamp(min=REAL) + torch.tensor([a])
x = x * {1: 2, 0.5: 3}.get(REAL, 4)
x = x + LIST.count(a)
x = x + REAL ** 2 - abs(a) + round(REAL)
x = x + 1 if a in (2, 0.7) else x
x = x.lerp(y.to(x.dtype), REAL)
x = x.to(torch.bfloat16) * REAL
x = x + 2 if a is REAL else x
x = x + thing.real if hasattr(thing, "real") else x
thing.real = a * 2
OTHER_LIST.append(a)
OTHER_DICT[a] = REAL
x = x * d["k"]
for k in d: x = x + d[k]
for v in l: x = x * 2 + v
x = x + len(l)
x = x * x.shape[0]
x = x * 2 if x.requires_grad else x * 3
x = x.relu() if torch.is_grad_enabled() else x.sin()
x = x.to(torch.get_default_dtype())
x = x + torch.ones(4)
x, y = x * 2, x + 1
x = x + y
x = x * 2 if y is x else x + 1
with torch.no_grad(): x = x + x.cos()
try: x = x * DICT["missing"]
except KeyError: x = x - 2
try: x = x * thing.missing
except AttributeError: x = x - 3
x = (lambda t: t * REAL)(x)
x = [t + NUMBER for t in (x, y)][0]
x = x + TENSOR if TENSOR is y else x - TENSOR
x = helper(*(x, NUMBER), **{"j": 3})
x = helper(x, *LIST[:1])
x = x + max(NUMBER, 3)
x = torch.where(x > REAL, x, x * 2)
x = x.sum(0, keepdim=True) + x
x = torch.nn.functional.gelu(x)
x = torch.cat([x, x + 1])[:4]
x = x + bag[0]
x = x + VIEW.sum()
x = x + BUFFER[0]
x = x * 2 if x.sum() > NUMBER else x + 7
x = x - 1 if torch.isnan(x).any() else x + 2
x = x + int(x.max())
x = x * float(TENSOR.sum())
x = x * TENSOR.sum().item()
for v in TENSOR.tolist(): x = x + v
while x.abs().sum() < 40: x = x * 2 + 1
for k in range(9): x = x * 2 + 1; y = y + 1 if bool(x.sum() > 50) else y - 1
x = x + (3 if not TENSOR.any() else 4)
x = x + 2 if x.max() > 3 and y.min() < 9 else x - 4
x = x[x > 1].sum() + y
x = part(x)
x = functools.partial(helper, j=NUMBER)(x)
x = Pair(x).sum
x = x + Pair(NUMBER, two=3).sum
x = x * math.sqrt(NUMBER)
x = x + sum(v in {2, 5} for v in LIST)
x = x * len({thing, other})
x = x * (3 if thing in {other} else 5)
x = x + sum(p.sum() for p in net.parameters())
""".strip().splitlines()

WRITES = """
thing.n += 1
thing.last = x
x = x + thing.n % 2
OTHER_LIST.append(NUMBER)
OTHER_DICT["n"] = NUMBER
OTHER_DICT["x"] = x
LIST[0] = NUMBER
DICT["b"] = REAL
DICT["q"] = 4
thing.k = NUMBER
thing.items = [NUMBER, 2]
global COUNT; COUNT = COUNT + 1
x = x * (COUNT % 2 + 1)
net.n += 1
l.append(1)
d["new"] = a
d["k"] = a
x = counting(x)
thing.late = 3
net.extra["k"] = NUMBER
thing.held = (x, [y], {"z": NUMBER})
x = x * 2 if OTHER_LIST[-1] == 2 else x + 2
if x.sum().item() > 0: x = x - 1
noted.append(NUMBER)
bag = [x, y]; bag.append(x); thing.bag = bag
TENSOR.add_(1)
TENSOR[1] = NUMBER
TENSOR[1:] = x[1:].detach()
VIEW.mul_(2)
BUFFER[a] = 3
BUFFER[1:].add_(TENSOR)
given.mul_(2)
given = nn.functional.relu(given, inplace=True)
with torch.no_grad(): net.a.weight.mul_(0.5)
x = norm(torch.stack([x.float(), y.float()]))[0]
TENSOR.data.mul_(2)
noted.append(x.sum().item())
thing.n = int(x.detach().abs().sum())
thing.real = float(y.sum())
OTHER_DICT["v"] = bool(x.sum() > 3)
thing.pair = Pair(x, two=[y])
thing.part = functools.partial(helper, k=NUMBER)
y = y + torch.rand(4) * 0
print(NUMBER, file=out)
print(x.sum().item(), thing.n, file=out)
""".strip().splitlines()

OVERLAPPING = """
VIEW.mul_(TENSOR[:2])
TENSOR[1:].add_(TENSOR[:-1])
BUFFER[0].add_(TENSOR)
given.mul_(TENSOR)
""".strip().splitlines()
"""Writes to what may be memory that they read, which eager refuses then; drawn apart, so that all else stays."""

NUMBERS = """
x = x * 2 if NUMBER % 3 == 0 else x + NUMBER
x = x * (1 - 0.9 ** NUMBER)
x = x * min(NUMBER, 5) / max(a, 2)
x = x + torch.tensor(NUMBER) - torch.tensor(REAL)
x = x + torch.tensor(a, dtype=torch.float64)
x = (x.long() + NUMBER) * a
x = x + x[: abs(int(a)) % 3 + 1].sum()
x = x + ((NUMBER << 1) // 3) - (int(NUMBER) & 5)
x = x + sum(LIST) - max(LIST)
x = x - sum([v for v in DICT.values() if type(v) is int])
x = x / NUMBER if NUMBER else x
x = x + (1 / NUMBER if NUMBER > 0.5 else NUMBER)
x = x + [5, 6, 7][int(NUMBER) % 3]
x = x * thing.v - thing.v * 2
x = x + (thing.v if thing.v > thing.k else thing.k)
x = x + round(REAL, 1) + math.floor(a)
l.insert(int(a) % 2, NUMBER); x = x + l[0]
x = x + len(range(int(NUMBER) % 4)) + sum(i for i, v in enumerate(l, start=int(a)))
x = x + (2 if isinstance(NUMBER, int) else 3) + x.size(int(NUMBER) % 1)
x = x + COUNT + float(COUNT) * 0.5
thing.n = NUMBER * 2 + 1
TENSOR.add_(NUMBER)
x = helper(x, k=a, j=NUMBER)
x = x + norm.num_batches_tracked + NUMBER
x = x - (lambda k: k * k)(COUNT)
x = x + {2: 3}.get(NUMBER, a)
""".strip().splitlines()
FAILING = """
try: x = x + 1 / (NUMBER - 3)
except ZeroDivisionError: x = x - 2
""".strip().splitlines()
"""What reads numbers that are others in each step, drawn apart."""
COUNTED = """
w.NUMBER = w.NUMBER + 1
w.REAL = w.REAL + 0.25
w.LIST[1] = w.LIST[1] + 1
w.DICT["a"] = w.DICT["a"] + 1
w.DICT["b"] = w.DICT["b"] * 2
w.thing.v = w.thing.v + 1
w.Base.k = w.Base.k + 1
w.COUNT = w.COUNT + 1
w.net.scale = w.net.scale + 1
w.slotted.s = w.slotted.s + 1
w.keep(r.randint(-9, 300))
w.NUMBER = r.randint(-3, 400)
w.NUMBER = r.choice((r.random() * 4, 3, 2**70, r.randint(-9, 9)))
""".strip().splitlines()

PROTOCOLS = """
x = x * hooked.h
x = x + hooked.factor
x = x + getattr(hooked, "late", 2)
x = x * fallback.zed
x = x * 2 if hasattr(fallback, "late") else x + 5
hooked.h = NUMBER
fallback.late = x
x = x + registry.get("a").get("v", 1)
x = x + len(registry.get("b"))
x = x * 2 if "a" in registry else x * 3
registry["c"] = {"v": NUMBER}
registry["x"] = x
x = x * 2 if registry else x - 1
made = Registry(); made[NUMBER] = x; x = x + len(made) + made.get(NUMBER)
made = Output(first=x, second=None); x = made["first"] * len(made) + made.first
made = Output(first=x, second=y); x = made.to_tuple()[1] + made[0]
for key, value in Output(first=x, second=y).items(): x = x + value * len(key)
x = x + sum(Output(first=x, second=y).values())
y = Output(first=x, second=y)["second"]
thing.made = Output(first=x)
x = x * remembered(2)
x = x * remembered(NUMBER)
x = x * remembered(2, k=a)
x = x * small(2) + small(3)
x = x * small(NUMBER)
x = x * (2 if isinstance(hooked, (Countable, Thing)) else 3)
x = x * len(str(inspect.signature(helper).return_annotation))
x = x * sum(v for v in (noted.append(v) or v for v in (1, REAL, 2)))
logger.once("text")
logger.once(TEXT)
x = x + torch.finfo(torch.get_default_dtype()).eps
x = x * Kind(1).value
x = x * (2 if Kind(DICT["a"]) is Kind.A else 3)
x = x * len(Kind.B.name)
x = x * (2 if isinstance(thing, Countable) else 3)
x = x * (2 if isinstance(Pair(1), Countable) else 3)
x = x * (2 if callable(thing) else 3)
x = x * (2 if callable(helper) and callable(print) else 3)
x = x * len(inspect.signature(helper).parameters)
x = x * (2 if "k" in set(inspect.signature(helper).parameters) else 3)
x = x * len(helper.__code__.co_varnames) + len(helper.__name__)
x = x + len(str(Thing)) + len(Thing.__name__)
for u, v in zip(thing, LIST): x = x * u + v
for u, v in enumerate(walk): x = x + u * v
for v in map(helper, walk): x = x + v
x = x + 1 if all(v for v in thing) else x - 1
x = x + 1 if any(v > 2 for v in LIST) else x - 1
x = x + max(v + 1 for v in walk)
x = x + len({v for v in thing})
import math as m; x = x * m.floor(REAL + 2)
from collections import abc as base; x = x * (2 if isinstance(LIST, base.Sequence) else 3)
x = x * 2 if torch.compiler.is_compiling() else x * 2
x = x * getattr(x, "jax", 3)
x = x * 2 if hasattr(TENSOR, "marked") else x * 3
x = x + TENSOR.relu()
made = functools.partial(helper, k=NUMBER); x = made(x, j=2)
x = part(x)
x = x + getattr(None, "late", 4)
made = nn.ModuleList([net.a]); made += [net.b]; x = made[0](x.float())
x = x * dict.fromkeys(range(3), 2)[1]
x = dict({"n": x}.items())["n"] * 2
found, places = x.topk(2); x = x + found.sum()
x = x * len(thing) + len(walk.__dict__)
x = x * len(code.co_varnames)
x = x + info.bits + limits["i"].max
thing.code = helper.__code__; x = x + len(thing.code.co_name)
try: x = x + refusing(2)
except ValueError: x = x - 1
""".strip().splitlines()
"""What asks objects by ways that are the program's own, drawn apart."""
OF_PROTOCOLS = """
w.hooked.__dict__["spec"] = r.choice((("h",), ("factor", "late"), None))
w.Hooked.__getattribute__ = object.__getattribute__
w.Hooked.__getattribute__ = lambda self, name: object.__getattribute__(self, name)
w.Hooked.factor = r.choice((3, 4))
w.hooked.__dict__["late"] = r.choice((1, 2))
w.hooked.h = r.choice((2, 5))
w.hooked = w.Hooked()
w.hooked = w.fallback
w.fallback.__dict__.pop("late", None)
w.fallback.h = r.choice((1, 2))
w.Fallback.__getattr__ = lambda self, name: 9
w.registry["a"] = {"v": r.choice((2, 3))}
w.registry.clear()
w.registry = w.Registry()
dict.__setitem__(w.registry, "b", {"v": 1, "w": 2})
w.Registry.get = lambda self, key: {"v": 4}
w.Registry.__contains__ = lambda self, key: False
w.Registry.__missing__ = lambda self, key: {}
w.Registry.__len__ = lambda self: 0
w.remembered.cache_clear()
w.small.cache_clear()
w.helper.__annotations__["return"] = r.choice(("a", "bbb"))
w.Countable.register(w.Hooked)
w.remembered = w.functools.lru_cache(lambda n, k=2: n - k)
w.remembered = lambda n, k=2: n + k
w.Logger.once.cache_clear()
w.logger = w.Logger()
w.Logger.__eq__ = lambda self, other: True
w.Countable.register(w.Thing)
w.Countable.register(w.Pair)
w.Thing.__name__ = r.choice(("Thing", "Other"))
w.Thing.__qualname__ = r.choice(("Thing", "Others"))
w.Thing.__module__ = r.choice(("world", "elsewhere"))
w.Kind.B.extra = 1
w.Kind = w.enum.Enum("Kind", {"B": 1, "AAA": 2})
w.TENSOR.marked = r.choice((True, 2))
w.TENSOR.relu = lambda: 5
w.walk.n = r.choice((1, 2, 3))
w.Walk.__iter__ = lambda self: iter([4, 4])
w.Output.to_tuple = lambda self: (5, 6)
w.Output.__getitem__ = lambda self, key: 3
w.Output.__post_init__ = lambda self: None
w.Output.first = r.choice((None, 3))
w.torch.set_default_dtype(w.torch.float32)
w.thing.v = r.choice((0, 1))
w.thing.items[0] = r.choice((0, 3))
w.LIST[1] = r.choice((2, 7))
w.DICT["a"] = r.choice((1, 2))
w.NUMBER = r.choice((2, 3, True, 1))
w.REAL = r.choice((0.5, 1.5))
w.helper.__code__ = w.replacement.__code__
w.helper = w.replacement
w.helper.__wrapped__ = lambda: None
w.helper.__signature__ = w.inspect.signature(lambda p, q: None)
w.helper.__name__ = r.choice(("helper", "other"))
w.part = w.functools.partial(w.replacement, k=3)
w.part.keywords["k"] = r.choice((2, 7))
w.Thing.__call__ = lambda self, x: x * 11
w.thing.__class__ = w.Cousin
w.Thing.__len__ = lambda self: 5
w.math = None
w.code = r.choice((w.helper, w.replacement, w.keeper)).__code__
w.info = w.torch.finfo(r.choice((w.torch.float32, w.torch.float64)))
w.limits["i"] = w.torch.iinfo(r.choice((w.torch.int8, w.torch.int32)))
w.refusing.cache_clear()
w.net.a = w.nn.Linear(4, 4)
""".strip().splitlines()

RESULTS = (
    "x",
    "(x, y)",
    "[x, a]",
    "{'x': x, 'n': NUMBER}",
    "(x, thing)",
    "(x, l, d)",
    "y if thing else x",
    "(thing.prop, x)",
    "(x, x.sum().item(), [float(y.sum()), int(x.sum())])",
    "Pair(x, y)",
    "(TENSOR, x, given)",
    "(x, a, REAL, {'a': a * 2, 'r': [REAL + 1]})",
)

CHANGES = """
w.NUMBER = r.choice((2, 3, True, 2.0, 1))
w.REAL = r.choice((0.5, 0.0, -0.0, float("nan"), 1))
w.REAL = r.choice((r.random(), r.random(), -r.random(), 0.5))
w.thing.v = r.choice((r.random() * 4, r.random(), 2.0))
w.DICT["b"] = r.random()
w.LIST[1] = r.random() * 3
w.TEXT = r.choice(("aa", "bbb"))
w.LIST.append(r.choice((1, 2)))
w.LIST.pop() if len(w.LIST) > 2 else None
w.LIST[1] = r.choice((2, 2.0, 5, True))
w.LIST.reverse()
w.LIST = list(w.LIST)
w.LIST = w.OTHER_LIST
w.OTHER_LIST = w.LIST
w.DICT["q"] = r.choice((1, 4))
w.DICT.pop("q", None)
w.DICT["a"] = r.choice((1, 7, 1.0, True))
w.DICT.update(b=w.DICT.pop("b"))
w.DICT = dict(reversed(w.DICT.items()))
w.DICT["missing"] = 2
w.DICT = w.OTHER_DICT = {"a": 1, "b": 2, "n": 0}
w.NESTED["w"][1][0] = r.choice((2, 9))
w.NESTED["w"] = [1, [r.choice((2, 4)), 3]]
w.NESTED["t"] = (1, r.choice((2, 3)))
w.TENSOR = w.torch.arange(4.0) * 2
w.TENSOR.mul_(2)
w.TENSOR = w.TENSOR.double()
w.TENSOR = w.torch.ones(1)
w.TENSOR.requires_grad_(not w.TENSOR.requires_grad) if w.TENSOR.is_leaf else None
w.TENSOR = w.torch.arange(8.0)[::2]
w.helper.__defaults__ = (r.choice((2, 5)),)
w.helper.__kwdefaults__["j"] = r.choice((1, 6))
w.helper.__kwdefaults__ = {"j": 3}
w.helper.__code__ = w.replacement.__code__
w.helper = w.replacement
w.keep(r.choice((3, 3.0, 8)))
w.Base.k = r.choice((2, 5))
w.Thing.k = r.choice((2, 6))
w.Thing.__dict__.get("k") and delattr(w.Thing, "k")
w.thing.__dict__.pop("k", None)
w.thing.k = r.choice((2, 9))
w.thing.v = r.choice((2, 0, 2.0))
w.thing.items.append(4)
w.thing.items[0] = r.choice((1, 8))
w.thing.items = [r.choice((1, 3))]
w.thing.late = 4
w.Thing.late = 5
w.thing.__dict__.pop("late", None)
w.thing.missing = 2
w.Base.method = lambda self, x: x * 9
w.Thing.method = lambda self, x: x - 9
w.thing.method = lambda x: x * 8
w.Base.prop = property(lambda self: 4)
w.Thing.__call__ = lambda self, x: x * 11
w.Thing.__bool__ = lambda self: False
w.Thing.__iter__ = lambda self: iter([5])
w.Base.static = staticmethod(lambda x: x * 3)
w.thing.__class__ = w.Cousin
w.thing.__dict__ = dict(w.thing.__dict__, v=6)
w.thing = w.Thing(r.choice((2, 1)))
w.thing = w.other
w.same = w.thing
w.same = w.other
w.other = w.Thing(3)
w.slotted.s = r.choice((2, 4))
w.dynamic.base = r.choice((1, 5))
w.dynamic.zero = 6
w.Dynamic.zero = 7
w.net.train(r.choice((True, False)))
w.net.scale = r.choice((2, 3))
w.Net.scale = r.choice((2, 4))
w.net.extra["k"] = r.choice((1, 5))
w.net.extra = {"k": 2}
w.net.flag = not w.net.flag
w.net.held = None
w.net.held = w.torch.zeros(4)
w.net.held = w.torch.ones(1)
w.net.a = w.nn.Linear(4, 4)
w.net.a.weight = w.nn.Parameter(w.torch.eye(4))
w.net.a.weight.data = w.torch.eye(4) * 2
w.net.a.bias = None
w.net.a.weight.requires_grad_(False)
w.net.b[0] = w.nn.Sigmoid()
w.net.b.append(w.nn.ReLU())
w.net.b = w.nn.Sequential(w.net.b[1], w.net.b[0])
w.net.a.register_forward_hook(lambda m, i, o: o * 3)
w.net.register_forward_pre_hook(lambda m, i: (i[0] + 1,))
w.net.b.forward = lambda x: x * 4
w.Net.forward = lambda self, x: x * 2
w.COUNT += r.choice((0, 1))
w.norm.train(r.choice((True, False)))
w.norm.momentum = r.choice((None, 0.1, 0.5))
w.norm.reset_running_stats()
w.norm.running_mean = None; w.norm.running_var = None
w.VIEW = w.TENSOR[1:3]
w.VIEW = w.torch.ones(2)
w.VIEW.mul_(3)
w.BUFFER = w.torch.ones(2, 4)
w.BUFFER = w.TENSOR.expand(2, 4)
w.BUFFER = w.torch.ones(1, 4).expand(2, 4)
w.TENSOR.copy_(w.torch.arange(4.0) - r.choice((1, 2, 6)))
w.TENSOR = w.BUFFER[0]
w.TENSOR.fill_(r.choice((0.0, float("nan"), 3.0)))
w.part = w.functools.partial(w.replacement, k=3)
w.part.keywords["k"] = r.choice((2, 7))
w.part = w.functools.partial(w.helper, j=r.choice((2, 3)))
w.part = w.helper
w.Pair.sum = property(lambda self: self.one)
w.Pair.__init__ = lambda self, one, two=5: self.__dict__.update(one=one, two=two)
w.Pair.two = r.choice((2, 4))
w.out = w.io.StringIO()
w.print = lambda *given, file: file.write("x")
w.helper = w.part
w.thing.__class__.__hash__ = lambda self: 3
w.Thing.__eq__ = lambda self, other: True
w.net.b.append(w.net.a)
""".strip().splitlines()

ARGUMENTS = (
    "torch.arange(4.0)",
    "torch.arange(4.0)",
    "torch.arange(4.0)",
    "torch.arange(4.0) - 2",
    "torch.arange(4.0, dtype=torch.float64)",
    "torch.arange(4.0).requires_grad_()",
    "torch.arange(8.0)[::2]",
    "torch.arange(8.0)[4:]",
    "w.TENSOR",
    "w.torch.nn.Parameter(torch.arange(4.0))",
)


@dataclass(slots=True)
class Outcome:
    """What was compared: ``told`` says what differs, ``calls`` were made, ``reused`` of them without interpretation."""

    told: str = ""
    calls: int = 0
    reused: int = 0
    text: str = field(default="", repr=False)


def _program(r: random.Random) -> str:
    lines = ["given = x", "x = x + 1", "y = x * 2", "bag = [x]"]
    for _ in range(r.randint(1, 7)):
        line = r.choice(WRITES) if r.random() < 0.2 else r.choice(READS)
        if line.startswith(("try:", "except")):
            continue
        lines.append(line)
    if r.random() < 0.2:
        lines += READS[_at("try: x = x * D") :][:2] if r.random() < 0.5 else READS[_at("try: x = x * t") :][:2]
    others = random.Random("; ".join(lines))
    if others.random() < 0.1:
        lines.insert(others.randint(4, len(lines) if "try:" not in lines[-2] else 4), others.choice(OVERLAPPING))
    if others.random() < 0.3:
        at = others.randint(4, len(lines) if "try:" not in lines[-2] else 4)
        lines[at:at] = FAILING if others.random() < 0.1 else others.choices(NUMBERS, k=others.randint(1, 3))
    body = [line.removeprefix("global COUNT; ") for line in lines]
    if any("COUNT = " in line for line in body):
        body.insert(0, "global COUNT")
    return (
        "def program(x, a, d, l):\n" + "".join(f"    {line}\n" for line in body) + f"    return {r.choice(RESULTS)}\n"
    )


def _at(text: str) -> int:
    return next(place for place, line in enumerate(READS) if line.startswith(text))


def _world(text: str) -> SimpleNamespace:
    module = ModuleType("world")
    space: dict[str, Any] = vars(module)
    space["noted"] = []
    exec(WORLD, space)
    exec(compile(text, "<changing program>", "exec"), space)

    class World(SimpleNamespace):
        """The world's names, which are those of the program's globals."""

        def __getattribute__(self, name: str) -> Any:
            return module if name == "module" else space[name]

        def __setattr__(self, name: str, value: Any) -> None:
            space[name] = value

    return World()


def _concerned(text: str, changes: list[str] = CHANGES) -> list[str]:
    """The changes of what a program names."""
    return [
        change for change in changes if change.removeprefix("w.").partition(".")[0].split()[0].split("[")[0] in text
    ]


def _steps(r: random.Random, text: str) -> list[tuple[list[str], str, bool]]:
    found = []
    concerned = _concerned(text) or CHANGES
    argument = r.choice(ARGUMENTS[:6])
    others = "2", "{'k': 2, 'm': 1}", "[1, 2]"
    for _ in range(r.randint(3, 7)):
        changes = [r.choice(concerned if r.random() < 0.8 else CHANGES) for _ in range(r.choice((0, 0, 1, 1, 1, 2)))]
        if r.random() < 0.25:
            argument = r.choice(ARGUMENTS)
        if r.random() < 0.35:
            others = (
                r.choice(
                    ("2", "2.0", "True", "3", "-0.0", "0.0", f"{r.random():.3f}", f"{r.random():.2f}", "0.7", "1.5")
                ),
                r.choice(("{'k': 2, 'm': 1}", "{'m': 1, 'k': 2}", "{'k': True}", "w.DICT | {'k': 3}")),
                r.choice(("[1, 2]", "[1]", "[2, 1]", "w.LIST", "w.OTHER_LIST")),
            )
        given = f"({argument}, {', '.join(others)})"
        for again in range(r.choice((1, 2, 3))):
            found.append(([] if again else changes, given, r.random() < 0.9))
    counting = random.Random(text)
    return _counted(counting, text, found) if counting.random() < 0.4 else found


def counting(r: random.Random) -> tuple[str, Any]:
    """A program that computes with numbers, some of which are others in each of its steps."""
    lines = ["given = x", "x = x + 1", "y = x * 2", "bag = [x]", *r.choices(NUMBERS, k=r.randint(1, 4))]
    if r.random() < 0.3:
        lines += FAILING
    lines += r.choices([*READS, *WRITES] if r.random() < 0.3 else NUMBERS, k=r.randint(0, 2))
    broken = ("global ", "try: x = x *", "except KeyError", "except Attr")
    body = "".join(f"    {line}\n" for line in lines if not line.startswith(broken))
    text = f"def program(x, a, d, l):\n{body}    return {r.choice(RESULTS)}\n"
    given = f"({r.choice(ARGUMENTS[:6])}, 2, {{'k': 2, 'm': 1}}, [1, 2])"
    steps = _counted(r, text, [([], given, True)] * r.randint(4, 9))
    return text, _counted(r, text, steps)


def protocols(r: random.Random) -> tuple[str, Any]:
    """A program that asks objects of the user's by their own ways, and changes of these."""
    lines = ["given = x", "x = x + 1", "y = x * 2", *r.choices(PROTOCOLS[:-2], k=r.randint(1, 5))]
    lines += PROTOCOLS[-2:] if r.random() < 0.1 else []
    if r.random() < 0.3:
        at = r.randint(3, len(lines) if lines[-1] != PROTOCOLS[-1] else len(lines) - 2)
        lines[at:at] = [
            "try:",
            *(f"    {line}" for line in r.choices(PROTOCOLS[:-2], k=2)),
            "except KeyError: x = x - 1",
        ]
    body = "".join(f"    {line}\n" for line in lines)
    results = ("x", "(x, y)", "Output(first=x, second=y)", "[Output(x), {'n': NUMBER}]", "(x, registry, hooked, thing)")
    text = f"def program(x, a, d, l):\n{body}    return {r.choice(results)}\n"
    given = f"({r.choice(ARGUMENTS[:6])}, {r.choice((2, 3))}, {{'k': 2}}, [1, 2])"
    concerned, steps = _concerned(text, OF_PROTOCOLS) or OF_PROTOCOLS, list[Any]()
    for _ in range(r.randint(3, 6)):
        changes = [r.choice(concerned if r.random() < 0.8 else OF_PROTOCOLS) for _ in range(r.choice((0, 1, 1, 2)))]
        steps += [(changes, given, True), *[([], given, r.random() < 0.9)] * r.choice((1, 2))]
    return text, steps


def _counted(r: random.Random, text: str, steps: list[Any]) -> list[Any]:
    """The same steps with a number, or the argument ``a`` as well, that is another one in nearly each of them."""
    change = r.choice(_concerned(text, COUNTED) or COUNTED)
    start, made = r.choice((None, None, "3", "0.5", "-2", "250")), list[Any]()
    for count, (changes, given, grad) in enumerate([*steps, *steps[-3:]]):
        if start is not None:
            before = given.partition(", {")[0] if ", {" in given else given.partition(", w.DICT")[0]
            given = f"{before.rpartition(', ')[0]}, {start} + {count}{given[len(before) :]}"
        made.append(([*changes, change] if r.random() < 0.9 else changes, given, grad))
    return made


def _shown(value: Any, depth: int = 0) -> Any:
    """What two runs are compared by."""
    if isinstance(value, torch.Tensor):
        bits = value.detach().to(torch.float64)
        return (
            "tensor",
            type(value).__name__,
            str(value.dtype),
            tuple(value.shape),
            value.requires_grad,
            repr(bits.tolist()),
        )
    if depth > 4:
        return "deep"
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [_shown(part, depth + 1) for part in value]
    if isinstance(value, dict):
        parts = [(str(key), _shown(part, depth + 1)) for key, part in dict.items(value)]
        own = [_shown(vars(value), depth + 1)] if type(value).__name__ == "Output" else []
        return "dict" if type(value) in (dict, OrderedDict) else type(value).__name__, parts, *own
    if type(value).__name__ in ("Hooked", "Fallback"):
        return type(value).__name__, _shown(object.__getattribute__(value, "__dict__"), depth + 1)
    if type(value).__name__ in ("Thing", "Cousin", "Pair"):
        return type(value).__name__, _shown(vars(value), depth + 1)
    return type(value).__name__, repr(value) if isinstance(value, (int, float, str, bool, type(None))) else ""


_STATE = ["COUNT", "LIST", "OTHER_LIST", "DICT", "OTHER_DICT", "thing", "other", "noted", "TENSOR", "VIEW", "BUFFER"]
_STATE += ["registry", "hooked"]


def _run(text: str, steps: Any, seed: int, wrap: Callable[[Any], Any]) -> list[Any]:
    w, r = _world(text), random.Random(seed)
    torch.manual_seed(seed)
    call = wrap(w.program)
    return [one for step in steps for one in _done(w, r, step, call)]


def _done(w: ModuleType, r: random.Random, step: Any, call: Callable[..., Any]) -> list[Any]:
    """What the changes and the call of a step do."""
    (changes, given, grad), found = step, list[Any]()
    for change in changes:
        try:
            exec(change, {"w": w, "r": r})
        except Exception as error:
            found.append(("change", type(error).__name__))
    args = eval(given, {"w": w, "torch": torch})
    try:
        with torch.set_grad_enabled(grad):
            result: Any = call(*args)
        found.append(_shown(result))
        alias = [w.thing is part for part in result] if isinstance(result, tuple) else result is args[0]
        found.append(alias)
    except Exception as error:
        found.append((type(error).__name__, str(error)[:80]))
    found.append([_shown(getattr(w, name)) for name in _STATE] + [_shown(args), w.net.n, _shown(w.net.extra)])
    found.append([_shown(w.norm.state_dict()), _shown(list(w.net.parameters())), w.out.getvalue()])
    return found


def difference(
    seed: int, machine: Callable[[], Library | None] = no_machine, make: Callable[[random.Random], Any] | None = None
) -> Outcome:
    """Run the program and the changes of ``seed`` by eager and by the own front end with facts asked by ``machine``.

    ``make`` gives them in place of the usual ones, as ``counting``.
    """
    r = random.Random(seed)
    text = "" if make else _program(r)
    text, steps = make(r) if make else (text, _steps(r, text))
    outcome = Outcome(calls=len(steps), text=text)
    return compared(outcome, lambda made: _run(text, steps, seed, made), lambda program: _compiled(program, machine))


def compared(outcome: Outcome, run: Callable[[Callable[..., Any]], list[Any]], compile: Callable[..., Any]) -> Outcome:
    """``outcome`` with what ``run`` gives otherwise if its program is compiled, and the calls of its versions."""
    before, made = Versions.__init__, []

    def kept(self: Versions, *given: Any) -> None:
        before(self, *given)
        made.append(self)

    wanted = run(lambda program: program)
    Versions.__init__ = kept  # type: ignore[method-assign]
    try:
        got = run(compile)
    except Exception as error:
        got = [repr(error)]
    finally:
        Versions.__init__ = before  # type: ignore[method-assign]
    outcome.reused = sum(versions.uses for versions in made)
    for place, (one, other) in enumerate(zip(wanted, got, strict=False)):
        if one != other:
            outcome.told = f"entry {place}: {one!r:.400} by eager, {other!r:.400}"
            break
    return outcome


class Memory:
    """Calls stored as texts, their graphs kept as they are; ``uses`` counts calls that were found."""

    def __init__(self) -> None:
        self.texts: dict[str, list[Any]] = {}
        self.waiting: list[Driver] = []
        self.uses = 0
        self.target: Any = None

    def of(self, target: Any) -> Memory:
        """What is stored, for another process with this ``target``."""
        self.target = target
        return self

    def left(self) -> None:
        """A call of which nothing is stored."""

    def found(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """As ``Store.found``."""
        for text, graphs in self.texts.items():
            with contextlib.suppress(Exception):
                stored = Stored(json.loads(text), self.target)
                values = stored.values(args, kwargs)
                if isinstance(values, dict):
                    driver = stored.driver(graphs)
                    self.uses += 1
                    return driver, partial(driver.run, args, kwargs) if driver.decides else driver.runs_with(values)
        return None

    def wait(self, driver: Driver) -> None:
        """As ``Store.wait``."""
        self.waiting.append(driver)

    def keep(self) -> None:
        """As ``Store.keep``."""
        for driver in self.waiting:
            graphs: list[Any] = []
            with contextlib.suppress(Unstorable):
                self.texts[json.dumps(written_driver(driver, self.target, graphs, driver.views))] = graphs
        self.waiting.clear()


def stored_difference(seed: int, make: Callable[[random.Random], Any] | None = None) -> Outcome:
    """The same where each step is done by another process, which loads the calls that those before it have stored.

    The world of a process is made anew; what was done in the steps before is done there by eager.
    """
    r = random.Random(seed)
    text = "" if make else _program(r)
    text, steps = make(r) if make else (text, _steps(r, text))
    memory = Memory()
    outcome, world = Outcome(calls=len(steps), text=text), sys.modules["world"]
    for count, step in enumerate(steps):
        wanted = got = None
        for compiled in (False, True):
            w, changing = _world(text), random.Random(seed)
            sys.modules["world"] = w.module
            torch.manual_seed(seed)
            for before in steps[:count]:
                _done(w, changing, before, w.program)
            if not compiled:
                wanted = _done(w, changing, step, w.program)
                continue
            call = interpreted_callable(
                w.program, backend_callable=lambda gm, fakes: gm.forward, record=Record(), store=memory.of
            )
            got = _done(w, changing, step, call)
            memory.keep()
        if wanted != got:
            pairs = zip(wanted or (), got or (), strict=False)
            outcome.told = f"step {count}: " + str(next(((a, b) for a, b in pairs if a != b), (wanted, got)))[:900]
            break
    sys.modules["world"], outcome.reused = world, memory.uses
    return outcome


def _compiled(program: Any, machine: Callable[[], Library | None]) -> Any:
    return interpreted_callable(
        program, backend_callable=lambda gm, fakes: gm.forward, record=Record(), machine=machine
    )


def main() -> None:
    """Compare as many as are asked for."""
    first, count, stored = int(sys.argv[1]), int(sys.argv[2]), "stored" in sys.argv[3:]
    make = {"counting": counting, "protocols": protocols}.get("".join(sys.argv[3:]).removeprefix("stored"))
    calls = reused = wrong = 0
    for seed in range(first, first + count):
        outcome = stored_difference(seed, make) if stored else difference(seed, guard_machine, make)
        calls, reused = calls + outcome.calls, reused + outcome.reused
        if outcome.told:
            wrong += 1
            print(seed, outcome.told, outcome.text, sep="\n")
    print(f"{count} programs, {wrong} differ; {reused} of {calls} calls were not interpreted")


if __name__ == "__main__":
    main()
