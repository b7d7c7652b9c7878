"""Whose fault an exception is, and what every rank does alike."""

import pytest
from signals import broke, exited, policy, started

from holdfast.api.finding import Confidence, FindingKind
from holdfast.watchdog.detectors.process_exit import ALIKE_S_MIN, ALIKE_TRAINED_S, ProcessExitDetector
from holdfast.watchdog.detectors.user_code import outside_of

GLOO = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:5"
KEY = {
    "code": 1,
    "raised": "KeyError: 'tokens'",
    "place": "data.py:12 in batch",
    "error": "Traceback\nKeyError: 'x'",
}


def in_round(number: int = 1) -> ProcessExitDetector:
    detector = ProcessExitDetector(policy())
    detector.observe(started(number), 0.0)
    return detector


@pytest.mark.parametrize(
    ("raised", "whose"),
    [
        ("KeyError: 'tokens'", None),
        ("AssertionError", None),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/train.bin'", None),
        ("PermissionError: [Errno 13] Permission denied: '/data'", None),
        ("ModuleNotFoundError: No module named 'flash_attn'", None),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", None),
        ("RuntimeError: CUDA error: out of memory", None),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublas`", "a device or its driver"),
        ("MemoryError", None),
        ("RuntimeError: CUDA error: device-side assert triggered", None),
        ("torch.AcceleratorError: CUDA error: invalid configuration argument", None),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "a device or its driver"),
        ("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered", "a device or its driver"),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", "a device or its driver"),
        ("RuntimeError: No CUDA GPUs are available", "a device or its driver"),
        ("RuntimeError: DataLoader worker (pid 3) is killed by signal: Bus error.", "a device or its driver"),
        (GLOO, "a peer"),
        ("torch.distributed.DistBackendError: NCCL error in: x.cpp:1, ncclRemoteError", "a peer"),
        ("RuntimeError: ncclUnhandledCudaError: Call to CUDA function failed.", "the network"),
        ("ConnectionRefusedError: [Errno 111] Connection refused", "the network"),
        ("OSError: [Errno 5] Input/output error: '/data/shard-7'", "the storage or the machine"),
        ("OSError: [Errno 28] No space left on device", "the storage or the machine"),
        ("OSError: [Errno 116] Stale file handle", "the storage or the machine"),
        ("holdfast.api.errors.InvalidInput: every_steps: -1 is not accepted; write at least 1", None),
        ("holdfast.api.errors.Unavailable: the store does not answer", "Holdfast itself"),
        ("KeyboardInterrupt", "somebody who stopped it"),
    ],
)  # fmt: skip
def test_what_an_exception_tells_of(raised: str, whose: str | None) -> None:
    outside = outside_of(raised, f"Traceback (most recent call last):\n  File ...\n{raised}")
    assert (outside.what if outside else None) == whose


def test_an_exception_of_the_script_blames_no_node() -> None:
    (finding,) = in_round().observe(exited(3, **KEY), 10.0)  # type: ignore[arg-type]
    assert finding.kind is FindingKind.USER_CODE
    assert (finding.subject.node, finding.subject.member, finding.subject.rank) == (None, None, 3)
    assert finding.cause == "KeyError: 'tokens' (data.py:12 in batch)"
    assert finding.confidence is Confidence.CERTAIN
    assert finding.error.startswith("Traceback")
    assert finding.alike == ""


def test_what_a_device_brings_about_stays_with_its_node() -> None:
    raised = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
    (finding,) = in_round().observe(exited(3, code=1, raised=raised, error=f"Traceback\n{raised}"), 10.0)
    assert (finding.kind, finding.subject.node) == (FindingKind.PROCESS_EXIT, "n1")
    assert finding.cause == f"exit code 1: {raised}"


def test_the_script_explains_its_victims() -> None:
    detector = in_round()
    assert detector.observe(exited(0, code=1, error=GLOO), 10.0)[0].confidence is Confidence.UNKNOWN
    (culprit,) = detector.observe(exited(3, **KEY), 10.02)  # type: ignore[arg-type]
    assert culprit.kind is FindingKind.USER_CODE


def test_a_failure_that_every_rank_shares_before_it_trains_is_told_once_the_last_has_failed() -> None:
    detector = in_round()
    for rank in range(3):
        fields = {**KEY, "raised": f"KeyError: 'of rank {rank}'", "began": False}
        assert detector.observe(exited(rank, **fields), 10.0 + 0.1 * rank) == ()  # type: ignore[arg-type]
    (finding,) = detector.observe(exited(3, **KEY, began=False), 10.4)  # type: ignore[arg-type]
    assert finding.alike == "KeyError in data.py:12 in batch"
    assert finding.subject.rank == 0
    assert detector.next_wakeup() is None
    assert detector.elapse(100.0) == ()


@pytest.mark.parametrize("how", [{"code": 2}, {"signal": 11}, {"signal": 4}])
def test_an_exit_code_or_a_crash_of_every_rank_is_a_failure_alike(how: dict[str, int]) -> None:
    detector = in_round()
    found = [each for rank in range(4) for each in detector.observe(exited(rank, began=False, **how), 5.0)]  # type: ignore[arg-type]
    assert [each.alike for each in found] == [f"exit code {how['code']}" if "code" in how else found[0].cause]


def test_an_exit_code_that_every_rank_shares_before_it_trains_blames_no_node() -> None:
    detector = in_round()
    found = [finding for rank in range(4) for finding in detector.observe(exited(rank, code=3, began=False), 5.0)]
    (finding,) = found
    assert finding.kind is FindingKind.USER_CODE
    assert (finding.subject.node, finding.subject.member, finding.cause) == (None, None, "exit code 3")
    assert "no node is to blame" in finding.evidence[-1].says


def test_an_exit_code_of_one_rank_is_the_scripts_word_and_blames_no_node() -> None:
    detector = in_round()
    assert not detector.observe(exited(0, code=3, began=False), 5.0)
    (alone,) = detector.elapse(5.0 + ALIKE_S_MIN)
    assert (alone.kind, alone.subject.node, alone.subject.rank) == (FindingKind.USER_CODE, None, 0)
    assert (alone.cause, alone.alike) == ("exit code 3", "")


def test_a_code_that_tells_of_a_signal_stays_with_the_node() -> None:
    detector = in_round()
    assert not detector.observe(exited(0, code=137, began=False), 5.0)
    (alone,) = detector.elapse(5.0 + ALIKE_S_MIN)
    assert (alone.kind, alone.subject.node) == (FindingKind.PROCESS_EXIT, "n0")


def test_an_exit_code_that_tells_of_a_device_stays_with_the_node() -> None:
    detector, error = in_round(), "RuntimeError: No CUDA GPUs are available"
    found = [
        each for rank in range(4) for each in detector.observe(exited(rank, code=1, error=error, began=False), 5.0)
    ]
    assert [(each.kind, bool(each.subject.node)) for each in found] == [(FindingKind.PROCESS_EXIT, True)]


def test_others_that_do_not_fail_in_time_are_waited_for_no_longer() -> None:
    detector = in_round()
    assert detector.observe(exited(1, **KEY, began=False), 1.0) == ()  # type: ignore[arg-type]
    assert detector.next_wakeup() == 1.0 + ALIKE_S_MIN
    assert detector.elapse(2.0) == ()
    (finding,) = detector.elapse(1.0 + ALIKE_S_MIN)
    assert (finding.kind, finding.alike, finding.began_at) == (FindingKind.USER_CODE, "", 1.0)


def test_after_long_imports_the_others_are_waited_for_longer() -> None:
    detector = in_round()
    detector.observe(exited(1, **KEY, began=False), 40.0)  # type: ignore[arg-type]
    assert detector.next_wakeup() == 50.0


@pytest.mark.parametrize(
    "other",
    [
        {"code": 1, "error": GLOO},
        {"signal": 9},
        {"code": 1, "raised": "ImportError: no", "place": "data.py:1", "error": "ImportError: no"},
    ],
)
def test_a_rank_that_fails_in_another_way_ends_the_wait(other: dict[str, object]) -> None:
    detector = in_round()
    assert detector.observe(exited(1, **KEY, began=False), 1.0) == ()  # type: ignore[arg-type]
    (finding,) = detector.observe(exited(2, **{"began": False, **other}), 1.1)  # type: ignore[arg-type]
    assert (finding.subject.rank, finding.alike) == (1, "")


def test_a_round_that_ends_meanwhile_leaves_late_evidence() -> None:
    detector = in_round()
    assert detector.observe(exited(1, **KEY, began=False), 1.0) == ()  # type: ignore[arg-type]
    (finding,) = detector.observe(started(2), 1.5)
    assert (finding.round, finding.kind) == (1, FindingKind.USER_CODE)
    assert detector.observe(exited(1, round_number=2, **KEY, began=False), 2.0) == ()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "how",
    [{"code": 2}, {"code": 1, "raised": "OSError: [Errno 5] Input/output error", "error": "OSError: [Errno 5] x"}],
    ids=["an exit code", "an exception that tells of storage"],
)
def test_what_every_rank_does_alike_after_training_blames_no_node_either(how: dict[str, object]) -> None:
    detector = in_round()
    found = [each for rank in range(4) for each in detector.observe(exited(rank, **how), 50.0 + 0.1 * rank)]  # type: ignore[arg-type]
    (finding,) = found
    assert (finding.subject.node, finding.subject.member) == (None, None)
    assert (finding.kind is FindingKind.USER_CODE) == (how == {"code": 2})
    assert finding.alike == ("exit code 2" if how == {"code": 2} else "")


def test_an_exit_code_after_training_waits_no_longer_than_until_another_rank_misses_the_dead_one() -> None:
    detector = in_round()
    assert detector.observe(exited(0, code=2), 50.0) == ()
    (finding,) = detector.observe(broke(3), 50.03)
    assert (finding.kind, finding.subject.node) == (FindingKind.USER_CODE, None)
    detector = in_round()
    assert detector.observe(exited(0, code=2), 50.0) == ()
    (finding,) = detector.observe(exited(3, code=1, error=GLOO), 50.03)
    assert finding.subject.rank == 0
    detector = in_round()
    assert detector.observe(exited(0, code=2), 50.0) == ()
    (finding,) = detector.elapse(50.0 + ALIKE_TRAINED_S)
    assert finding.subject.rank == 0


def test_what_every_rank_of_one_node_says_of_a_device_stays_with_the_node() -> None:
    detector = ProcessExitDetector(policy())
    detector.observe(started(1, nodes=1), 0.0)
    error = "RuntimeError: CUDA error: uncorrectable ECC error"
    found = [each for rank in range(2) for each in detector.observe(exited(rank, code=1, error=error), 50.0)]
    assert [(each.kind, each.subject.node) for each in found] == [(FindingKind.PROCESS_EXIT, "n0")]


def test_checkpoints_none_of_which_can_be_used_are_nobodys_fault_and_told_at_once() -> None:
    says = "checkpoints are there and none can be used: step-00000004: [Errno 5] cut"
    raised = f"holdfast.checkpoint.errors.NothingToRestore: {says}"
    detector = in_round()
    (finding,) = detector.observe(exited(3, code=1, raised=raised, error=f"Traceback\n{raised}"), 10.0)
    assert (finding.kind, finding.cause) == (FindingKind.NOTHING_TO_RESTORE, says)
    assert (finding.subject.node, finding.confidence) == (None, Confidence.CERTAIN)
    assert detector.observe(exited(2, code=1, raised=raised, error=raised), 10.1) == ()
    detector = in_round()
    assert detector.observe(exited(3, code=1, raised=f"ValueError: {raised}", error="x"), 10.0) == ()
    (other,) = detector.elapse(10.0 + ALIKE_TRAINED_S)
    assert other.kind is not FindingKind.NOTHING_TO_RESTORE
