"""Takes one job's records from the spool to one tracker, in order, and remembers how far it came.

It has a thread of its own. A tracker that is away is tried again for as long as it takes; what waits for it lies
on disk. Where it got to is written after it is out, so that a process that died says some of it again; of rows the
tracker then tells how far it has them, and of notes saying them again changes nothing.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from holdfast.api.errors import HoldfastError, InvalidInput, Unavailable
from holdfast.console.trackers.records import Ended, Note
from holdfast.console.trackers.settling import Back, Retold, Settling, Shown, Standing, Word
from holdfast.console.trackers.spool import SpoolReader, first_record
from holdfast.console.trackers.tracker import Tracker
from holdfast.wire.backoff import Backoff

logger = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 0.25
RETRY_FIRST_S: Final = 1.0
RETRY_MOST_S: Final = 60.0
ROWS_AT_ONCE: Final = 500


class Stopped(HoldfastError):
    """It was stopped while it waited."""


class Cursor(msgspec.Struct):
    """`next` is the record that is read next, when begun anew. `ended`: the last thing that is out is the end.

    `closed`: the tracker was closed since. What a process that died gave to a library may never have come out.
    """

    next: int = 0
    standing: Standing = msgspec.field(default_factory=Standing)
    ended: bool = False
    closed: bool = True


class CursorFile:
    """Where a cursor is kept; written whole or not at all."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Cursor:
        """As it was left; from the beginning where there is none, or none that can be read."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Cursor)
        except FileNotFoundError:
            return Cursor()
        except (OSError, msgspec.MsgspecError) as error:
            logger.warning("a cursor cannot be read, its tracker is asked path=%s reason=%s", self._path, error)
            return Cursor()

    def write(self, cursor: Cursor) -> None:
        """Raises OSError."""
        beside = self._path.with_suffix(".new")
        beside.write_bytes(msgspec.json.encode(cursor))
        os.replace(beside, self._path)


class Courier:
    """`name` is what the tracker is called in logs, and names its cursor. It stops when `stop` is set, and once
    everything is out when `rest` is. `refused` is why the tracker takes nothing from this process,
    since `refused_at` (monotonic, seconds); `waiting` why it does not now.
    """

    def __init__(
        self, name: str, tracker: Tracker, spool: Path, *, stop: threading.Event, rest: threading.Event
    ) -> None:
        self._name = name
        self._tracker = tracker
        self._file = CursorFile(spool / f"{name}.cursor")
        self._cursor = self._file.read()
        if not self._cursor.closed and tracker.shows and not tracker.forgets:
            # All that the spool still has is settled once more; what the tracker has of it is left out.
            self._cursor = Cursor(next=first_record(spool))
        self._settling = Settling(self._cursor.standing, forgets=tracker.forgets)
        self._reader = SpoolReader(spool, self._cursor.next)
        self._stop = stop
        self._rest = rest
        self._out: dict[str, int] = {}  # by series: the newest step that is out
        self._is_open = False
        self._lost_told = 0
        self._at = 0.0
        self.refused: str | None = None
        self.refused_at = 0.0
        self.waiting = ""

    def run(self) -> None:
        """Until it is stopped, or the tracker refuses for good. The thread's whole life."""
        try:
            while not self._stop.is_set():
                resting = self._rest.is_set()  # looked at first: what came before it is read below
                if not self._turn():
                    if resting:
                        break
                    self._stop.wait(LOOK_EVERY_S)
            if self._is_open:
                self._tracker.close(None)
                self._cursor.closed = True
                self._file.write(self._cursor)
        except Stopped:
            pass
        except InvalidInput as error:
            self._give_up(str(error))
        except Exception as error:  # of a library: this tracker is of no use any more, the others are
            logger.exception("a tracker failed tracker=%s", self._name)
            self._give_up(f"it failed: {error}")

    def _give_up(self, reason: str) -> None:
        self.refused, self.refused_at = reason, time.monotonic()
        logger.error("a tracker is given up tracker=%s reason=%s", self._name, reason)

    def _turn(self) -> bool:
        """Bring some records out; whether there were any."""
        records = self._reader.read()
        if not records:
            return False
        if not self._out:
            self._insist(lambda: None)  # how far the tracker is comes before what is to be published
        words: list[Word] = []
        if self._reader.lost > self._lost_told:
            count, self._lost_told = self._reader.lost - self._lost_told, self._reader.lost
            says = f"{count} records did not fit the spool while {self._name} took none"
            logger.warning("records are lost tracker=%s count=%d", self._name, count)
            words.append(Note(f"spool-{records[0][0]}", "lost", self._at, None, "records are lost", says))
        for number, record in records:
            words += self._settling.take(number, record)
        self._bring(words)
        self._cursor.next = self._settling.safe
        self._insist(partial(self._file.write, self._cursor), opens=False)
        return True

    def _bring(self, words: Sequence[Word]) -> None:
        rows: list[Shown] = []
        for word in words:
            if isinstance(word, Shown):
                rows.append(word)
            if rows and (not isinstance(word, Shown) or len(rows) == ROWS_AT_ONCE):
                self._insist(partial(self._show, rows))
                rows = []
            if not isinstance(word, Shown):
                self._insist(partial(self._say, word))
        if rows:
            self._insist(partial(self._show, rows))

    def _show(self, rows: Sequence[Shown]) -> None:
        """Those that are not out: of a call that failed some may be."""
        new = [row for row in rows if row.step > self._out.get(row.series, -1)]
        if new and self._tracker.shows:
            self._tracker.show(new)
        for row in new:
            self._out[row.series], self._at = row.step, row.at

    def _say(self, word: Back | Retold | Note | Ended) -> None:
        match word:
            case Back():
                self._tracker.back(word.step)
                self._out[""] = word.step
            case Retold():
                self._out[word.series] = max(word.after, self._tracker.open(word.series, word.after))
                self._tracker.note(word)
            case Note():
                self._tracker.note(word)
            case Ended():
                self._tracker.close(word)
                self._is_open, self._cursor.closed = False, True
        self._cursor.ended = isinstance(word, Ended)

    def _open(self) -> None:
        """Begin, or see how far a call that failed, or a process that died, has come.

        What settles the steps is not told: it says the same again of the same records, and `_show` leaves out
        what is there.
        """
        standing = self._settling.standing
        self._out[""] = self._tracker.open("", self._out.get("", standing.published))
        if standing.again:
            known = self._out.get(standing.series, standing.again_published)
            self._out[standing.series] = max(known, self._tracker.open(standing.series, known))
        self._is_open, self._cursor.closed = True, False
        self._file.write(self._cursor)  # before anything is handed over

    def _insist(self, act: Callable[[], None], *, opens: bool = True) -> None:
        """Do it, however long it takes. Raises InvalidInput, and Stopped where it is stopped meanwhile."""
        backoff = Backoff(RETRY_FIRST_S, RETRY_MOST_S)
        while True:
            try:
                if opens and not self._is_open:
                    self._open()
                act()
                self.waiting = ""
                return
            except (Unavailable, OSError) as error:
                self._is_open = False
                if str(error) != self.waiting:
                    self.waiting = str(error)
                    logger.warning("a tracker is away, trying again tracker=%s reason=%s", self._name, error)
            if self._stop.wait(backoff.next_s()):
                raise Stopped
