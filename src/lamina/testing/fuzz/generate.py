"""Random programs from a seed, as Python text: what is drawn, and how a program calls what it compiles."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lamina.errors import BadArgument
from lamina.testing.fuzz.broken import BROKEN
from lamina.testing.fuzz.compared import COMPARED
from lamina.testing.fuzz.driver import Argument, Driver
from lamina.testing.fuzz.extremes import EXTREMES
from lamina.testing.fuzz.handled import HANDLED
from lamina.testing.fuzz.model_programs import MODELS
from lamina.testing.fuzz.nested import NESTED
from lamina.testing.fuzz.one_object import ONE_OBJECT
from lamina.testing.fuzz.own_functions import OWN_FUNCTIONS
from lamina.testing.fuzz.parts import PARTS
from lamina.testing.fuzz.results import RESULTS
from lamina.testing.fuzz.state import STATE
from lamina.testing.fuzz.stepwise import STEPWISE
from lamina.testing.fuzz.templates import BLOCKS, TEMPLATES
from lamina.testing.fuzz.whole_programs import WHOLE
from lamina.testing.fuzz.writer import Writer
from lamina.testing.fuzz.written_names import WRITTEN_NAMES

__all__ = ["INGREDIENTS", "Ingredient", "generate"]

HEADER = (
    "import numpy as np\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n"
    "from lamina.testing.fuzz import attempt, backward, loss, pause, sample, unbacked, watched\n"
)
_WHOLE = {
    name: whole
    for family in (
        WHOLE,
        MODELS,
        NESTED,
        EXTREMES,
        STATE,
        COMPARED,
        OWN_FUNCTIONS,
        PARTS,
        RESULTS,
        STEPWISE,
        ONE_OBJECT,
        WRITTEN_NAMES,
        HANDLED,
        BROKEN,
    )
    for name, whole in family.items()
}
"""Entire programs, by name."""


@dataclass(frozen=True, slots=True)
class Ingredient:
    """Something that programs may hold: statements (a key of ``TEMPLATES``), blocks, or ways of calling.

    ``weight`` says how often it is drawn. ``moves`` are ways of calling, see ``Driver``. ``inputs`` are kinds of
    arguments that it needs. ``whole`` marks one that writes entire programs.
    """

    name: str
    weight: float
    what: str
    templates: str = ""
    moves: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    blocks: bool = False
    whole: bool = False


INGREDIENTS: dict[str, Ingredient] = {
    item.name: item
    for item in (
        Ingredient("pointwise", 3, "pointwise operations", "pointwise"),
        Ingredient("reduce", 2, "reductions, scans, sorts", "reduce"),
        Ingredient("views", 2, "views and copies of them", "views"),
        Ingredient("products", 1, "matrix products, norms, losses", "products"),
        Ingredient("casts", 1.5, "mixed dtypes and casts", "casts", inputs=("int", "bool", "half")),
        Ingredient("ints", 2, "integers that vary between calls, negative ones too", "ints", inputs=("k",)),
        Ingredient("steps", 1, "steps and strides that vary between calls", "steps", inputs=("p",)),
        Ingredient("sizes", 2, "sizes that vary between calls", "sizes", ("sizes",)),
        Ingredient("floats", 1, "floats that vary between calls, special ones too", "floats", inputs=("s",)),
        Ingredient("writes", 2, "writes to tensors, views and arguments", "writes"),
        Ingredient("foreach", 0.5, "lists of tensors at once, one of them twice", "foreach"),
        Ingredient("overlaps", 0.7, "writes whose source and target overlap", "overlaps"),
        Ingredient("indexing", 1.5, "gathers and scatters", "indexing", inputs=("int",)),
        Ingredient("added", 0.7, "what is added to known places, known numbers among it", "added", inputs=("int",)),
        Ingredient("widths", 0.7, "integers beyond the width of a type or of a range", "widths", inputs=("k",)),
        Ingredient("data", 1.5, "sizes and numbers that the data decides", "data", ("unbacked",), ("int",)),
        Ingredient("concats", 1, "concatenations of concatenations", "concats"),
        Ingredient("overflow", 1, "integers at the ends of their range", "overflow", inputs=("limits",)),
        Ingredient("norms", 1, "batch norms over few values", "norms"),
        Ingredient("layouts", 1, "strides of results", "layouts"),
        Ingredient("errors", 1, "calls that eager refuses", "errors", inputs=("int", "bool", "k")),
        Ingredient("special", 1, "special values and functions of limited accuracy", "special", inputs=("special",)),
        Ingredient("drops", 1, "dropout, with eager's random numbers", "drops"),
        Ingredient("containers", 1, "lists, dicts, closures", "containers", inputs=("k", "s")),
        Ingredient("flow", 1, "control flow on values, shapes, modes", "flow", inputs=("k",)),
        Ingredient("contexts", 1.5, "context managers, open across graph breaks", blocks=True),
        Ingredient("switches", 0.5, "modes that a function leaves switched", moves=("switches",)),
        Ingredient("modes", 1, "calls under no_grad, autocast, inference_mode", moves=("modes",)),
        Ingredient("aliasing", 1.5, "arguments that share memory in some calls", "writes", ("alias",)),
        Ingredient("late", 1, "arguments written between forward and backward", "products", ("late",)),
        Ingredient("detached", 1, "detached inputs and a second loss", "detached", ("detached",)),
        *(Ingredient(name, item.weight, item.what, whole=True) for name, item in _WHOLE.items()),
    )
}
"""Everything that programs are made of, by name."""


def generate(seed: int, only: Sequence[str] = ()) -> str:
    """The text of the program of this seed; ``only`` names the ingredients to use, all by default."""
    unknown = [name for name in only if name not in INGREDIENTS]
    if unknown:
        raise BadArgument(f"no ingredient is called {unknown[0]!r}", remedy=f"use some of {', '.join(INGREDIENTS)}")
    # The text of a seed does not depend on Python's hashes.
    rng = random.Random(f"{seed} {' '.join(only)}")
    pool = [INGREDIENTS[name] for name in only] if only else list(INGREDIENTS.values())
    first = rng.choices(pool, [item.weight for item in pool])[0]
    if first.whole:
        return _WHOLE[first.name].write(rng)
    parts = [i for i in pool if not i.whole]
    chosen = [first, *rng.choices(parts, [i.weight for i in parts], k=rng.choice((0, 1, 1, 2)))]
    return _Program(rng, list(dict.fromkeys(chosen))).text()


@dataclass(slots=True)
class _Program:
    """One program while it is drawn."""

    rng: random.Random
    chosen: list[Ingredient]
    arguments: list[Argument] = field(default_factory=list)
    writer: Writer = field(init=False)
    sizes: dict[str, int] = field(default_factory=dict)
    form: str = "function"

    def __post_init__(self) -> None:
        self.writer = Writer(self.rng)

    @property
    def moves(self) -> set[str]:
        return {move for item in self.chosen for move in item.moves}

    @property
    def inputs(self) -> set[str]:
        return {kind for item in self.chosen for kind in item.inputs}

    def text(self) -> str:
        """The whole file."""
        self.sizes = {"A": self.rng.choice((2, 3, 4, 5)), "B": self.rng.choice((2, 3, 4, 5, 8, 17))}
        if "alias" in self.moves and self.rng.random() < 0.6:
            self.sizes["B"] = self.sizes["A"]
        self.form = self.rng.choices(("function", "closure", "module"), (5, 1, 1.5))[0]
        self._declare()
        for argument in self.arguments:
            self.writer.add_argument(argument.name, argument.make(0))
            if argument.grad and argument.make(0).endswith("grad=True)"):
                self.writer.fixed.add(argument.name)
        self._outside()
        self._body()
        returned = self._returned()
        body = [*self.writer.lines, *self._switch(), f"return {returned}"]
        return HEADER + "\n\n" + self._function(body)

    def _declare(self) -> None:
        rng = self.rng
        count = rng.choice((1, 2, 2, 3)) if "alias" not in self.moves else 2
        shapes = rng.choices(
            (("A", "B"), ("B",), ("A", "A"), ("A",), (), ("2", "A", "B")), (6, 2, 1.5, 1, 0.5, 1), k=count
        )
        if "alias" in self.moves:
            shapes = [rng.choice((("A", "B"), ("A",)))] * 2
        for number, shape in enumerate(shapes):
            self._tensor(f"x{number}", shape)
        for kind in sorted(self.inputs):
            if rng.random() < 0.8 or kind in ("limits", "p", "k", "special"):
                self._special(kind)

    def _tensor(self, name: str, shape: tuple[str, ...]) -> None:
        rng = self.rng
        dtype = rng.choice(("torch.bfloat16", "torch.float64", "torch.float16")) if rng.random() < 0.12 else ""
        grad = rng.random() < 0.55
        layout = rng.choices(("", ".t()", "[:, ::2]", " * 1"), (8, 1, 0.6, 1))[0]
        layout = "" if len(shape) != 2 and layout in (".t()", "[:, ::2]") else layout
        seed = rng.randrange(9)

        def make(call: int) -> str:
            sizes = [str(self.sizes.get(s, s)) for s in shape]
            sizes = sizes[::-1] if layout == ".t()" else sizes
            sizes = [sizes[0], str(2 * int(sizes[1]))] if layout == "[:, ::2]" else sizes
            parts = [*sizes, f"dtype={dtype}" if dtype else "", f"seed={seed + call}" if seed + call else ""]
            parts += ["grad=True"] if grad else []
            return f"sample({', '.join(p for p in parts if p)}){layout}"

        self.arguments.append(Argument(name, make, grad=grad and not layout))

    def _special(self, kind: str) -> None:
        rng = self.rng
        ints = rng.choice(((-1, -2, -3, 1), (1, 2, -2, 0), (2, 3, 1, -1), (0, 1, 2, 3), (-3, 2, 5, -1)))
        steps = rng.choice(((1, 2, 3), (2, 3, 1), (2, 1, 4)))
        floats = rng.choice(
            (
                ("1.0", "2.0", "0.5", "-1.5"),
                ("0.0", "-0.0", "1.0", "2.0"),
                ("2.0", "float('inf')", "3.0", "float('nan')"),
            )
        )
        dtype = rng.choice(("torch.int32", "torch.int64"))
        top = 2**31 if dtype.endswith("32") else 2**63
        shape = rng.choice((("A", "B"), ("B",), ("A",)))

        def sized(call: int) -> str:
            return ", ".join(str(self.sizes[s]) for s in shape)

        makers: dict[str, tuple[str, Callable[[int], str], bool]] = {
            "k": ("k", lambda call: str(ints[call % len(ints)]), False),
            "p": ("p", lambda call: str(steps[call % len(steps)]), False),
            "s": ("s", lambda call: floats[call % len(floats)], False),
            "int": ("i0", lambda call: f"sample({sized(call)}, dtype={dtype}, seed={call})", True),
            "bool": ("b0", lambda call: f"sample({sized(call)}, dtype=torch.bool, seed={call})", True),
            "half": ("h0", lambda call: f"sample({sized(call)}, dtype=torch.bfloat16, seed={call})", True),
            "limits": (
                "i1",
                lambda call: (
                    f"torch.tensor([{top - 1}, {-top}, {top // 2}, {3 + call}, -1, 0], dtype={dtype}).repeat(6)"
                ),
                True,
            ),
            "special": (
                "z0",
                lambda call: "torch.tensor([0.0, -0.0, 1.0, -8.0, float('inf'), -float('inf'), float('nan'), 1e-30])",
                True,
            ),
        }
        name, make, tensor = makers[kind]
        self.arguments.append(Argument(name, make, tensor))

    def _outside(self) -> None:
        """What a closure holds or a module owns."""
        if self.form == "closure":
            self.writer.add_argument("outer", f"sample({self.sizes['B']}, seed=4, grad=True)")
            self.writer.fixed.add("outer")
        if self.form == "module":
            for name, made in self._members():
                self.writer.run(
                    "from types import SimpleNamespace\nself = SimpleNamespace()" if name == "w" else "pass"
                )
                self.writer.run(f"self.{name} = {made}")
                self.writer.env[f"self.{name}"] = getattr(self.writer.env["self"], name)
                self.writer.wide[f"self.{name}"] = getattr(self.writer.wide["self"], name)
                self.writer.names.append(f"self.{name}")
            self.writer.fixed.add("self.w")

    def _members(self) -> list[tuple[str, str]]:
        width = self.sizes["B"]
        return [("w", f"nn.Parameter(sample({width}, seed=4))"), ("seen", f"sample({width}, seed=5)"), ("scale", "2.0")]

    def _body(self) -> None:
        rng = self.rng
        tables = [TEMPLATES[i.templates] for i in self.chosen if i.templates]
        filler = TEMPLATES["pointwise"]
        blocks = any(i.blocks for i in self.chosen)
        for _ in range(rng.choice((1, 2, 3, 3, 4, 5, 6, 8))):
            if blocks and rng.random() < 0.5:
                self._block(tables, 0)
            else:
                self._statement(tables or [filler], 0)
            if rng.random() < (0.25 if blocks else 0.04):
                self.writer.lines.append("pause()")
        if not self.writer.lines:
            self._statement([filler], 0)

    def _statement(self, tables: list[tuple[str, ...]], depth: int) -> None:
        for _ in range(8):
            table = self.rng.choice(tables) if self.rng.random() < 0.75 else TEMPLATES["pointwise"]
            template = self.rng.choice(table)
            if table is TEMPLATES["errors"] and self.rng.random() < 0.5:
                filled = self.writer.fill(template)
                if filled is not None:
                    self.writer.lines.append("    " * depth + f"e{len(self.writer.lines)} {filled}")
                    return
            if self.writer.add(template, depth):
                return

    def _block(self, tables: list[tuple[str, ...]], depth: int) -> None:
        head = self.rng.choice(BLOCKS)
        self.writer.lines.append("    " * depth + head)
        before = len(self.writer.lines)
        space: dict[str, object] = {}
        exec(f"import torch\nmanager = {head[5:-1]}", space)
        with space["manager"]:  # type: ignore[attr-defined]
            for _ in range(self.rng.choice((1, 2, 3))):
                if depth == 0 and self.rng.random() < 0.25:
                    self._block(tables or [TEMPLATES["products"]], depth + 1)
                else:
                    self._statement(tables or [TEMPLATES["products"], TEMPLATES["pointwise"]], depth + 1)
                if self.rng.random() < 0.35:
                    self.writer.lines.append("    " * (depth + 1) + "pause()")
        if len(self.writer.lines) == before:
            self.writer.lines.append("    " * (depth + 1) + "pause()")

    def _switch(self) -> list[str]:
        switches = (
            "torch.set_grad_enabled(False)",
            "torch.set_grad_enabled(True)",
            "torch.set_default_dtype(torch.float64)",
            "torch.set_autocast_enabled('cpu', True)",
            "torch.manual_seed(5)",
        )
        return [self.rng.choice(switches)] if "switches" in self.moves else []

    def _returned(self) -> str:
        made = [n for n in self.writer.names if n.startswith("v")]
        shown = list(
            dict.fromkeys([*made[-3:], *(self.rng.choices(self.writer.names, k=1) if self.rng.random() < 0.3 else [])])
        )
        if not shown:
            shown = [self.writer.names[0]]
        if self.rng.random() < 0.2 and (number := self.writer.any_number()):
            shown.append(number)
        return ", ".join(n for n in shown) if len(shown) > 1 else shown[0]

    def _function(self, body: list[str]) -> str:
        names = [a.name for a in self.arguments]
        draws = any(name in line for line in body for name in ("dropout", "rand", "bernoulli", "normal_", "rrelu"))
        driver = Driver(self.rng, self.arguments, self.moves, self.sizes, self.form, draws).lines()
        if self.form == "module":
            lines = ["class Net(nn.Module):", "    def __init__(self):", "        super().__init__()"]
            for name, made in self._members():
                store = f"self.register_buffer({name!r}, {made})" if name == "seen" else f"self.{name} = {made}"
                lines.append(f"        {store}")
            lines += ["", f"    def forward(self, {', '.join(names)}):", *("        " + s for s in body), "", ""]
            head = ["net = Net()", f"g = compile(net{self._keywords()})"]
        else:
            function = [f"def f({', '.join(names)}):", *("    " + s for s in body)]
            lines = [] if self.form == "closure" else [*function, "", ""]
            outer = (
                [f"outer = sample({self.sizes['B']}, seed=4, grad=True)", *function] if self.form == "closure" else []
            )
            head = [*outer, f"g = compile(f{self._keywords()})"]
        return "\n".join([*lines, "def program(compile):", *("    " + s for s in [*head, *driver])]) + "\n"

    def _keywords(self) -> str:
        dynamic = self.rng.choices(("", ", dynamic=True", ", dynamic=False"), (4, 2, 0.5))[0]
        eager = "drops" in {i.name for i in self.chosen} or self.rng.random() < 0.08
        return dynamic + (', options={"numerics": "eager"}' if eager else "")
