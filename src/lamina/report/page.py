"""The page of a report: one HTML file that needs no server, no network and no other file."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any

__all__ = ["page", "static_page"]

_LEVEL = 6
"""How hard zlib tries: 9 takes three times as long for a hundredth less."""


def page(report: Mapping[str, Any], other: Mapping[str, Any] | None = None) -> str:
    """The page that shows ``report``, held against ``other`` where that is given.

    The browser is told to load nothing (``default-src 'none'``) and to run this one script alone. The data is deflated
    and in base64, so that no text of a program can end the block that it stands in.
    """
    script, style = _built("page.js"), _built("page.css")
    if "</script" in script or "</style" in style:
        raise ValueError("the built page would end its own block: build it again")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    nonce = hashlib.sha256(script.encode() + style.encode()).hexdigest()[:24]
    policy = f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'nonce-{nonce}'; base-uri 'none'"
    blocks = [_block("report", report), *([] if other is None else [_block("other", other)])]
    body = ['<div id="app">Unpacking the report …</div>', *blocks, f"<script>{script}</script>"]
    return _framed(f"{report.get('name', '')} · Lamina report", policy, nonce, style, body)


def static_page(title: str, body: str) -> str:
    """A page of the same look that runs no script and loads nothing; ``body`` is HTML, ``title`` is text."""
    style = _built("page.css")
    nonce = hashlib.sha256(style.encode()).hexdigest()[:24]
    return _framed(title, f"default-src 'none'; style-src 'nonce-{nonce}'; base-uri 'none'", nonce, style, [body])


def _framed(title: str, policy: str, nonce: str, style: str, body: list[str]) -> str:
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>",
            f'<style nonce="{nonce}">{style}</style>',
            *body,
            "</html>",
            "",
        ]
    )


def _built(name: str) -> str:
    return files("lamina.report").joinpath("web", "dist", name).read_text(encoding="utf-8")


def _block(name: str, data: Mapping[str, Any]) -> str:
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    packed = base64.b64encode(zlib.compress(text.encode("utf-8", "surrogatepass"), _LEVEL)).decode("ascii")
    return f'<script type="application/octet-stream" id="{name}">{packed}</script>'
