"""A worker process ended with a failure."""

import pytest
from msgspec.structs import replace
from signals import JOB, a_round, exited, policy, reported, started

from holdfast.api.finding import Confidence, Finding, FindingKind, Subject
from holdfast.api.round import Endpoint, ReplicaGroup
from holdfast.api.telemetry import ProcessKilledForMemory
from holdfast.watchdog.detectors.detector import Heard, Reported, RoundStarted, RoundStopped
from holdfast.watchdog.detectors.process_exit import (
    ALIKE_TRAINED_S,
    KILLINGS_REMEMBERED,
    NODES_REMEMBERED,
    OUT_OF_MEMORY,
    SYMPTOM_WINDOW_S,
    ProcessExitDetector,
)
from holdfast.watchdog.detectors.user_code import ALIKE

GLOO = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:5"
NCCL = "torch.distributed.DistBackendError: NCCL error in: ..., remote process exited or there was a network error"
NCCL_WATCHDOG = "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)\nAborted"


def in_round(number: int = 1) -> ProcessExitDetector:
    detector = ProcessExitDetector(policy())
    assert detector.observe(started(number), 0.0) == ()
    return detector


def test_the_first_death_is_found_the_moment_it_is_heard_of() -> None:
    (finding,) = in_round().observe(exited(3, signal=9, age_s=0.5), 10.0)
    assert finding.kind is FindingKind.PROCESS_EXIT
    assert finding.subject == Subject(JOB, node="n1", member="m1", rank=3)
    assert finding.cause == "signal 9 (SIGKILL)"
    assert finding.confidence is Confidence.CERTAIN
    assert finding.began_at == 9.5
    assert finding.round == 1
    assert finding.evidence[0].source == "launcher m1"


@pytest.mark.parametrize(
    ("how", "cause", "confidence"),
    [
        ({"signal": 9}, "signal 9 (SIGKILL)", Confidence.CERTAIN),
        ({"signal": 11}, "signal 11 (SIGSEGV)", Confidence.CERTAIN),
        ({"signal": 40}, "signal 40", Confidence.CERTAIN),
        ({"signal": 9, "error": GLOO}, "signal 9 (SIGKILL)", Confidence.CERTAIN),
        ({"signal": 6}, "signal 6 (SIGABRT)", Confidence.CERTAIN),
        ({"signal": 6, "error": NCCL_WATCHDOG}, "signal 6 (SIGABRT)", Confidence.UNKNOWN),
        ({"code": 1}, "exit code 1", Confidence.PROBABLE),
        ({"code": 1, "error": "Traceback:\nOSError: gone\n\n"}, "exit code 1: OSError: gone", Confidence.PROBABLE),
        ({"code": 1, "error": "  \n"}, "exit code 1", Confidence.PROBABLE),
        ({"code": 1, "error": GLOO}, f"exit code 1: {GLOO}", Confidence.UNKNOWN),
        ({"code": 1, "error": NCCL}, f"exit code 1: {NCCL}", Confidence.UNKNOWN),
        ({}, "exit status Unknown", Confidence.UNKNOWN),
    ],
)  # fmt: skip
def test_a_death_has_a_class_and_a_confidence(how: dict[str, object], cause: str, confidence: Confidence) -> None:
    detector = in_round()
    found = [*detector.observe(exited(0, **how), 1.0), *detector.elapse(1.0 + ALIKE_TRAINED_S)]  # type: ignore[arg-type]
    (finding,) = found
    assert (finding.cause, finding.confidence, finding.error) == (cause, confidence, how.get("error", ""))


LEFT = "exit code 0 before Run.enter had returned"
RAISED = {"raised": "RuntimeError: told to end", "place": "train.py:5 in leave", "trace": "ab12"}


