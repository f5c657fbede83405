"""What is so of a device is asked of its kind, which stands in one file: no other one compares names of devices."""

from __future__ import annotations

import ast

import pytest
import torch

from lamina.base.devices import GENERATED, kind_of
from lamina.base.machine_target import target_of
from lamina.base.target import CLUSTERS, TENSOR_CORES, cpu, nvidia
from tests.architecture.source import dotted, imported, sources

OWNER, TARGETS, MACHINE = "lamina.base.devices", "lamina.base.target", "lamina.base.machine_target"
DEVICES = frozenset(("cpu", "cuda", "hip", "meta", "mps", "xpu"))
ATTRIBUTES = frozenset(("is_cpu", "is_cuda", "is_meta", "is_mps", "is_xpu"))
"""Attributes of tensors that compare the name of their device."""
METHODS = frozenset(("startswith", "endswith", "removeprefix"))


def names_a_device(node: ast.AST) -> bool:
    """Whether an expression is the name of a device, a device made of one, or a row of such."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value.partition(":")[0] in DEVICES
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(map(names_a_device, node.elts))
    made = isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] in (
        "device",
        "frozenset",
        "set",
        "tuple",
    )
    return made and any(map(names_a_device, node.args))


def compares_a_device(node: ast.AST) -> bool:
    """Whether ``node`` asks for the name of a device, or gives a name that a later comparison is made with."""
    if isinstance(node, ast.Compare):
        return any(map(names_a_device, (node.left, *node.comparators)))
    if isinstance(node, ast.MatchValue):
        return names_a_device(node.value)
    if isinstance(node, ast.Attribute):
        return node.attr in ATTRIBUTES
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in METHODS
        and any(map(names_a_device, node.args))
    )


def rows_of_devices(tree: ast.Module) -> list[ast.stmt]:
    """Names at the top of a file that stand for several devices: a comparison with them would not be seen."""
    found: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Tuple | ast.List | ast.Set):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and node.value.elts and all(map(names_a_device, node.value.elts)):
                found.append(node)
    return found


def test_no_file_but_one_compares_names_of_devices() -> None:
    wrong = []
    for file in sources():
        if file.module != OWNER:
            wrong += [file.at(node) for node in ast.walk(file.tree) if compares_a_device(node)]
            wrong += [file.at(node) for node in rows_of_devices(file.tree)]
    assert not wrong


@pytest.mark.parametrize(
    "text",
    [
        "b.device != 'cpu'",
        "x.device.type in ('cpu', 'cuda')",
        "x.device == torch.device('cuda', 0)",
        "b.device.startswith('cuda')",
        "x.device.type in frozenset(('xpu',))",
        "'cuda:0' == place",
        "x.is_cuda",
        "match place:\n    case 'mps':\n        pass",
    ],
)
def test_comparisons_are_recognised(text: str) -> None:
    assert any(map(compares_a_device, ast.walk(ast.parse(text))))


@pytest.mark.parametrize(
    "text", ["kind_of(x).host", "torch.get_autocast_dtype('cpu') is torch.bfloat16", "torch.empty(0, device='cpu')"]
)
def test_what_compares_no_device_is_let_through(text: str) -> None:
    assert not any(map(compares_a_device, ast.walk(ast.parse(text))))


def test_rows_of_devices_are_recognised() -> None:
    assert len(rows_of_devices(ast.parse("_DEVICES = ('cuda',)\n_MORE: tuple[str, ...] = ('cpu', 'cuda')"))) == 2
    assert not rows_of_devices(ast.parse("CUDNN, CPU = 'cudnn', 'cpu'\n_VERSIONS = ('python', 'cuda')"))


MAKERS = frozenset(("Target", "cpu", "nvidia"))
"""What describes a target, of ``lamina.base.target``; ``target_of`` calls them for a device of this machine."""


def test_one_file_makes_the_targets_of_this_machine() -> None:
    wrong = []
    for file in sources():
        made = {name for node in ast.walk(file.tree) for name in imported(node) if name.startswith(f"{TARGETS}.")}
        names = {name.rpartition(".")[2] for name in made} & MAKERS
        called = [n for n in ast.walk(file.tree) if isinstance(n, ast.Call) and dotted(n.func) in names]
        wrong += [file.module for _ in called[:1]]
    assert wrong == [MACHINE]


def test_a_stage_asks_for_features_of_gpus_and_not_for_their_generation() -> None:
    asked = [
        file.at(node)
        for file in sources()
        for node in ast.walk(file.tree)
        if isinstance(node, ast.Compare)
        and any(isinstance(part, ast.Attribute) and part.attr == "architecture" for part in ast.walk(node))
    ]
    assert not asked
    assert nvidia(capability=80).has(TENSOR_CORES)
    assert not nvidia(capability=80).has(CLUSTERS)
    assert nvidia().has(CLUSTERS)
    assert not cpu().features


def test_the_target_of_this_processor_has_what_its_instructions_say() -> None:
    made = target_of(torch.device("cpu"), isa="avx2")
    assert not made.grids
    assert (made.isa, made.vector_bytes, made.processors) == ("avx2", 32, torch.get_num_threads())
    with pytest.raises(ValueError, match="xpu"):
        target_of(torch.device("xpu", 0))


def test_a_device_that_is_not_known_has_nothing_but_values() -> None:
    kind = kind_of("xpu:1")
    assert kind.stored
    assert not any((kind.host, kind.queued, kind.generated, kind.libraries))


@pytest.mark.parametrize("name", GENERATED)
def test_a_kind_is_found_by_its_name_its_device_and_a_tensor(name: str) -> None:
    place = torch.device(name, 0) if not kind_of(name).host else torch.device(name)
    assert kind_of(name) is kind_of(f"{name}:0") is kind_of(place)
    assert kind_of(torch.empty(0)).host
