"""A job in virtual time whose watchdog is real: journal, brain, detectors; and what it would answer to a reader.

Nodes report once a second, a step takes a second, and what a round asks for is done a moment later. A situation
changes what is told. What a reader is answered is read through the command line's own client, from JSON.
"""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any
from zlib import crc32

import msgspec
from forgetful_store import MemoryStore
from msgspec.structs import replace

from holdfast.api.event import (
    CheckpointRecorded,
    Event,
    JobSubmitted,
    MemberEntered,
    MemberJoined,
    RestoreReported,
    RunRecorded,
)
from holdfast.api.membership import WorkerExited
from holdfast.api.policy import CheckpointInterval, CorruptionPolicy, Policy
from holdfast.api.rankrecord import Phase
from holdfast.api.round import Follows, Round
from holdfast.api.runmanifest import FORMAT, Code, RunManifest
from holdfast.api.status import NodeStatus
from holdfast.api.telemetry import (
    BatchTaken,
    GpuHealth,
    GpuSample,
    NodeEvent,
    NodeReport,
    ParametersFingerprinted,
    ProcessState,
    RankSample,
    StepWork,
)
from holdfast.cli.knowledge import known_of
from holdfast.cli.watchdogclient import WatchdogClient
from holdfast.cli.watchdogsource import WatchdogSource
from holdfast.console.runbook.known import WINDOW_S, Known
from holdfast.watchdog import brain
from holdfast.watchdog.brain.costs import report_of
from holdfast.watchdog.brain.status import status_of, with_trouble
from holdfast.watchdog.brain.step import Effect
from holdfast.watchdog.detectors.detector import Connected, Disconnected, Exited, Heard, Reported, Sample
from holdfast.watchdog.job import Job
from holdfast.watchdog.senses import senses_for
from holdfast.watchdog.server.jobs import JournalPage, as_of_now

JOB = "research/gpt"
SAVE_EVERY = 30
FINGERPRINT_EVERY = 10
SAMPLES = 8  # in a batch of one rank
BEGIN = 1_700_000_000.0


def sound_loss(step: int, rank: int) -> float:
    """As that of a language model: it falls, and ranks differ by a little."""
    return 2.0 + 4.0 / (1.0 + step / 50.0) + 0.01 * (crc32(b"%d %d" % (step, rank)) % 100) / 100


def a_policy(**changes: Any) -> Policy:
    """Nothing unusual: two to four nodes of two ranks, replicas compared, checkpoints each half a minute."""
    known: dict[str, Any] = {
        "job": JOB,
        "nodes_min": 2,
        "nodes_max": 4,
        "processes_per_node": 2,
        "form_grace_s": 2.0,
        "checkpoint_uri": "/ckpt",
        "corruption": CorruptionPolicy(fingerprint_every=FINGERPRINT_EVERY),
        "interval": CheckpointInterval(seconds=float(SAVE_EVERY)),
    }
    return Policy(**{**known, **changes})


def a_manifest(**configuration: str) -> RunManifest:
    """How rank 0 says that it was started."""
    settings = {"configuration": {"lr": "0.0003", "batch": "8", **configuration}, "versions": {"torch": "2.9"}}
    return RunManifest(FORMAT, command=("train.py",), code=Code(commit="abc"), settings=settings)


def print_of(batch: int, rank: int) -> int:
    """Sums of these over ranks are unlike each other, as those of real prints are; sums of a CRC are not."""
    return int.from_bytes(blake2b(b"batch %d %d" % (batch, rank), digest_size=8).digest())


