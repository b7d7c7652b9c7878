"""A GPU raised an XID error, or is gone."""

import pytest
from signals import JOB, policy, reported

from holdfast.api.finding import Confidence, Finding, FindingKind, Subject
from holdfast.api.nvlink5 import LinkFault
from holdfast.api.policy import XidAction
from holdfast.api.telemetry import GpuDisappeared, GpuHealth, GpuSample, NodeReport, XidRaised
from holdfast.watchdog.detectors.detector import Heard, Reported
from holdfast.watchdog.detectors.gpu_fault import GPUS_REMEMBERED, XIDS_REMEMBERED, GpuFaultDetector

DAY_S = 86400.0


class Driver:
    """Raises errors on one GPU and collects what is found."""

    def __init__(self, **overrides: XidAction) -> None:
        actions = {int(xid.removeprefix("xid_")): action for xid, action in overrides.items()}
        self.detector = GpuFaultDetector(policy(xid_actions=actions))
        self.found: list[Finding] = []

    def raises(
        self,
        xid: int,
        *,
        at: float,
        gpu: str = "GPU-0",
        age_s: float = 0.0,
        recovery: int | None = None,
        link: LinkFault | None = None,
        beside: int = 0,
    ) -> None:
        """`beside`: how many other GPUs the node's report tells of."""
        self.passes(at)
        event = XidRaised(gpu, xid, age_s, text=f"text of {xid}", recovery_action=recovery, link_fault=link)
        gpus = tuple(GpuSample(f"GPU-{index}", index, GpuHealth.HEALTHY) for index in range(beside + 1))
        report = NodeReport("n0", "boot", 1, gpus=gpus, events=(event,))
        self.found.extend(self.detector.observe(Reported(report), at))

    def loses(self, *, at: float, gpu: str = "GPU-0", text: str = "") -> None:
        self.passes(at)
        self.found.extend(self.detector.observe(reported("n0", events=(GpuDisappeared(gpu, 0.0, text),)), at))

    def passes(self, until: float) -> None:
        while (wakeup := self.detector.next_wakeup()) is not None and wakeup <= until:
            self.found.extend(self.detector.elapse(wakeup))

    @property
    def xids(self) -> list[int | None]:
        return [finding.xid for finding in self.found]


def test_an_error_that_evicts_is_found_with_gpu_node_and_evidence() -> None:
    driver = Driver()
    driver.raises(79, at=10.0, age_s=0.3)
    (finding,) = driver.found
    assert finding.kind is FindingKind.XID
    assert finding.subject == Subject(JOB, node="n0", gpu="GPU-0")
    assert (finding.cause, finding.xid, finding.confidence) == ("xid 79", 79, Confidence.CERTAIN)
    assert (finding.began_at, finding.round, finding.error) == (9.7, None, "text of 79")
    assert "fallen off the bus" in finding.evidence[0].says


def test_an_error_that_may_be_software_is_only_probably_the_gpus() -> None:
    driver = Driver()
    driver.raises(31, at=10.0)
    assert driver.found[0].confidence is Confidence.PROBABLE


def test_an_error_that_restarts_is_found_as_well() -> None:
    driver = Driver()
    driver.raises(94, at=10.0)
    assert driver.xids == [94]


def test_identical_errors_of_one_gpu_are_one_for_as_long_as_they_keep_coming() -> None:
    driver = Driver()
    for at in (0.0, 1.0, 4.9, 9.0, 13.0):
        driver.raises(94, at=at)
    assert driver.xids == [94]
    driver.raises(94, at=18.5)
    assert driver.xids == [94, 94]


def test_errors_of_different_gpus_are_different_faults() -> None:
    driver = Driver()
    driver.raises(79, at=0.0, gpu="GPU-0")
    driver.raises(79, at=0.1, gpu="GPU-1")
    assert [finding.subject.gpu for finding in driver.found] == ["GPU-0", "GPU-1"]


