"""What is made of what the watchdog says of one job: rows of steps, notes of incidents, its end."""

import math
from array import array
from collections.abc import Sequence

from holdfast.api.bulletin import Bulletin, GpuFigures, KeptScalars, Spread
from holdfast.api.feed import JobTold, PlacesTold, StepColumns, StepsTold
from holdfast.api.finding import Confidence, FindingKind, Subject
from holdfast.api.incident import Incident, IncidentState
from holdfast.api.policy import ModelFlops, ReportingPolicy
from holdfast.api.scalars import ScalarsLogged
from holdfast.api.status import JobPhase, JobStatus, Membership
from holdfast.console.trackers.composing import GRACE_S, Composer, Memory
from holdfast.console.trackers.records import Ended, Mark, Row
from holdfast.console.trackers.settling import Settling, Shown, Standing

JOB = "research/gpt"
NAN = math.nan


def bulletin(
    *, round_: int = 1, since: int | None = 0, final: int | None = None, ranks: int = 1, **fields: object
) -> Bulletin:
    return Bulletin(
        JOB, "", ReportingPolicy(tensorboard=True, ranks=ranks), round_, since, final, "life", **fields
    )  # type: ignore[arg-type]


def placed(composer: Composer, *, ranks: int = 2, round_: int = 1, layout: int = 1) -> None:
    composer.placed(PlacesTold(JOB, layout, round_, ranks, ("n1",), ("",), (), array("I", range(ranks)).tobytes()))


def stepped(
    steps: Sequence[int],
    *,
    loss: Sequence[float] = (1.0, 2.0),
    tokens: Sequence[float] = (NAN, NAN),
    layout: int = 1,
) -> StepsTold:
    def floats(values: Sequence[float]) -> bytes:
        return array("f", values).tobytes()

    columns = StepColumns(
        array("i", steps).tobytes(), floats([0.5, 0.25]), floats(loss), floats([NAN, NAN]), floats(tokens)
    )
    return StepsTold(JOB, layout, 100.0, columns)


def status(phase: JobPhase = JobPhase.RUNNING, ended_at: float | None = None) -> JobStatus:
    return JobStatus(
        job=JOB,
        phase=phase,
        reason="because",
        round=1,
        members=Membership(1, 1, 0),
        world_size=2,
        step=1,
        loss=1.0,
        step_time_s=0.5,
        restarts=0,
        evictions=0,
        incidents_open=0,
        incidents_total=0,
        last_checkpoint=None,
        avoided_nodes=(),
        now=100.0,
        ended_at=ended_at,
    )


def incident(state: IncidentState = IncidentState.OPEN) -> Incident:
    return Incident(
        id="inc-0001",
        job=JOB,
        kind=FindingKind.PROCESS_EXIT,
        culprit=Subject(job=JOB, node="n1", rank=1),
        confidence=Confidence.CERTAIN,
        cause="signal 9",
        state=state,
        began_at=50.0,
        detected_at=51.0,
        evidence=(),
        recovered_at=53.0 if state is IncidentState.RECOVERED else None,
        lost_steps=4 if state is IncidentState.RECOVERED else None,
    )


def composing(**fields: object) -> Composer:
    composer = Composer(Memory())
    placed(composer)
    composer.announced(bulletin(**fields), 100.0, 0.0)  # type: ignore[arg-type]
    return composer


def test_of_the_ranks_the_least_the_median_and_the_greatest_are_told_once_for_each_step() -> None:
    composer = composing(gpus=GpuFigures(temperature_c=Spread(50.0, 60.0, 70.0)))
    (row,) = composer.stepped(stepped([7, 7]), 0.0)
    assert row == Row(
        7,
        100.0,
        {
            "loss/min": 1.0,
            "loss/median": 1.5,
            "loss/max": 2.0,
            "step_s/min": 0.25,
            "step_s/median": 0.375,
            "step_s/max": 0.5,
            "gpu/temperature_c/min": 50.0,
            "gpu/temperature_c/median": 60.0,
            "gpu/temperature_c/max": 70.0,
        },
        1,
        0,
    )
    assert composer.stepped(stepped([7, 8]), 1.0) == []


