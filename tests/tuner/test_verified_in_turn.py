"""Choices that threads verify in one process: each finds torch's settings as they are without the others."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import torch

from lamina.tuner.objective import parse_objective
from lamina.tuner.programs import Subject
from lamina.tuner.result import Result, refusal
from lamina.tuner.values import Candidate, Row


def test_a_verification_sees_no_settings_of_another() -> None:
    begun, ended, seen = threading.Event(), threading.Event(), []

    def built() -> Any:
        seen.append(torch.are_deterministic_algorithms_enabled())
        torch.use_deterministic_algorithms(True)
        if len(seen) == 1:
            begun.set()
            ended.wait(0.5)  # as long as the other one waits
        raise ValueError("why")

    result: Any = SimpleNamespace(
        chosen=Row(Candidate("inductor", "compiled"), "faster"), objective=parse_objective("latency"), built=built
    )
    found: list[str] = []

    def verify() -> None:
        found.append(refusal(cast(Result, result), cast(Subject, None)))
        ended.set()

    threads = [threading.Thread(target=verify) for _ in range(2)]
    try:
        threads[0].start()
        assert begun.wait(10)
        threads[1].start()
        for thread in threads:
            thread.join()
        assert found == ["ValueError: why"] * 2
        assert seen == [False, False]
        assert not torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
