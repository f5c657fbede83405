"""How a random program calls what it compiles."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Argument", "Driver"]


@dataclass(slots=True)
class Argument:
    """An argument and how its expression is made anew for each call."""

    name: str
    make: Callable[[int], str]
    tensor: bool = True
    grad: bool = False


class Driver:
    """Writes the calls: new arguments, modes around a call, sharing between arguments, gradients, later writes."""

    def __init__(
        self,
        rng: random.Random,
        arguments: list[Argument],
        moves: set[str],
        sizes: dict[str, int],
        form: str,
        draws: bool = False,
    ) -> None:
        self.rng, self.arguments, self.moves, self.sizes, self.form = rng, arguments, moves, sizes, form
        self.draws = draws
        self.made: list[str] = []

    def lines(self) -> list[str]:
        """The statements of ``program`` after compiling."""
        vary = {"k", "p", "s"} & {argument.name for argument in self.arguments}
        count = self.rng.choice((2, 3, 3, 4) if vary or self.moves else (1, 1, 2, 3))
        for call in range(count):
            if call and ("sizes" in self.moves or self.rng.random() < 0.3):
                square = self.sizes["A"] == self.sizes["B"] and self.rng.random() < 0.7
                self.sizes["A"] = self.rng.choice((2, 3, 4, 5, 6, 1, 7))
                if self.form == "function":  # what a closure or a module holds keeps its size
                    wide = self.rng.choice((2, 3, 4, 6, 9, 1, 33))
                    self.sizes["B"] = self.sizes["A"] if square else wide
            self._call(call)
        if self.form == "module":
            self.made.append("yield net.seen, net.w.grad")
        if self.form == "closure":
            self.made.append("yield outer.grad")
        return self.made

    def _call(self, call: int) -> None:
        tensors = [a.name for a in self.arguments if a.tensor]
        values = []
        shared = self._shared(call) if "alias" in self.moves else {}
        for argument in self.arguments:
            made = shared.get(argument.name) or argument.make(call)
            if argument.tensor:
                self.made.append(f"{argument.name} = {made}")
                values.append(argument.name)
            else:
                values.append(made)
        if call == 0 or self.rng.random() < 0.5 or shared:
            self.made.append(f"yield {', '.join(tensors)}" + (", base" if "base" in "".join(shared.values()) else ""))
        mode = self._mode()
        invoke = f"out = attempt(g, {', '.join(values)})"
        self.made += [f"with {mode}:", f"    {invoke}"] if mode else [invoke]
        self.made.append("yield out")
        self._after(tensors)

    def _mode(self) -> str:
        if "unbacked" in self.moves and self.rng.random() < 0.6:
            return "unbacked()"
        if "modes" not in self.moves and self.rng.random() < 0.93:
            return ""
        return self.rng.choice(
            (
                "torch.no_grad()",
                "torch.enable_grad()",
                "torch.autocast('cpu', dtype=torch.bfloat16)",
                "torch.inference_mode()",
                "",
            )
        )

    def _shared(self, call: int) -> dict[str, str]:
        """Two arguments in one memory, or not, one way or the other from call to call."""
        a, b = (argument.make(0) for argument in self.arguments[:2])
        plain = a.split(")")[0].replace(", grad=True", "") + ")"
        shape = plain.split("sample(")[1].split(",")[0].rstrip(")")
        length = int(shape)
        rest = plain.split("sample(")[1].rstrip(")").split(",", 1)[1:]
        tail = f",{rest[0]}" if rest else ""
        way = self.rng.choice(("apart", "apart", "same", "view", "detached", "overlap", "turned", "whole"))
        if way == "apart":
            return {"x0": a, "x1": b}
        if way == "overlap":
            self.made.append(f"base = sample({2 * length}{tail})")
            shift = self.rng.choice((1, length - 1, length, 0))
            return {"x0": f"base[:{length}]", "x1": f"base[{shift}:{shift + length}]"}
        if way == "whole":
            self.made.append(f"base = sample({length}{tail})")
            return {"x0": "base[:]", "x1": "base"}
        second = {
            "same": "x0",
            "view": "x0.view_as(x0)",
            "detached": "x0.detach()",
            "turned": "x0.flatten()[: x0.numel()].view_as(x0)",
        }[way]
        return {"x0": plain, "x1": second}

    def _after(self, tensors: list[str]) -> None:
        rng = self.rng
        if "late" in self.moves:
            self.made.append(f"yield attempt({rng.choice(tensors)}.detach().{rng.choice(('zero_', 'neg_'))})")
        if "detached" in self.moves:
            self.made.append("yield backward(out)")
            self.made.append("yield backward(out)" if rng.random() < 0.1 else f"yield {tensors[0]}.grad")
            return
        if rng.random() < (0.6 if "late" not in self.moves else 1.0):
            # Drawn by the text so far: what other programs are does not depend on it.
            way = random.Random("\n".join(self.made)).choice(("hooks", "retained", "asked", *[""] * 9))
            if way == "hooks" and self.draws:  # then they get what arrives from outside, and a warning says so
                way = ""
            self.made += [f"seen = watched(out, {way!r})"] if way else []
            self.made.append("yield backward(out)")
            self.made.append(f"yield {', '.join(f'{name}.grad' for name in tensors)}")
            self.made += ["yield seen()"] if way else []
