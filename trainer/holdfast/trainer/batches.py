"""What this process takes to train with: told by prints, and noticed where it comes a second time.

A print costs time, so that it is taken of as many steps as a small share of the time pays for: of those that a
power of two divides, whose steps other ranks and the agent look at too, however much more or less they can afford.
"""

import logging
import mmap
import time
from collections.abc import Callable
from typing import Final

import torch

from holdfast.api.errors import InvalidInput, Problem
from holdfast.api.rankrecord import UNKNOWN_INT, BatchPrint
from holdfast.trainer.batchprint import BatchSum, OnDevice, print_of
from holdfast.trainer.record import RankRecord

logger = logging.getLogger(__name__)

SHARE: Final = 0.005  # of the time, which prints may take
_WINDOW: Final = 32  # prints, after which their share is looked at,
_DEAR_NS: Final = 50_000_000  # or as soon as they took so long together
_EVERY_MAX: Final = 1 << 20
BATCHES_REMEMBERED: Final = 1 << 20
"""How many batches of an epoch are remembered, in 16 MiB that are filled as they come."""
_WAYS: Final = 4  # places that one batch may be in: of more than so many, the oldest is forgotten
_WORD_BYTES: Final = 8
_EPOCH: Final = 0x9E3779B97F4A7C15  # odd, with no pattern in its bits: the same batch of another epoch is another
EPOCH_STEPS_MIN: Final = 64
"""Where no epochs are told: the first batch that comes again after so many steps begins a new one."""
FEW: Final = 3
"""Batches of so many samples or fewer come again by chance, where samples are drawn at random or shuffled anew."""
REPEATS: Final = 8
"""So many of them in a row, as far back as each other, do not."""


class Taken:
    """The prints that this process took in an epoch, and for which steps, in a table of a fixed size.

    Batch after batch comes at steps that rise. One at an earlier step is trained again, so that what was taken
    from there on does not count any more: it is supposed to come again.
    """

    def __init__(self, size: int = BATCHES_REMEMBERED) -> None:
        """Room for `size` batches, a multiple of four."""
        self._sets = size // _WAYS
        self._values = memoryview(mmap.mmap(-1, size * _WORD_BYTES)).cast("Q")
        self._content = mmap.mmap(-1, size * _WORD_BYTES)
        self._steps = memoryview(self._content).cast("q")  # each step plus one; 0 where there is none
        self._mark = 0  # of this epoch: what values are marked with
        self.newest = self.first = UNKNOWN_INT

    def take(self, step: int, value: int) -> int | None:
        """The batch `value` is taken for `step`; returns the step before for which it was, None: there is none
        that is remembered.
        """
        if step <= self.newest:
            self._forget_from(step)
        if self.first == UNKNOWN_INT:
            self.first = step
        self.newest = step
        value = (value + self._mark) % 2**64
        values, steps, start = self._values, self._steps, value % self._sets * _WAYS
        oldest = start
        for place in range(start, start + _WAYS):
            if steps[place] and values[place] == value:
                before = steps[place] - 1
                steps[place] = step + 1
                return before
            if steps[place] < steps[oldest]:
                oldest = place
        values[oldest], steps[oldest] = value, step + 1
        return None

    def forget(self) -> None:
        """An epoch is over: all may come again. What it left is found no more, and makes room first."""
        self._mark = (self._mark + _EPOCH) % 2**64
        self.newest = self.first = UNKNOWN_INT

    def _forget_from(self, step: int) -> None:
        known = torch.frombuffer(self._content, dtype=torch.int64)
        known[known > step] = 0
        if self.first >= step:
            self.first = UNKNOWN_INT


class Repeats:
    """How many batches in a row came again as far back as each other; those of one sample each another.

    Samples that are drawn at random, or in another order in an epoch that nobody tells of, come again now and
    then, and so does what fills a place. A loader that begins anew, or whose processes all read the same, goes on.
    """

    def __init__(self) -> None:
        self.count = 0
        self._steps_back = self._value = UNKNOWN_INT

    def take(self, steps_back: int, value: int, samples: int) -> None:
        """The batch `value` came again after so many steps."""
        goes_on = steps_back == self._steps_back and (samples > 1 or value != self._value)
        self.count = self.count + 1 if goes_on else 1
        self._steps_back, self._value = steps_back, value


