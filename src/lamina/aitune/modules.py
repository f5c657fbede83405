"""A module that runs each structure of inputs in the way that was chosen for it, and how the ways are found."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lamina.aitune.dimensions import DynamicDim
from lamina.aitune.graphs import Graph, key_of, leaves_of, outside, shape_of
from lamina.aitune.inspection import ModuleInfo
from lamina.aitune.tune_strategy import MinLatency, TuneStrategy
from lamina.base.accuracy import tensors
from lamina.base.reference import mapped
from lamina.base.torch_names.torch_private import SUBMODULES
from lamina.base.user_warnings import warn_user
from lamina.errors import BadArgument, LaminaError
from lamina.runtime.torch_private import version_of
from lamina.tuner import search
from lamina.tuner.parts import modules_in, replaced
from lamina.tuner.result import Result
from lamina.tuner.samples import calls_of

__all__ = ["Module", "tune", "tuned_modules", "wrap"]

_Strategies = Sequence[TuneStrategy] | Mapping[int, TuneStrategy]


class Module(nn.Module):
    """``module``, to be tuned; until it is, and for inputs that it was not tuned for, it runs as it is.

    ``strategy`` holds for all graphs, which are the structures of inputs, ``strategies`` for single ones: a sequence
    with one for each, or a mapping of their numbers in the order that they are met in. ``dynamic_shapes`` maps
    arguments to one entry for each axis, a size, ``DynamicDim`` or ``BatchDim``; calls outside of it run as eager.
    ``unseen`` counts calls that were not tuned for. Attributes of the module are attributes of this one, where they are
    set as well, and its parameters, buffers and modules have the names that they have there: a ``state_dict`` of what
    holds this module fits what holds the module itself, and the other way round.
    """

    def __init__(
        self,
        module: nn.Module,
        name: str | None = None,
        strategy: TuneStrategy | None = None,
        strategies: _Strategies | None = None,
        dynamic_shapes: Mapping[str, Sequence[int | DynamicDim]] | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(module, nn.Module) or isinstance(module, Module):
            raise BadArgument(f"Module was given a {type(module).__name__}", remedy="give a torch.nn.Module")
        if name is not None and not isinstance(name, str):
            raise BadArgument(f"Module was given the name {name!r}", remedy="give a text")
        given = [strategy, *(strategies.values() if isinstance(strategies, Mapping) else strategies or ())]
        wrong = [s for s in given if s is not None and not isinstance(s, TuneStrategy)]
        if wrong:
            raise BadArgument(
                f"Module was given {wrong[0]!r} as a strategy",
                remedy="give one of lamina.aitune.tune_strategy, such as MinLatency()",
            )
        hooked: Any = self  # torch leaves these without types
        hooked.register_load_state_dict_pre_hook(_keys_of_module)
        hooked.register_load_state_dict_post_hook(_keys_as_without)
        self.name = name or type(module).__name__
        self.strategy, self.strategies = strategy, strategies
        self.dynamic_shapes = dict(dynamic_shapes or {})
        self.graphs: dict[str, Graph] = {}
        self.results: dict[str, Result] = {}
        self.unseen = 0
        self.recording = False
        self._failed: set[str] = set()
        self._told = False
        self.module = module  # from here on attributes are set in there
        self.training = module.training  # train() would change modules within that are in another mode

    @property
    def state(self) -> str:
        """Of "init", "recording" and "tuned"."""
        return "recording" if self.recording else "tuned" if self.results else "init"

    def __getattr__(self, name: str) -> Any:
        """Attributes of the module, where this one has none of that name."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":
                raise
            return getattr(super().__getattr__("module"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of the module, unless it is one that this one has itself."""
        inner = self.__dict__.get(SUBMODULES, {}).get("module")
        if inner is None or name == "module" or name in self.__dict__ or hasattr(type(self), name):
            super().__setattr__(name, value)
        else:
            setattr(inner, name, value)

    def __delattr__(self, name: str) -> None:
        """Delete an attribute of the module."""
        if name in self.__dict__:
            super().__delattr__(name)
        else:
            delattr(self.module, name)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The module's."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """The module's."""
        return self.module.load_state_dict(state_dict, strict, assign)

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """The module and those within, by the names that they have without this one."""
        yield from self.module.named_modules(memo, prefix, remove_duplicate)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's outputs."""
        if not (self.recording or self.results):
            return self.module(*args, **kwargs)
        leaves = leaves_of(self.module.forward, args, kwargs)
        key = key_of(leaves)
        if self.recording:
            self.graphs.setdefault(key, Graph(key)).add(leaves, args, kwargs)
            return self.module(*args, **kwargs)
        return self._tuned(key, leaves, args, kwargs)

    def _tuned(self, key: str, leaves: Mapping[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result, shape = self.results.get(key), shape_of(leaves)
        if result is None:
            self._unseen(f"it was not tuned for {key or 'a call without arguments'}, which runs as eager")
            return self.module(*args, **kwargs)
        left = outside(self.dynamic_shapes, shape, self.name) if self.dynamic_shapes else ""
        if left:
            self._unseen(f"{left}: the call runs as eager")
            return self.module(*args, **kwargs)
        if shape in self.graphs[key].shapes:
            return result.model(*args, **kwargs)
        return self._other_shape(result, shape, args, kwargs)

    def _other_shape(
        self, result: Result, shape: Mapping[str, tuple[int, ...]], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The call by what was chosen for other sizes, which compiles anew for these; by eager where that fails."""
        told = ", ".join(f"{path} {list(sizes)}" for path, sizes in shape.items())
        if told in self._failed:
            self._unseen("")
            return self.module(*args, **kwargs)
        self._unseen(f"it was not tuned for {told}; what was chosen for other sizes runs, and may compile anew")
        held = [*tensors([*args, *kwargs.values()]), *self.module.buffers()]
        counted = [t for t in held if not t.is_inference()]  # tensors of inference mode have no version
        before = [version_of(t) for t in counted]
        try:
            return result.model(*args, **kwargs)
        except Exception:
            if before != [version_of(t) for t in counted]:
                raise  # it cannot be run again from the same state
            output = self.module(*args, **kwargs)  # what eager raises is the caller's
            self._failed.add(told)
            return output

    def _unseen(self, what: str) -> None:
        self.unseen += 1
        if what and not self._told:
            self._told = True
            warn_user(f"{self.name}: {what}. Tune with such inputs too; `unseen` counts these calls")

    def strategy_of(self, number: int) -> TuneStrategy:
        """The strategy of the graph with that number."""
        if isinstance(self.strategies, Mapping):
            return self.strategies.get(number, self.strategy or MinLatency())
        return self.strategies[number] if self.strategies else self.strategy or MinLatency()

    def check(self) -> None:
        """Raise ``BadArgument`` for strategies of graphs that there are not, or inputs outside ``dynamic_shapes``."""
        count = len(self.graphs)
        numbers = self.strategies if isinstance(self.strategies, Mapping) else range(len(self.strategies or ()))
        wrong = [n for n in numbers if n not in range(count)]
        if wrong or (self.strategies and not isinstance(self.strategies, Mapping) and len(self.strategies) != count):
            raise BadArgument(
                f"{self.name} has {count} graphs and strategies for {list(numbers)}",
                remedy="give a strategy for each graph, or a mapping of their numbers, from 0",
            )
        for shape in (shape for graph in self.graphs.values() for shape in graph.shapes):
            left = outside(self.dynamic_shapes, shape, self.name)
            if left:
                raise BadArgument(f"{self.name}: {left}", remedy="give inputs within dynamic_shapes, or allow more")


def _keys_of_module(module: nn.Module, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
    """Give the keys of a state, in which the wrapped module's tensors are its own, the names that torch looks for."""
    module.__dict__["_loading"] = prefix
    for key in [key for key in state_dict if key.startswith(prefix)]:
        state_dict[f"{prefix}module.{key[len(prefix) :]}"] = state_dict.pop(key)


def _keys_as_without(module: nn.Module, found: Any) -> None:
    """What is missing or too many, by the names that the user knows."""
    prefix = module.__dict__.pop("_loading", "")
    for keys in (found.missing_keys, found.unexpected_keys):
        keys[:] = [prefix + key.removeprefix(f"{prefix}module.") if key.startswith(prefix) else key for key in keys]


def wrap(
    obj: Any,
    modules: Sequence[ModuleInfo],
    strategy: TuneStrategy | None = None,
    strategies: Mapping[str, TuneStrategy] | None = None,
) -> Any:
    """``obj`` with each of ``modules`` (of ``inspect(...).get_modules()``) as a ``Module``; ``obj`` stays as it is.

    ``strategies``: by the modules' names. Raises ``BadArgument`` for what is none of these, and for a module or a
    name that is not there.
    """
    held = modules_in(obj)
    wrong = [one for one in modules if not isinstance(one, ModuleInfo)] if isinstance(modules, Iterable) else [modules]
    if wrong:
        raise BadArgument(
            f"wrap was given {wrong[0]!r} as a module of the object",
            remedy="give some of ait.inspect(obj, inputs).get_modules()",
        )
    names = [info.name for info in modules]
    missing = [name for name in (*names, *(strategies or {})) if name not in held or name not in names]
    if missing:
        raise BadArgument(
            f"there is no module {missing[0]!r} to wrap",
            remedy=f"inspect this object; its modules are {', '.join(repr(n) for n in [*held][:8])}",
        )
    new: dict[int, nn.Module] = {
        id(held[name]): Module(held[name], name or None, (strategies or {}).get(name, strategy)) for name in names
    }
    return replaced(obj, new)


def tuned_modules(obj: Any) -> dict[str, Module]:
    """The ``Module``s that an object holds, by path. Raises ``BadArgument`` if it holds none."""
    found = {path: module for path, module in modules_in(obj).items() if isinstance(module, Module)}
    if not found:
        raise BadArgument(
            f"there is no lamina.aitune.Module in {type(obj).__name__}",
            remedy="wrap it: ait.Module(model), or ait.wrap(obj, ait.inspect(obj, inputs).get_modules())",
        )
    return found


def tune(
    func: Callable[..., Any],
    dataset: Any,
    batch_sizes: Sequence[int] | None = None,
    *,
    dry_run: bool = False,
    ignore_failing_modules: bool = True,
    **given: Any,
) -> dict[str, list[Result]]:
    """Tune each ``Module`` that ``func`` holds, for each structure of inputs that it meets; results by module.

    ``func`` is a module, a pipeline object or a function, and is called with each of ``dataset``, a tensor, a tuple of
    arguments, a mapping, or an iterable of those. With ``batch_sizes`` each is given once for each size, rows repeated
    or left out. ``dry_run``: only look which inputs there are. A module that cannot be tuned stays as it is, with a
    warning, unless ``ignore_failing_modules`` is False. ``given``: arguments of ``lamina.tune``, such as ``budget``,
    ``journal`` and ``seconds``.

    Raises ``BadArgument`` for an object without a ``Module``, and whatever ``func`` raises.
    """
    _check(batch_sizes, given)
    modules = tuned_modules(func)
    _record(func, dataset, batch_sizes, list(modules.values()))
    found: dict[str, list[Result]] = {}
    for path, module in modules.items():
        module.check()
        if not dry_run:
            found[path] = _tuned(module, ignore_failing_modules, given)
    return found


def _check(batch_sizes: Any, given: Mapping[str, Any]) -> None:
    if batch_sizes is not None and (not isinstance(batch_sizes, Sequence) or isinstance(batch_sizes, str)):
        raise BadArgument(f"batch_sizes is {batch_sizes!r}", remedy=f"give a sequence, such as ({batch_sizes!r},)")
    known = inspect.signature(search.tune).parameters
    for name in given:
        if name not in known or name in _GIVEN_BY_STRATEGY:
            remedy = _INSTEAD.get(name, f"give some of {', '.join(n for n in known if n not in _GIVEN_BY_STRATEGY)}")
            raise BadArgument(f"lamina.aitune.tune has no argument {name!r}", remedy=remedy)


_GIVEN_BY_STRATEGY = ("model", "inputs", "objective", "candidates", "threshold", "loss")
"""Arguments of ``lamina.tune`` that are not for ``tune`` to pass on."""
_INSTEAD = {
    "device": "move the model and its inputs there before",
    "clear_cache": "give resume=False, to measure all again",
    "disable_external_logging": "leave it out: loggers are left alone",
    "max_num_batches_per_batch_size": "give as many inputs as are to be looked at",
    "objective": "give a strategy, such as MaxThroughput()",
    "candidates": "give a strategy with backends, such as MinLatency([LaminaBackend()])",
    "threshold": "give OneBackend(backend, min_speedup_threshold_percent=...)",
    "loss": "use lamina.tune, which tunes training",
}
"""What to do where an argument of AITune's or of ``lamina.tune`` is given."""


def _record(func: Any, dataset: Any, batch_sizes: Sequence[int] | None, modules: list[Module]) -> None:
    for module in modules:
        module.recording = True
        for graph in module.graphs.values():
            graph.samples.clear()
    try:
        with torch.no_grad():
            for sample in calls_of(dataset):
                for size in batch_sizes or (None,):
                    args, kwargs = (sample.args, dict(sample.kwargs))
                    if size is not None:
                        args, kwargs = _resized((args, kwargs), size)
                    func(*args, **kwargs)
    finally:
        for module in modules:
            module.recording = False


def _resized(value: Any, size: int) -> Any:
    """``value`` with the leading axes that are as long as the first tensor's made ``size`` long."""
    if size < 1:
        raise BadArgument(f"a batch of {size}", remedy="give sizes of 1 or more")
    first = next((t for t in tensors(list(itertools.chain(value[0], value[1].values()))) if t.dim()), None)
    count = 0 if first is None else int(first.shape[0])

    def other(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.dim() or leaf.shape[0] != count or not count:
            return leaf
        return leaf[torch.arange(size, device=leaf.device) % count]

    return mapped(value, other)


def _tuned(module: Module, ignore: bool, given: Mapping[str, Any]) -> list[Result]:
    found: list[Result] = []
    for number, (key, graph) in enumerate(module.graphs.items()):
        if not graph.samples:
            continue  # it was loaded, and this time there was no such input
        try:
            result = module.strategy_of(number).run(module.module, graph.samples, **{"modules": False, **given})
        except LaminaError as error:
            if not ignore:
                raise
            text = f"{module.name} runs as eager for {key}: {error.what}. {error.remedy}"
            warn_user(text)
            continue
        module.results[key] = result
        found.append(result)
    return found
