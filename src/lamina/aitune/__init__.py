"""The names that users of AITune know, over ``lamina.tune``: ``import lamina.aitune as ait``.

``inspect`` shows which modules of an object take the time, ``wrap`` makes each a ``Module``, ``tune`` finds the fastest
verified way to run each for the inputs it meets (``modules.py``, ``graphs.py``), ``save`` and ``load`` keep the choices
(``files.py``). ``backend.py`` has a frozen config for each backend, ``tune_strategy.py`` the rules of choice. There is
no global registry: what is tuned is what the object that ``tune`` is given holds.
"""

from lamina.aitune.dimensions import BatchDim, DynamicDim
from lamina.aitune.files import load, save
from lamina.aitune.inspection import inspect, profile
from lamina.aitune.modules import Module, tune, wrap
from lamina.aitune.tune_strategy import (
    FirstWins,
    FirstWinsStrategy,
    LatencyBudget,
    LatencyBudgetStrategy,
    MaxThroughput,
    MaxThroughputStrategy,
    MinLatency,
    MinLatencyStrategy,
    OneBackend,
    OneBackendStrategy,
)

__all__ = [
    "BatchDim",
    "DynamicDim",
    "FirstWins",
    "FirstWinsStrategy",
    "LatencyBudget",
    "LatencyBudgetStrategy",
    "MaxThroughput",
    "MaxThroughputStrategy",
    "MinLatency",
    "MinLatencyStrategy",
    "Module",
    "OneBackend",
    "OneBackendStrategy",
    "inspect",
    "load",
    "profile",
    "save",
    "tune",
    "wrap",
]
