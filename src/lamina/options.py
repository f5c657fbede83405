"""Every knob, once: type, default, help and environment name. The only reader of the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from difflib import get_close_matches
from typing import Any

from lamina.base.logs import enable_logs
from lamina.base.other_options import told_for
from lamina.base.passes import Passes
from lamina.base.rule import NestRule, Rule
from lamina.base.user_frames import show_all_frames
from lamina.base.user_warnings import warn_user
from lamina.errors import BadArgument, UnknownOption

__all__ = [
    "MODES",
    "Options",
    "compiler_variables",
    "list_options",
    "torch_compile_disabled",
    "use_gpu",
    "visible_gpus",
    "wanted_capture",
]

_EXAMPLES = {bool: "set it to 0 or 1", int: "set it to a whole number, 0 or more"}

_NO_PASSES = Passes()

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


def _knob(default: Any, help: str, env: str = "", choices: tuple[object, ...] = (), key: bool = True) -> Any:
    return field(default=default, metadata={"help": help, "env": env, "choices": choices, "key": key})


@dataclass(frozen=True, slots=True)
class Options:
    """How to compile. Frozen; every field marked as key is part of every cache key."""

    mode: str = _knob("default", "one of torch.compile's four modes", "LAMINA_MODE", MODES)
    numerics: str = _knob(
        "fast", "fast: fp32 inside a kernel; eager: round and draw as eager does", "LAMINA_NUMERICS", ("fast", "eager")
    )
    assume_finite: bool = _knob(
        False,
        "no NaN comes up, nor infinities but a mask's, in operands or on the way: more ways to take a softmax, loss or "
        "norm apart are taken for the whole, attention does not check its operands, and on a GPU libraries may do ReLU",
        "LAMINA_ASSUME_FINITE",
    )
    simd: str = _knob("auto", "instruction set of CPU kernels", "LAMINA_SIMD", ("auto", "avx512", "avx2", "plain"))
    cxx: str = _knob("", "C++ compiler to use instead of the first one found", "LAMINA_CXX")
    rules: tuple[Rule | NestRule, ...] = _knob((), "rewrite rules of one's own, tried before Lamina's")
    without_rules: tuple[str, ...] = _knob((), "names of Lamina's rules to leave out")
    expect_matches: tuple[tuple[str, int], ...] = _knob(
        (), "how many times rules must match in each captured graph: {name: count}", key=False
    )
    passes: Passes = _knob(_NO_PASSES, "passes of one's own: a lamina.extend.Passes")  # noqa: RUF009 - it is frozen
    freeze: bool = _knob(
        False, "in inference, keep what parameters and buffers alone give until one changes", "LAMINA_FREEZE"
    )
    compare_eager: str = _knob(
        "cpu",
        "on which devices a compiled graph takes some of its first calls in turns with eager where estimates do not "
        "tell which is faster; the faster way is kept, in the cache as well. The two ways round differently; "
        "with numerics eager, strict, verify, deterministic algorithms, random numbers or writes to inputs nothing is "
        "tried. always: from the first call on and for ever, whatever is faster, to find where the ways differ",
        "LAMINA_COMPARE_EAGER",
        ("off", "cpu", "all", "always"),
        key=False,
    )
    fuel: int = _knob(1_000_000, "stop after so many rewrites in each graph, to find a wrong one", "LAMINA_FUEL")
    cache_dir: str = _knob("", "folder of the on-disk cache", "LAMINA_CACHE_DIR", key=False)
    cache: bool = _knob(True, "use the on-disk cache", "LAMINA_CACHE", key=False)
    cache_limit: int = _knob(
        10240,
        "MiB from which the least recently used of the on-disk cache is removed; 0 means no limit",
        "LAMINA_CACHE_LIMIT",
        key=False,
    )
    build_seconds: int = _knob(
        300, "time limit for all C++ compilers of a region together; 0 means none", "LAMINA_BUILD_SECONDS", key=False
    )
    kept_memory: int = _knob(
        2048,
        "MiB of memory for results and temporaries on the CPU that stays with the process between calls, so that the "
        "next one need not ask the system, at most an eighth of the machine's; 0: none. Of the options of a process "
        "those that something was compiled with last",
        "LAMINA_KEPT_MEMORY",
        key=False,
    )
    verify: bool | str = _knob(
        False,
        'True: run every verifier after every stage; "first": hold the first call of each compiled region against its '
        "graph run by ATen; where it differs, warn, name the first kernel that does, and go on by ATen",
        "LAMINA_VERIFY",
        (False, True, "first"),
        key=False,
    )
    strict: bool = _knob(False, "raise instead of falling back to ATen calls", "LAMINA_STRICT", key=False)
    entry: str = _knob(
        "lamina",
        "the way from Python into compiled code. lamina: a shorter one, where torch's wrapper is one of those that it "
        "was checked against; torch: that wrapper in any case. Python then runs no function whose capture fails",
        "LAMINA_ENTRY",
        ("lamina", "torch"),
        key=False,
    )
    capture: str = _knob(
        "dynamo",
        "who captures graphs for lamina.compile. dynamo: TorchDynamo; own: an interpreter of Lamina's, which notices "
        "every change of what a call reads and records in loops, generators and handlers, but interprets each call and "
        "compiles each combination of sizes for itself",
        "LAMINA_CAPTURE",
        ("dynamo", "own"),
        key=False,
    )
    dump_dir: str = _knob(
        "",
        "folder in which each graph, when it is compiled, leaves its stages so far, a numbered folder for each "
        "region; a second function of the process does so in function2 within, and so on",
        "LAMINA_DUMP_DIR",
        key=False,
    )
    report: str = _knob(
        "",
        "file that the process writes when it ends: all stages, decisions and kernels of each compiled callable as a "
        "page (.html), or as data (.json); a second callable's gets -2 before the dot, and so on",
        "LAMINA_REPORT",
        key=False,
    )
    progress: bool = _knob(
        True, "on a terminal, print a line when compiling takes over two seconds", "LAMINA_PROGRESS", key=False
    )
    logs: str = _knob(
        "",
        "logs to write, separated by commas: graph_breaks, guards, recompiles, aot, rewrite, lowering, fusion, "
        "schedule, output_code, autotune, cache, perf_hints. Each is a logger of the module logging, lamina.fusion say",
        "LAMINA_LOGS",
        key=False,
    )
    debug: int = _knob(
        0,
        "how much to log, 0 to 5: 1 graph breaks, recompiles and hints, 2 the cache and tuning, 3 rewrites, "
        "differentiation and guards, 4 lowering, fusion and schedules, 5 the generated code",
        "LAMINA_DEBUG",
        key=False,
    )
    traceback: str = _knob(
        "user",
        "frames of the tracebacks of Lamina's errors. user: those of the user's files; full: all, from the first "
        "compile call on that asks for it",
        "LAMINA_TRACEBACK",
        ("user", "full"),
        key=False,
    )
    jobs: int = _knob(0, "C++ compilers run at once; 0 means one per core", "LAMINA_JOBS", key=False)

    @classmethod
    def knobs(cls) -> tuple[str, ...]:
        """Names of all options."""
        return tuple(f.name for f in fields(cls))

    @classmethod
    def of(cls, mode: str | None, given: Mapping[str, Any] | Options | None) -> Options:
        """What ``lamina.compile`` was asked for. Raises ``BadArgument`` or ``UnknownOption``."""
        if isinstance(given, Options):
            given = given._checked()  # that of a dataclass, which took whatever it was given
            _agree(mode, given.mode if given.mode != "default" else None)
            return given if mode is None else given.replace(mode=mode)
        if given is not None and not isinstance(given, Mapping):
            raise BadArgument(
                f"the options are a {type(given).__name__}: {given!r}", remedy='pass a mapping such as {"strict": True}'
            )
        _agree(mode, (given or {}).get("mode"))
        return cls.from_environment({**(given or {}), **({} if mode is None else {"mode": mode})})

    @classmethod
    def from_environment(cls, given: Mapping[str, Any] | None = None) -> Options:
        """Defaults, overridden by the environment, overridden by ``given``.

        Raises ``UnknownOption`` for a name or a value that does not exist.
        """
        values: dict[str, Any] = {}
        for f in fields(cls):
            text = os.environ.get(f.metadata["env"])
            if text is not None:
                values[f.name] = _parse(f.metadata["env"], f.default, text, f.metadata["choices"])
        for name, value in values.items():
            _check(cls.__dataclass_fields__[name], value, f"the environment variable {_env(cls, name)}")
        show_all_frames(values.get("traceback") == "full")
        _warn_of_misspelt({f.metadata["env"] for f in fields(cls)} - {""}, cls.knobs())
        for name, value in (given or {}).items():
            _known(cls, name)
            values[name] = value
        return cls(**{name: _as_value(name, value) for name, value in values.items()})._checked()

    def replace(self, **changes: Any) -> Options:
        """The same options with some fields changed, checked again."""
        for name in changes:
            _known(type(self), name)
        return replace(self, **{name: _as_value(name, value) for name, value in changes.items()})._checked()

    def changed(self) -> dict[str, Any]:
        """The fields whose values are not the usual ones."""
        usual = Options()
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != getattr(usual, f.name)}

    def key(self) -> tuple[tuple[str, Any], ...]:
        """The fields that change generated code, for cache keys; the user's functions by name and hash of source."""
        return tuple((f.name, _identity(getattr(self, f.name))) for f in fields(self) if f.metadata["key"])

    def _checked(self) -> Options:
        for f in fields(self):
            _check(f, getattr(self, f.name), f"option {f.name!r}")
        _check_names(self.rules)
        enable_logs(self.logs, self.debug)
        if self.traceback == "full":
            show_all_frames(True)
        return self


