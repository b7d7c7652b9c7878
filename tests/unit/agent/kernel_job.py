"""A job whose nodes have a kernel log: from a line in it to what the brain does, with every part between them.

Virtual time. Nodes are `node-0` to `node-3`, the last one a spare; each runs two ranks.
"""

from pathlib import Path

import msgspec
from kernel_ring import OTHER_UUID, UUID, Ring, gpu_tree

from holdfast.agent.outbox import Outbox
from holdfast.api.event import (
    ClockTicked,
    Event,
    JobSubmitted,
    MemberEntered,
    MemberJoined,
    RestoreReported,
    RoundProgressed,
)
from holdfast.api.incident import Incident
from holdfast.api.membership import WorkerExited
from holdfast.api.policy import EvictionBudget, Policy
from holdfast.api.round import Round
from holdfast.api.telemetry import NodeReport
from holdfast.watchdog.brain import advance, initial, next_wakeup
from holdfast.watchdog.detectors import detectors_for
from holdfast.watchdog.detectors.detector import Exited, Heard, Reported, RoundStarted, Sample
from holdfast.watchdog.detectors.progress import Progress
from holdfast.watchdog.senses import Senses

JOB = "team/run"
REPORTS = msgspec.msgpack.Decoder(NodeReport)


class KernelJob:
    """`say` writes into a node's kernel log; `incidents`, `evicted` and `round` tell what came of it."""

    def __init__(self, tmp_path: Path, **fields: object) -> None:
        given = {"job": JOB, "nodes_min": 1, "nodes_max": 3, "spares": 1, "processes_per_node": 2}
        budget = EvictionBudget(count=100, fraction=1.0)
        policy = Policy(**{**given, "evictions": budget, **fields})  # type: ignore[arg-type]
        self.now = 1000.0
        self.state = initial(JOB)
        self.findings = 0
        self._senses = Senses(detectors_for(policy), Progress(policy))
        self._rings = {f"node-{number}": Ring() for number in range(4)}
        self._sensors = {}
        self._outboxes = {}
        for name, ring in self._rings.items():
            folder = tmp_path / name
            folder.mkdir()
            gpus = gpu_tree(folder, bus_3b=UUID, bus_5e=OTHER_UUID)
            self._sensors[name] = ring.sensor(folder, gpus=gpus)
            self._outboxes[name] = Outbox(node=name, boot="a", interval_s=1.0)
        self._tell(JobSubmitted(policy))
        for number, name in enumerate(self._rings):
            self._tell(MemberJoined(name, name, "a", f"10.0.0.{number}", 2, (7000, 7001), warm=True))
        self.wait(1.0)
        self.enter()

    @property
    def round(self) -> Round:
        assert isinstance(self.state.desired, Round), self.state.desired
        return self.state.desired

    @property
    def incidents(self) -> tuple[Incident, ...]:
        return self.state.incidents

    @property
    def evicted(self) -> list[str]:
        return [order.node for order in self.state.avoided]

    def say(self, *lines: str, node: str = "node-0", wait_s: float = 0.2) -> None:
        """The kernel of `node` says `lines` one after the other; everybody else goes on."""
        for line in lines:
            self._rings[node].say(line, at=self.now)
            self.wait(wait_s)

    def dies(self, rank: int, signal: int) -> None:
        """The launcher tells of a worker's end."""
        share = next(each for each in self.round.ranks if each.first_rank <= rank < each.first_rank + 2)
        exit = WorkerExited(self.round.number, rank, 0.0, signal=signal)
        self._observe(Exited(share.member, share.node, exit))

    def enter(self) -> None:
        """Every member enters the newest round and completes a step."""
        self._observe(RoundStarted(self.round))
        for share in self.round.ranks:
            self._tell(MemberEntered(share.member, self.round.number, reentrant=True))
        self._tell(RestoreReported(self.round.number, 0))
        self._tell(RoundProgressed(self.round.number, 1))

    def wait(self, seconds: float) -> None:
        """Time passes in looks of the agents, ten a second at most a second apart."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + (0.1 if seconds <= 10.0 else 1.0))
            for name in self._sensors:
                self._look(name)
            for event in self._senses.elapse(self.now):
                self._tell(event)
            at = next_wakeup(self.state)
            if at is not None and at <= self.now:
                self._tell(ClockTicked())

    def _look(self, name: str) -> None:
        self._observe(Heard(name))
        outbox = self._outboxes[name]
        outbox.observe(self._sensors[name].read(self.now), self.now)
        while (report := outbox.take(self.now)) is not None:
            outbox.taken(report.sequence)
            self._observe(Reported(REPORTS.decode(msgspec.msgpack.encode(report))))

    def _observe(self, sample: Sample) -> None:
        for event in self._senses.observe(sample, self.now):
            self._tell(event)

    def _tell(self, event: Event) -> None:
        before = self.state.desired
        self.state = advance(self.state, event, self.now).state
        self.findings += type(event).__name__ == "FindingMade"
        if self.state.desired != before and isinstance(self.state.desired, Round):
            self._observe(RoundStarted(self.state.desired))