class WatchedJob:
    """`nodes` are named a, b, c ... Each hook is what the ranks do: change one to inject what is wrong.

    `sample` changes what is told of a rank, `shift` by how many steps its data are off, `wrong` are ranks whose
    parameters are not those of the others, `work_s` what a rank spends in a step: own, data, checkpoint, waiting.
    """

    def __init__(self, *, nodes: int = 4, **policy: Any) -> None:
        self.now = BEGIN
        self.policy = a_policy(**{"nodes_max": nodes, **policy})
        self.loss: Callable[[int, int], float] = sound_loss
        self.sample: Callable[[RankSample], RankSample] = lambda sample: sample
        self.work_s: Callable[[int], tuple[float, float]] = lambda rank: (0.7, 0.01)
        self.gpu: Callable[[str], GpuSample] = lambda node: GpuSample(
            f"GPU-{node}", 0, GpuHealth.HEALTHY, 60.0, margin_c=25.0
        )
        self.report: Callable[[NodeReport], NodeReport] = lambda report: report
        self.manifest = a_manifest()
        self.shift = 0
        self.wrong: set[int] = set()
        self.stands = False
        self.saves = True
        self.gone: set[str] = set()
        self.step = 0
        self._began = 0  # the step from which the newest round goes on
        self._sums: dict[int, list[float]] = {}
        self._entered = 0
        self._saved: list[int] = []
        self._told = ""
        self._sequence = 0
        self._taken: dict[str, tuple[NodeReport, float]] = {}
        store = MemoryStore()
        self.store = store
        self.job = Job(JOB, store=store, fence=store.claim(), brain=brain, senses_for=senses_for)
        self.tell(JobSubmitted(self.policy))
        for name in "abcdefgh"[:nodes]:
            self.join(name)

    # what happens

    def tell(self, event: Event) -> "WatchedJob":
        """A fact, as the server or the operator tells it."""
        self._done(self.job.record(event, self.now))
        return self

    def show(self, sample: Sample) -> "WatchedJob":
        """Something that was seen."""
        self._done(self.job.observe(sample, self.now))
        return self

    def join(self, name: str) -> None:
        self.gone.discard(name)
        self.show(Connected(name, name))
        size = self.policy.processes_per_node
        self.tell(MemberJoined(name, name, "1", f"10.0.0.{ord(name) - 96}", size, (7000, 7001), warm=True))

    def lose(self, name: str) -> None:
        """The machine is gone."""
        self.gone.add(name)
        self.show(Disconnected(name))

    def die(self, rank: int, **how: Any) -> None:
        """A worker ends."""
        round = self.job.state.round  # also while none is to run
        share = round.member_of(rank) if round is not None else None
        assert round is not None
        assert share is not None
        told = {"exit_code": None, "signal": 9, "began": self.step > self._began, **how}
        self.show(Exited(share.member, share.node, WorkerExited(round.number, rank, 0.01, **told)))

    def events(self, node: str, *events: NodeEvent) -> None:
        """A node's agent tells of something at once."""
        self.show(Reported(NodeReport(node, "1", self._next(), self._samples(node), events=events)))

    @property
    def round(self) -> Round:
        assert isinstance(self.job.state.desired, Round), self.job.state.reason
        return self.job.state.desired

    def train(self, seconds: int) -> "WatchedJob":
        """So many seconds pass; each is a step, where all ranks are there and nothing stands still."""
        for _ in range(seconds):
            self.now += 1.0
            self._wake()
            self._enter()
            for name in self._there():
                self.show(Heard(name))
            if self._runs():
                self._advance()
            for node in sorted(self._there()):
                self._report(node)
        return self

    # what the parts do of themselves

    def _done(self, effects: Sequence[Effect]) -> None:
        """What is shown is done in the next second."""
        self.job.keep(effects, self.now)

    def _wake(self) -> None:
        for _ in range(50):
            at = self.job.next_wakeup(self.now)
            if at is None or at > self.now:
                return
            self._done(self.job.elapse(self.now))

    def _there(self) -> list[str]:
        return [each.name for each in self.job.state.members if each.name not in self.gone]

    def _runs(self) -> bool:
        desired = self.job.state.desired
        return isinstance(desired, Round) and self._entered == desired.number and not self.stands

    def _enter(self) -> None:
        """Workers come into the round that is shown, restore, and say how they were started."""
        desired = self.job.state.desired
        if not isinstance(desired, Round) or desired.number == self._entered:
            return
        self._entered = desired.number
        for share in desired.ranks:
            self.tell(MemberEntered(share.member, desired.number, reentrant=True, last_step=self.step or None))
        asked = desired.restore.step
        saved = [each for each in self._saved if asked is None or each <= asked]
        start = max(saved, default=None)
        self._saved = saved
        self.step = self._began = start or 0
        self._sums = {}
        self.tell(RestoreReported(desired.number, start, follows=tuple(Follows)))
        digest = f"{crc32(msgspec.json.encode(self.manifest)):08x}"
        if digest != self._told:
            self._told = digest
            self.tell(RunRecorded(desired.number, digest, replace(self.manifest, round=desired.number)))

    def _advance(self) -> None:
        self.step += 1
        ranks = range(self.round.world_size)
        busy = {rank: sum(self.work_s(rank)) for rank in ranks}
        wall = max(busy.values()) + 0.1
        for rank in ranks:
            own, data = self.work_s(rank)
            told = self._sums.setdefault(rank, [0.0, 0.0, 0.0])
            for place, value in enumerate((wall, data, wall - own - data)):
                told[place] += value
        if self.saves and self.step % SAVE_EVERY == 0:
            self._saved.append(self.step)
            self.tell(CheckpointRecorded(self.round.number, self.step, "/ckpt", None, 0.1, 1.5))

    def _report(self, node: str) -> None:
        samples = self._samples(node)
        events = tuple(event for sample in samples if self._runs() for event in self._statements(sample))
        report = NodeReport(node, "1", self._next(), samples, (self.gpu(node),), events)
        report = self.report(report)
        self._taken[node] = (report, self.now)
        self.show(Reported(report))

    def _samples(self, node: str) -> tuple[RankSample, ...]:
        desired = self.job.state.desired
        if not isinstance(desired, Round) or self._entered != desired.number:
            return ()
        made = self.step - self._began
        found = []
        for share in desired.ranks:
            for rank in range(share.first_rank, share.first_rank + share.local_size) if share.node == node else ():
                sums = self._sums.get(rank, [0.0, 0.0, 0.0])
                work = (
                    StepWork(made, sums[0], sums[1], 0.0, 0.0, 0.0, sums[2], 0.0, tokens=4096 * made)
                    if made
                    else None
                )
                told = RankSample(
                    desired.number,
                    rank,
                    ProcessState.RUNNING,
                    Phase.BACKWARD if made else Phase.STARTUP,
                    0.1,
                    0.1,
                    0.05,
                    pid=1000 + rank,
                    step=self.step if made else None,
                    step_time_s=1.0 if made else None,
                    loss=self.loss(self.step, rank) if made else None,
                    grad_norm=1.0 if made else None,
                    work=work,
                )
                found.append(self.sample(told))
        return tuple(found)

    def _statements(self, sample: RankSample) -> list[NodeEvent]:
        """Its fingerprint and its batch, where it has made a step."""
        if sample.step is None:
            return []
        step, round = sample.step, sample.round
        data = step + self.shift
        value = print_of(data, sample.rank)
        told: list[NodeEvent] = [BatchTaken(round, sample.rank, step, value, 0.1, SAMPLES)]
        if step % FINGERPRINT_EVERY == 0:
            value = step if sample.rank not in self.wrong else 10**9 + sample.rank
            told.append(ParametersFingerprinted(round, sample.rank, 0, step, value, 0.1))
        return told

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence

    # what a reader is answered

    def known(self, window_s: float = WINDOW_S) -> Known:
        """As the command line reads it."""
        return known_of(WatchdogSource(WatchdogClient(self, JOB)), window_s)

    def ask(self, method: str, path: str, body: bytes | None = None, *, subject: str = "") -> bytes:
        """A line to this watchdog: its answers as JSON, as `holdfast.watchdog.server.jobs` makes them."""
        resource = path.removeprefix(f"/v1/jobs/{JOB}/").partition("?")[0]
        state = self.job.shown
        answers: dict[str, Callable[[], object]] = {
            "status": lambda: with_trouble(status_of(state, self.job.progress, self.now), self.job.trouble),
            "ranks": lambda: self.job.progress.ranks(self.now) if self.job.progress is not None else (),
            "nodes": self._nodes,
            "incidents": lambda: state.incidents[::-1],
            "journal": lambda: JournalPage(tuple(self.store.tail(JOB, 0)), None),
            "plan": lambda: state.plan,
            "round": lambda: state.desired,
            "ledger": lambda: report_of(state, self.now),
        }
        return msgspec.json.encode(answers[resource]())

    def _nodes(self) -> list[NodeStatus]:
        avoided = {order.node: order.reason for order in self.job.shown.avoided}
        return [
            as_of_now(
                NodeStatus(
                    node,
                    self.now - at,
                    report.gpus,
                    report.conditions,
                    report.unreadable,
                    avoided.get(node, ""),
                ),
                self.job.state.policy,
            )
            for node, (report, at) in sorted(self._taken.items())
        ]