def test_a_cause_keeps_the_first_error_and_what_follows_is_its_symptom() -> None:
    driver = Driver()
    driver.raises(95, at=0.0)
    driver.raises(94, at=0.1)
    driver.raises(79, at=4.0)
    assert driver.xids == [95]


def test_what_follows_and_asks_for_worse_is_a_finding_again() -> None:
    driver = Driver()
    driver.raises(94, at=0.0)
    driver.raises(95, at=0.1)
    assert driver.xids == [94, 95]


def test_the_drivers_recovery_action_makes_an_ignored_number_evict() -> None:
    driver = Driver()
    driver.raises(154, at=0.0, recovery=0)
    assert driver.xids == []
    driver.raises(154, at=0.1, recovery=2)
    assert driver.xids == [154]
    assert driver.found[0].recovery_action == 2
    assert "recovery action 2" in driver.found[0].evidence[0].says


@pytest.mark.parametrize("xid", [45, 63, 92, 154])
def test_an_ignored_error_is_no_finding_however_often_it_comes(xid: int) -> None:
    driver = Driver()
    for at in range(0, 600, 60):
        driver.raises(xid, at=float(at))
    driver.passes(1000.0)
    assert driver.found == []


def test_a_watched_error_is_found_when_it_comes_again_within_a_day() -> None:
    driver = Driver()
    driver.raises(121, at=0.0)
    driver.raises(121, at=4.0)
    assert driver.found == []
    driver.raises(121, at=DAY_S - 1.0)
    (finding,) = driver.found
    assert [evidence.at for evidence in finding.evidence] == [0.0, DAY_S - 1.0]
    assert finding.began_at == DAY_S - 1.0


def test_a_watched_error_after_more_than_a_day_is_the_first_again() -> None:
    driver = Driver()
    driver.raises(121, at=0.0)
    driver.raises(121, at=DAY_S + 1.0)
    assert driver.found == []
    driver.raises(121, at=DAY_S + 100.0)
    assert driver.xids == [121]


def test_a_watched_error_on_another_gpu_is_no_repetition() -> None:
    driver = Driver()
    driver.raises(121, at=0.0, gpu="GPU-0")
    driver.raises(121, at=60.0, gpu="GPU-1")
    assert driver.found == []


def test_a_number_nobody_knows_is_watched_and_blames_nobody_for_sure() -> None:
    driver = Driver()
    driver.raises(999, at=0.0)
    driver.raises(999, at=60.0)
    assert driver.xids == [999]
    assert driver.found[0].confidence is Confidence.UNKNOWN


def test_the_jobs_policy_overrides_the_catalogue() -> None:
    driver = Driver(xid_79=XidAction.IGNORE, xid_63=XidAction.EVICT)
    driver.raises(79, at=0.0)
    driver.raises(63, at=60.0)
    assert driver.xids == [63]


@pytest.mark.parametrize(
    ("own", "clusters", "xid", "own_rule"),
    [
        ({}, {}, 79, False),
        ({63: XidAction.EVICT}, {}, 63, True),
        ({79: XidAction.EVICT}, {}, 79, False),  # the catalogue says so too
        ({63: XidAction.EVICT}, {63: XidAction.EVICT}, 63, False),
        ({79: XidAction.EVICT}, {79: XidAction.WATCH}, 79, True),
        ({79: XidAction.RESTART}, {}, 79, False),  # it asks for less than others would
    ],
)
def test_what_only_the_jobs_own_spec_makes_of_an_error_is_its_own_rule(
    own: dict[int, XidAction], clusters: dict[int, XidAction], xid: int, *, own_rule: bool
) -> None:
    driver = Driver()
    driver.detector = GpuFaultDetector(policy(xid_actions=own, cluster_xid_actions=clusters))
    driver.raises(xid, at=10.0)
    assert [finding.own_rule for finding in driver.found] == [own_rule]


