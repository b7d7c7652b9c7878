import msgspec
import pytest

from holdfast.agent.selftest.command import BYTES_MAX, fitted
from holdfast.agent.selftest.judgement import (
    compare_devices,
    compare_with_golden,
    judge_runs,
    summary,
    verdict_of,
    with_results,
)
from holdfast.api.selftest import CheckResult, Tested, TestLevel, Verdict

LIKE = "NVIDIA H100 80GB HBM3/driver 550.54.14/cuda 13.0/torch 2.13.0+cu130/light/seed 0/checks 1"


def result(
    device: str = "GPU-0",
    digest: str = "a",
    verdict: Verdict = Verdict.PASSED,
    check: str = "product-bf16",
    like: str = LIKE,
) -> CheckResult:
    return CheckResult(check, device, verdict, "149 runs alike", 0.1, like=like, digest=digest)


def verdicts(*digests: str) -> list[Verdict]:
    """What comes of like devices that gave these digests."""
    given = [result(f"GPU-{place}", digest) for place, digest in enumerate(digests)]
    return [each.verdict for each in compare_devices(given)]


P, F, U = Verdict.PASSED, Verdict.FAILED, Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("digests", "expected"),
    [
        ("a", [P]),
        ("aa", [P, P]),
        ("ab", [U, U]),
        ("aab", [P, P, F]),
        ("abc", [U, U, U]),
        ("aabb", [U, U, U, U]),
        ("aabc", [U, U, U, U]),
        ("baaaaaaa", [F, P, P, P, P, P, P, P]),
    ],
)
def test_a_minority_fails_and_without_a_majority_nobody_knows(digests: str, expected: list[Verdict]) -> None:
    assert verdicts(*digests) == expected


def test_a_tie_names_all_who_are_in_it() -> None:
    first, second = compare_devices([result("GPU-0", "a"), result("GPU-1", "b")])
    assert first.says == second.says
    assert first.says.startswith("GPU-0, GPU-1 must answer alike and do not")


def test_only_devices_that_must_answer_alike_are_compared() -> None:
    given = [result("GPU-0", "a"), result("GPU-1", "b", like="another model"), result("GPU-2", "c", verdict=F)]
    assert compare_devices(given) == tuple(given)


def test_one_differing_run_fails_the_device_and_keeps_the_usual_digest() -> None:
    judged = judge_runs(result(digest=""), ["a", "a", "b", "a"], "promised")
    assert (judged.verdict, judged.digest) == (F, "a")
    assert judged.says == "1 of 4 runs gave another result, first run 3"


def test_a_check_that_never_ran_is_unknown() -> None:
    assert judge_runs(result(digest=""), [], "promised").verdict is U


def test_what_differs_from_the_golden_table_fails() -> None:
    golden = with_results({}, [result(digest="a")])
    equal, differs = compare_with_golden([result(digest="a"), result("GPU-1", "b")], golden)
    assert (equal.verdict, differs.verdict) == (P, F)
    assert equal.says.endswith("equal to the golden result")
    assert "every run gave b" in differs.says


def test_what_the_golden_table_does_not_know_still_passes_and_that_is_said() -> None:
    (judged,) = compare_with_golden([result()], {})
    assert judged.verdict is P
    assert judged.says.endswith("the golden table does not know it")


def test_only_what_passed_is_recorded() -> None:
    assert with_results({}, [result(verdict=F), result(digest="")]) == {}


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([], U),
        ([result()], P),
        ([result(), result(verdict=F)], F),
        ([result(), result(verdict=U)], U),
        ([result(), result(check="bandwidth-device", verdict=U)], P),
        ([result(), result(check="bandwidth-host", verdict=F)], F),
        ([result(check="bandwidth-device")], U),
    ],
)
def test_the_whole_passes_when_all_that_is_exact_does(results: list[CheckResult], expected: Verdict) -> None:
    assert verdict_of(results) is expected


def test_the_summary_begins_with_the_worst() -> None:
    results = [result(), result("GPU-1", verdict=U), result("GPU-2", verdict=F), result("GPU-3", verdict=F)]
    assert summary(results, "promised") == "product-bf16 of GPU-2: 149 runs alike; 1 more"
    assert summary([result(), result("GPU-1")], "promised") == "2 checks passed on 2 devices; promised"


@pytest.mark.parametrize("devices", [1, 8, 16, 72])
def test_an_answer_fits_a_message_and_keeps_what_did_not_pass(devices: int) -> None:
    uuid = "GPU-7b1d7d0e-6c1f-5a43-9a55-6d9d3c1b5f{:02x}".format
    checks = [
        result(uuid(device), "bffb0448f4420d14ef8bb045a7e504de", check=f"transformer-fp{check}")
        for device in range(devices)
        for check in range(11)
    ]
    failed = msgspec.structs.replace(result(uuid(0), verdict=F), says="x" * 1000)
    tested = fitted(Tested(1, TestLevel.LIGHT, F, 1.0, (*checks, failed), "said"))
    assert len(msgspec.msgpack.encode(tested)) <= BYTES_MAX
    assert [each for each in tested.checks if each.verdict is F]
    missing = len(checks) + 1 - len(tested.checks)
    assert tested.says == ("said" if not missing else f"said ({missing} results left out)")
    assert missing == 0 or devices > 8


def test_even_too_many_failures_fit() -> None:
    failed = [msgspec.structs.replace(result(f"GPU-{n}", verdict=F), says="x" * 1000) for n in range(500)]
    tested = fitted(Tested(1, TestLevel.LIGHT, F, 1.0, tuple(failed), "said"))
    assert len(msgspec.msgpack.encode(tested)) <= BYTES_MAX
    assert tested.checks