@pytest.mark.parametrize("began", [True, False])
def test_who_leaves_before_training_is_over_is_found_at_once_and_no_node_is_blamed(began: bool) -> None:
    detector = in_round()
    (finding,) = detector.observe(exited(1, code=0, left=True, began=began), 10.0)
    assert (finding.kind, finding.cause, finding.subject) == (FindingKind.USER_CODE, LEFT, Subject(JOB, rank=1))
    assert (finding.alike, finding.trace) == (ALIKE, ""), "before a further step it would leave again"
    others = [detector.observe(exited(rank, code=0, left=True, began=began), 10.1) for rank in (0, 2, 3)]
    assert others == [(), (), ()]


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ({"code": 0}, "exit code 0 after signal 15 (SIGTERM)"),
        ({"code": 0, "left": True}, "exit code 0 after signal 15 (SIGTERM)"),
        ({"code": 1}, "exit code 1 after signal 15 (SIGTERM)"),
        ({"code": 1, **RAISED}, "exit code 1 after signal 15 (SIGTERM)"),
    ],
)
def test_who_was_asked_to_end_did_as_it_was_told_and_nobody_is_to_blame(
    how: dict[str, object], cause: str
) -> None:
    (finding,) = in_round().observe(exited(1, asked_by=15, **how), 10.0)  # type: ignore[arg-type]
    assert (finding.kind, finding.cause) == (FindingKind.PROCESS_EXIT, cause)
    assert (finding.innocent, finding.alike, finding.trace) == (True, "", "")
    assert finding.confidence is Confidence.CERTAIN
    assert finding.evidence[-1].says.startswith("signal 15 (SIGTERM) had reached it")


def test_training_that_is_over_is_no_death() -> None:
    assert in_round().observe(exited(1, code=0), 10.0) == ()


def test_a_long_last_line_is_cut_in_the_cause_and_kept_in_the_error() -> None:
    detector = in_round()
    detector.observe(exited(0, code=1, error="x" * 5000), 1.0)
    (finding,) = detector.elapse(1.0 + ALIKE_TRAINED_S)
    assert len(finding.cause) < 250
    assert len(finding.error) == 5000


def test_deaths_that_follow_are_symptoms_and_blame_nobody() -> None:
    detector = in_round()
    assert detector.observe(exited(3, signal=9), 10.0)
    assert detector.observe(exited(0, code=1, error=GLOO), 10.03) == ()
    assert detector.observe(exited(1, signal=6), 10.05) == ()
    assert detector.observe(exited(2, code=1, error="ValueError"), 10.0 + SYMPTOM_WINDOW_S) == ()


def test_a_death_long_after_is_a_fault_of_its_own() -> None:
    detector = in_round()
    assert detector.observe(exited(3, signal=9), 10.0)
    (second,) = detector.observe(exited(0, signal=9), 10.1 + SYMPTOM_WINDOW_S)
    assert second.subject.rank == 0


def test_a_message_repeated_after_a_reconnect_is_no_second_death() -> None:
    detector = in_round()
    assert detector.observe(exited(3, signal=9), 10.0)
    assert detector.observe(exited(3, signal=9), 100.0) == ()


def test_a_culprit_heard_of_after_its_victim_amends_the_finding() -> None:
    detector = in_round()
    (victim,) = detector.observe(exited(0, code=1, error=GLOO), 10.0)
    (culprit,) = detector.observe(exited(3, signal=9), 10.01)
    assert victim.confidence is Confidence.UNKNOWN
    assert (culprit.subject.rank, culprit.confidence) == (3, Confidence.CERTAIN)


def test_an_earlier_death_heard_of_later_amends_the_finding() -> None:
    detector = in_round()
    assert detector.observe(exited(0, signal=6), 10.0)
    (earlier,) = detector.observe(exited(3, code=1, error="ValueError", age_s=1.0), 10.1)
    assert earlier.subject.rank == 3


def test_a_victim_never_replaces_anybody_not_even_when_it_died_earlier() -> None:
    detector = in_round()
    assert detector.observe(exited(0, signal=9), 10.0)
    assert detector.observe(exited(3, code=1, error=GLOO, age_s=1.0), 10.1) == ()


def test_a_death_of_another_round_is_fenced() -> None:
    detector = in_round(7)
    assert detector.observe(exited(0, round_number=6, signal=9), 1.0) == ()
    assert detector.observe(exited(0, round_number=8, signal=9), 1.0) == ()


