"""How much of what is compiled can be followed to a line of Python, over small models; what is lost, and where.

    python -m benchmarks.provenance [--only NAME] [--list]

For each model, trained for a step where it has gradients: of the calls of its forward and backward graphs, and of the
lines of its kernels that are no boilerplate, the share that links of a report lead to from a Python line. ``--list``
prints every node and line that is reached by none. Without ``--only`` the counts, and what is lost, are written to
results/provenance.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import lamina
from benchmarks.report import RESULTS
from lamina.report.document import document
from lamina.report.kernels import computes

GOALS = {"forward": 0.99, "backward": 0.97, "kernel": 0.99}


class Attention(nn.Module):
    def __init__(self, width: int = 32, heads: int = 4, causal: bool = True) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, w = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q @ k.transpose(-2, -1)) * (w // self.heads) ** -0.5
        if self.causal:
            mask = torch.ones(n, n, dtype=torch.bool, device=x.device).tril()
            scores = scores.masked_fill(~mask, float("-inf"))
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, w))


class Block(nn.Module):
    def __init__(self, width: int = 32, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.dropout = Attention(width), nn.Dropout(dropout)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.dropout(self.attention(self.first(x)))
        return x + self.dropout(self.down(F.gelu(self.up(self.second(x)))))


class Gpt(nn.Module):
    def __init__(self, layers: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(50, 32), nn.Embedding(16, 32)
        self.blocks = nn.ModuleList(Block(dropout=dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 50, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x)


class Llama(nn.Module):
    """A decoder layer as transformers writes it: RMS norm, rotary embedding, grouped keys, SwiGLU."""

    def __init__(self, width: int = 32, heads: int = 4, shared: int = 2) -> None:
        super().__init__()
        self.heads, self.shared, self.size = heads, shared, width // heads
        self.q = nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, shared * self.size, bias=False) for _ in range(2))
        self.o = nn.Linear(width, width, bias=False)
        self.gate, self.up, self.down = nn.Linear(width, 64), nn.Linear(width, 64), nn.Linear(64, width)
        self.first, self.second = RmsNorm(width), RmsNorm(width)
        self.register_buffer("frequencies", 1.0 / 10000 ** (torch.arange(0, self.size, 2).float() / self.size))

    def rotated(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, w = x.shape
        angles = torch.outer(torch.arange(n, device=x.device).float(), self.frequencies).repeat(1, 2)
        cos, sin = angles.cos(), angles.sin()
        h = self.first(x)
        q = self.rotated(self.q(h).view(b, n, self.heads, -1).transpose(1, 2), cos, sin)
        k = self.rotated(self.k(h).view(b, n, self.shared, -1).transpose(1, 2), cos, sin)
        v = self.v(h).view(b, n, self.shared, -1).transpose(1, 2)
        k, v = (t.repeat_interleave(self.heads // self.shared, 1) for t in (k, v))
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, n, w)
        x = x + self.o(h)
        h = self.second(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Residual(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.a, self.b = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.na, self.nb = (nn.BatchNorm2d(width) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x + self.nb(self.b(F.relu(self.na(self.a(x))))))


class Diffusion(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv, self.time = nn.GroupNorm(4, 8), nn.Conv2d(8, 8, 3, padding=1), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        h = self.conv(F.silu(self.norm(x))) + self.time(F.silu(time))[:, :, None, None]
        return F.interpolate(x + h, scale_factor=2, mode="nearest")


class Experts(nn.Module):
    def __init__(self, width: int = 16, count: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(width, count)
        self.weights = nn.Parameter(torch.randn(count, width, width) * 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        share, chosen = self.router(x).softmax(-1).topk(2, -1)
        made = torch.einsum("nw,ewv->nev", x, self.weights)
        return (made.gather(1, chosen[..., None].expand(-1, -1, x.shape[1])) * share[..., None]).sum(1)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside, self.state = nn.Linear(8, 24), nn.Linear(8, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.zeros_like(x[:, 0])
        for step in range(x.shape[1]):
            (a, b, c), (d, e, f) = self.inside(x[:, step]).chunk(3, -1), self.state(h).chunk(3, -1)
            r, z = torch.sigmoid(a + d), torch.sigmoid(b + e)
            h = (1 - z) * torch.tanh(c + r * f) + z * h
        return h


class Function(nn.Module):
    """A user's module around one function or module: what torch's own do alone has no line of a user."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.function(*inputs)


