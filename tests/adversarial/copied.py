"""Copies of objects whose class, or which themselves, have their own idea of what a copy is."""

from __future__ import annotations

import copy

from lamina.testing.fuzz import attempt, sample


class Plain:
    pass


class WithState:
    def __init__(self, v):
        self.v, self.w = v, 2.0

    def __getstate__(self):
        return {"v": self.v * 3, "w": self.w}


class WithStateSet(WithState):
    def __getstate__(self):
        return (self.v * 3, self.w)

    def __setstate__(self, state):
        self.v, self.w = state[0] + 1, state[1]


class Slots:
    __slots__ = ("v", "w")

    def __init__(self, v):
        self.v, self.w = v, 2.0


class Reduced:
    def __init__(self, v):
        self.v = v

    def __reduce__(self):
        return (Reduced, (self.v * 5,))


class NewArguments:
    def __new__(cls, v=7.0):
        made = super().__new__(cls)
        made.n = v
        return made

    def __init__(self, v):
        self.v = v

    def __getnewargs__(self):
        return (self.v + 3,)


class Copied:
    def __init__(self, v):
        self.v = v

    def __copy__(self):
        return Copied(self.v * 7)


class Items(dict):
    def __getstate__(self):
        return {"v": 7.0}


class Row(list):
    pass


KINDS = (WithState, WithStateSet, Slots, Reduced, NewArguments, Copied)


def copies_of_objects_that_were_given(compile):
    def shallow(x, o):
        return x * copy.copy(o).v

    def deep(x, o):
        p = copy.deepcopy(o)
        p.v = p.v + 1
        return x * p.v, o.v

    for function in (shallow, deep):
        compiled = compile(function)
        for kind in KINDS:
            yield compiled(sample(3), kind(2.5))


def copies_of_objects_that_are_made(compile):
    def shallow(x, kind):
        return x * copy.copy(kind(1.5)).v

    def deep(x, kind):
        return x * copy.deepcopy(kind(1.5)).v

    for function in (shallow, deep):
        compiled = compile(function)
        for kind in KINDS:
            yield compiled(sample(3), kind)


def copies_of_instances_with_a_state_of_their_own(compile):
    def made(x):
        o = Plain()
        o.v = 3.0
        o.__getstate__ = lambda: {"v": 30.0}
        return x * copy.copy(o).v

    given = Plain()
    given.v = 4.0
    given.__getstate__ = lambda: {"v": 40.0}
    yield compile(made)(sample(3))
    yield compile(lambda x, o: x * copy.copy(o).v)(sample(3), given)


def copies_of_lists_and_dictionaries_with_attributes(compile):
    row, items = Row([1.0, 2.0]), Items(a=1.0)
    row.k = items.k = 2.0

    def of_list(x):
        m = copy.copy(row)
        return x * m.k + m[1], type(m).__name__

    def of_items(x):
        m = copy.deepcopy(items)
        return x * m["a"], sorted(vars(m)), type(m).__name__

    for function in (of_list, of_items):
        yield attempt(compile(function), sample(3))