def test_the_clusters_word_counts_where_the_job_has_none_of_its_own() -> None:
    driver = Driver()
    clusters = {63: XidAction.EVICT, 64: XidAction.EVICT}
    driver.detector = GpuFaultDetector(policy(xid_actions={64: XidAction.WATCH}, cluster_xid_actions=clusters))
    driver.raises(63, at=10.0)
    driver.raises(64, at=1000.0)
    assert driver.xids == [63]


def test_what_the_driver_asks_for_is_nobodys_own_rule() -> None:
    driver = Driver(xid_63=XidAction.EVICT)
    driver.raises(63, at=10.0, recovery=1)
    assert not driver.found[0].own_rule


def test_a_cleanup_before_or_after_another_error_is_never_the_cause() -> None:
    before = Driver(xid_45=XidAction.EVICT)
    before.raises(45, at=0.0)
    before.raises(43, at=2.0)
    before.passes(100.0)
    assert before.xids == [43]
    after = Driver(xid_45=XidAction.EVICT)
    after.raises(63, at=0.0)
    after.raises(45, at=4.0)
    after.passes(100.0)
    assert after.found == []


def test_a_cleanup_nobody_else_explains_is_judged_after_its_wait() -> None:
    driver = Driver(xid_45=XidAction.RESTART)
    driver.raises(63, at=0.0)
    driver.raises(45, at=60.0)
    driver.raises(45, at=62.0)
    assert driver.detector.next_wakeup() == 65.0
    assert driver.detector.elapse(64.0) == []
    driver.passes(65.0)
    assert driver.xids == [45]
    assert driver.found[0].began_at == 60.0


def test_another_gpus_error_does_not_explain_a_cleanup() -> None:
    driver = Driver(xid_45=XidAction.RESTART)
    driver.raises(45, at=0.0, gpu="GPU-0")
    driver.raises(63, at=1.0, gpu="GPU-1")
    driver.passes(10.0)
    assert driver.xids == [45]


def test_an_error_long_before_the_cleanup_was_sent_leaves_it_waiting() -> None:
    driver = Driver(xid_45=XidAction.RESTART)
    driver.raises(45, at=10.0)
    driver.raises(63, at=11.0, age_s=9.0)
    driver.passes(20.0)
    assert driver.xids == [45]


def test_a_gpu_that_disappears_is_lost() -> None:
    driver = Driver()
    driver.loses(at=5.0, text="no such device")
    (finding,) = driver.found
    assert (finding.kind, finding.cause, finding.confidence) == (
        FindingKind.GPU_LOST,
        "GPU lost",
        Confidence.CERTAIN,
    )
    assert finding.subject == Subject(JOB, node="n0", gpu="GPU-0")
    assert finding.error == "no such device"


def test_a_gpu_that_disappears_after_its_eviction_is_the_same_fault() -> None:
    driver = Driver()
    driver.raises(79, at=5.0)
    driver.loses(at=6.0)
    driver.loses(at=10.5)
    assert driver.xids == [79]


def test_a_gpu_that_disappears_after_a_mere_restart_is_found() -> None:
    driver = Driver()
    driver.raises(94, at=5.0)
    driver.loses(at=6.0)
    assert [finding.kind for finding in driver.found] == [FindingKind.XID, FindingKind.GPU_LOST]


@pytest.mark.parametrize("health", list(GpuHealth))
def test_what_a_gpu_sample_claims_alone_heals_and_evicts_nothing(health: GpuHealth) -> None:
    detector = GpuFaultDetector(policy())
    report = NodeReport("n0", "boot", 1, gpus=(GpuSample("GPU-0", 0, health),))
    for second in range(100):
        assert detector.observe(Reported(report), float(second)) == []
    assert detector.next_wakeup() is None


def test_other_samples_are_not_about_gpus() -> None:
    assert GpuFaultDetector(policy()).observe(Heard("m0"), 0.0) == ()


