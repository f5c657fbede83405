"""The page of all codes: ``python -m lamina.explain.codes > docs/codes.md`` writes it."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

from lamina.base.reasons import Code, Codes, registered

__all__ = ["all_codes", "codes_page"]

_HOLDERS = ("reasons", "eager_reasons", "frame_reasons", "work_reasons", "recovery")
"""Names of the modules that register codes when they are imported."""

_HEAD = """# Codes of decisions

Whatever Lamina decides is a `Decision` in the record, and its reason has a code, which never changes its meaning:

```python
import torch
import lamina

compiled = lamina.compile(lambda x: torch.softmax(x, -1) * 2)
compiled(torch.randn(8, 64))
for decision in compiled.record.decisions():
    print(decision.code, decision.kind, decision.subject, decision.taken, decision.reason, decision.remedy)
```

Here are all of them: the sentence, with what is filled in between ‹ ›, what it means, and what you can do about it.
Where nothing is said of that, nothing need be done. (`python -m lamina.explain.codes` writes this page.)
"""


def all_codes() -> tuple[Codes, ...]:
    """Every section of codes of the package, by number."""
    for module in pkgutil.walk_packages([str(Path(__file__).parents[1])], "lamina."):
        if module.name.rpartition(".")[2] in _HOLDERS:
            importlib.import_module(module.name)
    return registered()


def codes_page() -> str:
    """The page as Markdown, with a heading for each code."""
    parts = [_HEAD]
    for section in all_codes():
        parts.append(f"## {section.title[0].upper()}{section.title[1:]}\n")
        parts += map(_entry, section)
    return "\n".join(parts)


def _entry(code: Code) -> str:
    remedy = f"\n\n*What you can do*: {_marked(code.remedy)}." if code.remedy else ""
    return f"### {code.number}\n\n**{_marked(code.says)}**\n\n{_marked(code.meaning)}{remedy}\n"


def _marked(text: str) -> str:
    """``text`` with the names of what is filled in between angle quotes, and nothing that Markdown would hide."""
    parts = re.split(r"(`[^`]*`)", re.sub(r"\{(\w+)\}", r"‹\1›", re.sub(r"\{(\w+):([a-z ]+)\}", r"{\1} \2s", text)))
    return "".join(part if part.startswith("`") else re.sub(r"([*<_])", r"\\\1", part) for part in parts)


if __name__ == "__main__":
    print(codes_page(), end="")
