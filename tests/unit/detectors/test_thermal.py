"""Hot GPUs, hot racks, and temperatures that rise."""

import math
from collections.abc import Callable

import pytest
from signals import JOB, policy

from holdfast.api.event import ConditionOver
from holdfast.api.finding import Confidence, Finding, FindingKind, Subject
from holdfast.api.policy import FaultAction, ThermalPolicy, XidAction
from holdfast.api.telemetry import GpuHealth, GpuSample, NodeReport
from holdfast.watchdog.detectors import thermal as module
from holdfast.watchdog.detectors.detector import Heard, Placed, Reported
from holdfast.watchdog.detectors.thermal import ThermalDetector

LIMIT_C = 90.0
COOL, HOT = 40.0, 1.0
SW_HEAT, HW_HEAT, POWER_CAP = 0x20, 0x40, 0x4


def gpu(margin_c: float | None = COOL, uuid: str = "GPU-0", **more: object) -> GpuSample:
    temperature = None if margin_c is None else LIMIT_C - margin_c
    return GpuSample(uuid, 0, GpuHealth.HEALTHY, temperature_c=temperature, margin_c=margin_c, **more)  # type: ignore[arg-type]


class Hall:
    """Nodes whose GPUs are sampled once a second; collects what is proved, and when."""

    def __init__(self, action: FaultAction = FaultAction.EVICT, sustained_s: float = 60.0) -> None:
        self.detector = ThermalDetector(policy(thermal=ThermalPolicy(action=action, sustained_s=sustained_s)))
        self.now = 0.0
        self.proved: list[tuple[float, Finding | ConditionOver]] = []

    def place(self, rack: str, *nodes: str) -> None:
        for node in nodes:
            self.detector.observe(Placed(node, rack), self.now)

    def report(self, node: str, *gpus: GpuSample) -> None:
        found = self.detector.observe(Reported(NodeReport(node, "boot", 1, gpus=gpus)), self.now)
        self.proved.extend((self.now, each) for each in found)

    def run(self, for_s: float, **margins: float | Callable[[float], GpuSample] | None) -> None:
        """Each node reports one GPU every second, with this margin or sample."""
        end = self.now + for_s
        while self.now < end:
            for node, given in margins.items():
                self.report(node, given(self.now) if callable(given) else gpu(given))
            self.now += 1.0

    @property
    def found(self) -> list[Finding]:
        return [each for _, each in self.proved if isinstance(each, Finding)]

    @property
    def over(self) -> list[ConditionOver]:
        return [each for _, each in self.proved if isinstance(each, ConditionOver)]

    @property
    def causes(self) -> list[str]:
        return [finding.cause for finding in self.found]


@pytest.mark.parametrize(
    ("limits", "own_rule"),
    [
        (ThermalPolicy(), False),
        (ThermalPolicy(margin_c=2.0, sustained_s=90.0), False),
        (ThermalPolicy(margin_c=90.0), True),
        (ThermalPolicy(sustained_s=1.0), True),
    ],
)
def test_heat_by_a_limit_that_only_the_jobs_own_spec_has_is_its_own_rule(
    limits: ThermalPolicy, *, own_rule: bool
) -> None:
    hall = Hall()
    hall.detector = ThermalDetector(policy(thermal=limits))
    hall.run(120.0, n0=HOT)
    assert [finding.own_rule for finding in hall.found] == [own_rule]


def test_a_gpu_that_is_hot_for_a_minute_is_found_with_its_temperature() -> None:
    hall = Hall()
    hall.run(60.0, n0=HOT)
    assert hall.found == []
    hall.run(10.0, n0=HOT)
    (finding,) = hall.found
    assert (finding.kind, finding.cause, finding.confidence) == (
        FindingKind.THERMAL,
        "GPU hot",
        Confidence.CERTAIN,
    )
    assert finding.subject == Subject(JOB, node="n0", gpu="GPU-0")
    assert (finding.asks, finding.began_at, finding.round) == (XidAction.EVICT, 0.0, None)
    assert "89 C, 1.0 C below slowing down" in finding.evidence[0].says


def test_a_gpu_that_stays_hot_is_one_finding_and_each_hot_gpu_one_of_its_own() -> None:
    hall = Hall()
    for _ in range(600):
        hall.report("n0", gpu(HOT, "GPU-0"), gpu(COOL, "GPU-1"), gpu(HOT, "GPU-2"))
        hall.now += 1.0
    assert [finding.subject.gpu for finding in hall.found] == ["GPU-0", "GPU-2"]


