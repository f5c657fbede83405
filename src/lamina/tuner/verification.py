"""Whether a candidate gives what eager gives: outputs, writes and gradients, judged against double precision."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lamina.base.accuracy import FLOOR_ULPS, NOISE_RATIO, RATIO, error
from lamina.base.reference import copied
from lamina.errors import BadArgument
from lamina.testing.fuzz.differ import Difference, identical
from lamina.testing.fuzz.observe import Raised, Seen, Trace
from lamina.testing.runs import Runs, differing
from lamina.testing.torch_private import compiled_anew
from lamina.tuner.attributes import Attributes
from lamina.tuner.objects import Unseen, shown, tensors_in
from lamina.tuner.programs import Built, Subject, program, whole_program
from lamina.tuner.samples import Sample

__all__ = ["Allowed", "EagerRaised", "Reference", "Verified"]


_ULPS = 4 * FLOOR_ULPS
"""Units in the last place of a gradient's largest element that the order of sums may take it away."""
_NOISE_APART = 8 * NOISE_RATIO
"""Times eager's error that is allowed where no digit of eager's gradient is right."""

_UNSEEN = "nobody can tell whether a candidate gives what it gives, which holds"
_DRAWN = (
    "; eager draws random numbers, and this candidate others: use one that draws eager's, such as Lamina with "
    'numerics="eager", or set dropout to 0'
)


@dataclass(frozen=True, slots=True)
class Allowed:
    """What the user allows: an error as a fraction of the largest element, a drop of the metric. None: eager's own."""

    error: float | None = None
    drop: float | None = None


@dataclass(frozen=True, slots=True)
class Verified:
    """Why the candidate is refused, "" if it is right; the largest error met, and the drop of the metric."""

    reason: str
    error: float
    drop: float | None = None


@dataclass(slots=True)
class _Case:
    """Eager's run of one sample. ``known``: runs found to be right, with what was allowed, and their errors."""

    sample: Sample
    runs: Runs
    eager: Trace
    exact: Trace | None
    known: list[tuple[Trace, Allowed, float]] = field(default_factory=list)


class EagerRaised(Exception):
    """Eager, or the user's metric of it, raised an exception: its class and text."""


