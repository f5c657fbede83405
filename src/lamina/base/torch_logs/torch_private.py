"""Torch's structured trace, which ``tlparse`` reads, and which of its logs are on; names as read in 2.11 to 2.13."""

from __future__ import annotations

from collections.abc import Callable

from torch._logging._internal import LazyTraceHandler, log_state, trace_log, trace_structured

__all__ = ["asked_for_torch_logs", "enabled_torch_logs", "traced", "tracing"]


def tracing() -> bool:
    """Whether somebody reads the structured trace (``TORCH_TRACE``).

    Without that variable torch has a handler until the first text comes, which then finds that it has no folder.
    """
    return not all(map(_has_no_folder, trace_log.handlers))


def _has_no_folder(handler: object) -> bool:
    return isinstance(handler, LazyTraceHandler) and handler.root_dir is None and handler.stream is None


def traced(name: str, text: Callable[[], str]) -> None:
    """Put a text into the structured trace of the function that is compiled, as an artifact called ``name``."""
    trace_structured(
        "artifact",
        metadata_fn=lambda: {"name": name, "encoding": "string"},
        payload_fn=text,
        expect_trace_id=False,
    )


def enabled_torch_logs() -> frozenset[str]:
    """The artifacts that ``TORCH_LOGS`` or ``torch._logging.set_logs`` ask for, by name."""
    return frozenset(log_state.artifact_names)


def asked_for_torch_logs() -> bool:
    """Whether ``TORCH_LOGS`` or ``torch._logging.set_logs`` ask for any of torch's logs."""
    return bool(log_state.artifact_names or log_state.log_qname_to_level)
