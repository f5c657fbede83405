"""Loop programs as Python text: one equation a line, and running the text gives an equal value.

Example:
    i, r = Axis("i", 4), Axis("r", 8)
    rows = Nest("rows", (i, r), (
        Load("a", "x", (i, r), "float32", origin=("softmax",)),  # model.py:12 _softmax
        Reduce(("m",), "max", "a", ("r",), "float32", origin=("softmax",)),  # model.py:12 _softmax
"""

from __future__ import annotations

import builtins
import keyword
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from lamina.base.files import files
from lamina.base.text import Writer, literal, one_line, tuple_text
from lamina.ir import loops_read
from lamina.ir.access import origins, provenance
from lamina.ir.expressions import atoms_of, nest_atoms, program_exprs, step_exprs
from lamina.ir.index import Atom, Axis, Div, Expr, Loaded, Mod, Size
from lamina.ir.loops import (
    Buffer,
    BufferView,
    Check,
    Compute,
    Constant,
    Equation,
    Index,
    LibraryCall,
    Load,
    LoopProgram,
    Nest,
    Random,
    Reduce,
    Scan,
    SizeInput,
    Source,
    Store,
)
from lamina.ir.step_texts import StepTexts

__all__ = ["Printer", "equation_text", "print_nest", "print_program", "read_nest", "read_program"]

HEADER = "from lamina.ir.loops_read import *  # the names below, without simplification"


def print_program(program: LoopProgram, texts: StepTexts | None = None) -> str:
    """Python text that defines ``program``. Linear in the number of equations, buffers and sources.

    ``texts`` has what was printed of steps of other programs, and takes that of this one's.
    """
    out = Writer()
    printer = Printer(out, program.sources)
    printer.texts = texts if texts is not None and texts.sources is program.sources else None
    nests = sum(isinstance(s, Nest) for s in program.steps)
    count = f"{nests} nests, {len(program.steps) - nests} library calls"
    out.line(f'"""Loop program {printer.comment_safe(program.name)}: {count}."""')
    out.line(HEADER)
    out.line()
    printer.declare_sizes(program_exprs(program.buffers, program.inputs, program.outputs), program.steps)
    printer.listing("buffers", (printer.buffer(b) for b in program.buffers))
    names = [printer.step(step) for step in program.steps]
    sources = printer.texts.source_lines if printer.texts is not None else []
    sources += [f"Source{tuple_of_strings(s.node, s.op, s.place)}" for s in ([] if sources else program.sources)]
    printer.listing("sources", sources)
    with out.indent("program = LoopProgram(", ")"):
        out.line(f"{program.name!r},")
        out.line(f"{printer.inputs(program.inputs)},")
        out.line("buffers,")
        out.line(f"{tuple_text(names)},")
        out.line(f"{tuple_text(printer.output(o) for o in program.outputs)},")
        out.line("sources,")
    return out.text()


@files.register(LoopProgram)
def _program_files(program: LoopProgram) -> dict[str, str]:
    return {".py": print_program(program)}


def read_program(text: str) -> LoopProgram:
    """The program that ``text`` defines. The text is executed: read only what you would run."""
    found = evaluate(text, "program")
    assert isinstance(found, LoopProgram)
    return found


def print_nest(nest: Nest, sources: Sequence[Source] = ()) -> str:
    """Python text that defines ``nest``."""
    out = Writer()
    printer = Printer(out, sources)
    out.line(HEADER)
    out.line()
    printer.declare_sizes((), (nest,))
    printer.names.add("nest")
    printer.nest(nest, "nest")
    return out.text()


def read_nest(text: str) -> Nest:
    """The nest that ``text`` defines. The text is executed."""
    found = evaluate(text, "nest")
    assert isinstance(found, Nest)
    return found


def equation_text(eqn: Equation) -> str:
    """One equation, for messages."""
    return Printer(Writer(), ()).equation(eqn)