def of_groups(number: int, *epochs: int) -> RoundStarted:
    """A round of replica groups of one node of two ranks each."""
    whole = a_round(number, nodes=len(epochs))
    groups = tuple(ReplicaGroup(epoch, 1, Endpoint(f"h{at}", 1), trains=True) for at, epoch in enumerate(epochs))
    return RoundStarted(replace(whole, groups=groups))


def test_deaths_in_two_replica_groups_are_two_and_within_one_they_are_one() -> None:
    detector = ProcessExitDetector(policy())
    detector.observe(of_groups(7, 7, 7), 0.0)
    assert [each.subject.rank for each in detector.observe(exited(3, round_number=7, signal=9), 10.0)] == [3]
    assert detector.observe(exited(2, round_number=7, code=1, error=GLOO), 10.01) == ()
    assert [each.subject.rank for each in detector.observe(exited(0, round_number=7, signal=9), 10.02)] == [0]
    assert detector.observe(exited(1, round_number=7, signal=9), 10.03) == ()


def test_a_death_is_one_of_the_newer_round_with_which_its_replica_group_goes_on() -> None:
    detector = ProcessExitDetector(policy())
    detector.observe(of_groups(8, 7, 7), 0.0)
    as_numbered_then = replace(exited(3, round_number=7, signal=9), member="m0", node="n0")
    (finding,) = detector.observe(as_numbered_then, 10.0)
    assert (finding.subject.member, finding.subject.rank, finding.round) == ("m0", 1, 8)
    assert detector.observe(as_numbered_then, 10.1) == ()
    detector.observe(of_groups(9, 7, 9), 0.0)
    assert detector.observe(exited(2, round_number=8, signal=9), 10.0) == (), "this group was formed since"


def test_nothing_is_judged_while_no_round_runs() -> None:
    detector = in_round(7)
    detector.observe(RoundStopped(8), 1.0)
    assert detector.observe(exited(0, round_number=7, signal=9), 1.1) == ()
    assert ProcessExitDetector(policy()).observe(exited(0, signal=9), 1.0) == ()


def test_every_round_is_judged_anew() -> None:
    detector = in_round(1)
    assert detector.observe(exited(3, signal=9), 10.0)
    detector.observe(started(2), 10.1)
    assert detector.observe(exited(3, round_number=2, signal=9), 10.2)


def test_the_same_round_shown_again_forgives_nothing() -> None:
    detector = in_round(1)
    assert detector.observe(exited(3, signal=9), 10.0)
    detector.observe(started(1), 10.1)
    assert detector.observe(exited(2, signal=9), 10.2) == ()


def test_silence_and_other_samples_prove_no_death() -> None:
    detector = in_round()
    assert detector.observe(Heard("m0"), 1.0) == ()
    assert detector.elapse(1e9) == ()
    assert detector.next_wakeup() is None


def killed(node: str, pid: int = 4321, *, age_s: float = 0.0, own_limit: bool = False) -> Reported:
    return reported(node, events=(ProcessKilledForMemory(pid, "python", age_s, own_limit=own_limit),))


def test_a_worker_that_the_kernel_killed_for_memory_is_told_apart_when_the_agent_comes_later() -> None:
    detector = in_round()
    (first,) = detector.observe(exited(3, signal=9), 10.0)
    assert first.cause == "signal 9 (SIGKILL)"
    (better,) = detector.observe(killed("n1", age_s=0.3), 10.2)
    assert (better.cause, better.subject, better.round) == (OUT_OF_MEMORY, first.subject, 1)
    assert better.evidence[-1].says == "process 4321 (python) was killed by the kernel for memory"
    assert better.evidence[-1].at == pytest.approx(9.9)
    assert detector.observe(killed("n1", 99), 10.3) == (), "it is explained already"


def test_a_killing_is_told_of_a_death_whose_round_is_over_already() -> None:
    detector = in_round()
    detector.observe(exited(3, signal=9), 10.0)
    detector.observe(started(2), 10.05)
    (better,) = detector.observe(killed("n1", age_s=0.2), 10.1)
    assert (better.cause, better.round) == (OUT_OF_MEMORY, 1)


