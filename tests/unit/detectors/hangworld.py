"""Ranks as a detector of hangs sees them, in virtual time."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from signals import policy, rank_sample, reported, started

from holdfast.api.event import StopEnded
from holdfast.api.finding import Finding
from holdfast.api.rankrecord import Phase
from holdfast.api.telemetry import ProcessState, RankSample
from holdfast.watchdog.detectors.hang import HangDetector

LOOK_S = 0.1
REPORT_S = 1.0
PULSE_S = 0.1


@dataclass
class Worker:
    """A rank as it lives. `published_at` and `beat_at` stand still when it does."""

    rank: int
    step: int | None = None
    phase: Phase = Phase.STARTUP
    sequence: int | None = 0
    process: ProcessState = ProcessState.RUNNING
    published_at: float = 0.0
    phase_at: float = 0.0
    beat_at: float | None = 0.0
    step_time_s: float | None = None
    beats: bool = True
    works: float | None = None  # its share of a processor; None: Unknown

    def sample(self, now: float, number: int) -> RankSample:
        return rank_sample(
            self.rank,
            round=number,
            process=self.process,
            phase=self.phase,
            progress_age_s=now - self.published_at,
            phase_age_s=now - self.phase_at,
            pulse_age_s=None if self.beat_at is None else now - self.beat_at,
            step=self.step,
            step_time_s=self.step_time_s,
            collective_sequence=self.sequence,
            worked_s=None if self.works is None else self.works * (now - self.published_at),
        )


@dataclass
class World:
    """Four ranks on two nodes in virtual time, with an agent per node that looks ten times a second."""

    detector: HangDetector = field(default_factory=lambda: HangDetector(policy()))
    step_time_s: float = 0.1
    now: float = 0.0
    number: int = 1
    found: list[Finding] = field(default_factory=list)
    found_at: float | None = None
    ended: list[StopEnded] = field(default_factory=list)
    silent: set[str] = field(default_factory=set)
    ranks: dict[int, Worker] = field(default_factory=dict)
    _due: dict[str, float] = field(default_factory=dict)
    _stalled: set[int] = field(default_factory=set)
    _stepped: set[tuple[int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.enter(self.number)

    def enter(self, number: int) -> None:
        self.number = number
        self.ranks = {rank: Worker(rank, published_at=self.now, phase_at=self.now) for rank in range(4)}
        self.detector.observe(started(number), self.now)

    def trains(self, steps: int) -> "World":
        """Every rank completes `steps` more steps, in step."""
        for _ in range(steps):
            self.passes(self.step_time_s)
            for worker in self.ranks.values():
                worker.step = (worker.step or 0) + 1
                worker.sequence = (worker.sequence or 0) + 1
                worker.phase, worker.step_time_s = Phase.OWN, self.step_time_s
                worker.published_at = worker.phase_at = self.now
        return self

    def all_wait_but(self, *stuck: int, phase: Phase = Phase.BACKWARD) -> None:
        """The others reach the next collective."""
        for rank, worker in self.ranks.items():
            if rank not in stuck:
                worker.phase, worker.published_at, worker.phase_at = phase, self.now, self.now
                worker.sequence = None if worker.sequence is None else worker.sequence + 1

    def passes(self, seconds: float) -> "World":
        end = self.now + seconds
        while (later := min(self.now + LOOK_S, end)) > self.now:
            self.now = later
            for worker in self.ranks.values():
                if worker.beats and worker.process is ProcessState.RUNNING and worker.beat_at is not None:
                    worker.beat_at = self.now
            for node in ("n0", "n1"):
                self._agent_looks(node)
        return self

    def _agent_looks(self, node: str) -> None:
        mine = [worker for rank, worker in self.ranks.items() if f"n{rank // 2}" == node]
        samples = [worker.sample(self.now, self.number) for worker in mine]
        after_s = self.detector.stalled_after_s(self.now)
        stalled = {each.rank for each in samples if after_s is not None and each.progress_age_s > after_s}
        stepped = {(each.round, each.rank) for each in samples if each.step is not None}
        urgent = stalled - self._stalled or stepped - self._stepped
        due = self.now >= self._due.get(node, 0.0) or bool(urgent)
        self._stalled = (self._stalled - {each.rank for each in samples}) | stalled
        self._stepped |= stepped
        if due and node not in self.silent:
            self._due[node] = self.now + REPORT_S
            self._hear(self.detector.observe(reported(node, *samples), self.now))

    def _hear(self, proofs: Iterable[Finding | StopEnded]) -> None:
        for proof in proofs:
            if isinstance(proof, StopEnded):
                self.ended.append(proof)
                continue
            self.found.append(proof)
            self.found_at = self.now

    def stop(self, *ranks: int) -> float:
        for rank in ranks:
            self.ranks[rank].process = ProcessState.STOPPED
        return self.now
