"""Objects of the caller's whose last reference a program drops, where ``__del__`` or a weak reference notices that."""

from __future__ import annotations

import weakref

from lamina.testing.fuzz import attempt, sample
from tests.adversarial.ends import Finalized, Plain

kept = None


def _holding(value):
    made = Plain()
    made.k = value
    return made


def _dropped(compile, functions, hold):
    """What each function gives for something that holds an object, and what the object told of its end."""
    for function in functions:
        compiled = compile(function)
        for seed in range(2):
            log = []
            yield compiled(sample(3, seed=seed), hold(Finalized(log)), log), log


def items_of_dictionaries_end(compile):
    def pop(x, d, log):
        d.pop("k")
        log.append("after")
        return x * len(log)

    def clear(x, d, log):
        d.clear()
        log.append("after")
        return x * len(log)

    def delete(x, d, log):
        del d["k"]
        log.append("after")
        return x * len(log)

    def replace(x, d, log):
        d["k"] = 1
        log.append("after")
        return x * len(log)

    yield from _dropped(compile, (pop, clear, delete, replace), lambda made: {"k": [made]})


def items_of_lists_end(compile):
    def pop(x, items, log):
        items.pop()
        log.append("after")
        return x * len(log)

    def delete(x, items, log):
        del items[0]
        log.append("after")
        return x * len(log)

    def slices(x, items, log):
        items[:] = []
        log.append("after")
        return x * len(log)

    yield from _dropped(compile, (pop, delete, slices), lambda made: [made])


def attributes_and_variables_end(compile):
    def replace(x, o, log):
        o.k = None
        log.append("after")
        return x * len(log)

    def delete(x, o, log):
        del o.k
        log.append("after")
        return x * len(log)

    def nested(x, o, log):
        o.k.k = None
        log.append("after")
        return x * len(log)

    def of_module(x, log):
        global kept
        kept = None
        log.append("after")
        return x * len(log)

    held = None

    def of_function(x, log):  # which Dynamo's frame holds until the end of the first call
        nonlocal held
        held = None
        log.append("after")
        return x * len(log)

    yield from _dropped(compile, (replace, delete), _holding)
    yield from _dropped(compile, (nested,), lambda made: _holding(_holding(made)))
    compiled, log = compile(of_module), []
    globals()["kept"] = Finalized(log)
    yield compiled(sample(3), log), log
    compiled = compile(of_function)
    for made in (Plain(), 2.0, Finalized([])):
        held = made
        yield compiled(sample(3), [])
    del made
    log = []
    held = Finalized(log)
    yield compiled(sample(3), log), log


def an_end_is_noticed_in_a_later_call_alone(compile):
    def pop(x, d, log):
        d.pop("k")
        log.append("after")
        return x * len(log)

    def replace(x, o, log):
        o.k = None
        log.append("after")
        return x * len(log)

    for function, hold in ((pop, lambda value: {"k": value}), (replace, _holding)):
        compiled = compile(function)
        for kind in (lambda log: Plain(), Finalized, lambda log: None):
            log = []
            yield compiled(sample(3), hold(kind(log)), log), log


def weak_references_are_asked(compile):
    def pop(x, d, r):
        d.pop("k")
        return x * (1.0 if r() is None else 2.0)

    def replace(x, d, r):
        d["o"].k = None
        return x * (1.0 if r() is None else 2.0)

    def of_values(x, d, held):
        d.pop("k")
        return x * len(held)

    compiled, others, counted = compile(pop), compile(replace), compile(of_values)
    for _ in range(2):
        given = {"k": Plain(), "o": _holding(Plain())}
        yield compiled(sample(3), given, weakref.ref(given["k"]))
        yield others(sample(3), given, weakref.ref(given["o"].k))
        given["k"] = Plain()
        yield counted(sample(3), given, weakref.WeakValueDictionary(a=given["k"]))


def proxies(compile):
    def made(x):
        o = _holding(2.0)
        p = weakref.proxy(o)
        y = x * p.k
        del o
        try:
            return y * p.k
        except ReferenceError:
            return y

    def given(x, d, p):
        y = x * p.k
        d.clear()
        try:
            return y * p.k
        except ReferenceError:
            return y

    compiled, others = compile(made), compile(given)
    for seed in range(2):
        held = {"k": _holding(2.0)}
        yield compiled(sample(3, seed=seed))
        yield attempt(others, sample(3, seed=seed), held, weakref.proxy(held["k"]))
