"""A loss or gradient norm that is not finite, on one rank or on all."""

import pytest
from signals import JOB, policy, rank_sample, reported, started

from holdfast.api.finding import Confidence, Finding, FindingKind, Subject
from holdfast.api.telemetry import NonFinite, RankNonFinite, RankSample, SkippedSteps
from holdfast.watchdog.detectors.detector import Finished, RoundStopped
from holdfast.watchdog.detectors.non_finite import NonFiniteDetector


def bad(rank: int, step: int, *, loss: str = "", grad_norm: str = "", at: int = 0) -> RankSample:
    told = NonFinite(step, 0.25, step, 1, loss, grad_norm)
    return rank_sample(rank, step=at or step + 1, nonfinite=told)


class Job:
    """Two nodes of two ranks, and what was found."""

    def __init__(self, local_size: int = 2) -> None:
        self.detector = NonFiniteDetector(policy(heartbeat_interval_s=1.0))
        self.detector.observe(started(1, local_size=local_size), 0.0)
        self.found: list[Finding] = []

    def says(self, node: str, *samples: RankSample, at: float = 10.0) -> "Job":
        self.found += self.detector.observe(reported(node, *samples), at)
        return self

    def wait(self, until: float) -> "Job":
        while (at := self.detector.next_wakeup()) is not None and at <= until:
            self.found += self.detector.elapse(at)
        return self

    @property
    def finding(self) -> Finding:
        (finding,) = self.found
        return finding


def test_finite_ranks_are_no_fault_and_nothing_is_waited_for() -> None:
    job = Job().says("n0", rank_sample(0), rank_sample(1)).says("n1", rank_sample(2), rank_sample(3))
    assert job.found == []
    assert job.detector.next_wakeup() is None


def test_the_rank_whose_loss_was_first_is_named_though_the_gradients_carried_it_to_all() -> None:
    job = Job()
    job.says("n0", bad(0, 40, grad_norm="nan"), bad(1, 40, grad_norm="nan"))
    assert job.found == []
    job.says("n1", bad(2, 40, grad_norm="nan"), bad(3, 40, loss="nan", grad_norm="nan"), at=10.5)
    finding = job.finding
    assert (finding.kind, finding.cause) == (FindingKind.NON_FINITE, "loss is nan and gradient norm is nan")
    assert finding.subject == Subject(JOB, node="n1", member="m1", rank=3)
    assert (finding.confidence, finding.round, finding.step, finding.began_at) == (
        Confidence.PROBABLE,
        1,
        40,
        9.75,
    )
    assert "rank 3: loss is nan and gradient norm is nan at step 40" in [each.says for each in finding.evidence]


def test_a_rank_that_was_a_step_earlier_is_the_culprit_although_it_was_heard_of_last() -> None:
    job = Job()
    job.says("n0", bad(0, 41, loss="nan"), bad(1, 41, loss="nan"))
    job.says("n1", bad(2, 40, loss="inf"), bad(3, 41, loss="nan"), at=10.9)
    assert (job.finding.subject.rank, job.finding.step, job.finding.cause) == (2, 40, "loss is inf")


@pytest.mark.parametrize("quantity", ["loss", "grad_norm"])
def test_nobody_is_blamed_where_all_were_first(quantity: str) -> None:
    job = Job()
    job.says("n0", *(bad(rank, 7, **{quantity: "-inf"}) for rank in (0, 1)))
    job.says("n1", *(bad(rank, 7, **{quantity: "-inf"}) for rank in (2, 3)))
    assert (job.finding.subject, job.finding.confidence) == (Subject(JOB), Confidence.UNKNOWN)
    assert job.finding.step == 7


@pytest.mark.parametrize(("word", "is_said"), [("inf", True), ("nan", False), ("-inf", False)])
def test_of_infinite_norms_beside_finite_losses_it_is_said_what_a_scaler_has_to_tell(
    word: str, is_said: bool
) -> None:
    job = Job()
    job.says("n0", *(bad(rank, 1, grad_norm=word) for rank in (0, 1)))
    job.says("n1", *(bad(rank, 1, grad_norm=word) for rank in (2, 3)))
    assert ("skipped=True" in job.finding.error) is is_said


def test_one_rank_alone_is_named_once_the_others_are_well_beyond_it() -> None:
    job = Job()
    job.says("n0", bad(0, 40, loss="nan"), rank_sample(1, step=41))
    job.says("n1", rank_sample(2, step=41), rank_sample(3, step=41), at=10.1)
    assert job.found == []  # a device's values are published a step late
    job.says("n1", rank_sample(2, step=42), rank_sample(3, step=42), at=11.1)
    job.says("n0", bad(0, 40, loss="nan"), rank_sample(1, step=42), at=11.2)
    assert (job.finding.subject.rank, job.finding.confidence) == (0, Confidence.PROBABLE)


def test_with_long_steps_the_rank_is_named_when_the_time_is_up() -> None:
    job = Job()
    job.says("n0", bad(0, 40, loss="nan", at=40), rank_sample(1, step=40))
    job.says("n1", rank_sample(2, step=40), rank_sample(3, step=40)).wait(12.0)
    assert (job.finding.subject.rank, job.finding.confidence) == (0, Confidence.PROBABLE)


