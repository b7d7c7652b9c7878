"""Whoever owns a machine gave notice that it takes it away."""

from signals import reported, started

from holdfast.api.event import NodeDeparting
from holdfast.api.telemetry import PreemptionNoticed
from holdfast.watchdog.detectors.preemption import NOTICES_REMEMBERED, OUTSTAY_S, PreemptionDetector

NOTICE = PreemptionNoticed("aws", 120.0, 0.5, "terminate at 08:22")


def noticed(
    detector: PreemptionDetector, at: float, *notices: PreemptionNoticed, node: str = "n0"
) -> list[NodeDeparting]:
    return list(detector.observe(reported(node, events=notices), at))


def test_a_notice_is_a_departure_with_its_reason_and_what_is_left_of_the_time() -> None:
    (departing,) = noticed(PreemptionDetector(), 10.0, NOTICE)
    assert departing == NodeDeparting("n0", "aws: terminate at 08:22", 119.5)


def test_a_notice_that_is_overdue_leaves_no_time() -> None:
    (departing,) = noticed(PreemptionDetector(), 10.0, PreemptionNoticed("gcp", 30.0, 45.0))
    assert (departing.within_s, departing.reason) == (0.0, "gcp")


def test_the_same_notice_is_told_once_per_node() -> None:
    detector = PreemptionDetector()
    assert noticed(detector, 0.0, NOTICE, NOTICE)
    assert noticed(detector, 100.0, NOTICE) == []
    assert [each.node for each in noticed(detector, 100.0, NOTICE, node="n1")] == ["n1"]


def test_another_notice_about_the_same_node_is_told() -> None:
    detector = PreemptionDetector()
    noticed(detector, 0.0, NOTICE)
    assert noticed(detector, 1.0, PreemptionNoticed("aws", 60.0, 0.0, "stop at 08:21"))


def test_a_machine_that_comes_back_under_its_name_can_be_taken_away_again() -> None:
    detector = PreemptionDetector()
    noticed(detector, 0.0, NOTICE)
    assert noticed(detector, 119.5 + OUTSTAY_S, NOTICE) == []
    assert noticed(detector, 120.0 + OUTSTAY_S, NOTICE)


def test_memory_is_bounded_and_the_oldest_is_forgotten_first() -> None:
    detector = PreemptionDetector()
    for node in range(NOTICES_REMEMBERED + 1):
        noticed(detector, 0.0, NOTICE, node=f"n{node}")
    assert noticed(detector, 0.0, NOTICE, node="n1") == []
    assert noticed(detector, 0.0, NOTICE, node="n0")


def test_other_samples_and_silence_say_nothing() -> None:
    detector = PreemptionDetector()
    assert (detector.observe(started(1), 0.0), detector.elapse(1e6), detector.next_wakeup()) == ((), (), None)
    assert noticed(detector, 0.0) == []
