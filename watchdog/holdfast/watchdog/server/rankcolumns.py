"""The newest samples of all ranks as columns of bytes, made slice by slice. Pure.

What the newest step was like is read again only in slices where some rank has made one: of a step of ten seconds
nine looks in ten find none. Source of the costs: `make bench NAME=console`.
"""

import sys
from array import array
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, Final

import msgspec

from holdfast.api.feed import PROCESS_STATES, UNKNOWN_STEP, StepColumns, Waited
from holdfast.api.telemetry import ProcessState, RankSample

SLICE: Final = 4096
# Of more ranks than this as many, evenly spread, are asked what they wait: it is shown as one share of all.
WAITED_OF_MAX: Final = 1024
STEP_MAX: Final = 2**31 - 1

_STEP, _STEP_S, _LOSS = attrgetter("step"), attrgetter("step_time_s"), attrgetter("loss")
_GRAD_NORM, _TOKENS = attrgetter("grad_norm"), attrgetter("tokens")
_PHASE, _PROCESS = attrgetter("phase"), attrgetter("process")
_NUMBERS: Final = {state: number for number, state in enumerate(PROCESS_STATES)}
_RUNNING: Final = bytes((_NUMBERS[ProcessState.RUNNING],))


def floats(values: Sequence[float | None]) -> bytes:
    """As f32, little-endian; None is NaN."""
    known: Any = values  # as a rule all are known, and nobody looks at each
    try:
        return _little(array("f", known))
    except TypeError:
        return _little(array("f", [float("nan") if value is None else value for value in values]))


def steps(values: Sequence[int | None]) -> bytes:
    """As i32, little-endian; None is UNKNOWN_STEP."""
    known: Any = values
    try:
        return _little(array("i", known))
    except (TypeError, OverflowError):
        return _little(array("i", [UNKNOWN_STEP if each is None else min(each, STEP_MAX) for each in values]))


def ranks(values: Sequence[int]) -> bytes:
    """As u32, little-endian."""
    return _little(array("I", values))


def _little(column: "array[int] | array[float]") -> bytes:
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()


def processes(samples: Sequence[RankSample]) -> bytes:
    """What the kernel says of each rank's process, a byte each."""
    states = list(map(_PROCESS, samples))
    if states.count(ProcessState.RUNNING) == len(states):
        return _RUNNING * len(states)
    return bytes([_NUMBERS[each] for each in states])


class _Slice(msgspec.Struct):
    """Some ranks in a row: their newest steps, and what these were like."""

    steps: list[int | None]
    columns: StepColumns
    losses: int
    loss_sum: float
    step_s_max: float | None


class RankColumns:
    """All ranks of one job. Also answers what a status asks of them, from the columns made last."""

    def __init__(self) -> None:
        self.phase = self.process = b""
        self.columns = StepColumns()
        self.waited: Waited | None = None
        self._slices: list[_Slice] = []

    def look(self, samples: Sequence[RankSample], *, closely: bool) -> Iterator[None]:
        """Read the samples, which are in the order of the looks before or are others; others get their turn at
        each None. `closely` reads the processes' states, too.
        """
        phases, states, moved = [], [], False
        del self._slices[-(-len(samples) // SLICE) :]
        for number, first in enumerate(range(0, len(samples), SLICE)):
            part = samples[first : first + SLICE]
            phases.append(bytes(map(_PHASE, part)))
            if closely:
                states.append(processes(part))
            newest = list(map(_STEP, part))
            if number == len(self._slices):
                self._slices.append(_slice_of(part, newest))
                moved = True
            elif newest != self._slices[number].steps:
                self._slices[number] = _slice_of(part, newest)
                moved = True
            yield None
        self.phase = b"".join(phases)
        if closely:
            self.process = b"".join(states)
        if moved or not samples:
            self.columns = _joined([each.columns for each in self._slices])
            self.waited = _waited(samples[:: -(-len(samples) // WAITED_OF_MAX) or 1])

    def loss(self) -> float | None:
        """The mean over the ranks that know theirs."""
        known = sum(each.losses for each in self._slices)
        return sum(each.loss_sum for each in self._slices) / known if known else None

    def step_time_s(self) -> float | None:
        """The slowest rank's newest step."""
        return max((each.step_s_max for each in self._slices if each.step_s_max is not None), default=None)


def _joined(parts: Sequence[StepColumns]) -> StepColumns:
    return StepColumns(
        step=b"".join([each.step for each in parts]),
        step_s=b"".join([each.step_s for each in parts]),
        loss=b"".join([each.loss for each in parts]),
        grad_norm=b"".join([each.grad_norm for each in parts]),
        tokens=b"".join([each.tokens for each in parts]),
    )


def _slice_of(part: Sequence[RankSample], newest: list[int | None]) -> _Slice:
    times, losses = list(map(_STEP_S, part)), list(map(_LOSS, part))
    known = [loss for loss in losses if loss is not None]
    return _Slice(
        steps=newest,
        columns=StepColumns(
            step=steps(newest),
            step_s=floats(times),
            loss=floats(losses),
            grad_norm=floats(list(map(_GRAD_NORM, part))),
            tokens=floats(list(map(_TOKENS, part))),
        ),
        losses=len(known),
        loss_sum=sum(known),
        step_s_max=max((each for each in times if each is not None), default=None),
    )


def _waited(samples: Sequence[RankSample]) -> Waited | None:
    works = [each.work for each in samples if each.work is not None]
    if not works or any(each.waited_s is None for each in works):
        return None
    return Waited(sum(each.wall_s for each in works), sum(each.waited_s or 0.0 for each in works))