def _described(f: Field[Any]) -> str:
    """One line of ``help(Options)``."""
    default = "Passes()" if f.default == _NO_PASSES else repr(f.default)
    env = f" ({f.metadata['env']})" if f.metadata["env"] else ""
    choices = f" [{', '.join(map(str, f.metadata['choices']))}]" if f.metadata["choices"] else ""
    return f"    {f.name} = {default}{env}: {f.metadata['help']}{choices}"


Options.__doc__ = "\n".join(
    [
        f"{Options.__doc__}",
        "",
        "    Name, default and environment variable of each:",
        "",
        *map(_described, fields(Options)),
        "    ",
    ]
)


def list_options() -> dict[str, str]:
    """What ``options=`` takes, by name: the default, the environment variable, what it does, and its values."""
    return {f.name: _described(f).partition(" = ")[2] for f in fields(Options)}


def compiler_variables() -> tuple[str, ...]:
    """The environment variables by which compilers, and wrappers before them, are told what to do, as "name=value"."""
    return tuple(f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(_TELLING))


def wanted_capture(given: Any) -> Any:
    """What ``given`` options say who captures graphs, or the environment; nothing is checked."""
    if isinstance(given, Options):
        return given.capture
    own = given.get("capture") if isinstance(given, Mapping) else None
    return os.environ.get("LAMINA_CAPTURE") if own is None else own


