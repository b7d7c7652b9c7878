"""The ranks of this node: their records in the run directory, and what the kernel says of their processes."""

import math
import os
import re
from typing import Final

from holdfast.agent.sensors.process import WatchedProcess
from holdfast.agent.sensors.record import RankRecord, RecordUnreadable
from holdfast.agent.sensors.sensor import Reading
from holdfast.api.rankrecord import UNKNOWN_FINGERPRINT, UNKNOWN_INT, PulseZone, StepZone
from holdfast.api.telemetry import ProcessState, RankSample, Unreadable

_RECORD_NAME: Final = re.compile(r"rank-\d+\.record")  # what api.control.record_file_name makes
_NANOSECONDS: Final = 1e9


class RankSensor:
    """Reads every rank record of a run directory. Records may appear, vanish and be replaced at any time."""

    name = "ranks"

    def __init__(self, run_dir: str) -> None:
        self._run_dir = run_dir
        self._followed: dict[str, _FollowedRank] = {}

    def read(self, now: float) -> Reading:
        """One sample per record, also of a rank whose process is gone, for as long as its record is there."""
        try:
            present = self._present()
        except FileNotFoundError:
            present = {}  # the launcher makes the directory when it has its first worker
        except OSError as error:
            reason = f"cannot list the run directory: {error.strerror}"
            return Reading(unreadable=(Unreadable(self.name, reason),))
        self._drop_all_but(present)
        ranks: list[RankSample] = []
        unreadable: list[Unreadable] = []
        for file_name in sorted(present):
            sample, problem = self._look_at(file_name, present[file_name], now)
            if sample is not None:
                ranks.append(sample)
            if problem is not None:
                unreadable.append(Unreadable(file_name, problem))
        return Reading(ranks=tuple(ranks), unreadable=tuple(unreadable))

    def close(self) -> None:
        """Let go of every open file."""
        self._drop_all_but({})

    def _present(self) -> dict[str, int]:
        with os.scandir(self._run_dir) as entries:
            return {entry.name: entry.inode() for entry in entries if _RECORD_NAME.fullmatch(entry.name)}

    def _drop_all_but(self, present: dict[str, int]) -> None:
        # While a record is held open its inode number cannot be given to the file that replaces it.
        for file_name, followed in list(self._followed.items()):
            if present.get(file_name) != followed.inode:
                followed.close()
                del self._followed[file_name]

    def _look_at(self, file_name: str, inode: int, now: float) -> tuple[RankSample | None, str | None]:
        followed = self._followed.get(file_name)
        if followed is None:
            try:
                record = RankRecord(os.path.join(self._run_dir, file_name))
            except FileNotFoundError:
                return None, None  # it vanished since the directory was listed
            except OSError as error:
                return None, f"cannot open: {error.strerror}"
            followed = self._followed[file_name] = _FollowedRank(record, inode)
        return followed.look(now)


class _FollowedRank:
    """One record file that is there now, its last good content, and the process that writes it."""

    def __init__(self, record: RankRecord, inode: int) -> None:
        self.inode = inode
        self._record = record
        self._checked = False
        self._step: StepZone | None = None
        self._pulse: PulseZone | None = None
        self._process: WatchedProcess | None = None

    def look(self, now: float) -> tuple[RankSample | None, str | None]:
        """A sample, or why there is none. Both, when only the content before this one could be read.

        A process that was stopped or killed in the middle of a publication leaves its record locked for ever.
        Its last good content still names it, so that the kernel's word on it is not lost.
        """
        reason: str | None = None
        try:
            self._refresh()
        except RecordUnreadable as error:
            reason = str(error)
        if self._step is None or self._step.rank == UNKNOWN_INT:
            return None, reason  # a worker that was given no rank yet is nobody's rank
        return sample_of(self._step, self._pulse, self._process_state(self._step.pid), now), reason

    def close(self) -> None:
        self._record.close()
        if self._process is not None:
            self._process.close()

    def _refresh(self) -> None:
        if not self._checked:
            self._record.check()
            self._checked = True
        # A zone that was published once does not become unpublished: its writer is in the middle.
        self._step = self._record.step() or self._step
        self._pulse = self._record.pulse() or self._pulse

    def _process_state(self, pid: int) -> ProcessState:
        if pid <= 0:
            return ProcessState.UNKNOWN
        if self._process is None or self._process.pid != pid:
            if self._process is not None:
                self._process.close()
            self._process = WatchedProcess(pid)
        return self._process.state()


def sample_of(step: StepZone, pulse: PulseZone | None, process: ProcessState, now: float) -> RankSample:
    """A record's content as a sample taken at `now` (CLOCK_MONOTONIC, seconds). What is Unknown is None."""
    return RankSample(
        round=step.round,
        rank=step.rank,
        process=process,
        phase=step.phase,
        progress_age_s=_age_s(step.published_ns, now),
        phase_age_s=_age_s(step.phase_started_ns, now),
        pulse_age_s=_age_s(pulse.beat_ns, now) if pulse and pulse.beat_ns > 0 else None,
        pid=step.pid if step.pid > 0 else None,
        step=_known(step.step),
        step_time_s=step.step_time_ns / _NANOSECONDS if step.step_time_ns >= 0 else None,
        loss=None if math.isnan(step.loss) else step.loss,
        grad_norm=None if math.isnan(step.grad_norm) else step.grad_norm,
        tokens=_known(step.tokens),
        collective_sequence=_known(pulse.collective_sequence) if pulse else None,
        parameter_fingerprint=_known(step.parameter_fingerprint, unknown=UNKNOWN_FINGERPRINT),
        snapshot_step=_known(step.snapshot_step),
    )


def _age_s(at_ns: int, now: float) -> float:
    return max(0.0, now - at_ns / _NANOSECONDS)


def _known(value: int, *, unknown: int = UNKNOWN_INT) -> int | None:
    return None if value == unknown else value
