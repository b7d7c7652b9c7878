import pytest

from holdfast.agent.launch.effect import KillWorker, Report, StartTest
from holdfast.agent.launch.testing import Testing
from holdfast.api.selftest import Tested, TestLevel, TestWanted, Verdict


def wanted(number: int) -> TestWanted:
    return TestWanted(number, TestLevel.LIGHT, "preflight")


def passed(number: int) -> Tested:
    return Tested(number, TestLevel.LIGHT, Verdict.PASSED, 1.0)


def unknown(number: int, why: str) -> Report:
    return Report(Tested(number, TestLevel.LIGHT, Verdict.UNKNOWN, 0.0, says=why))


def running(number: int = 1, pid: int = 50) -> Testing:
    """A member whose test `number` runs as process `pid`."""
    testing = Testing()
    testing.want(wanted(number))
    testing.settle(free=True, round_=None)
    testing.started(pid)
    return testing


def test_it_starts_when_no_worker_uses_the_devices_and_is_answered() -> None:
    testing = Testing()
    assert testing.want(wanted(1)) == []
    assert testing.settle(free=True, round_=None) == [StartTest(-1, wanted(1))]
    assert testing.started(50) == []
    assert testing.settle(free=True, round_=None) == []
    assert testing.ended(passed(1)) == [Report(passed(1))]


def test_it_waits_for_workers_to_leave_and_a_newer_request_takes_its_place() -> None:
    testing = Testing()
    testing.want(wanted(1))
    assert testing.settle(free=False, round_=4) == []
    testing.want(wanted(2))
    assert testing.settle(free=False, round_=None) == []
    assert testing.settle(free=True, round_=None) == [StartTest(-1, wanted(2))]


def test_the_same_number_is_the_same_request() -> None:
    testing = running()
    assert testing.want(wanted(1)) == []
    testing.ended(passed(1))
    assert testing.want(wanted(1)) == [Report(passed(1))]
    assert testing.settle(free=True, round_=None) == []


@pytest.mark.parametrize(
    "other", [TestWanted(1, TestLevel.FULL, "preflight"), TestWanted(1, TestLevel.LIGHT, "preflight", tensor=8)]
)
def test_a_watchdog_that_numbers_anew_is_not_answered_with_another_test(other: TestWanted) -> None:
    testing = running()
    assert testing.want(other) == [KillWorker(50)]
    testing = running()
    testing.ended(passed(1))
    assert testing.want(other) == []
    assert testing.settle(free=True, round_=None) == [StartTest(-2, other)]


def test_a_round_ends_the_test_at_once_and_it_is_answered_unknown() -> None:
    testing = running()
    assert testing.settle(free=False, round_=7) == [KillWorker(50), unknown(1, "interrupted by round 7")]
    assert testing.settle(free=False, round_=7) == []
    assert testing.ended("killed") == []
    assert testing.want(wanted(1)) == [unknown(1, "interrupted by round 7")]


def test_a_round_that_comes_before_the_process_is_known_ends_it_when_it_is() -> None:
    testing = Testing()
    testing.want(wanted(1))
    testing.settle(free=True, round_=None)
    assert testing.settle(free=False, round_=7) == [unknown(1, "interrupted by round 7")]
    assert testing.has_ticket(-1)
    assert testing.started(50) == [KillWorker(50)]


def test_a_newer_request_ends_the_running_one_and_begins_when_that_is_gone() -> None:
    testing = running()
    assert testing.want(wanted(2)) == [KillWorker(50)]
    assert testing.settle(free=True, round_=None) == []
    assert testing.ended(passed(1)) == []
    assert testing.settle(free=True, round_=None) == [StartTest(-2, wanted(2))]


def test_a_process_without_an_answer_is_unknown_with_the_reason() -> None:
    testing = running()
    assert testing.has_process(50)
    assert testing.ended("the self-test ended with signal 9") == [unknown(1, "the self-test ended with signal 9")]
    assert not testing.has_process(50)
