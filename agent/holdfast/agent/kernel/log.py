"""What the kernel says: errors of GPUs, switches, network ports and memory, and whom it killed for want of memory.

A restart of the agent goes on where it left off: the last record's sequence is kept in the run directory, with
the boot it is of. An agent that was killed rather than stopped tells the last seconds again, with their true age,
which the watchdog takes for the same faults: what was read may not have been reported yet.

On its first start in a boot, what is older than `HISTORY_S` is history: its errors are not told, except of a GPU
that fell off the bus and did not come back. Conditions are raised however old their message is, because they hold
until the next boot.
"""

import contextlib
import errno
import logging
from typing import Final

import msgspec
from msgspec.structs import replace

from holdfast.agent.conditions.book import Held
from holdfast.agent.conditions.memory import boot_id, read_file, write_whole
from holdfast.agent.kernel.faults import CALM_S, KernelFaults, StillLost
from holdfast.agent.kernel.message import GpuNamed, KernelMessage, parse_message
from holdfast.agent.kernel.slots import GpuNames
from holdfast.agent.kernel.source import KernelRecord, KernelSource, Place
from holdfast.agent.reading import Reading
from holdfast.api.condition import AllClear
from holdfast.api.errors import Malformed
from holdfast.api.telemetry import NodeEvent, Unreadable

_LOG = logging.getLogger(__name__)

FILE_NAME: Final = "kernel-log.json"
# Younger than this, an error may well concern the job that runs now.
HISTORY_S: Final = 300.0
# Keeps a look well below a millisecond. Ten looks a second take in more than a kernel says in its worst hour.
RECORDS_PER_LOOK: Final = 128
LOSS_TOLD_S: Final = 60.0
_SAVE_EVERY_S: Final = 5.0
_SAVE_QUIET_S: Final = 60.0  # a log in which nothing is new
_OPEN_AGAIN_S: Final = 10.0
_FIXES: Final = {
    errno.EACCES: "give the agent CAP_SYSLOG, or name a log file that it may read",
    errno.EPERM: "give the agent CAP_SYSLOG or set kernel.dmesg_restrict=0, or name a log file that it may read",
    errno.ENOENT: "mount the node's /dev/kmsg, or name its log file",
}


class Bookmark(msgspec.Struct, frozen=True):
    """How far the log was read, and what held then. `boot` is the kernel's id of the boot that the times are of.

    `read_at` is when the position was reached (CLOCK_MONOTONIC, seconds): what lies behind it was said later.
    `whole`: everything that the kernel said in this boot up to the position was read.
    """

    boot: str
    position: int
    file: int = 0
    held: tuple[Held, ...] = ()
    read_at: float | None = None
    whole: bool = False


