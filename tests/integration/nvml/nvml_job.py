"""A job one of whose nodes is a scripted machine: from the driver's answers to what the brain does.

The bindings, the look at the driver and the wait for its events are real; time is virtual, so that an hour of a
slow link takes a moment. Nodes are `node-0` (the machine, with four GPUs) to `node-3`, the last one a spare.
"""

import msgspec
from fake_nvml import FakeNvml
from nvml_observer import until_listening
from patience import patient

from holdfast.agent.gpufailure import DriverAbsent
from holdfast.agent.gpusnapshot import GpuSnapshot
from holdfast.agent.nvml.driver import Driver
from holdfast.agent.nvml.gpu import Session
from holdfast.agent.nvml.sensor import EventWatch
from holdfast.agent.outbox import Outbox
from holdfast.agent.reading import Reading
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
from holdfast.api.policy import EvictionBudget, Policy
from holdfast.api.round import Round
from holdfast.api.telemetry import NodeReport
from holdfast.watchdog.brain import advance, initial, next_wakeup
from holdfast.watchdog.detectors import detectors_for
from holdfast.watchdog.detectors.detector import Heard, Reported, RoundStarted, Sample
from holdfast.watchdog.detectors.progress import Progress
from holdfast.watchdog.senses import Senses

JOB = "team/run"
NODES = ("node-0", "node-1", "node-2", "node-3")
HEARD_S = patient(20.0)  # in real time, for the thread that waits for events
REPORTS = msgspec.msgpack.Decoder(NodeReport)


class NvmlJob:
    """`wait` lets time pass; `incidents`, `evicted` and `round` tell what came of it."""

    def __init__(self, machine: FakeNvml) -> None:
        budget = EvictionBudget(count=100, fraction=1.0)
        policy = Policy(job=JOB, nodes_min=1, nodes_max=3, spares=1, processes_per_node=4, evictions=budget)
        self.machine = machine
        machine.layout.count = 4  # each costs as much as the next
        self.now = 1000.0
        self.state = initial(JOB)
        self.snapshot = GpuSnapshot("nvml", clock=lambda: self.now, hang=lambda now, longer_than_s: "")
        self._driver = Driver(lambda: self.now)
        self._session: Session | None = None
        self._watch: EventWatch | None = None
        self._senses = Senses(detectors_for(policy), Progress(policy))
        self._outboxes = {node: Outbox(node=node, boot="a", interval_s=1.0) for node in NODES}
        self._tell(JobSubmitted(policy))
        for number, node in enumerate(NODES):
            self._tell(MemberJoined(node, node, "a", f"10.0.0.{number}", 4, (7000, 7001), warm=True))
        self.wait(2.0)
        self._enter()

    def close(self) -> None:
        self.machine.unload_driver()  # a wait for events then ends at once
        self._end_session()

    def _end_session(self) -> None:
        if self._watch is not None:
            assert self._watch.stop(HEARD_S)
        if self._session is not None:
            self._session.close()

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

    def xid(self, gpu: int, number: int, *, recovery_action: int | None = None) -> None:
        """The driver raises it, and it has been heard when this returns."""
        until_listening(self._driver)
        self.machine.gpus[gpu].xid(number, recovery_action=recovery_action)
        self._hear()

    def event(self, gpu: int, kind: int) -> None:
        """The same of another event."""
        until_listening(self._driver)
        self.machine.gpus[gpu].event(kind)
        self._hear()

    def wait(self, seconds: float) -> None:
        """Time passes second by second."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 1.0)
            self._look()
            for node in NODES:
                self._report(node, self.snapshot.read(self.now) if node == "node-0" else Reading())
            for event in self._senses.elapse(self.now):
                self._tell(event)
            at = next_wakeup(self.state)
            if at is not None and at <= self.now:
                self._tell(ClockTicked())

    def _hear(self) -> None:
        assert self.snapshot.poll_now.wait(HEARD_S), "the event was not heard"
        self.snapshot.poll_now.clear()

    def _look(self) -> None:
        try:
            if self._session is None:
                self._session = Session(self._driver)
                self._watch = EventWatch(self._driver, self._session.gpus, self.snapshot)
            assert self._watch is not None
            self.snapshot.sweep(self._session, self.now)
        except DriverAbsent as failure:
            self.snapshot.absent(str(failure), known=lambda: True)
            self._end_session()
            self._session = self._watch = None

    def _enter(self) -> None:
        self._observe(RoundStarted(self.round))
        for share in self.round.ranks:
            self._tell(MemberEntered(share.member, self.round.number, reentrant=True))
        self._tell(RestoreReported(self.round.number, 0))
        self._tell(RoundProgressed(self.round.number, 1))

    def _report(self, node: str, reading: Reading) -> None:
        self._observe(Heard(node))
        outbox = self._outboxes[node]
        outbox.observe(reading, self.now)
        while (report := outbox.take(self.now)) is not None:
            outbox.taken(report.sequence)
            self._observe(Reported(REPORTS.decode(msgspec.msgpack.encode(report))))

    def _observe(self, sample: Sample) -> None:
        for event in self._senses.observe(sample, self.now):
            self._tell(event)

    def _tell(self, event: Event) -> None:
        before = self.state.desired
        self.state = advance(self.state, event, self.now).state
        if self.state.desired != before and isinstance(self.state.desired, Round):
            self._observe(RoundStarted(self.state.desired))
