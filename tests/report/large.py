"""A report of very many lines, and what measures how fast a page goes from one place of it to another."""

from __future__ import annotations

import random
from typing import Any

__all__ = ["JUMP", "large"]

JUMP = """(async () => {
    const painted = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    const times = [];
    for (const address of %s) {
        const start = performance.now();
        location.hash = 'trace=' + encodeURIComponent(address);
        await new Promise((done) => addEventListener('hashchange', done, { once: true }));
        await painted();
        times.push(performance.now() - start);
    }
    return times;
})()"""
"""Milliseconds from a change of the address until the next frame is painted, for each of a list of addresses."""


def large(lines: int) -> dict[str, Any]:
    """A report of so many lines of code, in texts of five levels, each line linked to some of the next level."""
    rng = random.Random(1)
    shares = {"python": 0.05, "forward": 0.15, "loops": 0.25, "kernel": 0.25, "assembly": 0.3}
    texts: list[dict[str, Any]] = []
    for level, share in shares.items():
        count = round(lines * share)
        text = "\n".join(
            f"    const vf32 v{i} = {rng.choice(('load', 'mul', 'add', 'fma'))}_f32(b{rng.randrange(12)}"
            f" + i0*{rng.randrange(4096)} + i1, v{rng.randrange(i + 1)});  // {rng.choice(('gelu', 'norm', 'softmax'))}"
            for i in range(count)
        )
        names = [] if level != "forward" else [[i, f"node_{i}"] for i in range(1, count + 1)]
        texts.append(
            {
                "key": f"{level}:all",
                "level": level,
                "title": "all",
                "language": "cpp",
                "region": "",
                "text": text,
                "names": names,
            }
        )
    links = []
    for number in range(len(texts) - 1):
        upper, lower = (text["text"].count("\n") + 1 for text in texts[number : number + 2])
        flat, last = [], (0, 0)
        for other in range(1, lower + 1):
            pair = (1 + (other - 1) * upper // lower, other)
            flat += [pair[0] - last[0], pair[1] - last[1]]
            last = pair
        links.append([number, number + 1, flat])
    empty: dict[str, Any] = {
        "regions": [],
        "kernels": [],
        "stages": [],
        "decisions": [],
        "spans": [],
        "passes": [],
        "pass_texts": [],
        "pass_lines": [],
        "guards": [],
        "advice": [],
        "peaks": {},
        "faults": [],
        "lost": {},
    }
    made = {"lamina": "", "torch": "", "python": "", "processor": "", "gpu": ""}
    return {"schema": 3, "name": "large", "made": made, "texts": texts, "links": links, **empty}
