"""Whatever happens in whatever order: nothing raises, a replay says the same, no clock wakes in vain."""

import random
from collections.abc import Callable

import msgspec
import pytest
from story import JOB, policy

from holdfast.api.event import (
    CheckpointRecorded,
    ClockTicked,
    ConditionOver,
    Event,
    FindingMade,
    FleetReviewed,
    InterventionRequested,
    JobSubmitted,
    MemberDeparting,
    MemberEntered,
    MemberJoined,
    MemberLeft,
    MemberReady,
    MembersEntered,
    MembersReady,
    MemberTested,
    NodeChanged,
    NodeDeparting,
    NodeReputed,
    PodChanged,
    ReplicasAgreed,
    RestoreReported,
    RoundProgressed,
    WatchdogStarted,
)
from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, SlowCause, Slowness, Subject
from holdfast.api.intervention import InterventionAction, InterventionRequest
from holdfast.api.place import FaultFamily, Gathering, Place
from holdfast.api.plan import NodeState, PodState
from holdfast.api.policy import SlowAction, StragglerPolicy, XidAction
from holdfast.api.selftest import CheckResult, TestLevel, Verdict
from holdfast.watchdog.brain import advance, initial, next_wakeup
from holdfast.watchdog.brain.roster import MemberState
from holdfast.watchdog.brain.state import JobState

EVENTS = 90
PAUSES_S = (0.01, 0.3, 1.0, 5.0, 30.0, 130.0, 700.0)

GATHERING = Gathering(Place("switch", "l1"), FaultFamily.NETWORK, 6, 12, 0.05, 1e-4, ("node-1",))