@pytest.mark.parametrize(
    ("action", "asks"),
    [
        (FaultAction.EVICT, XidAction.EVICT),
        (FaultAction.RESTART, XidAction.RESTART),
        (FaultAction.REPORT, XidAction.WATCH),
    ],
)
def test_the_jobs_policy_says_what_is_asked_for(action: FaultAction, asks: XidAction) -> None:
    hall = Hall(action)
    hall.run(90.0, n0=HOT)
    assert [finding.asks for finding in hall.found] == [asks]


def test_the_policy_says_for_how_long() -> None:
    quick, slow = Hall(sustained_s=2.0), Hall(sustained_s=600.0)
    quick.run(4.0, n0=HOT)
    slow.run(599.0, n0=HOT)
    assert (quick.causes, slow.causes) == (["GPU hot"], [])
    slow.run(10.0, n0=HOT)
    assert slow.causes == ["GPU hot"]


def test_a_gpu_that_is_hot_now_and_then_is_not_found() -> None:
    hall = Hall()
    hall.run(7200.0, n0=lambda now: gpu(HOT if now % 50 < 40 else 5.0))
    assert hall.found == []


@pytest.mark.parametrize("unknown", [gpu(None), GpuSample("GPU-0", 0, GpuHealth.UNKNOWN)])
def test_unknown_is_not_hot_and_begins_the_clock_anew(unknown: GpuSample) -> None:
    hall = Hall()
    hall.run(50.0, n0=HOT)
    hall.run(20.0, n0=lambda _: unknown)
    hall.run(55.0, n0=HOT)
    assert hall.found == []
    hall.run(15.0, n0=HOT)
    assert hall.causes == ["GPU hot"]


def test_silence_begins_the_clock_anew_and_proves_nothing() -> None:
    hall = Hall()
    hall.run(58.0, n0=HOT)
    hall.now += 3600.0
    assert hall.detector.elapse(hall.now) == ()
    assert hall.detector.next_wakeup() is None
    assert hall.detector.observe(Heard("m0"), hall.now) == ()
    hall.run(50.0, n0=HOT)
    assert hall.found == []


def test_one_report_that_was_lost_begins_nothing_anew() -> None:
    hall = Hall()
    for _ in range(10):
        hall.run(5.0, n0=HOT)
        hall.now += 3.0
    assert hall.causes == ["GPU hot"]


def test_a_gpu_without_a_known_limit_is_judged_by_what_holds_it_down() -> None:
    cool, power, hot = Hall(), Hall(), Hall()
    cool.run(300.0, n0=lambda _: gpu(None, throttle=0))
    power.run(300.0, n0=lambda _: gpu(None, throttle=POWER_CAP))
    hot.run(300.0, n0=lambda _: gpu(None, throttle=HW_HEAT))
    assert (cool.found, power.found, hot.causes) == ([], [], ["GPU hot"])
    assert hot.found[0].evidence[0].says.endswith("held down for heat 100% of the time")


def test_memory_that_is_too_hot_shows_in_the_reasons_though_the_gpu_is_cool() -> None:
    hall = Hall()
    hall.run(90.0, n0=lambda _: gpu(50.0, throttle=SW_HEAT))
    assert hall.causes == ["GPU hot"]


def test_the_counter_of_seconds_held_down_tells_more_than_the_reasons_of_the_moment() -> None:
    mostly, seldom = Hall(), Hall()
    mostly.run(90.0, n0=lambda now: gpu(8.0, throttle=0, throttled_s=1000.0 + 0.3 * now))
    seldom.run(3600.0, n0=lambda now: gpu(8.0, throttle=HW_HEAT, throttled_s=1000.0 + 0.1 * now))
    assert mostly.causes == ["GPU hot"]
    assert "30% of the time" in mostly.found[0].evidence[0].says
    assert seldom.found == []


def test_a_counter_that_stands_still_or_goes_back_holds_nothing_down() -> None:
    hall = Hall()
    hall.run(300.0, n0=lambda now: gpu(8.0, throttled_s=1e6 if now < 150 else 0.0))
    hall.run(300.0, n0=lambda _: gpu(8.0))
    assert hall.proved == []


def test_it_is_over_after_five_cool_minutes_and_may_be_found_again() -> None:
    hall = Hall()
    hall.run(70.0, n0=HOT)
    hall.run(290.0, n0=COOL)
    assert hall.over == []
    hall.run(20.0, n0=COOL)
    assert [(over.node, over.cause) for over in hall.over] == [("n0", "GPU hot")]
    assert "8 C below slowing down" in hall.over[0].says
    hall.run(70.0, n0=HOT)
    assert hall.causes == ["GPU hot"] * 2


def test_it_is_not_over_while_it_is_hardly_cooler() -> None:
    hall = Hall()
    hall.run(70.0, n0=HOT)
    hall.run(3600.0, n0=5.0)
    hall.run(3600.0, n0=lambda now: gpu(5.0 if now % 240 < 10 else COOL))
    assert (hall.over, hall.causes) == ([], ["GPU hot"])


