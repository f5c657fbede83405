"""The buffers that a step loads and stores, in order: what fusion counts and looks candidates up by.

``ir.access.reads`` says more: what a store under a mask or a call in place leaves as it was counts as read there, and
here as written only.
"""

from __future__ import annotations

from lamina.ir.access import views
from lamina.ir.loops import LibraryCall, Load, Step, Store

__all__ = ["loaded", "stored"]


def loaded(step: Step) -> tuple[str, ...]:
    """Buffers that a call takes, or that a nest loads or adds to, each once."""
    if isinstance(step, LibraryCall):
        return tuple(dict.fromkeys(view.buffer for view in views(step)))
    found = (e for e in step.body if isinstance(e, Load) or (isinstance(e, Store) and e.mode != "set"))
    return tuple(dict.fromkeys(e.buffer for e in found))


def stored(step: Step) -> tuple[str, ...]:
    """Buffers that a call makes or writes in place, or those of a nest's stores, one for each store."""
    if isinstance(step, LibraryCall):
        return (*(o for o in step.outs if o is not None), *step.mutates)
    return tuple(e.buffer for e in step.body if isinstance(e, Store))
