import pytest

from holdfast.agent.launch.localset import KillWorker, Report, Start, StartTest
from holdfast.agent.launch.testing import HELD_S, Testing
from holdfast.api.round import Endpoint, Entry, Restore, Seat
from holdfast.api.selftest import Tested, TestLevel, TestWanted, Verdict

SEAT = Seat("ns/job", 7, 1, 3, Endpoint("h", 29500), Restore(), Entry.RESPAWN, "formed", 0, 0, 3)


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


def worker(rank: int) -> Start:
    return Start(rank + 1, rank, rank, SEAT, 0)


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


def test_workers_wait_until_nothing_of_an_ended_test_is_left() -> None:
    testing = running()
    testing.settle(free=False, round_=7)
    assert [testing.hold(worker(rank), now=100.0) for rank in (0, 1)] == [True, True]
    assert testing.next_wakeup() == 100.0 + HELD_S
    assert testing.ended("killed") == []
    assert testing.hold(worker(2), now=100.1)
    assert testing.group_gone(49) == []
    assert testing.group_gone(50) == [worker(rank) for rank in (0, 1, 2)]
    assert not testing.hold(worker(0), now=100.2)
    assert testing.next_wakeup() is None


def test_workers_wait_for_nothing_where_no_test_was() -> None:
    assert not Testing().hold(worker(0), now=100.0)
    testing = Testing()
    testing.want(wanted(1))
    testing.settle(free=True, round_=None)
    testing.settle(free=False, round_=7)
    assert testing.hold(worker(0), now=100.0)
    assert testing.ended("no process could be started") == [worker(0)]


@pytest.mark.parametrize("stuck", ["the test", "what it started"])
def test_a_test_that_never_ends_holds_workers_up_for_a_bounded_time_and_once(stuck: str) -> None:
    testing = running()
    testing.settle(free=False, round_=7)
    if stuck == "what it started":
        testing.ended("killed")
    assert testing.hold(worker(0), now=100.0)
    assert testing.elapse(99.9 + HELD_S) == []
    assert testing.elapse(100.0 + HELD_S) == [worker(0)]
    assert testing.elapse(100.1 + HELD_S) == []
    assert not testing.hold(worker(0), now=100.2 + HELD_S)
    assert testing.next_wakeup() is None
