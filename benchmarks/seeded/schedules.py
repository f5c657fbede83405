"""Bugs in fusion, order and memory planning."""

from __future__ import annotations

from benchmarks.seeded.bug import Bug

__all__ = ["SCHEDULES"]

_MEMORY = "tests/schedule/test_memory.py"
_WRITTEN = "tests/semantics/test_edges.py::test_what_is_written_is_read_first"
_SCHEDULE = "src/lamina/schedule"

SCHEDULES = (
    Bug(
        "memory is used again a step early",
        "early buffer reuse",
        f"{_SCHEDULE}/memory.py",
        "while ending and ending[0][0] < start:",
        "while ending and ending[0][0] <= start:",
        (_MEMORY,),
    ),
    Bug(
        "memory of symbolic size is used again a step early",
        "early buffer reuse",
        f"{_SCHEDULE}/memory.py",
        "if free[at][0] < start:",
        "if free[at][0] <= start:",
        (_MEMORY,),
    ),
    Bug(
        "arguments die before views of them",
        "missing alias",
        f"{_SCHEDULE}/memory.py",
        "        if not aliasing[step.op]:\n            continue\n        outs",
        "        if aliasing[step.op]:\n            continue\n        outs",
        (_MEMORY,),
    ),
    Bug(
        "writers do not wait for readers in the order of steps",
        "missing dependence",
        f"{_SCHEDULE}/order.py",
        "            found.update(readers.pop(name, ()))\n",
        "            readers.pop(name, ())\n",
        (_MEMORY,),
    ),
    Bug(
        "effects may change places",
        "missing dependence",
        f"{_SCHEDULE}/order.py",
        "            if has_effect(step.op):\n                written.add(_EFFECT)\n",
        "",
        (_MEMORY,),
    ),
    Bug(
        "writers do not wait for readers in fusion",
        "missing dependence",
        f"{_SCHEDULE}/dependence_graph.py",
        "            made.deps.update(self._readers.get(b, ()))\n",
        "",
        ("tests/schedule/test_group.py",),
    ),
    Bug(
        "nests are joined across a step between them",
        "dropped guard",
        f"{_SCHEDULE}/dependence_graph.py",
        "if k != first.number and self._groups[k].ancestors >> first.number & 1:",
        "if k == first.number and self._groups[k].ancestors >> first.number & 1:",
        ("tests/schedule/test_fuse.py",),
    ),
    Bug(
        "a read and a write at different points are fused",
        "dropped condition",
        f"{_SCHEDULE}/group.py",
        "phases or stores[eqn.buffer] != {eqn.index}",
        "phases",
        ("tests/schedule/test_group.py",),
    ),
    Bug(
        "producers are copied past a later writer",
        "missing dependence",
        f"{_SCHEDULE}/inline_producers.py",
        "complete = all(uses.last_write.get(b, -1) < number for b in facts.loads)",
        "complete = True",
        (_WRITTEN, "tests/schedule/test_fuse.py"),
    ),
    Bug(
        "a masked load without its fill",
        "dropped fill",
        f"{_SCHEDULE}/inline.py",
        "    if load.mask is None:\n        return value\n",
        "    if value:\n        return value\n",
        ("tests/semantics/test_small_kernels.py::test_pieces_of_rows",),
    ),
    Bug(
        "input updated in place with a later reader",
        "dropped guard",
        f"{_SCHEDULE}/in_place.py",
        "any(k > update.first and k not in gone for k in self.steps.reading(update.old))",
        "any(k < 0 for k in self.steps.reading(update.old))",
        ("tests/schedule/test_in_place.py",),
    ),
    Bug(
        "a call's result changed in place with a later reader",
        "dropped guard",
        f"{_SCHEDULE}/masked_update.py",
        "or (k > at and old in reads(other)):",
        "or (k < 0 and old in reads(other)):",
        ("tests/schedule/test_masked_update.py",),
    ),
    Bug(
        "loads before and after a store are one",
        "flag missing in a key",
        f"{_SCHEDULE}/simplify.py",
        "eqn.fill, stored.get(eqn.buffer, 0))",
        "eqn.fill)",
        ("tests/schedule/test_simplify.py",),
    ),
    Bug(
        "rounding between operations is dropped in eager numerics",
        "dropped condition",
        f"{_SCHEDULE}/simplify.py",
        'if numerics == "fast" and halves and eqn.dtype == "float32":',
        'if halves and eqn.dtype == "float32":',
        ("tests/schedule/test_fuse.py",),
    ),
    Bug(
        "colliding additions are shared among threads",
        "dropped guard",
        f"{_SCHEDULE}/tile.py",
        "        if any(not isinstance(a, Axis) for a in expr.atoms()):\n            return True\n",
        "        if any(not isinstance(a, Axis) for a in expr.atoms()):\n            return False\n",
        ("tests/schedule/test_tile.py",),
    ),
    Bug(
        "what adds at one place adds once where loops are joined",
        "dropped guard",
        f"{_SCHEDULE}/join_groups.py",
        "if sum(apart, Counter()) != _additions(nest):",
        "if not apart:",
        ("tests/schedule/test_narrow.py",),
    ),
    Bug(
        "what adds at one place adds once where a temporary is narrowed",
        "dropped guard",
        f"{_SCHEDULE}/narrow.py",
        "if any(additions(_reindexed(nest, narrower)) != additions(nest) for nest in adding):",
        "if not narrower:",
        ("tests/schedule/test_narrow.py",),
    ),
    Bug(
        "scheduling may lose places that are set",
        "dropped check",
        f"{_SCHEDULE}/preserved.py",
        "    for name in sorted((lasting & was.sets.keys()) - {*in_place}):\n",
        "    for name in sorted((lasting & was.sets.keys()) & {*in_place}):\n",
        ("tests/schedule/test_preserved.py",),
    ),
    Bug(
        "scheduling may add another number of times",
        "dropped check",
        f"{_SCHEDULE}/preserved.py",
        "    for origin in was.added.keys() | now.added.keys():\n",
        "    for origin in was.added.keys() - now.added.keys():\n",
        ("tests/schedule/test_preserved.py",),
    ),
)