class Chance:
    """Events of a small job, by a seed."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.nodes = self.draw.randint(1, 5)
        self.fields: dict[str, object] = {
            "nodes_max": self.nodes,
            "spares": self.draw.randint(0, 2),
            "preflight": self.draw.choice([None, *TestLevel]),
            "straggler": StragglerPolicy(action=self.draw.choice(list(SlowAction))),
            "replica_nodes": seed % 4 if seed % 4 < 3 else 0,
        }

    def event(self, state: JobState, now: float) -> Event:
        chance = self.draw.random()
        if chance < 0.35 and state.trials:
            return self.answer(state)
        if chance < 0.5:
            return self.join()
        kinds: tuple[Callable[[JobState, float], Event], ...] = (
            self.training,
            self.asked,
            self.cluster,
            self.found,
        )
        return self.draw.choice(kinds)(state, now)

    def node(self) -> str:
        return f"node-{self.draw.randint(1, self.nodes + 2)}"

    def join(self) -> Event:
        name, boot, warm = self.node(), self.draw.choice("ab"), self.draw.random() < 0.9
        return MemberJoined(name, name, boot, "10.0.0.1", 1, (7000, 7001), warm)

    def answer(self, state: JobState) -> Event:
        trial = self.draw.choice(list(state.trials.values()))
        verdict = self.draw.choice([*Verdict, *[Verdict.PASSED] * 4])
        check = CheckResult("matmul", "GPU-1", verdict, "", 0.1, "H100", self.draw.choice("xxxxxxxxy"))
        return MemberTested(trial.member, trial.number, trial.level, verdict, (check,))

    def training(self, state: JobState, now: float) -> Event:
        number, step = state.round.number if state.round else 1, self.draw.randint(1, 200)
        return self.draw.choice(
            [
                MemberEntered(self.node(), number, self.draw.random() < 0.9),
                MembersEntered(tuple(MemberEntered(self.node(), number, reentrant=True) for _ in range(3))),
                *(MemberReady(self.node(), epoch) for epoch in state.forming),
                *(
                    MembersReady((MemberReady(self.node(), each), MemberReady(self.node(), each)))
                    for each in state.forming
                ),
                RestoreReported(number, self.draw.choice([None, 0, 40, 60])),
                RoundProgressed(number, step),
                CheckpointRecorded(number, step, "/ckpt", self.draw.choice([None, state.save_count])),
                ReplicasAgreed(number, step),
                MemberLeft(self.node(), "stopped"),
                MemberDeparting(self.node(), "SIGTERM", 25.0),
            ]
        )

    def asked(self, state: JobState, now: float) -> Event:
        uid, generation = self.draw.choice("ab"), self.draw.randint(1, 9)
        admitted = self.draw.choice((None, None, 0, 1, 2, 3))
        suspend = self.draw.random() < 0.2
        again = policy(**self.fields, uid=uid, generation=generation, suspend=suspend, admitted=admitted)
        action, nodes = self.draw.choice(list(InterventionAction)), self.draw.randint(1, self.nodes)
        request = InterventionRequest(
            str(self.draw.random()),
            JOB,
            action,
            "asked",
            node=self.node(),
            to_step=100,
            nodes=nodes,
            skip_batches=1,
        )
        return self.draw.choice(
            [JobSubmitted(again), InterventionRequested(request), InterventionRequested(request)]
        )

    def cluster(self, state: JobState, now: float) -> Event:
        node = self.node()
        return self.draw.choice(
            [
                NodeReputed(node, self.draw.random() < 0.5, 1.0, "GPU lost in team/other"),
                FleetReviewed(self.draw.choice([(), (GATHERING,)]), self.draw.choice([None, 0.01])),
                NodeDeparting(node, "spot", 100.0),
                NodeChanged(node, self.draw.choice(list(NodeState)), "why", places=(GATHERING.place,)),
                PodChanged(node, node, self.draw.choice(list(PodState)), "why"),
                ConditionOver(node, "it", "it is over"),
                WatchdogStarted(),
            ]
        )

    def found(self, state: JobState, now: float) -> Event:
        node, kind = self.node(), self.draw.choice(list(FindingKind))
        finding = Finding(
            kind=kind,
            subject=Subject(JOB, node=node, member=node, rank=0),
            cause="it",
            evidence=(Evidence("test", "it was seen", now),),
            confidence=self.draw.choice(list(Confidence)),
            began_at=now - 0.5,
            round=state.round.number if state.round else None,
            xid=self.draw.choice([31, 79]),
            also=(Subject(JOB, node=self.node()),),
            asks=self.draw.choice(list(XidAction)),
            step=100,
            agreed_step=self.draw.choice([None, 40]),
            slow=Slowness(self.draw.choice(list(SlowCause)), 1.0, 0.3) if kind is FindingKind.STRAGGLER else None,
        )
        return FindingMade(finding)


def restarted(state: JobState) -> JobState:
    """As a snapshot gives it back."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=JobState)


@pytest.mark.parametrize("seed", range(32))
def test_a_replay_says_the_same_and_no_clock_wakes_in_vain(seed: int) -> None:
    chance, now, state = Chance(seed), 1000.0, initial(JOB)
    told: list[tuple[float, Event]] = [(now, JobSubmitted(policy(**chance.fields)))]
    state = advance(state, told[0][1], now).state
    for _ in range(EVENTS):
        now += chance.draw.choice(PAUSES_S) if chance.draw.random() < 0.5 else 0.0
        event = ClockTicked() if _is_due(state, now) else chance.event(state, now)
        told.append((now, event))
        state = advance(state, event, now).state
        if isinstance(event, ClockTicked):
            assert not _is_due(state, now), f"event {len(told)} wakes again and again"
        assert set(state.trials) <= set(state.members.by_name)
        testing = {each.name for each in state.members if each.standing is MemberState.TESTING}
        assert testing <= set(state.trials)
        assert len(state.avoided) == len(state.avoided_nodes)
        assert set(state.reputed) <= state.avoided_nodes
    again = initial(JOB)
    for at, event in told:
        again = advance(restarted(again), event, at).state
    assert msgspec.msgpack.encode(again) == msgspec.msgpack.encode(state)


def _is_due(state: JobState, now: float) -> bool:
    at = next_wakeup(state)
    return at is not None and at <= now
