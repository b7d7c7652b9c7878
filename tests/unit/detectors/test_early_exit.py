"""A rank that ends with success while the others train."""

import pytest
from msgspec import structs
from signals import JOB, a_round, broke, exited, policy, started

from holdfast.api.finding import Confidence, Finding, FindingKind, Subject
from holdfast.api.membership import ProcessesSpawned
from holdfast.api.policy import XidAction
from holdfast.api.round import Endpoint, ReplicaGroup
from holdfast.watchdog.detectors import detectors_for
from holdfast.watchdog.detectors.detector import RoundStarted, RoundStopped, Sample, Spawned
from holdfast.watchdog.detectors.user_code import ALIKE, OwnProcessesDetector

GLOO = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:5"
ENDED = exited(1, code=0)
VICTIM = exited(3, code=1, error=GLOO)


def judged(*samples: tuple[float, Sample], until: float = 100.0) -> list[object]:
    """What all detectors of a job make of the samples, and of the time after them."""
    detectors = detectors_for(policy())
    found: list[object] = []
    for at, sample in ((0.0, started(1)), *samples):
        for each in detectors:
            if type(sample) in each.subscribes_to:
                found.extend(each.observe(sample, at))
    for each in detectors:
        found.extend(each.elapse(until))
    return found


@pytest.mark.parametrize("missed", [broke(3), VICTIM], ids=["its collective failed", "it died of it"])
@pytest.mark.parametrize("told_first", [True, False])
def test_who_ended_with_success_is_found_when_another_misses_it_and_no_node_is_blamed(
    missed: Sample, told_first: bool
) -> None:
    ended = exited(1, code=0, age_s=0.2)
    samples = (ended, missed) if told_first else (missed, ended)
    found = [each for each in judged(*((10.0, sample) for sample in samples)) if isinstance(each, Finding)]
    early = next(each for each in found if each.kind is FindingKind.USER_CODE)
    assert early.subject == Subject(JOB, rank=1)
    assert early.cause == "rank 1 ended with exit code 0 while others went on"
    assert (early.alike, early.confidence, early.round) == (ALIKE, Confidence.CERTAIN, 1)
    assert early.began_at == pytest.approx(9.8)
    if told_first:
        assert found == [early]


def test_everybody_who_misses_it_makes_one_finding() -> None:
    found = judged((10.0, ENDED), (10.1, broke(0)), (10.1, VICTIM), (10.2, broke(2)))
    assert [each.kind for each in found if isinstance(each, Finding)] == [FindingKind.USER_CODE]


def test_of_replica_groups_it_is_told_a_moment_later_because_all_of_those_that_trained_may_be_ending() -> None:
    shares = a_round(1).ranks
    groups = tuple(ReplicaGroup(1, 1, Endpoint("127.0.0.1", 29500), trains=True) for _ in shares)
    begun = RoundStarted(structs.replace(a_round(1), groups=groups))
    assert judged((1.0, begun), (10.0, ENDED), (10.1, broke(3)), (10.3, RoundStopped(2))) == []
    found = judged((1.0, begun), (10.0, ENDED), (10.1, broke(3)))
    assert FindingKind.USER_CODE in [each.kind for each in found if isinstance(each, Finding)]


def test_a_rank_that_ends_before_the_others_is_no_fault_by_itself() -> None:
    assert judged((10.0, ENDED), (40.0, exited(0, code=0)), until=1e6) == []


def test_who_gives_up_after_a_collective_failed_is_not_why_it_did() -> None:
    found = judged((10.0, broke(3)), (10.1, broke(1)), (10.5, ENDED))
    assert [each.kind for each in found if isinstance(each, Finding)] == [FindingKind.COLLECTIVE_FAILED]


def test_a_connection_that_closes_a_moment_before_its_process_is_gone_is_the_same_end() -> None:
    found = judged((10.0, broke(3)), (10.2, ENDED))
    assert [each.kind for each in found if isinstance(each, Finding)] == [FindingKind.USER_CODE]


def test_an_end_of_another_round_says_nothing() -> None:
    found = judged((10.0, exited(1, code=0, round_number=0)), (10.1, broke(3)))
    assert [each.kind for each in found if isinstance(each, Finding)] == [FindingKind.COLLECTIVE_FAILED]


def test_another_round_is_judged_anew() -> None:
    found = judged((10.0, ENDED), (10.5, started(2)), (11.0, broke(3, round_number=2)))
    assert [each.kind for each in found if isinstance(each, Finding)] == [FindingKind.COLLECTIVE_FAILED]


def test_processes_that_the_script_starts_itself_are_told_of_once() -> None:
    detector = OwnProcessesDetector(policy())
    detector.observe(started(2), 0.0)

    def spawned(number: int, node: int = 1) -> Spawned:
        told = ProcessesSpawned(number, 2 * node, 8, "train.py:30 in main")
        return Spawned(f"m{node}", f"n{node}", told)

    assert detector.observe(spawned(1), 5.0) == (), "of a round that is over"
    assert detector.observe(spawned(2, node=0), 8.0) == (), "one rank alone may make its data so"
    assert detector.observe(spawned(2, node=0), 8.5) == ()
    (finding,) = detector.observe(spawned(2), 9.0)
    assert (finding.kind, finding.asks, finding.subject.node) == (FindingKind.USER_CODE, XidAction.WATCH, None)
    assert finding.cause == "the script trains in processes that it starts itself at train.py:30 in main"
    assert "LOCAL_RANK" in finding.fix
    assert detector.observe(spawned(2), 10.0) == ()