def test_a_rank_that_is_ahead_says_nothing_of_the_step_that_all_have_completed() -> None:
    (row,) = composing().stepped(stepped([7, 8]), 0.0)
    assert (row.step, row.values["loss/max"]) == (7, 1.0)


def test_tokens_a_second_go_by_the_slowest_rank_and_mfu_by_what_the_spec_says() -> None:
    composer = composing()
    composer.described(JobTold(JOB, status(), flops=ModelFlops(2.0, 100.0)), 0.0)
    (row,) = composer.stepped(stepped([7, 7], tokens=(30.0, 20.0)), 0.0)
    assert (row.values["tokens_s"], row.values["mfu"]) == (100.0, 1.0)


def test_ranks_have_series_of_their_own_where_they_are_asked_for() -> None:
    (row,) = composing(ranks=2).stepped(stepped([7, 7]), 0.0)
    assert (row.values["rank-0/loss"], row.values["rank-1/loss"]) == (1.0, 2.0)


def test_columns_of_another_layout_of_another_round_or_of_too_few_ranks_say_nothing() -> None:
    composer = composing()
    assert composer.stepped(stepped([7, 7], layout=2), 0.0) == []
    composer.announced(bulletin(round_=2), 100.0, 0.0)
    assert composer.stepped(stepped([7, 7]), 0.0) == []
    composer.announced(bulletin(), 100.0, 0.0)
    assert composer.stepped(stepped([-1, 7]), 0.0) == []


def test_what_a_script_logged_becomes_rows_and_of_other_ranks_than_the_first_with_their_name() -> None:
    logged = ScalarsLogged(1, 0, {"lr": ((3, 0.1), (4, 0.2)), "acc": ((4, 0.9),)}, since=2)
    others = ScalarsLogged(1, 3, {"lr": ((4, 0.3),)}, since=2)
    composer = Composer(Memory())
    told = composer.announced(bulletin(scalars=(KeptScalars(1, logged), KeptScalars(2, others))), 100.0, 0.0)
    assert told == [
        Row(3, 100.0, {"lr": 0.1}, 1, 2),
        Row(4, 100.0, {"lr": 0.2, "acc": 0.9}, 1, 2),
        Row(4, 100.0, {"rank-3/lr": 0.3}, 1, 2),
    ]
    assert composer.announced(bulletin(scalars=(KeptScalars(2, others),)), 101.0, 1.0) == []
    assert (composer.memory.after, composer.memory.life) == (2, "life")


def test_what_is_missing_is_noted() -> None:
    logged = ScalarsLogged(1, 0, {}, left_out=5)
    (note,) = Composer(Memory()).announced(bulletin(scalars=(KeptScalars(4, logged),), lost=3), 100.0, 0.0)
    assert (note.event, note.text.split()[0]) == ("lost", "8")  # type: ignore[union-attr]


def test_a_mark_says_what_was_heard_and_what_is_final_once_late_ranks_have_had_their_time() -> None:
    composer = composing(final=4)
    composer.stepped(stepped([7, 7]), 0.0)
    assert composer.mark(GRACE_S - 0.1)[1].heard is None
    composer.announced(bulletin(final=4), 101.0, 1.0)
    assert composer.mark(GRACE_S)[1].heard == 6
    assert composer.mark(GRACE_S + 1.0)[1].final == 4


def test_a_step_is_whole_once_a_later_one_is_complete_also_where_a_checkpoint_holds_it() -> None:
    composer = composing(final=7)
    composer.stepped(stepped([7, 7]), 0.0)
    composer.announced(bulletin(final=7), 100.0, 0.0)
    (_, mark) = composer.mark(500.0)
    assert (mark.heard, mark.final) == (6, 6)
    composer.stepped(stepped([8, 8]), 500.0)
    (_, mark) = composer.mark(500.0 + GRACE_S)
    assert (mark.heard, mark.final) == (7, 7)


