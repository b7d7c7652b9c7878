"""A collective failed while every process lives."""

import pytest
from signals import JOB, broke, exited, policy, started

from holdfast.api.finding import Confidence, FindingKind, Subject
from holdfast.watchdog.detectors.collective_failed import PATIENCE_S, CollectiveFailedDetector
from holdfast.watchdog.detectors.detector import Connected, Disconnected, Heard, RoundStopped, Sample


def in_round(number: int = 1) -> CollectiveFailedDetector:
    detector = CollectiveFailedDetector(policy())
    detector.observe(started(number), 0.0)
    return detector


def test_alone_it_becomes_a_finding_after_a_short_patience() -> None:
    detector = in_round()
    assert detector.observe(broke(2, age_s=0.1, error="Connection reset by peer"), 10.0) == ()
    assert detector.next_wakeup() == 10.0 + PATIENCE_S
    assert detector.elapse(10.9) == ()
    (finding,) = detector.elapse(11.0)
    assert finding.kind is FindingKind.COLLECTIVE_FAILED
    assert finding.confidence is Confidence.UNKNOWN
    assert finding.subject == Subject(JOB, node="n1", member="m1", rank=2)
    assert (finding.began_at, finding.round, finding.error) == (9.9, 1, "Connection reset by peer")


def test_it_is_found_once_per_round() -> None:
    detector = in_round()
    detector.observe(broke(2), 10.0)
    assert len(detector.elapse(12.0)) == 1
    detector.observe(broke(3), 12.5)
    assert detector.next_wakeup() is None
    assert detector.elapse(20.0) == ()


def test_everybody_who_reported_is_named_the_earliest_first() -> None:
    detector = in_round()
    detector.observe(broke(3, age_s=0.0), 10.0)
    detector.observe(broke(1, age_s=0.5), 10.1)
    detector.observe(broke(3, age_s=0.0), 10.2)
    (finding,) = detector.elapse(11.0)
    assert finding.subject.rank == 1
    assert [other.rank for other in finding.also] == [3]
    assert finding.began_at == pytest.approx(9.6)
    assert len(finding.evidence) == 3


@pytest.mark.parametrize("cause", [exited(0, signal=9), Disconnected("m1")], ids=["exit", "lost member"])
@pytest.mark.parametrize("cause_first", [True, False])
def test_with_its_cause_seen_it_is_a_symptom_and_no_finding(cause: Sample, cause_first: bool) -> None:
    detector = in_round()
    for sample in (cause, broke(2)) if cause_first else (broke(2), cause):
        detector.observe(sample, 10.0)
    assert detector.next_wakeup() is None
    assert detector.elapse(100.0) == ()


@pytest.mark.parametrize("other", [exited(0, round_number=0, signal=9), Disconnected("spare"), Heard("m0")])
def test_what_happens_outside_the_round_is_no_cause(other: Sample) -> None:
    detector = in_round()
    detector.observe(broke(2), 10.0)
    detector.observe(other, 10.1)
    assert len(detector.elapse(11.0)) == 1


@pytest.mark.parametrize("ends_it", [started(2), RoundStopped(2)])
def test_the_wait_ends_with_its_round(ends_it: Sample) -> None:
    detector = in_round()
    detector.observe(broke(2), 10.0)
    detector.observe(ends_it, 10.5)
    assert detector.next_wakeup() is None
    assert detector.elapse(100.0) == ()


def test_a_failure_of_another_round_is_fenced() -> None:
    detector = in_round(5)
    detector.observe(broke(2, round_number=4), 10.0)
    assert detector.next_wakeup() is None


def test_a_rank_outside_the_world_is_named_without_a_place() -> None:
    detector = in_round()
    detector.observe(broke(99), 10.0)
    (finding,) = detector.elapse(11.0)
    assert finding.subject == Subject(JOB, rank=99)


@pytest.mark.parametrize("broke_first", [True, False])
def test_a_connection_that_only_blinked_is_not_the_cause(broke_first: bool) -> None:
    detector = in_round()
    for sample in (broke(2), Disconnected("m1")) if broke_first else (Disconnected("m1"), broke(2)):
        detector.observe(sample, 10.0)
    detector.observe(Disconnected("m0"), 10.0)
    detector.observe(Connected("m0", "n0"), 10.1)
    assert detector.next_wakeup() is None, "m1 is still away"
    detector.observe(Connected("m1", "n1"), 10.2)
    assert detector.next_wakeup() == 10.2 + PATIENCE_S
    assert len(detector.elapse(11.2)) == 1


def test_who_comes_back_after_the_finding_brings_no_second_one() -> None:
    detector = in_round()
    detector.observe(broke(2), 10.0)
    assert len(detector.elapse(12.0)) == 1
    detector.observe(Disconnected("m1"), 12.5)
    detector.observe(Connected("m1", "n1"), 12.6)
    assert detector.next_wakeup() is None
