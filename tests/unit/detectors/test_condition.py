"""Conditions of nodes: once when raised, once when over."""

from typing import Any

import pytest
from signals import JOB, policy, rank_sample, reported

from holdfast.api.condition import CONDITIONS, AllClear, Condition, ConditionKind, ConditionState
from holdfast.api.event import ConditionOver
from holdfast.api.finding import Confidence, Finding, FindingKind, Subject
from holdfast.api.policy import XidAction
from holdfast.api.telemetry import NodeReport, RankSample, Unreadable
from holdfast.watchdog.detectors import condition as module
from holdfast.watchdog.detectors.condition import IDLE_S, SURROUNDINGS, ConditionDetector
from holdfast.watchdog.detectors.detector import Heard, Reported

HOUR_S = 3600.0
PCIE, STORM = ConditionKind.PCIE_DEGRADED, ConditionKind.ECC_CORRECTED_STORM
WATCHED = [kind for kind, row in CONDITIONS.items() if row.action is XidAction.WATCH]
EVICTING = [kind for kind, row in CONDITIONS.items() if row.action is XidAction.EVICT]


class Node:
    """Reports conditions of one node and collects what is proved."""

    def __init__(self, **actions: XidAction) -> None:
        self.detector = ConditionDetector(policy(condition_actions=actions))
        self.proved: list[Finding | ConditionOver] = []

    def says(
        self,
        *conditions: Condition,
        at: float,
        node: str = "n0",
        boot: str = "boot",
        clear: tuple[AllClear, ...] = (),
        ranks: tuple[RankSample, ...] = (),
    ) -> None:
        report = NodeReport(node, boot, 1, ranks, conditions=conditions, all_clear=clear)
        self.proved.extend(self.detector.observe(Reported(report), at))

    def raises(self, kind: ConditionKind, *, at: float, gpu: str = "GPU-0", age_s: float = 0.0) -> None:
        self.says(Condition(kind, ConditionState.RAISED, age_s, "8 lanes of 16", gpu), at=at)

    def clears(self, kind: ConditionKind, *, at: float, gpu: str = "GPU-0") -> None:
        self.says(Condition(kind, ConditionState.CLEARED, 0.0, "16 lanes of 16", gpu), at=at)

    def flaps(self, kind: ConditionKind, *times: float) -> None:
        for at in times:
            self.raises(kind, at=at)
            self.clears(kind, at=at + 10.0)

    @property
    def found(self) -> list[Finding]:
        return [each for each in self.proved if isinstance(each, Finding)]

    @property
    def over(self) -> list[ConditionOver]:
        return [each for each in self.proved if isinstance(each, ConditionOver)]


def test_a_condition_that_evicts_is_found_with_its_part_and_in_words() -> None:
    node = Node()
    node.raises(PCIE, at=100.0, age_s=20.0)
    (finding,) = node.found
    assert (finding.kind, finding.cause) == (FindingKind.CONDITION, "PcieDegraded")
    assert finding.subject == Subject(JOB, node="n0", gpu="GPU-0")
    assert (finding.asks, finding.confidence) == (XidAction.EVICT, Confidence.CERTAIN)
    assert (finding.began_at, finding.round, finding.error) == (80.0, None, "8 lanes of 16")
    assert "GPU GPU-0" in finding.evidence[0].says
    assert "8 lanes of 16" in finding.evidence[0].says


@pytest.mark.parametrize(
    ("kind", "actions", "own_rule"),
    [
        (PCIE, {}, False),
        (PCIE, {"PcieDegraded": XidAction.EVICT}, False),
        (ConditionKind.CLOCK_UNSYNCHRONISED, {"ClockUnsynchronised": XidAction.EVICT}, True),
    ],
)
def test_what_only_the_jobs_own_spec_makes_of_a_condition_is_its_own_rule(
    kind: ConditionKind, actions: dict[str, XidAction], *, own_rule: bool
) -> None:
    node = Node(**actions)
    node.raises(kind, at=100.0)
    assert [finding.own_rule for finding in node.found] == [own_rule]


def test_a_condition_of_the_node_itself_names_no_gpu() -> None:
    node = Node()
    node.says(Condition(ConditionKind.LINK_DOWN, ConditionState.RAISED, 0.0, "down", device="mlx5_0/1"), at=0.0)
    assert node.found[0].subject == Subject(JOB, node="n0")
    assert "mlx5_0/1" in node.found[0].evidence[0].says


def test_a_condition_that_holds_is_one_finding_however_often_it_is_told() -> None:
    node = Node()
    for second in range(100):
        node.raises(PCIE, at=float(second), age_s=float(second))
    assert len(node.proved) == 1


def test_an_agent_that_was_restarted_and_begins_to_count_anew_tells_of_the_same_condition() -> None:
    node = Node()
    node.raises(PCIE, at=0.0)
    node.raises(PCIE, at=600.0, age_s=1.0)
    assert len(node.proved) == 1