def test_what_a_script_logs_of_a_step_to_come_makes_none_whole_where_ranks_tell_their_steps() -> None:
    composer = composing()
    ahead = ScalarsLogged(1, 0, {"tokens_seen": ((10**15, 1.0),)}, since=0)
    composer.announced(bulletin(scalars=(KeptScalars(1, ahead),)), 100.0, 0.0)
    assert composer.mark(GRACE_S)[1].heard == 10**15 - 1, "no rank has told of a step yet"
    composer.stepped(stepped([7, 7]), 5.0)
    composer.announced(bulletin(scalars=(KeptScalars(2, ahead),)), 105.0, 5.0)
    assert composer.mark(5.0)[1].heard is None
    assert composer.mark(5.0 + GRACE_S)[1].heard == 6


def test_what_an_evaluation_logs_minutes_after_its_step_is_published_with_it() -> None:
    for forgets in (True, False):
        composer, settling = composing(final=7), Settling(Standing(), forgets=forgets)
        records = [*composer.stepped(stepped([7, 7]), 0.0), composer.mark(0.0)[1], composer.mark(60.0)[1]]
        logged = ScalarsLogged(1, 0, {"eval/loss": ((7, 2.5),)}, since=0)
        told = composer.announced(bulletin(final=7, scalars=(KeptScalars(1, logged),)), 400.0, 300.0)
        records += [*told, *composer.stepped(stepped([8, 8]), 301.0), composer.mark(301.0 + GRACE_S)[1]]
        words = [word for number, record in enumerate(records) for word in settling.take(number, record)]
        (shown,) = words
        assert isinstance(shown, Shown)
        assert (shown.step, shown.values["loss/max"], shown.values["eval/loss"]) == (7, 2.0, 2.5)


def test_a_new_round_makes_what_was_heard_of_the_one_before_worth_nothing() -> None:
    composer = composing(final=4)
    composer.stepped(stepped([7, 7]), 0.0)
    placed(composer, round_=2, layout=2)
    composer.announced(bulletin(round_=2, since=4, final=4), 105.0, 5.0)
    (row,) = composer.stepped(stepped([5, 5], layout=2), 5.0)
    assert (row.round, row.since) == (2, 4)
    assert composer.mark(5.0)[1].heard is None


def test_an_incident_is_noted_when_it_opens_and_when_it_is_over() -> None:
    composer = Composer(Memory(begun=True))
    (opened,) = composer.happened(incident())
    assert composer.happened(incident()) == []
    (closed,) = composer.happened(incident(IncidentState.RECOVERED))
    assert composer.happened(incident(IncidentState.RECOVERED)) == []
    assert (opened.event, closed.event, closed.at) == ("opened", "closed", 53.0)
    assert "4 steps lost" in closed.text
    assert b"signal 9" in closed.body


def test_what_was_over_before_anybody_published_the_job_is_old() -> None:
    composer = Composer(Memory())
    assert [note.is_old for note in composer.happened(incident(IncidentState.RECOVERED))] == [True, True]


def test_the_end_is_told_once_behind_what_comes_late_and_again_when_the_job_ends_again() -> None:
    composer = composing()
    over = JobTold(JOB, status(JobPhase.FAILED, ended_at=90.0))
    composer.described(over, 0.0)
    assert composer.mark(0.0)[0] == []
    assert not composer.has_ended
    ended, mark = composer.mark(GRACE_S)
    assert ended == [Ended(90.0, succeeded=False, reason="because")]
    composer.described(over, GRACE_S)
    assert composer.mark(2 * GRACE_S)[0] == []
    assert composer.has_ended
    assert isinstance(mark, Mark)
    composer.described(JobTold(JOB, status(JobPhase.SUCCEEDED, ended_at=99.0)), 10.0)
    assert composer.mark(10.0 + GRACE_S)[0] == [Ended(99.0, succeeded=True, reason="because")]
