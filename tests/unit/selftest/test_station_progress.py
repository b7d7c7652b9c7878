import pytest
import torch

from holdfast.agent.selftest.station import Began, Done, Identified, Pulse, Skipped, failure
from holdfast.agent.selftest.supervision import Progress
from holdfast.api.selftest import CheckResult, Verdict

UUID = "GPU-1"


def passed(check: str) -> CheckResult:
    return CheckResult(check, UUID, Verdict.PASSED, "", 1.0)


def progress() -> Progress:
    return Progress("cuda:0", ["one", "two", "three"], limit_s=10.0, now=100.0)


def under_way() -> Progress:
    """Check one has passed, two has begun at 105."""
    found = progress()
    for now, message in (
        (101.0, Identified(UUID)),
        (102.0, Began("one")),
        (104.0, Done(passed("one"))),
        (105.0, Began("two")),
    ):
        found.take(message, now)
    return found


def test_a_station_that_says_everything_is_complete() -> None:
    found = under_way()
    for message in (Done(passed("two")), Began("three"), Skipped("three")):
        found.take(message, 106.0)
    assert found.is_complete
    assert found.results == (passed("one"), passed("two"))


def test_what_hangs_fails_and_what_was_to_follow_is_unknown() -> None:
    found = under_way()
    assert found.deadline == 115.0
    found.hung(115.0)
    assert found.results == (
        passed("one"),
        CheckResult("two", UUID, Verdict.FAILED, "did not return within 10 s", 10.0),
        CheckResult("three", UUID, Verdict.UNKNOWN, "not run: two did not return before", 0.0),
    )
    assert found.is_complete


def test_slow_is_not_hung() -> None:
    found = under_way()
    found.take(Pulse(), 114.0)
    assert found.deadline == 124.0
    assert not found.is_complete


def test_a_device_that_cannot_be_reached_hangs_as_any_check_does() -> None:
    found = progress()
    found.hung(110.0)
    assert (found.results[0].check, found.results[0].device) == ("start", "cuda:0")
    assert [each.verdict for each in found.results] == [Verdict.FAILED, *[Verdict.UNKNOWN] * 3]


def test_a_station_that_dies_proves_nothing() -> None:
    found = under_way()
    found.stopped("the test's process ended with signal 9", 106.0)
    assert [each.verdict for each in found.results] == [Verdict.PASSED, Verdict.UNKNOWN, Verdict.UNKNOWN]


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (RuntimeError("CUDA error: uncorrectable ECC error encountered\nCompile with"), Verdict.FAILED),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), Verdict.FAILED),
        (RuntimeError("CUDA error: no kernel image is available for execution on the device"), Verdict.UNKNOWN),
        (torch.OutOfMemoryError("CUDA out of memory"), Verdict.UNKNOWN),
        (AssertionError("Torch not compiled with CUDA enabled"), Verdict.UNKNOWN),
    ],
)
def test_only_an_error_that_broken_hardware_makes_fails_the_device(error: Exception, verdict: Verdict) -> None:
    judged = failure(passed("one"), error)
    assert (judged.verdict, judged.digest) == (verdict, "")
    assert str(error).splitlines()[0] in judged.says
