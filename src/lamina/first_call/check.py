"""The option verify="first": each compiled region's first call is held against its graph run by ATen.

The compiled region runs on the caller's tensors, the graph on copies, both from the same states of the random number
generators. Values are judged by their distance from the graph run in double precision, relative to that of ATen's.
Where something differs, the caller's tensors are set back, the region runs by ATen from then on, and a decision and a
warning name it with the first kernel that differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from lamina.backends.device import LoadedPlan
from lamina.backends.regions import Boxed, aten_calls
from lamina.base.accuracy import error, judge, judge_alone
from lamina.base.decision import Decision
from lamina.base.devices import kind_of
from lamina.base.recovery import brief
from lamina.base.reference import copied, in_double
from lamina.base.region_check import RegionCheck, StepCheck
from lamina.base.rng_state import rng_state, set_rng_state
from lamina.base.symbolic.torch_private import is_fake
from lamina.base.torch_private import OpOverload, boxed, schema_of
from lamina.base.user_warnings import warn_user
from lamina.errors import LaminaError, StageFailed
from lamina.first_call import reasons
from lamina.first_call.steps import Recorded, first_step, recorded
from lamina.options import Options
from lamina.record import Record

__all__ = ["checked_first_call", "differs"]


def checked_first_call(
    run: Boxed,
    gm: GraphModule,
    name: str,
    options: Options,
    record: Record,
    steps: Callable[[], LoadedPlan | None] | None = None,
) -> Boxed:
    """``run`` with its first call checked against ``gm``; ``run`` itself where the option does not ask for it.

    ``steps`` gives, after that call, what runs its kernels one by one, to tell which of them is wrong.
    """
    if options.verify != "first":
        return run
    check = _FirstCall(run, gm, name, options, record, steps)
    current, checked = run, False

    def call(args: list[Any]) -> Any:
        nonlocal current, checked
        if checked or any(map(is_fake, args)):
            return current(args)
        outputs, current = check(args)
        checked = True
        return outputs

    return boxed(call)


class _FirstCall:
    """The first call of one region."""

    def __init__(
        self,
        run: Boxed,
        gm: GraphModule,
        name: str,
        options: Options,
        record: Record,
        steps: Callable[[], LoadedPlan | None] | None,
    ) -> None:
        self.run, self.gm, self.name, self.options, self.record = run, gm, name, options, record
        self.steps = steps
        self.writes = _writes(gm)

    def __call__(self, args: list[Any]) -> tuple[Any, Boxed]:
        """What the caller gets, and what runs from now on."""
        inputs = list(args)
        args.clear()
        before = self._copies(inputs)
        with _same_draws(inputs) as again:
            try:
                outputs: Any = self.run(list(inputs))
                raised = None
            except LaminaError:
                raise
            except Exception as problem:
                outputs, raised = None, problem
            again()
            expected = self._aten(self._copies(before), raised)
            if raised is None:
                check = self._compared(inputs, outputs, before, expected, again)
            else:
                check = RegionCheck(self.name, 0, f"it raises {brief(raised)}, and its graph does not")
        self._note(check)
        if check.ok:
            return outputs, self.run
        if self.writes:
            _set_back(inputs, before)
        return self._instead(check, inputs)

    def _copies(self, values: list[Any]) -> list[Any]:
        """Copies for a graph that writes; one that does not may have the tensors themselves."""
        made: list[Any] = copied(values) if self.writes else list(values)
        return made

    def _aten(self, inputs: list[Any], raised: Exception | None) -> tuple[list[Any], Recorded]:
        """The graph's outputs and written inputs, and its nodes' values; re-raises ``raised`` where ATen raises."""
        try:
            with torch.no_grad():
                found = recorded(self.gm, inputs)
        except Exception:
            if raised is not None:
                raise raised from None
            raise
        return self._results(inputs, found.outputs), found

    def _results(self, inputs: Sequence[Any], outputs: Any) -> list[Any]:
        return [*_flat(outputs), *(inputs if self.writes else ())]

    def _compared(
        self,
        inputs: list[Any],
        outputs: Any,
        before: list[Any],
        expected: tuple[list[Any], Recorded],
        again: Callable[[], None],
    ) -> RegionCheck:
        results, nodes = expected
        exact = self._exact(before, again)
        precise = None if exact is None else exact[0]
        ours = self._results(inputs, outputs)
        count = len(_flat(outputs))
        names = [f"output {i}" if i < count else f"input {i - count} afterwards" for i in range(len(ours))]
        if len(ours) != len(results):
            return RegionCheck(self.name, 0, f"it gives {count} outputs, its graph {len(results) - len(ours) + count}")
        worst = theirs = 0.0
        for place, (name, mine, eager) in enumerate(zip(names, ours, results, strict=True)):
            reference = precise[place] if precise is not None and len(precise) == len(ours) else None
            complaint = differs(mine, eager, reference)
            if complaint:
                again()
                step = self._step(before, nodes, None if exact is None else exact[1])
                return RegionCheck(self.name, len(ours), f"{name}: {complaint}", step, *_errors(mine, eager, reference))
            found = _errors(mine, eager, reference)
            worst, theirs = max(worst, found[0]), max(theirs, found[1])
        return RegionCheck(self.name, len(ours), "", None, worst, theirs)

    def _exact(self, before: list[Any], again: Callable[[], None]) -> tuple[list[Any], Recorded] | None:
        """The same in double precision; None for graphs that cannot be run so."""
        again()
        inputs = copied(before, wide=True)
        try:
            with torch.no_grad(), in_double():
                found = recorded(self.gm, inputs)
        except Exception:
            return None
        return self._results(inputs, found.outputs), found

    def _step(self, before: list[Any], nodes: Recorded, exact: Recorded | None) -> StepCheck | None:
        loaded = None if self.steps is None else self.steps()
        if loaded is None:
            return None
        try:
            with torch.no_grad():
                return first_step(loaded, self._copies(before), nodes, exact, self.options.dump_dir)
        except Exception as problem:  # the region is named; the kernel is not
            why = reasons.KERNEL_NOT_FOUND(error=brief(problem))
            self.record.note(self.name, "check", Decision("verify", (self.name,), False, why))
            return None

    def _note(self, check: RegionCheck) -> None:
        facts = (("values", check.values), ("error", check.error), ("eager error", check.eager_error))
        subject = (self.name, check.step.kernel) if check.step else (self.name,)
        reason = reasons.RIGHT() if check.ok else reasons.WRONG(found=check)
        decision = Decision("verify", subject, check.ok, reason, facts)
        self.record.add(self.name, "check", 0.0, check, (decision,))

    def _instead(self, check: RegionCheck, inputs: list[Any]) -> tuple[Any, Boxed]:
        """The region by ATen, with a warning; ``StageFailed`` with the option strict."""
        if self.options.strict:
            raise StageFailed(f"the first call of {check}", remedy="unset the option strict to go on by ATen calls")
        warn_user(f"lamina runs a region as ATen calls: the first call of {check}")
        run = aten_calls(self.gm)
        return run(inputs), run


def differs(ours: Any, eager: Any, exact: Any) -> str:
    """What is wrong with one output of a region, "" if nothing is."""
    if not isinstance(eager, Tensor) or not isinstance(ours, Tensor):
        same = type(ours) is type(eager) and ours == eager
        return "" if same else f"{ours!r}, ATen's is {eager!r}"
    if eager.layout is not torch.strided or eager.is_quantized:
        return ""
    ours, eager = ours.detach(), eager.detach()
    if not isinstance(exact, Tensor) or exact.shape != eager.shape:
        return judge_alone(ours, eager)
    floating = eager.is_floating_point() or eager.is_complex()
    if not floating and not torch.equal(exact.to(eager.dtype), eager):
        return ""  # rounding turned a comparison in ATen itself
    return judge(ours, eager, exact.detach())


def _errors(ours: Any, eager: Any, exact: Any) -> tuple[float, float]:
    if not (isinstance(exact, Tensor) and isinstance(ours, Tensor) and exact.shape == ours.shape == eager.shape):
        return 0.0, 0.0
    if not ours.is_floating_point():
        return 0.0, 0.0
    return error(ours.detach(), exact).largest, error(eager.detach(), exact).largest


def _flat(outputs: Any) -> list[Any]:
    return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]


def _writes(gm: GraphModule) -> bool:
    """Whether the graph may write to an input."""
    calls = [n.target for n in gm.graph.nodes if n.op == "call_function"]
    return any(schema_of(t).is_mutable if isinstance(t, OpOverload) else _may_write(t) for t in calls)


def _may_write(target: Any) -> bool:
    return getattr(target, "__module__", "") not in ("_operator", "builtins", "math", "torch")


def _set_back(inputs: Sequence[Any], before: Sequence[Any]) -> None:
    """Give the caller's tensors the values they had before the call."""
    with torch.no_grad():
        for tensor, old in zip(inputs, before, strict=True):
            if isinstance(tensor, Tensor) and not torch.equal(tensor.detach(), old.detach()):
                tensor.detach().copy_(old)


@contextmanager
def _same_draws(inputs: Sequence[Any]) -> Iterator[Callable[[], None]]:
    """Gives a function that sets the generators back to where they were.

    In the end they are as what ran before its first call left them.
    """
    devices = {torch.device("cpu"), *(x.device for x in inputs if isinstance(x, Tensor) and kind_of(x).queued)}
    first = {device: rng_state(device) for device in devices}
    after: dict[torch.device, Tensor] = {}

    def again() -> None:
        for device, state in first.items():
            after.setdefault(device, rng_state(device))
            set_rng_state(state, device)

    yield again
    for device, state in after.items():
        set_rng_state(state, device)
