"""What makes machine code of Triton kernels for one GPU, and what loads it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial

from lamina.backends.regions import (
    build_threads,
    chosen_compiler,
    progress_printer,
)
from lamina.base.target import Target
from lamina.options import Options
from lamina.runtime.cache import Cache
from lamina.runtime.cuda_driver import Driver, make_launcher
from lamina.runtime.toolchain import Compiler
from lamina.runtime.triton_build import TritonBuild, TritonUnit, build_triton
from lamina.runtime.triton_pool import compiler_pool

__all__ = ["GpuBuilder"]


class GpuBuilder:
    """Builds kernels for one GPU with some options; ``launching`` gives what loads them, once there is a launcher."""

    def __init__(self, options: Options, device: int, target: Target, cache: Cache) -> None:
        self.options, self.device, self.target, self.cache = options, device, target, cache
        compiler_pool(options.jobs).start()
        self.launching = build_threads().submit(_driver, options.cxx, cache)

    @property
    def driver(self) -> Driver:
        """What loads kernels; waits for its launcher, which a C++ compiler makes once per machine."""
        return self.launching.result()

    def built(self, region: str, units: Sequence[TritonUnit], patience: float | None = None) -> TritonBuild:
        """Look the kernels up in the cache and compile what is missing, waiting ``patience`` seconds at most."""
        return build_triton(
            units,
            patience=patience,
            capability=self.target.architecture,
            cache=self.cache,
            pool=partial(compiler_pool, self.options.jobs),
            on_progress=progress_printer(region, "kernels") if self.options.progress else None,
        )


@cache  # values of the options cxx and cache_dir
def _driver(cxx: str, cache: Cache) -> Driver:
    compiler = chosen_compiler(cxx, cache)
    return Driver(launcher=make_launcher(compiler if isinstance(compiler, Compiler) else None, cache))
