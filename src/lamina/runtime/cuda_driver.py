"""NVIDIA's driver interface: machine code loaded onto a GPU, and kernels launched at the price of one foreign call.

A launch takes one block of bytes: stream, grid, and the arguments laid out as the kernel expects them, which
``struct.pack`` writes in one go. A few lines of C++, compiled once per machine, hand it to the driver; without a
compiler ctypes does the same, two microseconds slower.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lamina.runtime.cache import Cache, digest
from lamina.runtime.compilation import Command, run_command
from lamina.runtime.toolchain import Compiler, compile_flags, link_flags, load_library
from lamina.runtime.triton_build import Cubin
from lamina.runtime.triton_pool import TooMuchShared, TritonError

__all__ = ["CudaError", "CudaKernel", "Driver", "make_launcher", "pack_format"]

Launch = Callable[[bytes, bytes], int]

_HEAD = "@P3I4x"  # stream, grid; the arguments begin at the next multiple of 8
_ARGUMENTS = struct.calcsize(_HEAD)
_KERNEL = struct.Struct("@5P2I")  # see struct kernel below
_LETTERS = {"i64": "q", "u64": "Q", "i32": "i", "u32": "I", "i16": "h", "i8": "b", "i1": "b", "fp32": "f", "fp64": "d"}
_SYMBOL = "lamina_cuda_launch"
_INVALID_CONTEXT = 201
_MAX_SHARED, _REGISTERS, _LOCAL, _MAX_THREADS = 8, 4, 3, 0  # CUfunction_attribute
_SHARED_OPTIN = 97  # CUdevice_attribute

_SOURCE = """
struct kernel {
  int (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
  int (*set_context)(void*);
  void* context;
  void* function;
  unsigned long bytes;
  unsigned threads, shared;
};
struct call { void* stream; unsigned x, y, z, unused; char arguments[1]; };
extern "C" int lamina_cuda_launch(const kernel* k, const call* c) {
  if (!c->x || !c->y || !c->z) return 0;
  unsigned long bytes = k->bytes;
  void* extra[] = {(void*)1, (void*)c->arguments, (void*)2, (void*)&bytes, (void*)0};
  int code = k->launch(k->function, c->x, c->y, c->z, k->threads, 1, 1, k->shared, c->stream, 0, extra);
  if (code != 201 || k->set_context(k->context)) return code;  // a thread that has not used the GPU yet
  return k->launch(k->function, c->x, c->y, c->z, k->threads, 1, 1, k->shared, c->stream, 0, extra);
}
"""


class CudaError(RuntimeError):
    """The driver refused a call."""


@dataclass(frozen=True, slots=True)
class CudaKernel:
    """A kernel loaded onto one GPU: ``launch(pack(stream, grid_x, grid_y, grid_z, *arguments))`` gives the driver's
    code, 0 for success. Pointers are not checked. ``registers`` and ``spilled`` (bytes) are those of a thread.
    """

    name: str
    launch: Callable[[bytes], int]
    pack: Callable[..., bytes]
    registers: int
    spilled: int


def pack_format(types: tuple[str, ...], hidden: int, scratch: bool = False) -> str:
    """The ``struct`` format of a launch: stream, grid, arguments of these Triton types, then ``hidden`` pointers, which
    are null, but for the first where ``scratch`` memory is given.

    Raises ``TritonError`` for a type that host programs do not pass.
    """
    letters = "".join("P" if t.startswith("*") else _LETTERS.get(t, "?") for t in types)
    if "?" in letters:
        raise TritonError(f"no kernel argument can have a type of {', '.join(types)}")
    given = "P" if scratch else "0P"
    return f"{_HEAD}{letters}{given}{8 * (hidden - scratch)}x"


def make_launcher(compiler: Compiler | None, cache: Cache) -> Launch:
    """The function that hands a kernel's description and a packed call to the driver and gives back its code."""
    if compiler is None:
        return _launch_by_ctypes
    key = digest("cuda launcher", compiler.identity, _SOURCE)

    def build(folder: Path) -> dict[str, Any]:
        (folder / "launch.cpp").write_text(_SOURCE)
        (folder / "stub.so").write_bytes(compiler.stub)
        flags = (*compile_flags("plain"), "launch.cpp", *link_flags("stub.so"), "-o", "launch.so")
        outcome = run_command(Command((compiler.path, *flags), folder, 60.0))
        if not outcome.ok:
            raise TritonError(outcome.message)
        (folder / "stub.so").unlink()
        return {"kind": "launcher", "compiler": compiler.identity}