def test_memory_of_gpus_and_of_errors_is_bounded() -> None:
    driver = Driver(xid_45=XidAction.RESTART)
    for gpu in range(GPUS_REMEMBERED + 10):
        driver.raises(45, at=0.0, gpu=f"GPU-{gpu}")
    for xid in range(1000, 1000 + XIDS_REMEMBERED + 10):
        driver.raises(xid, at=1.0)
    driver.passes(10.0)
    assert len(driver.found) <= GPUS_REMEMBERED
    driver.raises(1000, at=60.0)
    assert driver.xids.count(1000) == 0, "the oldest error is forgotten, so this one is its first"


def test_the_status_words_of_a_link_error_decide() -> None:
    driver = Driver()
    driver.raises(149, at=0.0, link=LinkFault("NETIR_BER_EVENT", "Nonfatal", 3, 0x13, 1))
    driver.raises(149, at=100.0, link=LinkFault("NETIR_BER_EVENT", "Nonfatal", 3, 0x13, 1))
    assert driver.xids == []
    driver.raises(149, at=200.0, link=LinkFault("NETIR_LINK_EVT", "Fatal", 8, 0x004505C6, 0))
    assert driver.xids == [149]


@pytest.mark.parametrize(("xid", "recovery"), [(74, None), (149, None), (154, 3), (154, 5), (79, 3)])
def test_an_error_of_the_links_names_everybody_on_them(xid: int, recovery: int | None) -> None:
    driver = Driver(xid_149=XidAction.EVICT)
    driver.raises(xid, at=0.0, gpu="GPU-1", recovery=recovery, beside=3)
    (finding,) = driver.found
    assert finding.subject.gpu == "GPU-1"
    assert [each.gpu for each in finding.also] == ["GPU-0", "GPU-2", "GPU-3"]
    assert {each.node for each in finding.also} == {"n0"}
    assert "shares NVLinks with GPU-0, GPU-2, GPU-3" in finding.evidence[0].says


def test_an_error_of_one_gpu_names_no_other() -> None:
    driver = Driver()
    driver.raises(79, at=0.0, beside=7)
    assert driver.found[0].also == ()


def test_a_gpu_that_was_reset_is_judged_anew() -> None:
    driver = Driver(xid_45=XidAction.RESTART)
    driver.raises(121, at=0.0)
    driver.raises(45, at=50.0)
    driver.raises(154, at=51.0, recovery=0)
    driver.raises(121, at=60.0)
    driver.passes(100.0)
    assert driver.found == [], "after the reset it is the first, and the cleanup before it is history"
    driver.raises(121, at=120.0)
    assert driver.xids == [121]


def test_an_error_from_days_ago_is_history() -> None:
    driver = Driver()
    driver.raises(79, at=1_000_000.0, age_s=2 * DAY_S)
    assert driver.found == []
    driver.raises(79, at=1_000_000.0, age_s=DAY_S / 2)
    assert len(driver.found) == 1


@pytest.mark.parametrize(
    ("xid", "recovery", "link", "asks"),
    [
        (79, None, None, XidAction.EVICT),
        (94, None, None, XidAction.RESTART),
        (94, 1, None, XidAction.EVICT),
        (149, None, LinkFault("NETIR_LINK_EVT", "Fatal", 8, 0x004505C6, 0), XidAction.EVICT),
    ],
)
def test_a_finding_says_what_its_error_asks_for(
    xid: int, recovery: int | None, link: LinkFault | None, asks: XidAction
) -> None:
    driver = Driver()
    driver.raises(xid, at=0.0, recovery=recovery, link=link)
    assert [finding.asks for finding in driver.found] == [asks]


def test_a_watched_error_that_repeats_asks_for_the_node_to_leave() -> None:
    driver = Driver()
    driver.raises(121, at=0.0)
    driver.raises(121, at=100.0)
    assert [finding.asks for finding in driver.found] == [XidAction.EVICT]