def torch_compile_disabled() -> bool:
    """Whether the environment switches torch's compilers off, those of ours with them."""
    return os.environ.get("TORCH_COMPILE_DISABLE") == "1"


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them; none where it says nothing."""
    return [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]


def use_gpu(name: str) -> None:
    """Let this process use one GPU alone, its ``cuda:0``; that is so if it has asked for none before."""
    os.environ["CUDA_VISIBLE_DEVICES"] = name


_TELLING = ("CCACHE_", "CCC_", "CLANG_", "GCC_", "NIX_", "COMPILER_PATH", "CPATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH")


def _agree(mode: Any, within: Any) -> None:
    """Raise ``BadArgument`` where the mode that was given and the one among the options differ."""
    if mode is not None and within is not None and mode != within:
        raise BadArgument(
            f"mode is {mode!r}, and the options say mode {within!r}", remedy="give one of them, or the same mode twice"
        )


def _known(cls: type[Options], name: Any) -> None:
    if name not in cls.knobs():
        if told := told_for(name):
            raise UnknownOption(f"no option is called {name!r}", remedy=told)
        meant = get_close_matches(name, cls.knobs(), 1) if isinstance(name, str) else ()
        hint = f"did you mean {meant[0]!r}? " if meant else ""
        raise UnknownOption(f"no option is called {name!r}", remedy=f"{hint}use one of {', '.join(cls.knobs())}")


def _env(cls: type[Options], name: str) -> str:
    return str(cls.__dataclass_fields__[name].metadata["env"])


def _check(f: Field[Any], value: Any, what: str) -> None:
    choices = f.metadata["choices"]
    known = any(type(value) is type(choice) and value == choice for choice in choices)
    if choices and not known and (isinstance(value, str) or type(f.default) is str):
        raise UnknownOption(f"{what} is {value!r}", remedy=f"use one of {', '.join(map(str, choices))}")
    if type(value) is not type(f.default) and not known:
        wanted = "mapping" if f.name == "expect_matches" else type(f.default).__name__
        raise UnknownOption(f"{what} is {value!r}, not of type {wanted}", remedy=_way_to_write(f, value))
    if isinstance(value, str) and "\0" in value:
        raise UnknownOption(f"{what} is {value!r}, with a NUL character", remedy=_way_to_write(f, ""))
    if f.name in _MEMBERS and isinstance(value, tuple):
        _check_members(value, what, *_MEMBERS[f.name])
    if type(value) is int and value < 0:
        raise UnknownOption(f"{what} is {value}, below zero", remedy=_way_to_write(f, value))


def _way_to_write(f: Field[Any], value: Any) -> str:
    """What to give for an option instead of a ``value`` of the wrong type."""
    if isinstance(f.default, bool):
        return "write True or False"
    if isinstance(f.default, int):
        return f"write a whole number, 0 or more ({f.metadata['help']})"
    if isinstance(f.default, str):
        return f"write {str(value)!r}" if isinstance(value, os.PathLike) else f"write a text ({f.metadata['help']})"
    if isinstance(f.default, Passes):
        return "make one with lamina.extend.Passes, such as Passes(joint=function)"
    if f.name == "without_rules" and isinstance(value, str):
        return f'write ("{value}",)'
    if f.name == "rules" and callable(value):
        return "make a rule of it with lamina.extend.rule or nest_rule, and write (that_rule,)"
    return {
        "rules": "write (rule(before, after),), with lamina.extend.rule or nest_rule",
        "without_rules": 'write a tuple of names, such as ("silu of sigmoid",)',
        "expect_matches": _MEMBERS["expect_matches"][1],
    }[f.name]


_MEMBERS: dict[str, tuple[tuple[type, ...], str]] = {
    "rules": ((Rule, NestRule), "make rules with lamina.extend.rule or nest_rule"),
    "without_rules": ((str,), "give the names of rules, as the record's decisions of kind 'rewrite' say them"),
    "expect_matches": ((tuple,), 'give a mapping such as {"rule name": 2}'),
}
"""Options that hold several values: what each of them must be, and what to do."""


def _check_members(values: tuple[Any, ...], what: str, types: tuple[type, ...], remedy: str) -> None:
    for value in values:
        pair = not isinstance(value, tuple) or (len(value) == 2 and type(value[0]) is str and type(value[1]) is int)
        if not isinstance(value, types) or not pair:
            raise UnknownOption(f"{what} holds {value!r}", remedy=remedy)


def _check_names(rules: tuple[Rule | NestRule, ...]) -> None:
    """Rules are told apart by their names: in ``expect_matches``, in decisions and in errors."""
    first: dict[str, Rule | NestRule] = {}
    for one in rules:
        other = first.setdefault(one.name, one)
        if other != one:
            raise BadArgument(
                f"two rules are called {one.name!r}",
                where=other.place if other.place == one.place else f"{other.place} and {one.place}",
                remedy='give each a name of its own: rule(before, after, name="...")',
            )


def _as_value(name: str, given: Any) -> Any:
    """What users may write for a tuple, as a tuple that can be hashed."""
    if name == "expect_matches" and isinstance(given, Mapping):
        return tuple(sorted(given.items(), key=str))
    if name in ("rules", "without_rules") and isinstance(given, (list, Rule, NestRule, set, frozenset)):
        return tuple(given) if not isinstance(given, (Rule, NestRule)) else (given,)
    return given


def _identity(value: Any) -> Any:
    if isinstance(value, (Rule, NestRule, Passes)):
        return value.identity()
    return tuple(_identity(v) for v in value) if isinstance(value, tuple) else value


def _warn_of_misspelt(known: set[str], options: Sequence[str]) -> None:
    """Say which variables look like an option's but are none."""
    for name in sorted(n for n in os.environ if n.startswith("LAMINA_") and n not in known):
        option = name.removeprefix("LAMINA_").lower()
        if option in options:
            text = f"the environment variable {name} is not read; give {option!r} to lamina.compile in its options"
            warn_user(text)
            continue
        meant = get_close_matches(name, known, 1, 0.85)
        if meant:
            warn_user(f"the environment variable {name} is no option's; did you mean {meant[0]}?")


def _parse(name: str, default: Any, text: str, choices: tuple[object, ...]) -> Any:
    if text in choices:
        return text
    try:
        if isinstance(default, bool):
            return {"1": True, "true": True, "0": False, "false": False}[text.strip().lower()]
        return int(text) if isinstance(default, int) else text
    except (KeyError, ValueError):
        raise UnknownOption(
            f"the environment variable {name} is {text!r}", remedy=f"{_EXAMPLES[type(default)]}, or unset it"
        ) from None