def test_a_worker_that_the_kernel_killed_for_memory_is_told_apart_when_the_agent_comes_first() -> None:
    detector = in_round()
    assert detector.observe(killed("n1"), 10.0) == ()
    (finding,) = detector.observe(exited(3, signal=9), 14.9)
    assert finding.cause == OUT_OF_MEMORY


@pytest.mark.parametrize(
    ("node", "at", "signal"), [("n0", 10.0, 9), ("n1", 15.1, 9), ("n1", 4.9, 9), ("n1", 10.0, 11)]
)
def test_another_nodes_killing_another_time_or_another_signal_explain_nothing(
    node: str, at: float, signal: int
) -> None:
    detector = in_round()
    (finding,) = detector.observe(exited(3, signal=signal, age_s=5.0), 15.0)
    assert finding.cause.startswith("signal")
    assert detector.observe(killed(node, age_s=20.0 - at), 20.0) == ()


def test_memory_of_killings_is_bounded_and_the_newest_count() -> None:
    detector = in_round()
    for node in range(NODES_REMEMBERED + 10):
        detector.observe(killed(f"x{node}"), 1.0)
    for pid in range(KILLINGS_REMEMBERED + 10):
        detector.observe(killed("n1", pid), 5.0 + pid)
    (finding,) = detector.observe(exited(3, signal=9), 5.0 + KILLINGS_REMEMBERED + 9)
    assert finding.cause == OUT_OF_MEMORY


def killed_at_the_first_line(detector: ProcessExitDetector, *ranks: int, signal: int = 9) -> list[Finding]:
    return [
        found
        for rank in ranks
        for found in detector.observe(exited(rank, signal=signal, began=False), 10.0 + rank / 100)
    ]


@pytest.mark.parametrize("signal", [9, 15])
def test_ranks_that_are_all_killed_before_any_sign_of_training_share_it_and_blame_no_node(signal: int) -> None:
    detector = in_round()
    assert killed_at_the_first_line(detector, 0, 1, 2, signal=signal) == []
    (finding,) = killed_at_the_first_line(detector, 3, signal=signal)
    assert finding.subject == Subject(JOB, rank=0)
    assert (finding.kind, finding.also) == (FindingKind.PROCESS_EXIT, ())
    assert finding.alike == finding.cause


def test_ranks_that_the_kernel_killed_for_memory_share_it_whenever_the_agent_tells() -> None:
    detector = in_round()
    (first,) = killed_at_the_first_line(detector, 0, 1, 2, 3)
    (again,) = detector.observe(killed("n0"), 11.0)
    assert (again.cause, again.alike, again.subject) == (OUT_OF_MEMORY, first.alike, first.subject)


def test_some_ranks_that_are_killed_before_any_sign_of_training_are_named_with_the_first() -> None:
    detector = in_round()
    assert killed_at_the_first_line(detector, 0, 3) == []
    (finding,) = detector.observe(exited(1, code=1, error=GLOO, began=False), 10.1)
    assert (finding.subject.node, finding.alike) == ("n0", "")
    assert finding.also == (Subject(JOB, node="n1", member="m1", rank=3),)


def test_a_worker_that_reached_its_pods_own_memory_limit_blames_no_node() -> None:
    (found,) = in_round().observe(exited(1, signal=9, own_limit=True), 100.0)
    assert (found.kind, found.cause, found.innocent) == (
        FindingKind.PROCESS_EXIT,
        "out of memory: the pod's own limit",
        True,
    )
    assert found.evidence[-1].source == "control group of pod m0"


@pytest.mark.parametrize("agent_first", [True, False])
def test_a_worker_whose_pods_limit_the_kernel_names_blames_no_node(agent_first: bool) -> None:
    detector = in_round()
    signs = [killed("n1", own_limit=True), exited(3, signal=9)]
    *_, last = (detector.observe(sign, 10.0) for sign in (signs if agent_first else reversed(signs)))
    (found,) = last
    assert (found.cause, found.innocent) == ("out of memory: the pod's own limit", True)
    assert found.evidence[-1].source == "kernel of node n1"
