"""Text of others in comments and docstrings of generated text: it stays there."""

from __future__ import annotations

import pytest
import torch

import lamina
from lamina.base.text import one_line
from lamina.extend import rule
from lamina.ir.access import provenance
from lamina.ir.loops import Source

ODD = [
    *(
        f"a{end}run = 1 #"
        for end in ("\r", "\n", "\r\n", "\0", "\x0b", "\x0c", "\x1c", "\x1e", "\x85", "\u2028", "\u2029")
    ),
    "a\u202eb",
    "\ud800",
    "ends \\",
    "ends ??/",
    'a""" + run + """',
    "a */ run /* b",
    "\x1b[2J",
    "\N{ZERO WIDTH NO-BREAK SPACE}x",
    "x" * 100_000,
]


@pytest.mark.parametrize("name", ODD, ids=range(len(ODD)))
def test_no_text_leaves_its_comment(name: str) -> None:
    for text in (one_line(name), provenance(["n"], {"n": Source("n", name, name)})):
        assert text.isprintable()
        assert len(text.splitlines()) == 1
        assert len(text) < 1000
        assert not {"\\", '"'}.intersection(text)
        assert "*/" not in text
        assert "??" not in text
        text.encode()
        names: dict[str, object] = {}
        exec(f"'''{text.replace(chr(39), '')}'''\nkept = 1  # {text}\n", names)
        assert names["kept"] == 1
        assert "run" not in names


def test_ordinary_text_stays_as_it_is() -> None:
    assert one_line("modèle.py:41 gelu, mul") == "modèle.py:41 gelu, mul"


@pytest.mark.parametrize("end", ["\r", "\0", "\x0c", "\u2028"])
def test_a_rule_of_an_odd_name_compiles(end: str) -> None:
    torch.compiler.reset()
    odd = rule(lambda x: x.sin() * 2, lambda x: x.sin() + x.sin(), name=f"r{end}    raise SystemExit #")
    compiled = lamina.compile(lambda x: x.sin() * 2, options={"rules": (odd,), "strict": True})
    x = torch.randn(9)
    torch.testing.assert_close(compiled(x), x.sin() * 2)