def test_a_rank_that_is_not_heard_of_may_have_been_first() -> None:
    job = Job().says("n0", bad(0, 40, loss="nan"), rank_sample(1, step=42)).wait(12.0)
    assert (job.finding.subject, job.finding.confidence) == (Subject(JOB), Confidence.UNKNOWN)
    assert "2 ranks were not heard of since step 40" in [each.says for each in job.finding.evidence]


def test_a_round_has_one_fault_of_this_kind_and_the_next_round_another() -> None:
    job = Job(local_size=1)
    for at in (10.0, 11.0, 30.0):
        job.says("n0", bad(0, 40, loss="nan"), at=at).says("n1", bad(1, 40, loss="nan"), at=at)
    assert len(job.found) == 1
    job.detector.observe(started(2, local_size=1), 40.0)
    job.says("n0", bad(0, 40, loss="nan"), at=41.0).wait(50.0)  # of round 1: fenced
    assert len(job.found) == 1


def test_what_is_not_judged_yet_is_judged_when_its_round_ends() -> None:
    job = Job()
    job.says("n1", bad(2, 40, loss="nan"), rank_sample(3, step=41))
    (finding,) = job.detector.observe(RoundStopped(2), 10.2)
    assert (finding.round, finding.step) == (1, 40)
    assert job.detector.next_wakeup() is None


def test_who_finishes_has_the_last_word_and_it_is_judged_once_all_have() -> None:
    job = Job()
    job.found += job.detector.observe(Finished("m0", 1), 10.0)
    assert (job.found, job.detector.next_wakeup()) == ([], None)
    odd = NonFinite(40, 0.0, 40, 1, loss="nan")
    foreign = RankNonFinite(0, NonFinite(1, 0.0, 1, 1, loss="nan"))  # not a rank of this member's
    job.found += job.detector.observe(Finished("m1", 1, (RankNonFinite(3, odd), foreign)), 10.1)
    assert (job.finding.subject.rank, job.finding.step, job.finding.cause) == (3, 40, "loss is nan")
    assert job.finding.confidence is Confidence.PROBABLE
    assert len(job.finding.evidence) == 1


def test_parameters_that_the_last_step_left_are_told_as_what_they_are() -> None:
    job = Job(local_size=1)
    odd = NonFinite(40, 0.0, 40, 1, parameters=True)
    for node in (0, 1):
        job.found += job.detector.observe(Finished(f"m{node}", 1, (RankNonFinite(node, odd),)), 10.0)
    assert (job.finding.subject, job.finding.cause) == (Subject(JOB), "the parameters are not finite")
    assert "no loss tells of it, but the parameters of ranks 0-1 are not finite" in job.finding.error


def test_the_last_word_of_a_round_that_is_over_is_no_news() -> None:
    job = Job(local_size=1)
    odd = RankNonFinite(0, NonFinite(40, 0.0, 40, 1, loss="nan"))
    assert job.detector.observe(Finished("m0", 7, (odd,)), 10.0) == ()
    assert job.detector.observe(Finished("somebody", 1, (odd,)), 10.0) == ()
    assert job.detector.next_wakeup() is None


def skipped(rank: int, step: int, count: int = 1, **values: str) -> RankSample:
    return rank_sample(rank, step=step, skipped=SkippedSteps(step, count, **values))


def test_a_skipped_step_names_the_rank_and_is_told_once() -> None:
    job = Job()
    for at in (10.0, 11.0):
        job.says("n0", skipped(0, 40), skipped(1, 40, loss="nan"), at=at)
        job.says("n1", skipped(2, 40), skipped(3, 40), at=at)
    finding = job.finding
    assert (finding.skipped, finding.step, finding.subject.rank, finding.cause) == (True, 40, 1, "loss is nan")


def test_a_skipped_step_is_told_though_a_node_is_silent() -> None:
    job = Job().says("n0", skipped(0, 40, loss="nan"), skipped(1, 40)).wait(12.0)
    assert (job.finding.skipped, job.finding.confidence) == (True, Confidence.UNKNOWN)
    assert job.detector.next_wakeup() is None


def test_each_skip_is_told_of_and_those_between_two_reports_as_one() -> None:
    job = Job(local_size=1)
    for step, count in ((40, 1), (45, 3)):
        job.says("n0", skipped(0, step, count, grad_norm="inf")).says("n1", skipped(1, step, count))
    assert [finding.step for finding in job.found] == [40, 45]


def test_evidence_of_many_ranks_is_bounded() -> None:
    job = Job(local_size=20)
    for node in (0, 1):
        job.says(f"n{node}", *(bad(rank, 5, loss="nan") for rank in range(20 * node, 20 * node + 20)))
    assert len(job.finding.evidence) == 17
    assert job.finding.evidence[-1].says == "24 more ranks"


def test_of_a_row_of_steps_left_out_the_rank_whose_values_were_not_finite_is_named() -> None:
    job = Job(local_size=1).says("n0", bad(0, 5)).says("n1", bad(1, 5, grad_norm="nan"))
    assert (job.finding.subject.rank, job.finding.cause) == (1, "gradient norm is nan")