def test_it_is_not_over_while_nothing_is_known() -> None:
    hall = Hall()
    hall.run(70.0, n0=HOT)
    hall.run(100.0, n0=COOL)
    hall.run(3600.0, n0=None)
    hall.run(250.0, n0=COOL)
    assert hall.over == []


def test_a_node_is_cool_when_the_last_of_its_gpus_is() -> None:
    hall = Hall()

    def both(first: float, second: float, for_s: int) -> None:
        for _ in range(for_s):
            hall.report("n0", gpu(first, "GPU-0"), gpu(second, "GPU-1"))
            hall.now += 1.0

    both(HOT, HOT, 70)
    both(COOL, HOT, 400)
    assert hall.over == []
    both(COOL, COOL, 320)
    assert len(hall.over) == 1


def rack_of(size: int, name: str = "r1") -> tuple[Hall, list[str]]:
    hall, nodes = Hall(), [f"n{number}" for number in range(size)]
    hall.place(name, *nodes)
    return hall, nodes


def test_a_hot_gpu_in_a_cool_rack_is_found_at_once() -> None:
    hall, nodes = rack_of(8)
    hall.run(70.0, **{node: HOT if node == "n3" else COOL for node in nodes})
    assert [(each.cause, each.subject.node) for each in hall.found] == [("GPU hot", "n3")]


def test_a_rack_that_is_hot_is_one_finding_that_names_the_hottest_and_asks_for_nothing() -> None:
    hall, nodes = rack_of(8)
    margins = {node: COOL if node in ("n6", "n7") else 0.5 if node == "n4" else HOT for node in nodes}
    hall.run(900.0, **margins)
    (finding,) = hall.found
    assert (finding.cause, finding.asks, finding.confidence) == ("rack hot", XidAction.WATCH, Confidence.UNKNOWN)
    assert finding.subject == Subject(JOB, node="n4", gpu="GPU-0")
    assert {each.node for each in finding.also} == {"n0", "n1", "n2", "n3", "n5"}
    assert "6 of 8 nodes of rack r1" in finding.evidence[0].says


def test_nodes_of_a_rack_that_get_hot_one_after_the_other_are_not_evicted_before_it_is_clear() -> None:
    hall, nodes = rack_of(8)
    # One node every 20 s: the first has been hot for a minute before half of them are.
    onset = {node: 20.0 * place for place, node in enumerate(nodes)}
    hall.run(400.0, **{node: lambda now, at=at: gpu(HOT if now >= at else 10.0) for node, at in onset.items()})
    assert hall.causes == ["rack hot"]


def test_two_hot_nodes_of_a_rack_are_found_one_by_one_after_a_wait() -> None:
    hall, nodes = rack_of(8)
    hall.run(170.0, **{node: HOT if node in ("n0", "n1") else COOL for node in nodes})
    assert hall.found == []
    hall.run(30.0, **{node: HOT if node in ("n0", "n1") else COOL for node in nodes})
    assert [(each.cause, each.subject.node) for each in hall.found] == [("GPU hot", "n0"), ("GPU hot", "n1")]


def test_a_rack_is_over_when_it_is_calm_and_who_is_still_hot_is_then_judged_alone() -> None:
    hall, nodes = rack_of(6)
    hall.run(100.0, **dict.fromkeys(nodes, HOT))
    hall.run(290.0, **{node: HOT if node == "n2" else COOL for node in nodes})
    assert (hall.causes, hall.over) == (["rack hot"], [])
    hall.run(60.0, **{node: HOT if node == "n2" else COOL for node in nodes})
    assert [over.cause for over in hall.over] == ["rack hot"]
    assert [(each.cause, each.subject.node) for each in hall.found[1:]] == [("GPU hot", "n2")]


def test_racks_are_judged_by_themselves_and_a_node_counts_where_it_is_now() -> None:
    hall = Hall()
    hall.place("r1", "n0", "n1", "n2")
    hall.place("r2", "n0", "n3", "n4")
    hall.place("r2", "n0")
    hall.run(300.0, n0=HOT, n1=HOT, n2=HOT, n3=COOL, n4=COOL)
    assert sorted((each.cause, each.subject.node or "") for each in hall.found) == [
        ("GPU hot", "n0"),
        ("GPU hot", "n1"),
        ("GPU hot", "n2"),
    ]


def test_nodes_without_a_rack_that_are_all_hot_are_not_evicted_one_by_one_either() -> None:
    hall = Hall()
    hall.run(200.0, n0=HOT, n1=HOT, n2=HOT, n3=HOT)
    assert [(each.cause, each.asks) for each in hall.found] == [("nodes hot", XidAction.WATCH)]
    assert "nodes of the job" in hall.found[0].evidence[0].says


