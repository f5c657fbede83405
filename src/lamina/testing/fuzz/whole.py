"""A program that is written as a whole, with holes that are filled at random."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Whole"]

_HEADER = """\
import torch
import torch.nn.functional as F
from torch import nn

from lamina.testing.fuzz import attempt, backward, loss, pause, sample, unbacked, watched

"""

_HOLE = re.compile(r"<(\w+)>")


@dataclass(frozen=True, slots=True)
class Whole:
    """A program with holes ``<name>`` and what may stand there; what is chosen may have holes itself."""

    weight: float
    what: str
    text: str
    choices: Mapping[str, tuple[str, ...]]

    def write(self, rng: random.Random) -> str:
        """The program's text. A hole of one name is filled alike everywhere; a line that becomes empty goes."""
        chosen = {name: rng.choice(values) for name, values in self.choices.items()}
        text = self.text
        while _HOLE.search(text):
            text = "\n".join(
                line
                for raw in text.split("\n")
                for line in [_HOLE.sub(lambda hole: chosen[hole.group(1)], raw)]
                if line.strip() or not raw.strip()
            )
        return _HEADER + text