def huber(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    error = (x - y).abs()
    return torch.where(error < 1, 0.5 * error * error, error - 0.5).mean(0)


def clipped(x: torch.Tensor) -> torch.Tensor:
    norm = x.pow(2).sum().sqrt()
    return x * torch.clamp(1.0 / (norm + 1e-6), max=1.0)


def written(x: torch.Tensor) -> torch.Tensor:
    made = torch.zeros_like(x)
    made[:, ::2] = x[:, 1::2] * 2
    made += x.cumsum(1)
    return made


def pooled(x: torch.Tensor) -> torch.Tensor:
    return F.adaptive_avg_pool2d(F.max_pool2d(F.leaky_relu(x), 2), 2).flatten(1)


def standardised(x: torch.Tensor) -> torch.Tensor:
    return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-5)


def bagged(weight: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return F.embedding(ids, weight).mean(1).tanh()


def contrast(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x, y = F.normalize(x, dim=-1), F.normalize(y, dim=-1)
    return F.cross_entropy(x @ y.t() / 0.07, torch.arange(len(x)), reduction="none")


def models() -> Iterator[tuple[str, nn.Module, tuple[torch.Tensor, ...]]]:
    """Name, module and inputs; all inputs of floats get gradients."""

    def x(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, requires_grad=True)

    ids = torch.randint(0, 50, (2, 16))
    yield "gpt", Gpt(), (ids,)
    yield "gpt_dropout", Gpt(1, 0.1), (ids,)
    yield "llama", nn.Sequential(Llama(), Llama()), (x(2, 8, 32),)
    yield "attention", Attention(), (x(2, 8, 32),)
    yield "bidirectional", Attention(causal=False), (x(2, 8, 32),)
    yield "encoder", Function(nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True)), (x(2, 8, 32),)
    yield "resnet", nn.Sequential(Residual(), Residual()), (x(2, 8, 8, 8),)
    yield "diffusion", Diffusion(), (x(2, 8, 8, 8), x(2, 16))
    yield "experts", Experts(), (x(6, 16),)
    yield "recurrent", Recurrent(), (x(2, 4, 8),)
    yield "mlp", Function(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16), nn.Sigmoid())), (x(4, 16),)
    yield "rms_norm", RmsNorm(32), (x(4, 32),)
    yield "layer_norm", Function(nn.LayerNorm(32)), (x(4, 32),)
    yield "group_norm", Function(nn.GroupNorm(4, 8)), (x(2, 8, 6, 6),)
    yield "batch_norm", Function(nn.BatchNorm2d(8)), (x(4, 8, 6, 6),)
    yield "convolution", Function(nn.Sequential(nn.Conv1d(8, 8, 3), nn.GELU())), (x(2, 8, 16),)
    yield "glu", Function(nn.Sequential(nn.Linear(16, 32), nn.GLU())), (x(4, 16),)
    yield "prelu", Function(nn.Sequential(nn.Linear(16, 16), nn.PReLU())), (x(4, 16),)
    yield "softmax", Function(lambda a: (a * 2).softmax(-1).log()), (x(4, 32),)
    yield "log_softmax", Function(lambda a: F.log_softmax(a, -1)[:, :3]), (x(4, 32),)
    yield "huber", Function(huber), (x(8, 16), x(8, 16))
    yield "clipped", Function(clipped), (x(16, 16),)
    yield "written", Function(written), (x(4, 16),)
    yield "pooled", Function(pooled), (x(2, 4, 8, 8),)
    yield "standardised", Function(standardised), (x(8, 32),)
    yield "bagged", Function(bagged), (x(20, 8), torch.randint(0, 20, (6, 3)))
    yield "contrast", Function(contrast), (x(6, 16), x(6, 16))
    yield "scan", Function(lambda a: a.cumsum(-1).sigmoid() * a.cumprod(-1)), (x(4, 16),)
    yield "sorted", Function(lambda a: a.sort(-1).values[:, :4].sum(-1)), (x(4, 16),)
    yield "joined", Function(lambda a, b: torch.cat([a, b.exp()], -1).roll(1, -1).tanh()), (x(4, 8), x(4, 8))