def test_conditions_of_two_parts_are_two_findings_and_over_with_the_last_of_them() -> None:
    node = Node()
    node.raises(PCIE, at=0.0, gpu="GPU-0")
    node.raises(PCIE, at=1.0, gpu="GPU-1")
    assert [finding.subject.gpu for finding in node.found] == ["GPU-0", "GPU-1"]
    node.clears(PCIE, at=2.0, gpu="GPU-0")
    assert node.over == []
    node.clears(PCIE, at=3.0, gpu="GPU-1")
    assert [(over.node, over.cause) for over in node.over] == [("n0", "PcieDegraded")]


def test_the_end_is_told_once_with_its_rule() -> None:
    node = Node()
    node.raises(PCIE, at=0.0)
    for second in range(60):
        node.clears(PCIE, at=100.0 + second)
    assert [over.cause for over in node.over] == ["PcieDegraded"]
    assert CONDITIONS[PCIE].clears in node.over[0].says


def test_what_is_raised_again_after_its_end_is_found_again_and_tells_of_the_time_before() -> None:
    node = Node()
    node.raises(PCIE, at=0.0)
    node.clears(PCIE, at=10.0)
    node.raises(PCIE, at=20.0)
    assert [finding.began_at for finding in node.found] == [0.0, 20.0]
    assert [each.at for each in node.found[1].evidence] == [0.0, 20.0]


def test_a_report_without_it_is_no_news() -> None:
    node = Node()
    node.raises(PCIE, at=0.0)
    node.says(at=1.0)
    node.proved.extend(node.detector.observe(reported("n0", unreadable=(Unreadable("nvml", "gone"),)), 2.0))
    node.raises(PCIE, at=3.0)
    assert len(node.proved) == 1


def test_silence_and_other_samples_prove_nothing() -> None:
    node = Node()
    node.raises(PCIE, at=0.0)
    assert node.detector.elapse(1e9) == ()
    assert node.detector.next_wakeup() is None
    assert node.detector.observe(Heard("m0"), 1.0) == ()


@pytest.mark.parametrize("kind", EVICTING, ids=str)
def test_every_condition_that_evicts_asks_for_it_at_once(kind: ConditionKind) -> None:
    node = Node()
    node.raises(kind, at=0.0)
    assert [finding.asks for finding in node.found] == [XidAction.EVICT]


@pytest.mark.parametrize("kind", WATCHED, ids=str)
def test_a_watched_condition_is_found_when_raised_for_the_third_time_within_a_day(kind: ConditionKind) -> None:
    node = Node()
    node.flaps(kind, 0.0, HOUR_S)
    assert node.proved == []
    node.raises(kind, at=2 * HOUR_S)
    (finding,) = node.found
    assert finding.asks is (XidAction.WATCH if kind in SURROUNDINGS else XidAction.EVICT)
    assert [each.at for each in finding.evidence] == [0.0, HOUR_S, 2 * HOUR_S]


def test_a_watched_condition_that_comes_every_thirteen_hours_is_never_found() -> None:
    node = Node()
    node.flaps(STORM, *(13 * HOUR_S * times for times in range(50)))
    assert node.proved == []


def test_a_watched_condition_that_holds_for_days_is_never_found() -> None:
    node = Node()
    for hour in range(72):
        node.raises(STORM, at=hour * HOUR_S, age_s=hour * HOUR_S)
    assert node.proved == []


def test_a_repetition_that_was_found_is_over_when_it_clears_and_found_again_the_next_time() -> None:
    node = Node()
    node.flaps(STORM, 0.0, HOUR_S, 2 * HOUR_S, 3 * HOUR_S)
    assert [type(each).__name__ for each in node.proved] == ["Finding", "ConditionOver"] * 2


def test_what_the_surroundings_bring_about_is_only_probably_the_nodes() -> None:
    node = Node(DiskFull=XidAction.EVICT)
    node.raises(ConditionKind.DISK_FULL, at=0.0)
    assert [(each.asks, each.confidence) for each in node.found] == [(XidAction.EVICT, Confidence.PROBABLE)]


def test_a_job_may_ignore_watch_or_restart_on_what_evicts_others() -> None:
    ignoring = Node(PcieDegraded=XidAction.IGNORE)
    ignoring.flaps(PCIE, 0.0, 100.0, 200.0)
    assert ignoring.proved == []
    watching = Node(PcieDegraded=XidAction.WATCH)
    watching.raises(PCIE, at=0.0)
    assert watching.proved == []
    restarting = Node(PcieDegraded=XidAction.RESTART)
    restarting.raises(PCIE, at=0.0)
    assert [each.asks for each in restarting.found] == [XidAction.RESTART]


def test_an_end_whose_beginning_an_earlier_watchdog_saw_is_told_unless_it_is_only_watched() -> None:
    node = Node()
    for at in (0.0, 1.0):
        node.clears(PCIE, at=at)
        node.clears(STORM, at=at)
    assert [(over.node, over.cause) for over in node.over] == [("n0", "PcieDegraded")]


