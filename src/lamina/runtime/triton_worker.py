"""Compiles Triton kernels for a given GPU, one request after another: run as a script, in a process of its own.

The only file that names what Triton keeps to itself (read in 3.6): ``compile`` with an ``ASTSource`` for a
``GPUTarget``, which needs neither a GPU nor torch, the attributes of its result, and the settings in ``knobs``. A
process of its own because a compiler that crashes must not take the user's program with it, because its front end
holds the interpreter lock, and so that Triton's files go to a folder that is thrown away.

Requests and replies are lines of JSON on standard input and output. The first line has the module search path and a
folder for what Triton writes; each further one a kernel (``Request``), and the answer is what its launch needs, or an
"error".
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import linecache
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import IO, Any, TypedDict

__all__ = ["Request", "compile_request"]


_SCRATCH_ALIGNMENT = 128
"""Bytes; what launches give."""
_MEETING = re.compile(r"\bmeet\((\d+)\)")
"""Where the programs of a cluster wait for each other, and how many they are."""
_PACKED_SUM = re.compile(r"\badd\.[su]16x2\s+(\S+), (\S+), (\S+);")
_TWO_SUMS = r"""{
	.reg .b16 %half<6>;
	mov.b32 	{%half0, %half1}, \2;
	mov.b32 	{%half2, %half3}, \3;
	add.s16 	%half4, %half0, %half2;
	add.s16 	%half5, %half1, %half3;
	mov.b32 	\1, {%half4, %half5};
	}"""
"""Two numbers of 16 bits in one register are added one by one: where only one sum is used and the other operand is a
constant, ptxas 12.8 and 13.0 add 0 instead of it (``-O1`` and higher; ``min``, ``max`` and sums of floats are right).
"""


class Request(TypedDict):
    """A kernel to compile: ``name`` in the module ``text``; ``aligned`` are positions of arguments that are multiples
    of 16; ``scratch`` is the memory in bytes that a program may need beside its arguments; ``capability`` is the GPU's,
    times ten; ``folder`` is where the machine code goes.
    """

    name: str
    text: str
    parameters: list[str]
    types: list[str]
    aligned: list[int]
    warps: int
    stages: int
    asserts: bool
    scratch: int
    capability: int
    folder: str


def compile_request(request: Request) -> dict[str, Any]:
    """Compile one kernel into ``kernel.cubin``, ``kernel.ptx`` and ``kernel.ttgir`` of its folder.

    The result has ``function`` (the symbol), ``shared`` (bytes), ``threads`` and ``hidden`` (pointers that follow the
    arguments; the first is the scratch memory's, the others may be null). Raises what Triton raises,
    and ``ValueError`` for a kernel that needs more than that.
    """
    triton = _triton()
    source = triton.compiler.ASTSource(
        fn=_function(request["name"], request["text"]),
        signature=dict(zip(request["parameters"], request["types"], strict=True)),
        attrs={(position,): [["tt.divisibility", 16]] for position in request["aligned"]},
    )
    options = {"num_warps": request["warps"], "num_stages": request["stages"]}
    if request["asserts"]:
        options |= {"debug": True, "sanitize_overflow": False}
    target = triton.backends.compiler.GPUTarget("cuda", request["capability"], 32)
    with _amended(triton, request["text"]):
        kernel = triton.compile(source, target=target, options=options)
    about = kernel.metadata
    if about.profile_scratch_size or about.num_ctas != 1 or about.launch_cooperative_grid:
        raise ValueError("the kernel needs memory for a profile, clusters or a cooperative launch")
    if about.global_scratch_size > request["scratch"] or about.global_scratch_align > _SCRATCH_ALIGNMENT:
        needs = f"{about.global_scratch_size} bytes at multiples of {about.global_scratch_align}"
        raise ValueError(f"the kernel needs {needs} of scratch memory")
    for kind in ("cubin", "ptx", "ttgir"):
        content = kernel.asm[kind]
        with open(os.path.join(request["folder"], f"kernel.{kind}"), "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())
    entry = kernel.asm["ptx"].partition(".entry")[2].partition(")")[0]
    return {
        "function": about.name,
        "shared": about.shared,
        "threads": about.num_warps * 32,
        "hidden": entry.count(".param") - len(request["types"]),
    }


@contextlib.contextmanager
def _amended(triton: Any, text: str) -> Iterator[None]:
    """Has ptxas given other text than Triton writes: without packed sums, and with a declaration of clusters of as many
    programs as meet in ``text``, for which Triton has a name if they are of several tiles only.
    """
    meeting = _MEETING.search(text)
    backend = triton.backends.backends["nvidia"].compiler
    original = backend.make_ptx

    def make_ptx(*args: Any, **named: Any) -> str:
        ptx = _PACKED_SUM.sub(_TWO_SUMS, original(*args, **named))
        if meeting is None:
            return ptx
        head, mark, rest = ptx.partition(".reqntid")
        return f"{head}.explicitcluster\n.reqnctapercluster {meeting[1]}, 1, 1\n{mark}{rest}"

    backend.make_ptx = make_ptx
    try:
        yield
    finally:
        backend.make_ptx = original


def _triton() -> Any:
    import triton  # noqa: PLC0415  optional, and found only on the search path that is sent

    return triton


def _function(name: str, text: str) -> Any:
    """The jitted function of a module. Triton reads its text again, through ``linecache``."""
    file = f"lamina/{name}.py"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope: dict[str, Any] = {"__name__": name}
    exec(compile(text, file, "exec"), scope)
    return scope[name]


def _answer(line: str, said: IO[bytes]) -> dict[str, Any]:
    said.seek(0)
    said.truncate()
    try:
        return compile_request(json.loads(line))
    except Exception as error:
        sys.stderr.flush()
        said.seek(0)
        notes = said.read().decode(errors="replace").strip()[-2000:]
        return {"error": f"{type(error).__name__}: {error}\n{notes}".strip()}


def _prepare_imports() -> None:
    """Let kernels import functions of ``lamina.runtime`` without what the package imports, and torch and Triton's
    interpreter, of which ``triton_math`` only needs one for the other, when they are first used: that saves two
    seconds.
    """
    package = ModuleType("lamina")
    package.__path__ = [str(Path(__file__).parent.parent)]
    sys.modules["lamina"] = package
    for name in ("torch", "triton.runtime.interpreter"):
        found = importlib.util.find_spec(name) if name not in sys.modules else None
        if found is not None:
            later = _Later(name)
            later.__spec__, later.__file__ = found, found.origin
            sys.modules[name] = later


class _Later(ModuleType):
    """Stands for a module until one of its names is asked for. (``importlib.util.LazyLoader`` loads at the next import
    statement, before Python 3.12.)
    """

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def _prepared_triton() -> Any:
    """Triton with what the first kernel would import, and without what its compilation would compute in vain.

    The identity of Triton itself is part of the names in its cache: it reads and hashes 400 MB for it, once a process,
    0.7 s and more where they come from a disk. Here the cache is a folder for one kernel; only somebody else's cache,
    which the environment may name, needs the identity.
    """
    triton = _triton()
    for name in (
        "triton.compiler.code_generator",
        "lamina.runtime.triton_math",
        "lamina.runtime.triton_fast",
        "lamina.runtime.triton_quotients",
    ):
        importlib.import_module(name)
    names: Any = importlib.import_module("triton.runtime.cache")
    if getattr(triton.knobs.cache, "manager_class", None) is None and hasattr(names, "triton_key"):
        names.triton_key = lambda: triton.__version__
    return triton


def _serve() -> None:
    """Answer requests until there are no more, as there are none from a process that was killed."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with tempfile.TemporaryFile() as said:
        # What compilers print is no reply; errors quote it.
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
        given = json.loads(sys.stdin.readline())
        sys.path[:] = given["path"]
        try:
            _prepare_imports()
            knobs = _prepared_triton().knobs
            for line in sys.stdin:
                os.makedirs(given["folder"], exist_ok=True)  # systems tidy up what lies there for days
                knobs.cache.dir = tempfile.mkdtemp(dir=given["folder"])
                replies.write(json.dumps(_answer(line, said)) + "\n")
                replies.flush()
                shutil.rmtree(knobs.cache.dir, ignore_errors=True)
        finally:
            shutil.rmtree(given["folder"], ignore_errors=True)


if __name__ == "__main__":
    _serve()
