"""Bugs in capture, differentiation, backends and the runtime."""

from __future__ import annotations

from benchmarks.seeded.bug import Bug

__all__ = ["SURROUNDINGS"]

_AOT = "src/lamina/aot"
_RUNTIME = "src/lamina/runtime"
_KEPT = "tests/backends/test_graph_cache.py"

SURROUNDINGS = (
    Bug(
        "constants of a graph are not in a backend's key",
        "flag missing in a key",
        "src/lamina/backends/code_identity.py",
        "return bytes(plain.flatten().view(torch.uint8).numpy().tobytes())",
        "return str(tuple(plain.shape)).encode()",
        (f"{_KEPT}::test_constants_of_the_graph_are_part_of_the_key",),
    ),
    Bug(
        "options are not in a backend's key",
        "flag missing in a key",
        "src/lamina/backends/graph_cache.py",
        "backend.load, backend.supports, options.key())",
        "backend.load, backend.supports)",
        (f"{_KEPT}::test_options_that_a_backend_is_told_are_part_of_the_key",),
    ),
    Bug(
        "a backend's version is not in its key",
        "flag missing in a key",
        "src/lamina/backends/graph_cache.py",
        'digest("backend", backend.name, str(backend.version), kind',
        'digest("backend", backend.name, kind',
        ("tests/backends/test_backends.py::test_compiled_graphs_are_saved_and_loaded",),
    ),
    Bug(
        "strides of a backend's results are left as they are",
        "wrong stride",
        "src/lamina/backends/results.py",
        "                outputs[i] = _laid_out(outputs[i], strides)\n",
        "                pass\n",
        ("tests/backends/test_backends.py::test_strides_are_made_the_graphs_and_memory_of_inputs_is_not_given_away",),
    ),
    Bug(
        "a backend's result in an input's memory is given away",
        "missing alias",
        "src/lamina/backends/results.py",
        "            outputs[i] = outputs[i].clone()\n",
        "            pass\n",
        ("tests/backends/test_backends.py::test_strides_are_made_the_graphs_and_memory_of_inputs_is_not_given_away",),
    ),
    Bug(
        "flags of a unit are not in its hash",
        "flag missing in a key",
        f"{_RUNTIME}/kernel.py",
        '"with", *flags, *unit.flags, "of"',
        '"with", *flags, "of"',
        ("tests/runtime/test_build.py::test_what_decides_the_code_is_part_of_its_hash",),
    ),
    Bug(
        "the machine is not in a kernel's hash",
        "flag missing in a key",
        f"{_RUNTIME}/kernel.py",
        'digest("kernel", ABI, machine, *functions',
        'digest("kernel", ABI, *functions',
        ("tests/runtime/test_build.py::test_what_decides_the_code_is_part_of_its_hash",),
    ),
    Bug(
        "a workspace that is too small is taken",
        "dropped guard",
        f"{_RUNTIME}/arena.py",
        "if workspace.nbytes >= nbytes:",
        "if workspace.nbytes > 0:",
        ("tests/runtime/test_arena.py",),
    ),
    Bug(
        "blocks in use count as free",
        "early buffer reuse",
        f"{_RUNTIME}/outputs.py",
        "return self._counts() == self.counts",
        "return self._counts()[0] == self.counts[0]",
        ("tests/runtime/test_outputs.py",),
    ),
    Bug(
        "shared memory is used again",
        "early buffer reuse",
        f"{_RUNTIME}/outputs.py",
        "self.memory.data_ptr() == self.address and ",
        "",
        ("tests/runtime/test_outputs.py",),
    ),
    Bug(
        "frozen results outlive a write",
        "missing mutation",
        "src/lamina/freezing/frozen.py",
        "if kept is None or not _current(kept, sources):",
        "if kept is None:",
        ("tests/freezing/test_changes.py::test_a_change_is_seen",),
    ),
    Bug(
        "an input written to beside one that reads it",
        "missing alias",
        f"{_AOT}/shared_memory.py",
        "if start < written_end or (is_written and start < end):",
        "if start < written_end:",
        ("tests/aot/test_shared_memory.py",),
    ),
    Bug(
        "the last element of a tensor takes no memory",
        "off-by-one bound",
        f"{_AOT}/shared_memory.py",
        "return int(last + 1) * tensor.element_size()",
        "return int(last) * tensor.element_size()",
        ("tests/aot/test_shared_memory.py",),
    ),
    Bug(
        "views that overlap in their last element",
        "off-by-one bound",
        f"{_AOT}/overlap.py",
        "(start + last + 1) * tensor.element_size()",
        "(start + last) * tensor.element_size()",
        ("tests/aot/test_overlap.py",),
    ),
    Bug(
        "saved tensors in another layout are taken as planned",
        "wrong stride",
        f"{_AOT}/engine/layouts.py",
        "    return fresh.copy_(part).expand(saved.shape)\n",
        "    return saved\n",
        ("tests/aot/test_saved_tensors.py",),
    ),
    Bug(
        "inputs are not written back",
        "missing mutation",
        f"{_AOT}/joint_tracing.py",
        "            self._write_back(self.primals[i])\n",
        "            pass\n",
        ("tests/aot/test_run.py::test_inputs_mutated",),
    ),
    Bug(
        "gradients of two uses are not added up",
        "sign in a gradient",
        f"{_AOT}/joint_tracing.py",
        "total = self.graph.call_function(aten.add.Tensor, (before, gradient))",
        "total = self.graph.call_function(aten.sub.Tensor, (before, gradient))",
        ("tests/aot/test_joint_tracing.py::test_gradients",),
    ),
    Bug(
        "the grad mode that a function leaves",
        "missing mutation",
        f"{_AOT}/state.py",
        "        results = compiled(*inputs)\n        SET_GRAD(grad)\n        return results\n",
        "        results = compiled(*inputs)\n        return results\n",
        ("tests/aot/test_state.py",),
    ),
    Bug(
        "the sign of a zero is not guarded",
        "flag missing in a key",
        "src/lamina/capture/external_state/torch_private.py",
        "lambda found: _zero_signs(found) == signs",
        "lambda found: bool(signs)",
        ("tests/capture/test_external_state.py",),
    ),
    Bug(
        "the code of a method is not guarded",
        "dropped guard",
        "src/lamina/capture/external_state/torch_private.py",
        "        if function.__code__ is not code:\n            return False\n",
        "",
        ("tests/capture/test_external_state.py",),
    ),
)