class Pace:
    """Of which steps a print is taken, so that prints take `SHARE` of the time at most."""

    def __init__(self) -> None:
        self.every = 1
        self._prints = 0
        self._spent_ns = self._began_ns = 0

    def spend(self, spent_ns: int, now_ns: int) -> None:
        """A print took so long, until now. The first is of no window: it loads and connects."""
        self._prints += 1
        if self._prints > 1:
            self._spent_ns += spent_ns
            if self._prints <= _WINDOW and self._spent_ns < _DEAR_NS:
                return
            share = self._spent_ns / max(1, now_ns - self._began_ns)
            if share > SHARE:
                self.every = min(2 * self.every, _EVERY_MAX)
            elif self._prints <= _WINDOW:
                return
            elif share < SHARE / 4:
                self.every = max(1, self.every // 2)
        self._prints, self._spent_ns, self._began_ns = 1, 0, now_ns


class Batches:
    """The batches of one process, over all its rounds. Belongs to the training thread."""

    def __init__(self, clock_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        """`clock_ns` says how long prints take."""
        self._clock_ns = clock_ns
        self._taken: Taken | None = None  # made when the first is told
        self._repeats = Repeats()
        self._pace = Pace()
        self._epoch: int | None = None
        self._step = UNKNOWN_INT  # what is told of so far, and not complete
        self._value = self._samples = 0
        self._tokens: int | None = None
        self._is_silent = False  # nobody can say which samples the step has
        self._has_said_why = False
        self._is_given_up = False
        self._spent_ns = 0

    @property
    def is_open(self) -> bool:
        """Whether a batch was told whose step is not complete."""
        return self._step != UNKNOWN_INT

    def epoch(self, number: int) -> None:
        """The data of epoch `number` begin, unless they have."""
        if self._epoch not in (None, number):
            self.forget()
        self._epoch = number

    def forget(self) -> None:
        """What was taken may come again."""
        self._repeats = Repeats()
        if self._taken is not None:
            self._taken.forget()

    def forget_open(self) -> None:
        """A round is over: what is told of a step of it will not be complete."""
        self._step = UNKNOWN_INT

    def take(self, step: int, samples: object, *, tokens: int | None) -> None:
        """As `Run.batch`; raises InvalidInput."""
        if step % self._pace.every:
            return
        began_ns = self._clock_ns()
        try:
            told = print_of(samples)
        except OnDevice as error:
            fix = "give the batch before it goes to the device: its print is not worth waiting for one"
            raise InvalidInput(Problem(field="samples", value=f"a tensor on {error}", fix=fix)) from error
        if told is None:
            fix = "give tensors or lists of strings, in mappings, tuples or lists, with samples first"
            raise InvalidInput(Problem(field="samples", value=type(samples).__name__, fix=fix))
        self._add(step, told, tokens)
        self._spent_ns += self._clock_ns() - began_ns

    def take_if_possible(self, step: int, samples: object) -> None:
        """The same of a batch that nobody vouches for. One that has no print is told in the log, once, and no
        other is tried.
        """
        if self._is_given_up:
            return
        try:
            self.take(step, samples, tokens=None)
        except InvalidInput as error:
            self._is_given_up = True
            logger.info("batches are not compared: one has no print step=%d error=%s", step, error)

    def _add(self, step: int, told: BatchSum, tokens: int | None) -> None:
        known = told.tokens if tokens is None else tokens
        if told.silent and not self._has_said_why:
            self._has_said_why = True
            logger.info("a batch is compared with no other step=%d error=%s", step, told.silent)
        if step != self._step:
            self._step, self._value, self._samples, self._tokens = step, told.value, told.samples, known
            self._is_silent = bool(told.silent)
            return
        self._is_silent = self._is_silent or bool(told.silent)
        self._value = (self._value + told.value) % 2**64
        self._samples += told.samples
        self._tokens = None if self._tokens is None or known is None else self._tokens + known

    def completed(self, step: int, record: RankRecord) -> None:
        """Step `step` is complete: publish what it was trained with."""
        began_ns = self._clock_ns()
        if step == self._step:
            if self._is_silent:
                self._value = self._samples = 0
            again = self._again(step) if self._samples else None
            told = UNKNOWN_INT if self._tokens is None else self._tokens
            record.batch(BatchPrint(step, self._value, self._samples, told, time.monotonic_ns()), again)
        self._step = UNKNOWN_INT
        ended_ns = self._clock_ns()
        self._pace.spend(self._spent_ns + ended_ns - began_ns, ended_ns)
        self._spent_ns = 0

    def _again(self, step: int) -> int | None:
        """For which step of this epoch the batch was taken before. None: for none, or it has few samples and may
        have come again by chance.
        """
        if self._taken is None:
            self._taken = Taken()
        taken, first = self._taken, self._taken.first
        before = taken.take(step, self._value)
        if before is None:
            return None
        # Of the first batches, one is of a step that is still told of, however many others are not any more.
        is_beginning = before < first + self._pace.every and step - before >= EPOCH_STEPS_MIN
        if self._epoch is None and is_beginning:
            # What is gone through again from its beginning is a further epoch of a script that tells of none.
            self.forget()
            taken.take(step, self._value)
            return None
        self._repeats.take(step - before, self._value, self._samples)
        return before if self._samples > FEW or self._repeats.count >= REPEATS else None
