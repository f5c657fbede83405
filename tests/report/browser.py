"""Chromium without a window, driven over its debugging protocol through two pipes: all it takes is the browser."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

__all__ = ["Browser", "chromium"]

_SECONDS = 60.0


def chromium() -> str | None:
    """The browser's program, None where there is none."""
    return next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )


class Browser:
    """A page of a browser. ``complaints``: errors of scripts and of the console; ``requests``: addresses asked for."""

    def __init__(self, program: str, folder: Path, width: int = 1280, height: int = 800) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._number, self._rest, self._answers = 0, b"", dict[int, dict[str, Any]]()
        commands, self._write = os.pipe()
        self._read, answers = os.pipe()
        flags = f"--headless --no-sandbox --disable-gpu --remote-debugging-pipe --user-data-dir={folder}"
        script = f'exec "$0" {flags} --window-size={width},{height} about:blank 3<&{commands} 4>&{answers}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, program],
            pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        page = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    _session = ""

    def close(self) -> None:
        """End the browser."""
        self._process.terminate()
        self._process.wait(_SECONDS)
        os.close(self._write)
        os.close(self._read)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """What the browser answers to one command."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + _SECONDS
        while self._number not in self._answers:
            self._receive(until)
        answer = self._answers.pop(self._number)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return dict(answer["result"])

    def _receive(self, until: float) -> None:
        ready, _, _ = select.select([self._read], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            raise TimeoutError("the browser does not answer")
        *messages, self._rest = (self._rest + os.read(self._read, 1 << 20)).split(b"\0")
        for message in map(json.loads, messages):
            if "id" in message:
                self._answers[message["id"]] = message
            else:
                self._heard(message["method"], message["params"])

    def _heard(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"].get("exception", params["exceptionDetails"])))
        elif method == "Runtime.consoleAPICalled" and params["type"] == "error":
            self.complaints.append(str(params["args"]))
        elif method == "Log.entryAdded":
            self.complaints.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def open(self, file: Path, address: str = "") -> None:
        """Open a file and wait for the report in it: until it has come, the page before answers, and is ready too."""
        if not address:  # else it may be another place of the page that is open
            self.evaluate("window.left = true")
        self.call("Page.navigate", url=f"{file.as_uri()}{address}")
        here = f"location.href.split('#')[0] === new URL({json.dumps(file.as_uri())}).href"
        self.until(f"{here} && {'true' if address else '!window.left'} && window.lamina && window.lamina.ready")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; a promise is waited for."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(str(found["exceptionDetails"].get("exception", {}).get("description", found)))
        return found["result"].get("value")

    def until(self, condition: str) -> None:
        """Wait until a JavaScript expression holds."""
        until = time.monotonic() + _SECONDS
        while not self.evaluate(f"Boolean({condition})"):
            if time.monotonic() > until:
                raise TimeoutError(condition)
            time.sleep(0.02)

    def key(self, key: str) -> None:
        """Press a key."""
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=key if len(key) == 1 else "")
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)
