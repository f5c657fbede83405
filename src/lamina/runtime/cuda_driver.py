"""NVIDIA's driver interface: machine code loaded onto a GPU, and kernels launched at the price of one call.

A launch takes stream, grid and the arguments as Python numbers. A few lines of C++, compiled once per machine, make it
a built-in function of the interpreter, which writes the arguments as the kernel expects them and hands them to the
driver; without a compiler ``struct`` and ctypes do the same, three microseconds slower.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lamina.base.built_in import built_in, interpreters_functions
from lamina.runtime.cache import Cache
from lamina.runtime.source import load_source
from lamina.runtime.toolchain import Compiler
from lamina.runtime.triton_build import Cubin
from lamina.runtime.triton_pool import TooMuchShared, TritonError

__all__ = ["CudaError", "CudaKernel", "Driver", "make_launcher", "pack_format"]

Launch = Callable[..., int]
"""``launch(stream, grid_x, grid_y, grid_z, *arguments)`` gives the driver's code, 0 for success."""
Launcher = Callable[[bytes, bytes], Launch]
"""Makes one from a kernel's description (``_KERNEL``) and the letters of its arguments."""

_HEAD = "@P3I4x"  # stream, grid; the arguments begin at the next multiple of 8
_ARGUMENTS = struct.calcsize(_HEAD)
_KERNEL = struct.Struct("@5P2I")  # see struct kernel below; the letters follow it
_LETTERS = {"i64": "q", "u64": "Q", "i32": "i", "u32": "I", "i16": "h", "i8": "b", "i1": "b", "fp32": "f", "fp64": "d"}
_SYMBOL, _PREPARE = "lamina_cuda_launch", "lamina_cuda_prepare"
_INVALID_CONTEXT = 201
"""``CUDA_ERROR_INVALID_CONTEXT``: the thread has no current context, and gets one."""
_MAX_SHARED, _REGISTERS, _LOCAL, _MAX_THREADS = 8, 4, 3, 0  # CUfunction_attribute
_SHARED_OPTIN = 97  # CUdevice_attribute

_PYTHON = (
    *("PyBytes_AsString", "PyLong_AsLongLong", "PyLong_AsUnsignedLongLongMask", "PyFloat_AsDouble"),
    *("PyLong_FromLong", "PyErr_Occurred", "PyErr_SetString", "PyEval_SaveThread", "PyEval_RestoreThread"),
)
"""What the C++ uses of the interpreter, all in its stable interface, in the order of struct python below."""

_SOURCE = """
struct object;
struct python {
  char* (*bytes)(object*);
  long long (*number)(object*);
  unsigned long long (*word)(object*);
  double (*real)(object*);
  object* (*made)(long);
  object* (*failed)();
  void (*fail)(object*, const char*);
  void* (*release)();
  void (*acquire)(void*);
  object* wrong_type;
  object* overflow;
};
struct kernel {
  int (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
  int (*set_context)(void*);
  void* context;
  void* function;
  unsigned long bytes;
  unsigned threads, shared;
  char letters[1];
};
static python py;
extern "C" void lamina_cuda_prepare(const python* functions) { py = *functions; }

template <class T> static char* put(char* at, T value) {
  unsigned long place = ((unsigned long)at + sizeof(T) - 1) & ~(sizeof(T) - 1);
  *(T*)place = value;
  return (char*)(place + sizeof(T));
}
template <class T> static char* put_number(char* at, object* given, bool& fits) {
  long long value = py.number(given);
  fits &= value == (long long)(T)value;
  return put<T>(at, (T)value);
}
static unsigned count_of(object* given, bool& fits) {
  long long value = py.number(given);
  fits &= value == (long long)(unsigned)value;
  return (unsigned)value;
}

extern "C" object* lamina_cuda_launch(object* self, object* const* given, long count) {
  const kernel* k = (const kernel*)py.bytes(self);
  bool fits = true;
  long wanted = 4;
  for (const char* letter = k->letters; *letter; letter++) wanted++;
  if (count != wanted) {
    py.fail(py.wrong_type, "a launch takes stream, grid and the kernel's arguments");
    return 0;
  }
  void* stream = (void*)py.word(given[0]);
  unsigned x = count_of(given[1], fits), y = count_of(given[2], fits), z = count_of(given[3], fits);
  unsigned long bytes = k->bytes;
  char* arguments = (char*)__builtin_alloca_with_align(bytes + 16, 128);
  __builtin_memset(arguments, 0, bytes);
  char* at = arguments;
  object* const* next = given + 4;
  for (const char* letter = k->letters; *letter; letter++, next++) {
    switch (*letter) {
      case 'P': case 'Q': at = put<unsigned long long>(at, py.word(*next)); break;
      case 'q': at = put<long long>(at, py.number(*next)); break;
      case 'i': at = put_number<int>(at, *next, fits); break;
      case 'I': at = put_number<unsigned>(at, *next, fits); break;
      case 'h': at = put_number<short>(at, *next, fits); break;
      case 'b': at = put_number<signed char>(at, *next, fits); break;
      case 'd': at = put<double>(at, py.real(*next)); break;
      default: at = put<float>(at, (float)py.real(*next));
    }
  }
  if (py.failed()) return 0;
  if (!fits) {
    py.fail(py.overflow, "a kernel's argument does not fit its type");
    return 0;
  }
  if (!x || !y || !z) return py.made(0);
  void* extra[] = {(void*)1, (void*)arguments, (void*)2, (void*)&bytes, (void*)0};
  void* thread = py.release();  // the driver waits when much is queued
  int code = k->launch(k->function, x, y, z, k->threads, 1, 1, k->shared, stream, 0, extra);
  if (code == 201 && !k->set_context(k->context))  // a thread that has not used the GPU yet
    code = k->launch(k->function, x, y, z, k->threads, 1, 1, k->shared, stream, 0, extra);
  py.acquire(thread);
  return py.made(code);
}
"""