def evaluate(text: str, name: str) -> object:
    """What ``text`` calls ``name`` after it ran."""
    scope: dict[str, object] = {}
    exec(compile(text, f"<{name}>", "exec"), scope)
    return scope[name]


def tuple_of_strings(*values: str) -> str:
    """A call's parentheses around strings, trailing empty ones left out."""
    parts = list(values)
    while parts and not parts[-1]:
        parts.pop()
    return f"({', '.join(map(repr, parts))})"


class Printer:
    """Writes the parts of programs and plans to ``out``."""

    def __init__(self, out: Writer, sources: Iterable[Source]) -> None:
        self.out = out
        self.sources: Mapping[str, Source] = {s.node: s for s in sources}
        self.names: set[str] = {*loops_read.__all__, *keyword.kwlist, *dir(builtins)}
        self.names |= {"buffers", "plan", "program", "sources"}
        self.variables: dict[Atom, str] = {}
        self.plain = True
        self.texts: StepTexts | None = None
        self.size_names: set[str] = set()
        self._comments: dict[tuple[str, ...], str] = {}

    # ---- names ------------------------------------------------------------------------------------------------

    def fresh(self, wanted: str) -> str:
        """``wanted`` or the nearest free identifier."""
        stem = "".join(c if c.isalnum() or c == "_" else "_" for c in wanted) or "v"
        stem = stem if stem.isidentifier() else f"v_{stem}"
        name, count = stem, 0
        while name in self.names:
            count += 1
            name = f"{stem}_{count}"
        self.names.add(name)
        return name

    def variable(self, atom: Size | Axis | Loaded, scope: set[str]) -> str:
        """A variable for an atom, its own name if nothing in ``scope`` is called so."""
        name, count = atom.name, 0
        if not name.isidentifier() or name in loops_read.__all__ or keyword.iskeyword(name):
            name = f"v_{''.join(c if c.isalnum() else '_' for c in name)}"
        stem = name
        while name in scope:
            count += 1
            name = f"{stem}_{count}"
        scope.add(name)
        self.names.add(name)
        if name != atom.name:
            self.plain = False
        self.variables[atom] = name
        return name

    def expr(self, expr: Expr) -> str:
        """Source text of an expression."""
        if not expr.terms:
            return str(expr.const)
        return str(expr) if self.plain else expr.text(self._atom)

    def _atom(self, atom: Atom) -> str:
        if isinstance(atom, Div | Mod):
            sign = "//" if isinstance(atom, Div) else "%"
            return f"(({atom.num.text(self._atom)}) {sign} ({atom.den.text(self._atom)}))"
        return self.variables.get(atom, atom.name)

    def dims(self, exprs: Iterable[Expr]) -> str:
        """A tuple of expressions."""
        return tuple_text(self.expr(e) for e in exprs)

    def comment(self, origin: tuple[str, ...]) -> str:
        """A comment with the user's place of some FX nodes; empty when nothing is known of them."""
        found = self._comments.get(origin)
        if found is None:
            text = provenance(origin, self.sources) if any(name in self.sources for name in origin) else ""
            found = self._comments[origin] = f"  # {text}" if text else ""
        return found

    @staticmethod
    def comment_safe(text: str) -> str:
        """The text without what could end a docstring."""
        return one_line(text)

    # ---- declarations -----------------------------------------------------------------------------------------

    def declare_sizes(self, exprs: Iterable[Expr], steps: Iterable[Any]) -> None:
        """A line for each size that occurs anywhere."""
        atoms = atoms_of(exprs)
        for step in steps:
            atoms |= atoms_of(step_exprs(step)) if self.texts is None else self.texts.atoms(step)
        seen: set[Atom] = set()
        sizes: set[Size] = set()
        while atoms:
            atom = atoms.pop()
            seen.add(atom)
            if isinstance(atom, Size):
                sizes.add(atom)
            elif isinstance(atom, Axis | Loaded):
                atoms |= (atom.extent if isinstance(atom, Axis) else atom.bound).atoms() - seen
        scope: set[str] = set()
        for size in sorted(sizes, key=lambda s: (s.name, s.low is None, s.low or 0)):
            low = f", {size.low}" if size.low != 0 else ""
            self.out.line(f"{self.variable(size, scope)} = Size({size.name!r}{low})")
        self.size_names = scope
        if sizes:
            self.out.line()

    def declare_axes(self, nest: Nest) -> list[str]:
        """Lines for the axes and loaded indices of a nest; returns the axes' variables."""
        scope = set(self.size_names)
        known = {a for a in self.variables if isinstance(a, Size)}
        self.variables = {a: name for a, name in self.variables.items() if a in known}
        axes = [self.variable(axis, scope) for axis in nest.axes]
        inner: list[Axis | Loaded] = [
            a for a in nest_atoms(nest) if isinstance(a, Axis | Loaded) and a not in self.variables
        ]
        if axes:
            made = [f"Axis({a.name!r}, {self.expr(a.extent)})" for a in nest.axes]
            self.out.line(f"{', '.join(axes)} = {', '.join(made)}")
        for atom in sorted(inner, key=lambda a: a.name):
            extent = atom.extent if isinstance(atom, Axis) else atom.bound
            name = self.variable(atom, scope)
            self.out.line(f"{name} = {type(atom).__name__}({atom.name!r}, {self.expr(extent)})")
        return axes

    def listing(self, name: str, lines: Iterable[str]) -> None:
        """A tuple with one element a line."""
        made = list(lines)
        if not made:
            self.out.line(f"{name} = ()")
            return
        with self.out.indent(f"{name} = (", ")"):
            for line in made:
                self.out.line(f"{line},")

    def buffer(self, b: Buffer) -> str:
        """A buffer's declaration."""
        rest = f", {b.device!r}, {b.kind!r}" if b.kind != "temp" else f", {b.device!r}" if not b.on_cpu else ""
        return f"Buffer({b.name!r}, {b.dtype!r}, {self.dims(b.shape)}, {self.dims(b.strides)}{rest})"

    # ---- steps ------------------------------------------------------------------------------------------------

    def step(self, step: Nest | LibraryCall) -> str:
        """Lines that define a step; returns its variable."""
        name = self.fresh(step.name)
        define = partial(self.nest, step) if isinstance(step, Nest) else partial(self.library, step)
        if self.texts is None:
            define(name)
        else:
            self.texts.print(self, step, name, define)
        return name

    def nest(self, nest: Nest, name: str) -> None:
        """Lines that define a nest."""
        axes = self.declare_axes(nest)
        with self.out.indent(f"{name} = Nest({nest.name!r}, {tuple_text(axes)}, (", "))"):
            for eqn in nest.body:
                self.out.line(f"{self.equation(eqn)},{self.comment(eqn.origin)}", eqn.origin)
        self.out.line()

    def nest_variable(self, nest: Nest, wanted: str) -> str:
        """Lines that define a nest; returns its variable, called ``wanted`` if that is free."""
        name = self.fresh(wanted)
        self.nest(nest, name)
        return name

    def library(self, call: LibraryCall, name: str) -> None:
        """Lines that define a library call."""
        comment = self.comment(call.origin)
        with self.out.indent(f"{name} = LibraryCall({comment}", ")"):
            self.out.line(f"{call.name!r}, {call.op!r},", origins(call))
            self.out.line(f"{tuple_text(self.argument(a) for a in call.args)},")
            self.out.line(f"{tuple_text(f'({key!r}, {self.argument(a)})' for key, a in call.kwargs)},")
            rest = [literal_tuple(call.outs)]
            rest += [f"mutates={literal_tuple(call.mutates)}"] if call.mutates else []
            rest += [f"reason={call.reason!r}"] if call.reason else []
            rest += [f"origin={literal_tuple(call.origin)}"] if call.origin else []
            rest += ["list_result=True"] if call.list_result else []
            self.out.line(f"{', '.join(rest)},")
        self.out.line()

    def argument(self, value: Any) -> str:
        """A library call's argument."""
        if isinstance(value, BufferView):
            return self.view(value)
        if isinstance(value, Expr):
            return self.expr(value) if value.terms else f"expr({value.const})"
        if isinstance(value, tuple):
            return tuple_text(self.argument(v) for v in value)
        if isinstance(value, list):
            return f"[{', '.join(self.argument(v) for v in value)}]"
        return literal(value)

    def view(self, v: BufferView) -> str:
        """A window."""
        return f"BufferView({v.buffer!r}, {self.dims(v.shape)}, {self.dims(v.strides)}, {self.expr(v.offset)})"

    def output(self, value: BufferView | Expr | None) -> str:
        """A program's result."""
        if isinstance(value, BufferView):
            return self.view(value)
        return self.expr(value) if isinstance(value, Expr) else "None"

    def inputs(self, items: Iterable[str | SizeInput | None]) -> str:
        """The inputs of a program."""
        return tuple_text(
            f"SizeInput({i.name!r}, {self.expr(i.expr)})" if isinstance(i, SizeInput) else repr(i) for i in items
        )

    # ---- equations --------------------------------------------------------------------------------------------

    def equation(self, eqn: Equation) -> str:
        """One equation on one line."""
        tail = f", origin={literal_tuple(eqn.origin)})" if eqn.origin else ")"
        if isinstance(eqn, Compute):
            return f"Compute({eqn.out!r}, {eqn.op!r}, {literal_tuple(eqn.ins)}, {eqn.dtype!r}{tail}"
        if isinstance(eqn, Load):
            masked = f", mask={eqn.mask!r}, fill={eqn.fill!r}" if eqn.mask is not None or eqn.fill != 0 else ""
            masked = masked or (f", fill={eqn.fill!r}" if type(eqn.fill) is not int else "")
            return f"Load({eqn.out!r}, {eqn.buffer!r}, {self.dims(eqn.index)}, {eqn.dtype!r}{masked}{tail}"
        if isinstance(eqn, Store):
            how = f", {eqn.mode!r}" if eqn.mode != "set" else ""
            how += f", mask={eqn.mask!r}" if eqn.mask is not None else ""
            return f"Store({eqn.buffer!r}, {self.dims(eqn.index)}, {eqn.value!r}{how}{tail}"
        if isinstance(eqn, Reduce):
            outs, axes = literal_tuple(eqn.outs), literal_tuple(eqn.axes)
            return f"Reduce({outs}, {eqn.op!r}, {eqn.value!r}, {axes}, {eqn.dtype!r}{tail}"
        if isinstance(eqn, Constant):
            return f"Constant({eqn.out!r}, {eqn.value!r}, {eqn.dtype!r}{tail}"
        if isinstance(eqn, Index):
            return f"Index({eqn.out!r}, {self.expr(eqn.expr)}, {eqn.dtype!r}{tail}"
        if isinstance(eqn, Random):
            stream = self.argument(eqn.stream)
            return f"Random({eqn.out!r}, {eqn.seed!r}, {stream}, {self.expr(eqn.index)}, {eqn.dtype!r}{tail}"
        if isinstance(eqn, Scan):
            reverse = ", reverse=True" if eqn.reverse else ""
            return f"Scan({eqn.out!r}, {eqn.op!r}, {eqn.value!r}, {eqn.axis!r}, {eqn.dtype!r}{reverse}{tail}"
        assert isinstance(eqn, Check)
        error = f", {eqn.error!r}" if eqn.error != "IndexError" else ""
        return f"Check({eqn.cond!r}, {eqn.message!r}{error}{tail}"


def literal_tuple(values: Iterable[str | None]) -> str:
    """A tuple of strings."""
    return tuple_text(map(repr, values))
