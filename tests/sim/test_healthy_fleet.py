"""A thousand healthy days with noisy sensors, at default settings: nobody is asked to do anything.

What can mislead a detector is what changes, so a day is played as its load changes, each with the minutes after
it; while a load lasts a GPU holds its temperature, which an hour of a fleet at every second shows.
"""

import math
import random
from collections.abc import Iterator

from holdfast.api.condition import CONDITIONS, Condition, ConditionKind, ConditionState
from holdfast.api.event import ReplicasAgreed
from holdfast.api.finding import Finding
from holdfast.api.policy import CorruptionPolicy, Policy, XidAction
from holdfast.api.round import Endpoint, Entry, MemberRanks, Restore, Round
from holdfast.api.telemetry import GpuHealth, GpuSample, NodeReport, ParametersFingerprinted, Unreadable
from holdfast.watchdog.detectors import detectors_for
from holdfast.watchdog.detectors.detector import Detector, Placed, Proof, Reported, RoundStarted

SEED = 20_260
DAYS = 1000
LOADS_A_DAY = 4
NODES = 20
LIMIT_C = 90.0
STEP_S, STEPS = 10.0, 16
DAY_S = 86400.0
POWER_CAP, HEAT = 0x4, 0x20
POLICY = Policy("sim/healthy", 1, NODES, corruption=CorruptionPolicy(fingerprint_every=100))
WATCHED = [kind for kind, row in CONDITIONS.items() if row.action is XidAction.WATCH]


class Fleet:
    """One-GPU nodes in racks, all detectors over them, and noise from one seed."""

    def __init__(self) -> None:
        self.random = random.Random(SEED)
        self.detectors: tuple[Detector, ...] = tuple(
            each for each in detectors_for(POLICY) if Reported in each.subscribes_to
        )
        self.proved: list[Proof] = []
        self.temperature_c = dict.fromkeys(range(NODES), 35.0)
        self.slowed_s = dict.fromkeys(range(NODES), 100.0)
        shares = tuple(MemberRanks(f"m{node}", f"n{node}", node, 1) for node in range(NODES))
        endpoint = Endpoint("127.0.0.1", 29500)
        shown = Round(POLICY.job, 1, shares, endpoint, Restore(), Entry.REENTER, "", fingerprint_every=100)
        for detector in self.detectors:
            detector.observe(RoundStarted(shown), 0.0)
            for node in range(NODES):
                detector.observe(Placed(f"n{node}", f"r{node // 5}"), 0.0)

    def report(self, node: int, now: float, **fields: object) -> None:
        sample = Reported(NodeReport(f"n{node}", "boot", 1, **fields))  # type: ignore[arg-type]
        for detector in self.detectors:
            self.proved.extend(detector.observe(sample, now))
            wakeup = detector.next_wakeup()
            if wakeup is not None and wakeup <= now:
                self.proved.extend(detector.elapse(now))

    def sense(self, node: int, now: float, celsius: float) -> None:
        """What the sensors make of a temperature: whole degrees that waver, and sometimes nothing."""
        chance = self.random.random()
        if chance < 0.02:
            self.report(node, now, unreadable=(Unreadable("nvml", "timed out"),))
            return
        if chance < 0.04:
            self.report(node, now, gpus=(GpuSample("GPU-0", 0, GpuHealth.UNKNOWN),))
            return
        self.slowed_s[node] += 0.05 if chance < 0.3 else 0.0
        read_c = round(celsius + self.random.gauss(0.0, 0.7))
        gpu = GpuSample(
            "GPU-0",
            0,
            GpuHealth.HEALTHY,
            temperature_c=read_c,
            margin_c=LIMIT_C - read_c,
            throttled_s=self.slowed_s[node] if chance < 0.9 else None,
            throttle=POWER_CAP | (HEAT if chance > 0.99 else 0),
        )
        self.report(node, now, gpus=(gpu,))

    def warms(self, node: int, to_c: float) -> Iterator[float]:
        """Temperatures after a change of load, every `STEP_S`."""
        from_c, half_s = self.temperature_c[node], self.random.uniform(8.0, 60.0)
        for step in range(STEPS):
            yield to_c - (to_c - from_c) * math.pow(0.5, step * STEP_S / half_s)
        self.temperature_c[node] = to_c

    @property
    def asked(self) -> list[Finding]:
        return [each for each in self.reported if each.asks is not XidAction.WATCH]

    @property
    def reported(self) -> list[Finding]:
        return [each for each in self.proved if isinstance(each, Finding)]


def test_a_thousand_days_of_changing_load_and_noisy_sensors_ask_for_nothing() -> None:
    fleet = Fleet()
    for day in range(DAYS // NODES):
        for load in range(LOADS_A_DAY):
            begins = day * DAY_S + load * DAY_S / LOADS_A_DAY
            settles_c = fleet.random.uniform(45.0, 80.0) if load % 2 == 0 else 35.0
            curves = [fleet.warms(node, settles_c + fleet.random.uniform(-2.0, 2.0)) for node in range(NODES)]
            for step in range(STEPS):
                for node, curve in enumerate(curves):
                    fleet.sense(node, begins + step * STEP_S, next(curve))
    assert fleet.asked == []
    assert len(fleet.reported) < DAYS / 50


def test_an_hour_of_a_fleet_that_holds_its_temperature_is_no_news() -> None:
    fleet = Fleet()
    for second in range(3600):
        for node in range(0, NODES, 4):
            fleet.sense(node, float(second), 60.0 + node)
    assert fleet.reported == []


def test_what_is_only_to_be_watched_and_comes_now_and_then_is_no_news() -> None:
    fleet = Fleet()

    def tell(node: int, kind: ConditionKind, state: ConditionState, at: float) -> None:
        fleet.report(node, at, conditions=(Condition(kind, state, 0.0, "noise", "GPU-0"),))

    for day in range(DAYS // NODES):
        for node in range(NODES):
            kind = fleet.random.choice(WATCHED)
            raised_at = day * DAY_S + fleet.random.uniform(0.0, DAY_S / 2)
            if fleet.random.random() < 0.3:
                tell(node, kind, ConditionState.RAISED, raised_at)
                tell(node, kind, ConditionState.CLEARED, raised_at + 3600.0)
    assert fleet.asked == []
    assert fleet.proved == []


def test_replicas_that_are_equal_agree_however_their_votes_arrive() -> None:
    fleet = Fleet()
    steps = range(100, 100 * DAYS, 100)
    for step in steps:
        value = fleet.random.getrandbits(64)
        ranks = [rank for rank in range(NODES) if fleet.random.random() > 0.01]
        fleet.random.shuffle(ranks)
        for rank in (*ranks, *ranks[:2]):
            event = ParametersFingerprinted(1, rank, rank % 2, step, value + rank % 2, 0.1)
            fleet.report(rank, float(step), events=(event,))
    assert fleet.reported == []
    agreed = [each.step for each in fleet.proved if isinstance(each, ReplicasAgreed)]
    assert agreed == sorted(set(agreed))
    assert len(agreed) > len(steps) / 2