def test_memory_is_bounded_and_the_least_recent_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONDITIONS_REMEMBERED", 3)
    node = Node()
    for number in range(5):
        node.raises(PCIE, at=float(number), gpu=f"GPU-{number}")
    node.raises(PCIE, at=10.0, gpu="GPU-4")
    assert len(node.found) == 5
    for number in (2, 3, 4):
        node.clears(PCIE, at=20.0, gpu=f"GPU-{number}")
    assert len(node.over) == 1


@pytest.mark.parametrize("kind", EVICTING, ids=str)
def test_an_agent_that_started_anew_ends_nothing_by_saying_nothing(kind: ConditionKind) -> None:
    node = Node()
    node.raises(kind, at=100.0)
    for at in range(200, 20_000, 100):
        node.says(at=at, boot="later")
    assert node.over == []


@pytest.mark.parametrize("kind", EVICTING, ids=str)
def test_an_agent_that_never_raised_it_ends_it_by_saying_that_all_is_clear(kind: ConditionKind) -> None:
    node = Node()
    node.raises(kind, at=100.0)
    for at in (200.0, 230.0):
        node.says(at=at, boot="later", clear=(AllClear(kind),))
    assert [each.cause for each in node.over] == [kind.value]
    assert CONDITIONS[kind].clears in node.over[0].says
    node.raises(kind, at=300.0)
    assert len(node.found) == 2


def test_all_clear_of_one_kind_ends_no_other() -> None:
    node = Node()
    node.raises(PCIE, at=100.0)
    node.says(at=200.0, boot="later", clear=(AllClear(ConditionKind.NVLINK_DOWN), AllClear(STORM)))
    assert node.over == []


def test_a_part_that_is_excepted_or_raised_is_not_over_and_keeps_its_node() -> None:
    node = Node()
    node.raises(PCIE, at=100.0, gpu="GPU-0")
    node.raises(PCIE, at=101.0, gpu="GPU-1")
    node.says(at=200.0, boot="later", clear=(AllClear(PCIE, (("GPU-1", ""),)),))
    still = Condition(PCIE, ConditionState.RAISED, 5.0, "8 lanes of 16", "GPU-1")
    node.says(still, at=230.0, boot="later", clear=(AllClear(PCIE),))
    assert node.over == []
    node.says(at=260.0, boot="later", clear=(AllClear(PCIE),))
    assert [each.cause for each in node.over] == ["PcieDegraded"]


def test_the_same_agent_whose_word_was_not_heard_ends_it_by_saying_that_all_is_clear() -> None:
    node = Node()
    node.raises(PCIE, at=100.0)
    node.says(at=400.0, clear=(AllClear(PCIE),))
    assert [each.cause for each in node.over] == ["PcieDegraded"]


def all_clear_for(node: Node, until: int, *kinds: ConditionKind, **how: Any) -> None:
    for at in range(0, until + 1, 30):
        node.says(at=float(at), clear=tuple(AllClear(kind) for kind in kinds), **how)


def test_what_an_earlier_watchdog_found_of_a_node_that_runs_no_ranks_is_over_once() -> None:
    node = Node()
    all_clear_for(node, int(IDLE_S) - 30, PCIE, ConditionKind.DISK_FULL)
    assert node.proved == []
    all_clear_for(node, int(IDLE_S) * 2, PCIE, ConditionKind.DISK_FULL)
    assert [(each.node, each.cause) for each in node.over] == [("n0", "PcieDegraded")]
    for at in (1300.0, 2000.0):
        node.says(at=at, boot="later", clear=(AllClear(PCIE),))
    assert len(node.over) == 2


def test_a_node_that_runs_ranks_or_is_not_clear_in_all_its_parts_was_found_by_nobody() -> None:
    at_work, in_doubt, ignored = Node(), Node(), Node(PcieDegraded=XidAction.IGNORE)
    all_clear_for(at_work, 3000, PCIE, ranks=(rank_sample(0),))
    for at in range(0, 3000, 30):
        in_doubt.says(at=at, clear=(AllClear(PCIE, (("GPU-0", ""),)),))
    all_clear_for(ignored, 3000, PCIE)
    assert at_work.proved == in_doubt.proved == ignored.proved == []


def test_a_node_is_idle_from_its_last_ranks_on() -> None:
    node = Node()
    all_clear_for(node, 300, PCIE)
    node.says(at=330.0, clear=(AllClear(PCIE),), ranks=(rank_sample(0),))
    for at in (360.0, 930.0):
        node.says(at=at, clear=(AllClear(PCIE),))
    assert node.over == []
    node.says(at=960.0, clear=(AllClear(PCIE),))
    assert len(node.over) == 1


def test_only_so_many_idle_nodes_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONDITIONS_REMEMBERED", 2)
    node = Node()
    for at in (0.0, IDLE_S):
        for name in ("n0", "n1", "n2"):
            node.says(at=at, node=name, clear=(AllClear(PCIE),))
    assert node.over == []


def test_the_same_agent_ends_nothing_by_saying_nothing() -> None:
    node = Node()
    node.raises(PCIE, at=100.0)
    for at in range(200, 2000, 100):
        node.says(at=at)
    assert node.over == []