class CudaError(RuntimeError):
    """The driver refused a call."""


@dataclass(frozen=True, slots=True)
class CudaKernel:
    """A kernel loaded onto one GPU: ``launch(stream, grid_x, grid_y, grid_z, *arguments)`` gives the driver's code, 0
    for success. Pointers are not checked. ``registers`` and ``spilled`` (bytes) are those of a thread.
    """

    name: str
    launch: Launch
    registers: int
    spilled: int


def pack_format(types: tuple[str, ...], hidden: int, scratch: bool = False) -> str:
    """The ``struct`` format of a launch: stream, grid, arguments of these Triton types, then ``hidden`` pointers, which
    are null, but for the first where ``scratch`` memory is given.

    Raises ``TritonError`` for a type that host programs do not pass.
    """
    return f"{_HEAD}{_letters(types, scratch)}{'' if scratch else '0P'}{8 * (hidden - scratch)}x"


def _letters(types: tuple[str, ...], scratch: bool) -> str:
    """``struct``'s letters for what a launch is given beside stream and grid."""
    letters = "".join("P" if t.startswith("*") else _LETTERS.get(t, "?") for t in types)
    if "?" in letters:
        raise TritonError(f"no kernel argument can have a type of {', '.join(types)}")
    return letters + "P" * scratch


def make_launcher(compiler: Compiler | None, cache: Cache) -> Launcher:
    """What makes functions that launch kernels: built-in ones, or without a compiler by way of ctypes."""
    if compiler is None:
        return _launch_by_ctypes
    library = load_source("launcher", _SOURCE, compiler, cache)
    if library is None:
        return _launch_by_ctypes
    try:
        return _built_in(library)
    except AttributeError:
        return _launch_by_ctypes


def _built_in(library: ctypes.CDLL) -> Launcher:
    """Built-in functions around the library's. ``AttributeError`` where an interpreter lacks what they need."""
    names = interpreters_functions(_PYTHON)
    table = (ctypes.c_void_p * (len(names) + 2))(*names, id(TypeError), id(OverflowError))
    getattr(library, _PREPARE)(table)
    new = built_in(b"launch", getattr(library, _SYMBOL))

    def launcher(kernel: bytes, letters: bytes) -> Launch:
        launch: Launch = new(kernel + letters + b"\0")
        return launch

    return launcher


def _launch_by_ctypes(kernel: bytes, letters: bytes) -> Launch:
    """What the C++ of this file does, for machines without a compiler."""
    address, set_context, context, function, nbytes, threads, shared = _KERNEL.unpack(kernel)
    head, packing = struct.Struct("@P3I"), struct.Struct("@" + letters.decode())
    driver, enter = _LAUNCH_TYPE(address), ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(set_context)

    def launch(stream: int, x: int, y: int, z: int, *arguments: float) -> int:
        head.pack(stream, x, y, z)  # raises for what does not fit
        given = ctypes.create_string_buffer(packing.pack(*arguments), nbytes)
        if not (x and y and z):
            return 0
        size = ctypes.c_size_t(nbytes)
        extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(given), 2, ctypes.addressof(size), 0)
        words = (function, x, y, z, threads, 1, 1, shared, stream, None, extra)
        code = int(driver(*words))
        if code != _INVALID_CONTEXT or enter(context):
            return code
        return int(driver(*words))

    return launch


_LAUNCH_TYPE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, *(ctypes.c_uint,) * 7, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)


class Driver:
    """The driver of this process, through ``library`` (libcuda, or what stands in for it in tests)."""

    def __init__(self, library: ctypes.CDLL | None = None, launcher: Launcher = _launch_by_ctypes) -> None:
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
        nbytes = struct.calcsize(pack_format(cubin.types, cubin.hidden, cubin.scratch)) - _ARGUMENTS
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
            nbytes,
            cubin.threads,
            cubin.shared,
        )
        launch = self._launcher(described, _letters(cubin.types, cubin.scratch).encode())
        return CudaKernel(cubin.function, launch, registers, spilled)

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