class Reference:
    """Eager's runs of the samples, taken once. Raises ``EagerRaised`` if it fails."""

    def __init__(self, subject: Subject, samples: tuple[Sample, ...]) -> None:
        self.subject = subject
        self.cases: list[_Case] = []
        for sample in samples:
            self._run(sample)
        if not self.cases:  # no other input is one for this model
            self._run(subject.samples[0])
        self.metric = None if subject.metric is None else _measured(subject.metric, subject.model)

    def _run(self, sample: Sample) -> None:
        with torch.set_grad_enabled(self.subject.training):
            runs = Runs(self.subject.model, sample.args, dict(sample.kwargs), {})
            step = whole_program(self.subject.model, self.subject.loss, self.subject.model)
            eager = runs.run(step)
            raised = eager.leaves.get("end")
            if not isinstance(raised, Raised):
                self.cases.append(_Case(sample, runs, eager, runs.exact(step)))
            elif not sample.made_up:
                unseen = raised.kind == Unseen.__name__
                told = f"{raised.kind}: {raised.text}"
                if raised.kind == BadArgument.__name__:
                    told = raised.text.partition(f"{raised.kind}: ")[2] or raised.text
                raise EagerRaised(f"{_UNSEEN} {raised.text}" if unseen else told)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Within it, calls may write to the model's state, which is as before in the end."""
        with ExitStack() as opened:
            if self.cases:
                opened.enter_context(self.cases[0].runs.state.kept())
            opened.enter_context(Attributes(self.subject.model).kept())
            yield

    @property
    def draws(self) -> bool:
        """Whether a run of eager draws random numbers."""
        return any(case.eager.draws_numbers for case in self.cases)

    def verify(self, built: Built, allowed: Allowed) -> Verified:
        """Hold a candidate against eager on every sample, eager itself also against a call after it."""
        worst = 0.0
        if built.call is self.subject.model and (reason := self._second_call()):
            return Verified(reason, worst)
        for case in self.cases:
            reason, largest = self._case(case, built, allowed)
            worst = max(worst, largest)
            if reason:
                return Verified(reason, worst)
        if self.subject.metric is None or self.metric is None:
            return Verified("", worst)
        drop = self.metric - float(self.subject.metric(built.call))
        if allowed.drop is not None and not drop <= allowed.drop:
            return Verified(f"the metric drops by {drop:.4g}, allowed is {allowed.drop:g}", worst, drop)
        return Verified("", worst, drop)

    def _second_call(self) -> str:
        """How eager gives something else in a second call, for what the first left in attributes; "" if it does not."""
        case = next(iter(self.cases), None)
        if case is None:
            return ""
        step = program(self.subject.model, self.subject.loss)
        with Attributes(self.subject.model).kept(), torch.set_grad_enabled(self.subject.training):
            first, second = case.runs.run(step), case.runs.run(step)
        found = differing(first, second, case.exact)
        return f"{found[0].where}: {found[0].text}" if found else ""

    def overwritten(self, built: Built) -> str:
        """How a later call of a candidate writes to what it returned, where eager's does not; "" if it does not."""
        case = self.cases[0] if self.cases else None
        if (
            case is None
            or not _outputs_change(built.call, case, self.subject)
            or _outputs_change(self.subject.model, case, self.subject)
        ):
            return ""
        return "output: a later call writes to it"

    def _case(self, case: _Case, built: Built, allowed: Allowed) -> tuple[str, float]:
        training = self.subject.training
        if built.owner is not None and training:
            return "gradient of the model's parameters: the candidate computes with a copy of them", 0.0
        if built.owner is not None:
            written = next((name for name in case.runs.state.tensors if case.eager.written.get(name)), "")
            if written:
                return f"{written}: eager writes to it, the candidate has a copy", 0.0
        step = whole_program(built.call, self.subject.loss, self.subject.model)
        with torch.set_grad_enabled(training), compiled_anew(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ours = case.runs.run(step)
        for before, limit, largest in case.known:
            if limit == allowed and identical(before, ours):
                return "", largest
        found = differing(case.eager, ours, case.exact)
        largest = _largest_error(case.eager, ours, case.exact)
        wrong = [d for d in found if not _is_allowed(d, case.eager, ours, case.exact, allowed)]
        wrong = [d for d in wrong if not _is_order_of_sums(d, case.eager, ours, case.exact)]
        if not wrong:
            case.known = [(ours, allowed, largest)]
            return "", largest
        drawn = _DRAWN if case.eager.draws_numbers and wrong[0].kind in ("value", "rounding") else ""
        return f"{wrong[0].where}: {_told(wrong[0], case.eager, ours, case.exact)}{drawn}", largest


def _measured(metric: Callable[[Callable[..., Any]], float], model: Callable[..., Any]) -> float:
    try:
        found = float(metric(model))
    except Exception as error:
        raise EagerRaised(f"its metric raises {type(error).__name__}: {error}") from error
    if not math.isfinite(found):
        raise EagerRaised(f"its metric is {found}")
    return found


def _outputs_change(call: Callable[..., Any], case: _Case, subject: Subject) -> bool:
    """Whether the outputs of a call are others after a call with other arguments."""
    with case.runs.state.kept(), Attributes(subject.model).kept(), torch.set_grad_enabled(subject.training):
        held = _outputs(call, case.sample)
        before = [tensor.detach().clone() for tensor in held]
        _outputs(call, subject.samples[0])
        try:
            return not all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(before, held, strict=True))
        except RuntimeError:
            return False  # what was overwritten says so when it is read, as graphs of torch.compile do


def _outputs(call: Callable[..., Any], sample: Sample) -> list[Tensor]:
    args, kwargs = copied((sample.args, dict(sample.kwargs)))
    return [t for t in tensors_in(shown(call(*args, **kwargs))) if t.layout is torch.strided and not t.is_quantized]


def _pair(path: str, eager: Trace, ours: Trace, exact: Trace | None) -> tuple[Any, Any, Any]:
    """What eager, the candidate and the run in double precision show at a path."""
    path, late = path.removesuffix(" at the end"), path.endswith(" at the end")
    traces = (eager, ours, exact)
    return tuple(None if t is None else (t.late if late else t.leaves).get(path) for t in traces)  # type: ignore[return-value]


