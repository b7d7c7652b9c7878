"""Something was healed minutes ago, and now something else is wrong: what was healed is not suspected first."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from situations import standing
from watchedjob import JOB, WatchedJob, a_manifest, sound_loss

from holdfast.api.condition import Condition, ConditionKind, ConditionState
from holdfast.api.event import InterventionRequested
from holdfast.api.intervention import InterventionAction, InterventionRequest
from holdfast.api.rankrecord import Phase
from holdfast.api.telemetry import NodeReport, XidRaised
from holdfast.console.runbook.answer import Answer, Verdict, Weight
from holdfast.console.runbook.examine import examine
from holdfast.console.runbook.symptom import Symptom

AGO_S = 300


def hang(job: WatchedJob, phase: Phase | None, rank: int | None = None) -> None:
    """All ranks stand still from now on, in this round; `rank`, or all, in that phase."""
    began, number = job.now, job.round.number
    job.stands = True

    def told(sample):  # type: ignore[no-untyped-def]
        if sample.round != number:
            return sample
        still = standing(sample, job.now - began)
        return replace(still, phase=phase) if phase is not None and rank in (None, sample.rank) else still

    job.sample = told


def a_node_that_was_lost() -> WatchedJob:
    job = WatchedJob(hang_timeout_s=600.0).train(100)
    job.lose("d")
    return job.train(AGO_S)


def a_worker_that_died() -> WatchedJob:
    job = WatchedJob(hang_timeout_s=600.0).train(100)
    job.die(3)
    return job.train(AGO_S)


def an_xid() -> WatchedJob:
    job = WatchedJob().train(100)
    job.events("b", XidRaised("GPU-b", 79, 0.01, "GPU has fallen off the bus"))
    return job.train(AGO_S)


def then_one_is_stuck() -> WatchedJob:
    job = a_node_that_was_lost()
    hang(job, Phase.DATA, 4)
    return job.train(60)


def then_storage_takes_nothing() -> WatchedJob:
    job = a_worker_that_died()
    hang(job, Phase.CHECKPOINT)
    return job.train(60)


def then_somebody_pauses_it() -> WatchedJob:
    job = a_worker_that_died()
    asked = InterventionRequest("i1", JOB, InterventionAction.PAUSE, "a look at the data")
    job.tell(InterventionRequested(asked))
    return job.train(60)


def then_the_learning_rate_changes() -> WatchedJob:
    job = an_xid()
    job.manifest = a_manifest(lr="0.003")
    job.die(3)
    job.train(20)
    job.loss = lambda step, rank: sound_loss(step, rank) + 3.0
    return job.train(60)


def then_a_loader_is_slow() -> WatchedJob:
    job = an_xid()
    job.work_s = lambda rank: (0.7, 0.5 if rank == 5 else 0.01)
    return job.train(150)


@pytest.mark.parametrize(
    ("symptom", "culprit", "play"),
    [
        (Symptom.HUNG, "absent-rank", then_one_is_stuck),
        (Symptom.HUNG, "in-checkpoint", then_storage_takes_nothing),
        (Symptom.HUNG, "held", then_somebody_pauses_it),
        (Symptom.LOSS_SPIKED, "learning-rate", then_the_learning_rate_changes),
        (Symptom.SLOW, "slow-data", then_a_loader_is_slow),
    ],
)
def test_the_culprit_comes_before_what_was_healed(
    symptom: Symptom, culprit: str, play: Callable[[], WatchedJob]
) -> None:
    found = examine(symptom, play().known())
    assert found[0].id == culprit, [each.evidence for each in found if each.verdict is Verdict.SUSPECT]
    assert {each.id for each in found if each.proved} <= {"held"}


def test_a_node_that_failed_is_suspect_also_once_it_was_left() -> None:
    found = suspects(Symptom.NODE_SUSPECT, an_xid())
    assert (found[0].id, found[0].proved) == ("device", True)


def test_what_is_so_now_is_told_in_place_of_the_like_that_was_healed() -> None:
    job = an_xid()

    def report(told: NodeReport) -> NodeReport:
        bad = Condition(ConditionKind.ECC_UNCORRECTED, ConditionState.RAISED, 1.0, "2 errors", "GPU-c")
        return replace(told, conditions=(bad,)) if told.node == "c" else told

    job.report = report
    assert "EccUncorrected of GPU GPU-c holds on c" in suspects(Symptom.NODE_SUSPECT, job.train(3))[0].evidence


def test_a_second_hang_names_its_own_rank() -> None:
    job = WatchedJob(hang_timeout_s=40.0).train(100)
    hang(job, Phase.DATA, 3)
    job.train(45)
    job.stands = False
    job.train(AGO_S)
    hang(job, Phase.DATA, 6)
    found = suspects(Symptom.HUNG, job.train(36))
    assert found[0].id == "absent-rank"
    assert found[0].evidence.startswith("rank 6 on ")


def test_a_disk_that_takes_nothing_comes_before_the_ranks_that_wait_for_it() -> None:
    job = WatchedJob(hang_timeout_s=600.0).train(100)
    hang(job, Phase.CHECKPOINT)
    bad = Condition(ConditionKind.DISK_READ_ONLY, ConditionState.RAISED, 1.0, "/ckpt is read-only", device="/ckpt")
    job.report = lambda told: replace(told, conditions=(bad,)) if told.node == "a" else told
    assert [each.id for each in suspects(Symptom.HUNG, job.train(60))][:2] == ["disk", "in-checkpoint"]


def test_of_a_sigbus_the_cause_is_not_proved() -> None:
    job = WatchedJob().train(100)
    job.die(3, signal=7)
    first = suspects(Symptom.OUT_OF_MEMORY, job.train(20))[0]
    assert (first.id, first.weight) == ("shared-memory", Weight.NAMED)


def suspects(symptom: Symptom, job: WatchedJob) -> list[Answer]:
    return [each for each in examine(symptom, job.known()) if each.verdict is Verdict.SUSPECT]