def test_a_hot_node_without_a_rack_waits_for_nobody() -> None:
    hall = Hall()
    hall.run(70.0, n0=HOT, n1=HOT, n2=COOL, n3=COOL, n4=COOL)
    assert [each.subject.node for each in hall.found] == ["n0", "n1"]


def test_nodes_that_were_hot_some_minutes_ago_do_not_make_a_rack_hot_now() -> None:
    hall, nodes = rack_of(4)
    hall.run(30.0, n0=HOT, n1=HOT, n2=COOL, n3=COOL)
    hall.run(130.0, **dict.fromkeys(nodes, COOL))
    hall.run(90.0, n0=COOL, n1=COOL, n2=HOT, n3=COOL)
    assert [(each.cause, each.subject.node) for each in hall.found] == [("GPU hot", "n2")]


def test_nodes_that_tell_nothing_do_not_count_as_cool_neighbours() -> None:
    hall, nodes = rack_of(12)
    told = {node: HOT if node in ("n0", "n1", "n2") else COOL for node in nodes[:5]}
    hall.run(100.0, **told, **dict.fromkeys(nodes[5:9]))  # the last three do not even report
    assert hall.causes == ["rack hot"]
    assert "3 of 5 nodes of rack r1" in hall.found[0].evidence[0].says


def rising(
    now: float, *, from_c: float = 50.0, to_c: float = 120.0, half_s: float = 90.0, start: float = 0.0
) -> float:
    """The margin of a GPU that warms up towards `to_c`, half the way every `half_s`."""
    passed = max(0.0, now - start)
    return LIMIT_C - (to_c - (to_c - from_c) * math.pow(0.5, passed / half_s))


def test_a_gpu_whose_cooling_failed_is_told_of_before_it_slows_down() -> None:
    hall = Hall()
    hall.run(600.0, n0=lambda now: gpu(round(rising(now))))
    assert hall.causes == ["temperature rising", "GPU hot"]
    warned_at = hall.proved[0][0]
    slowed_at = next(float(second) for second in range(600) if rising(second) <= 0.0)
    assert 20.0 <= slowed_at - warned_at <= 120.0
    warning = hall.found[0]
    assert (warning.asks, warning.confidence) == (XidAction.WATCH, Confidence.UNKNOWN)
    assert warning.subject == Subject(JOB, node="n0", gpu="GPU-0")


def test_a_steady_rise_is_told_of_once() -> None:
    hall = Hall()
    hall.run(400.0, n0=lambda now: gpu(max(4.0, 45.0 - 0.1 * now)))
    assert hall.causes == ["temperature rising"]


@pytest.mark.parametrize("to_c", [70.0, 80.0, 83.0])
def test_a_gpu_that_warms_up_under_load_and_stays_below_its_limit_is_not_told_of(to_c: float) -> None:
    hall = Hall()
    for half_s in (10.0, 30.0, 60.0):
        start = hall.now
        hall.run(
            400.0,
            n0=lambda now, half_s=half_s, start=start: gpu(  # type: ignore[misc]
                round(rising(now, from_c=35.0, to_c=to_c, half_s=half_s, start=start))
            ),
        )
    assert hall.found == []


def test_a_rise_is_told_of_again_after_its_end() -> None:
    hall = Hall()
    for _ in range(2):
        start = hall.now
        hall.run(250.0, n0=lambda now, start=start: gpu(40.0 - 0.14 * (now - start)))  # type: ignore[misc]
        hall.run(400.0, n0=COOL)
    assert hall.causes == ["temperature rising"] * 2


def test_of_a_rack_that_warms_up_only_the_first_nodes_are_told_of() -> None:
    hall, nodes = rack_of(12)
    hall.run(900.0, **{node: lambda now: gpu(round(rising(now))) for node in nodes})
    assert hall.causes == ["temperature rising"] * 3 + ["rack hot"]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NODES_REMEMBERED", 3)
    monkeypatch.setattr(module, "GPUS_REMEMBERED", 2)
    hall = Hall()
    hall.place("r1", *(f"n{number}" for number in range(10)))
    for number in range(10):
        hall.report(f"n{number}", *(gpu(HOT, f"GPU-{place}") for place in range(5)))
    assert list(hall.detector._nodes) == ["n7", "n8", "n9"]
    assert [len(node.gpus) for node in hall.detector._nodes.values()] == [2, 2, 2]


def test_a_gpu_that_is_far_from_hot_is_not_kept() -> None:
    hall = Hall()
    hall.run(20.0, n0=20.0)
    assert hall.detector._nodes["n0"].gpus.keys() == {"GPU-0"}
    hall.run(10.0, n0=COOL)
    assert hall.detector._nodes["n0"].gpus == {}