class KernelLog:
    """The kernel's log. `records_lost` counts what was overwritten before it could be read."""

    name = "kernel-log"

    def __init__(
        self, source: KernelSource, *, names: GpuNames, state_file: str | None = None, boot: str | None = None
    ) -> None:
        """Without `state_file` every start is a first one. `boot` is this boot's id (default: the kernel's)."""
        self.records_lost = 0
        self._source = source
        self._names = names
        self._faults = KernelFaults(names)
        self._boot = boot_id() if boot is None else boot
        self._state_file = state_file
        self._kept: Bookmark | None = None
        # Where there is none, or a damaged one, reading starts as if for the first time.
        with contextlib.suppress(OSError, Malformed):
            self._kept = None if state_file is None else read_file(state_file, Bookmark)
        self._history: StillLost | None = StillLost()
        self._left_at: float | None = None
        kept = self._kept
        self._goes_on = kept is not None and bool(self._boot) and kept.boot == self._boot
        self._whole = False
        if kept is not None and self._goes_on:
            source.place, self._history = Place(kept.position, kept.file), None
            self._left_at, self._whole = kept.read_at, kept.whole
        self._looked = False
        self._watched_since: float | None = None  # without a gap
        self._unkept = False
        self._begun = False
        self._history_until = float("-inf")
        self._settled: tuple[Place, float] | None = None
        self._ended_at: float | None = None
        self._lost_at = float("-inf")
        self._save_at = float("-inf")
        self._open_at = float("-inf")
        self._problem = ""

    def read(self, now: float) -> Reading:
        if not self._begun:
            self._begun = True
            self._history_until = now - HISTORY_S
            self._save_at = now + _SAVE_EVERY_S
            if self._kept is not None:
                self._faults.take_up(self._kept.held, rebooted=not self._goes_on, now=now)
        events: list[NodeEvent] = []
        if now >= self._open_at:
            events = self._look(now)
        if now >= self._save_at:
            self._save(now)
        unreadable = self._problem
        all_clear: tuple[AllClear, ...] = ()
        if not unreadable and now - self._lost_at <= LOSS_TOLD_S:
            unreadable = f"{self.records_lost} records so far were overwritten before they could be read"
        if self._watched_since is not None and not self._problem:  # it can be read, and was read to its end
            calm = now - self._watched_since >= CALM_S
            all_clear = self._faults.all_clear(whole=self._whole, calm=calm)
        return Reading(
            events=tuple(events),
            conditions=self._faults.conditions(now),
            unreadable=(Unreadable(self.name, unreadable),) if unreadable else (),
            all_clear=all_clear,
        )

    def close(self) -> None:
        """Remember how far it was read. `read` is not called any more."""
        if self._ended_at is not None:
            self._settle(self._ended_at)
            self._kept = None
            self._save(self._ended_at)
        self._source.close()

    def _look(self, now: float) -> list[NodeEvent]:
        """What happened, by the messages that came since the last look."""
        try:
            found = self._source.look(RECORDS_PER_LOOK)
        except OSError as error:
            fix = _FIXES.get(error.errno or 0)
            self._problem = f"cannot read {self._source.path}: {error.strerror}" + (f"; {fix}" if fix else "")
            self._open_at = now + _OPEN_AGAIN_S
            self._watched_since = None
            return []
        self._problem = ""
        if not self._looked and self._history is not None:
            # Whether it began with the boot. A log file has no numbers: then a young boot has to do.
            sequence = found.records[0].sequence if found.records else None
            self._whole = now <= HISTORY_S if sequence is None else sequence == 0
        self._looked = True
        if found.lost:
            self.records_lost += found.lost
            self._lost_at = now
            self._whole, self._watched_since = False, None
        news: list[tuple[KernelMessage, float]] = []
        for record in found.records:
            message = parse_message(record.text) if record.text else None
            if message is None:
                continue
            at = self._time_of(record, now)
            if isinstance(message, GpuNamed):
                self._names.learn(message.slot, message.uuid)
                continue
            if self._history is not None:
                self._history.take(message, at)
                if at < self._history_until:
                    self._faults.take(message, at, now)  # for the conditions; its event is history
                    continue
            news.append((message, at))
        if found.ended:
            self._ended_at = now
            self._watched_since = now if self._watched_since is None else self._watched_since
            if self._history is not None:
                news = [*self._history.told(self._history_until), *news]
                self._history = None
        events = (self._faults.take(message, at, now) for message, at in news)
        return [event for event in events if event is not None]

    def _time_of(self, record: KernelRecord, now: float) -> float:
        """When it was said, on CLOCK_MONOTONIC.

        The log's clock runs beside it but drifts, by minutes in a month. What came since the log had been read to
        its end came since then. A line without a stamp that was found at the start may be as old as the place
        where an earlier run had left off.
        """
        at = record.said_at_s
        if at is None:
            at = now if self._ended_at is not None or self._left_at is None else self._left_at
        return min(now, at if self._ended_at is None else max(self._ended_at, at))

    def _settle(self, now: float) -> None:
        self._settled = None if self._source.place is None else (self._source.place, now)

    def _save(self, now: float) -> None:
        self._save_at = now + _SAVE_EVERY_S
        # What was read since the last time may not have been reported: it is told again if this one dies.
        settled = self._settled
        self._settle(now)
        if self._state_file is None or settled is None or self._history is not None:
            return
        place, read_at = settled
        bookmark = Bookmark(self._boot, place.position, place.file, self._faults.book.held(), read_at, self._whole)
        kept_at = None if self._kept is None else self._kept.read_at
        is_same = kept_at is not None and replace(bookmark, read_at=kept_at) == self._kept
        if is_same and kept_at is not None and read_at - kept_at < _SAVE_QUIET_S:
            return  # nothing is new, and what is kept is not much older
        try:
            write_whole(self._state_file, msgspec.json.encode(bookmark))
            self._kept, self._unkept = bookmark, False
        except OSError as error:
            if not self._unkept:
                self._unkept = True
                _LOG.warning("kernel log's place not kept: file=%s reason=%s", self._state_file, error.strerror)