def counted(report: dict[str, Any]) -> tuple[dict[str, tuple[int, int]], list[str]]:
    """By level how many are reached and how many there are, and what is reached by no line of Python."""
    reached = _reached(report)
    totals = dict.fromkeys(GOALS, (0, 0))
    lost: list[str] = []
    for number, text in enumerate(report["texts"]):
        level = text["level"]
        for line, said in _counted_lines(text):
            have, there = totals[level]
            found = (number, line) in reached
            totals[level] = have + found, there + 1
            if not found:
                lost.append(f"{text['key']}:{line} {said}")
    return totals, lost


def _counted_lines(text: dict[str, Any]) -> Iterator[tuple[int, str]]:
    lines = text["text"].split("\n")
    if text["level"] in ("forward", "backward"):
        for line, name in text["names"]:
            if not name.startswith(("primals_", "tangents_", "output")) and " = " in lines[line - 1]:
                yield line, lines[line - 1].strip()
    elif text["level"] == "kernel":
        yield from ((n, line.strip()) for n, line in enumerate(lines, 1) if computes(line))


def _reached(report: dict[str, Any]) -> set[tuple[int, int]]:
    down: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for upper, lower, flat in report["links"]:
        line = other = 0
        for step in zip(flat[::2], flat[1::2], strict=True):
            line, other = line + step[0], other + step[1]
            down.setdefault((upper, line), set()).add((lower, other))
    waiting = [place for place in down if report["texts"][place[0]]["level"] == "python"]
    found = set(waiting)
    while waiting:
        for place in down.get(waiting.pop(), ()):
            if place not in found:
                found.add(place)
                waiting.append(place)
    return found


def measured(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> dict[str, Any]:
    """The report of one training step of ``module``."""
    torch.compiler.reset()
    compiled = lamina.compile(module, options={"compare_eager": "off", "progress": False})
    out = compiled(*inputs)
    if out.requires_grad:
        out.sum().backward()
    return document(compiled.record, assembly=False)


def main() -> int:
    """Print a line for each model and the totals; 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="the one model to take")
    parser.add_argument("--list", action="store_true", help="print what is lost")
    given = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {}
    for name, module, inputs in models():
        if given.only not in ("", name):
            continue
        report = measured(module, inputs)
        totals, lost = counted(report)
        rows[name] = {**totals, "lost": lost, "faults": report["faults"]}
        print(f"{name:16}", *(f"{level} {have}/{there}" for level, (have, there) in totals.items()), *report["faults"])
        if given.list:
            print(*(f"    {one}" for one in lost), sep="\n")
    sums = {level: [sum(row[level][part] for row in rows.values()) for part in (0, 1)] for level in GOALS}
    shares = {level: have / max(there, 1) for level, (have, there) in sums.items()}
    print(*(f"{level} {100 * share:.2f} % (at least {100 * GOALS[level]:.0f})" for level, share in shares.items()))
    if not given.only:
        rounded = {level: round(share, 5) for level, share in shares.items()}
        content = {"torch": torch.__version__, "goals": GOALS, "shares": rounded, "totals": sums, "models": rows}
        (RESULTS / "provenance.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return any(share < GOALS[level] for level, share in shares.items())


if __name__ == "__main__":
    sys.exit(main())