    try:
        function = getattr(load_library(cache.get_or_build(key, build).path / "launch.so"), _SYMBOL)
    except (OSError, TritonError):
        return _launch_by_ctypes
    function.argtypes, function.restype = (ctypes.c_char_p, ctypes.c_char_p), ctypes.c_int
    launch: Launch = function
    return launch


def _launch_by_ctypes(kernel: bytes, call: bytes) -> int:
    """What the C++ of this file does, for machines without a compiler."""
    address, set_context, context, function, nbytes, threads, shared = _KERNEL.unpack(kernel)
    stream, x, y, z = struct.unpack_from(_HEAD, call)
    if not (x and y and z):
        return 0
    arguments = ctypes.create_string_buffer(call[_ARGUMENTS:], nbytes)
    size = ctypes.c_size_t(nbytes)
    extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(arguments), 2, ctypes.addressof(size), 0)
    launch = _LAUNCH_TYPE(address)
    words = (function, x, y, z, threads, 1, 1, shared, stream, None, extra)
    code = int(launch(*words))
    if code != _INVALID_CONTEXT or ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(set_context)(context):
        return code
    return int(launch(*words))


_LAUNCH_TYPE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, *(ctypes.c_uint,) * 7, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)


class Driver:
    """The driver of this process, through ``library`` (libcuda, or what stands in for it in tests)."""

    def __init__(self, library: ctypes.CDLL | None = None, launcher: Launch = _launch_by_ctypes) -> None:
        self._library = ctypes.CDLL("libcuda.so.1") if library is None else library
        self._launcher = launcher
        self._loaded: dict[tuple[str, int], CudaKernel] = {}
        self._contexts: dict[int, int] = {}
        self._guard = threading.RLock()

    def load(self, cubin: Cubin, device: int) -> CudaKernel:
        """The kernel on GPU number ``device``; each is loaded once and stays.

        Raises ``TritonError`` if it needs more than the GPU has, ``TooMuchShared`` if that is shared memory, or if the
        driver does not take it.
        """
        with self._guard:
            kernel = self._loaded.get((cubin.key, device))
            if kernel is None:
                try:
                    kernel = self._loaded[cubin.key, device] = self._load(cubin, device)
                except CudaError as error:
                    raise TritonError(f"kernel {cubin.function!r} cannot be loaded: {error}") from None
        return kernel

    def _load(self, cubin: Cubin, device: int) -> CudaKernel:
        packing = struct.Struct(pack_format(cubin.types, cubin.hidden, cubin.scratch))
        context = self._context(device)
        self._call("cuCtxPushCurrent_v2", ctypes.c_void_p(context))
        try:
            module, function = ctypes.c_void_p(), ctypes.c_void_p()
            self._call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(cubin.code))
            self._call("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(cubin.function.encode()))
            most = self._number("cuFuncGetAttribute", _MAX_THREADS, function)
            if cubin.threads > most:
                raise TritonError(f"kernel {cubin.function!r} has {cubin.threads} threads; its registers allow {most}")
            self._reserve(cubin, function, device)
            registers = self._number("cuFuncGetAttribute", _REGISTERS, function)
            spilled = self._number("cuFuncGetAttribute", _LOCAL, function)
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
        described = _KERNEL.pack(
            self._address("cuLaunchKernel"),
            self._address("cuCtxSetCurrent"),
            context,
            function.value or 0,
            packing.size - _ARGUMENTS,
            cubin.threads,
            cubin.shared,
        )
        return CudaKernel(cubin.function, partial(self._launcher, described), packing.pack, registers, spilled)

    def _reserve(self, cubin: Cubin, function: ctypes.c_void_p, device: int) -> None:
        """Ask for shared memory beyond what every kernel may have."""
        if cubin.shared <= 48 << 10:
            return
        limit = self._number("cuDeviceGetAttribute", _SHARED_OPTIN, ctypes.c_int(self._device(device)))
        if cubin.shared > limit:
            needs = f"needs {cubin.shared} bytes of shared memory; the GPU has {limit}"
            raise TooMuchShared(f"kernel {cubin.function!r} {needs}")
        self._call("cuFuncSetAttribute", function, ctypes.c_int(_MAX_SHARED), ctypes.c_int(cubin.shared))

    def _device(self, number: int) -> int:
        found = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(found), ctypes.c_int(number))
        return found.value

    def _context(self, device: int) -> int:
        """The context that torch uses on the device."""
        if device not in self._contexts:
            context = ctypes.c_void_p()
            self._call("cuInit", ctypes.c_uint(0))
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ctypes.c_int(self._device(device)))
            self._contexts[device] = context.value or 0
        return self._contexts[device]

    def _number(self, name: str, attribute: int, subject: Any) -> int:
        value = ctypes.c_int()
        self._call(name, ctypes.byref(value), ctypes.c_int(attribute), subject)
        return value.value

    def _address(self, name: str) -> int:
        return ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value or 0

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise CudaError(f"{name}: {self.message(code)}")

    def message(self, code: int) -> str:
        """What the driver says of a code that is not 0."""
        text = ctypes.c_char_p()
        if self._library.cuGetErrorString(ctypes.c_int(code), ctypes.byref(text)) or text.value is None:
            return f"error {code}"
        return f"{text.value.decode()} (error {code})"