def _is_allowed(found: Difference, eager: Trace, ours: Trace, exact: Trace | None, allowed: Allowed) -> bool:
    if found.kind not in ("rounding", "zero sign", "value"):
        return False
    theirs, mine, right = _pair(found.where, eager, ours, exact)
    if not (isinstance(theirs, Seen) and isinstance(mine, Seen)) or mine.value.shape != theirs.value.shape:
        return False
    if mine.value.dtype != theirs.value.dtype or bool(_strange(mine.value, theirs.value, _exact(theirs, right)).any()):
        return False
    if allowed.drop is not None and allowed.error is None:
        return True  # the metric decides
    if allowed.error is None or not theirs.value.is_floating_point():
        return False
    return error(mine.value, _exact(theirs, right)).largest <= allowed.error


def _is_order_of_sums(found: Difference, eager: Trace, ours: Trace, exact: Trace | None) -> bool:
    """Whether a gradient is as far off as one that is added up in another order may be.

    Kernels for other layouts add one term after the other where eager's add in vectors, and a gradient that is zero but
    for rounding, as that of a bias before a batch norm, is small by luck in one of them.
    """
    theirs, mine, right = _pair(found.where, eager, ours, exact)
    if found.kind != "rounding" or not found.where.startswith("gradient of "):
        return False
    if not (isinstance(theirs, Seen) and isinstance(mine, Seen) and isinstance(right, Seen)):
        return False
    off, allowed = error(mine.value, right.value), error(theirs.value, right.value)
    ratio = _NOISE_APART if allowed.is_noise else RATIO
    ulps = _ULPS * torch.finfo(mine.value.dtype).eps
    return off.largest <= ratio * allowed.largest + ulps and off.rms <= ratio * allowed.rms + ulps / 4


def _strange(mine: Tensor, theirs: Tensor, exact: Tensor) -> Tensor:
    """Where an element is NaN or infinite and eager's is another, or the other way round and eager's is right."""
    same = (mine == theirs) | (mine.isnan() & theirs.isnan())
    return ~same & (~torch.isfinite(mine) | (~torch.isfinite(theirs) & ~torch.isfinite(exact)))


def _exact(theirs: Seen, right: Any) -> Tensor:
    known = isinstance(right, Seen) and right.value.shape == theirs.value.shape
    return right.value if known else theirs.value.double()


def _told(found: Difference, eager: Trace, ours: Trace, exact: Trace | None) -> str:
    """The difference in words, with the element that is farthest off."""
    theirs, mine, right = _pair(found.where, eager, ours, exact)
    if isinstance(theirs, Seen) and isinstance(mine, Seen) and found.kind in ("rounding", "value"):
        place = _farthest(mine.value, theirs.value, _exact(theirs, right))
        if place is not None:
            index = list(place)
            mine_value, their_value = mine.value[place].item(), theirs.value[place].item()
            return f"element {index} is {mine_value:.7g}, eager's is {their_value:.7g}; {found.text.partition(': ')[0]}"
    return found.text


def _farthest(mine: Tensor, theirs: Tensor, exact: Tensor) -> tuple[int, ...] | None:
    """The index of the element that is farthest from the exact one; of one that is NaN in one of the two first."""
    if mine.shape != theirs.shape or mine.dtype != theirs.dtype or mine.is_complex() or not mine.numel():
        return None
    gap = (mine.double() - exact.double()).abs()
    gap = torch.where(
        _strange(mine.double(), theirs.double(), exact.double()), torch.inf, gap.nan_to_num(0.0, 0.0, 0.0)
    )
    flat = int(gap.argmax())
    return tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), mine.shape))


def _largest_error(eager: Trace, ours: Trace, exact: Trace | None) -> float:
    """Of the outputs and gradients, as a fraction of the largest element."""
    found = 0.0
    for path, theirs in eager.leaves.items():
        mine = ours.leaves.get(path)
        if not isinstance(theirs, Seen) or not isinstance(mine, Seen) or mine.value.shape != theirs.value.shape:
            continue
        if theirs.value.is_floating_point():
            right = exact.leaves.get(path) if exact else None
            found = max(found, error(mine.value, _exact(theirs, right)).largest)
    return found
