"""A job's metrics, from what is decided and what was counted."""

from typing import Any

import msgspec
import pytest

from holdfast.api.event import FindingMade, MemberTested, ReplicasAgreed
from holdfast.api.exposition import Page, Style
from holdfast.api.finding import Confidence, Finding, FindingKind, ProvedBy, SlowCause, Slowness, Subject
from holdfast.api.incident import Incident, IncidentState, Moment
from holdfast.api.metric import MetricKind
from holdfast.api.plan import NodeOrder
from holdfast.api.policy import EvictionBudget, GpuHour, ModelFlops, Policy, RestartBudget
from holdfast.api.round import Endpoint, Entry, MemberRanks, Restore, Round
from holdfast.api.selftest import TestLevel, Verdict
from holdfast.api.status import Checkpoint, JobPhase
from holdfast.watchdog.brain.incidents import paging
from holdfast.watchdog.brain.ledgerofbefore import LedgerOfBefore
from holdfast.watchdog.brain.roster import Member, MemberState, Roster
from holdfast.watchdog.brain.state import JobState, SlowRanks
from holdfast.watchdog.brain.step import IncidentClosed, IncidentOpened, IncidentUpdated
from holdfast.watchdog.metrics.counts import JobCounts
from holdfast.watchdog.metrics.job import (
    INCIDENTS_MAX,
    NODES_MAX,
    PAGED_SHOWN_S,
    mfu,
    write_course,
    write_faults,
    write_proofs,
    write_utilization,
    write_vitals,
    write_worth,
)
from holdfast.watchdog.metrics.table import WATCHDOG_METRICS
from holdfast.watchdog.metrics.vitals import Spread, Vitals

JOB = "ns/job"
BUDGETS = {"restarts": RestartBudget(count=4, per_s=100.0), "evictions": EvictionBudget(count=2, per_s=50.0)}
POLICY = Policy(job=JOB, nodes_min=1, nodes_max=2, spares=1, gpu_hour=GpuHour(2.5, "EUR"), **BUDGETS)  # type: ignore[arg-type]


def state(**fields: object) -> JobState:
    return msgspec.structs.replace(JobState(JOB, policy=POLICY), **fields)


def incident(number: int = 1, *, began_at: float = 100.0, **fields: object) -> Incident:
    known = Incident(
        id=f"inc-{number:04d}",
        job=JOB,
        kind=FindingKind.XID,
        culprit=Subject(JOB, node=f"n{number}", gpu="GPU-a"),
        confidence=Confidence.CERTAIN,
        cause="xid 79",
        state=IncidentState.OPEN,
        began_at=began_at,
        detected_at=began_at,
        evidence=(),
        timeline=(Moment(began_at, "began"),),
    )
    return msgspec.structs.replace(known, **fields)


def lines(page: Page, name: str) -> list[str]:
    """The samples of a family, without its name and the job."""
    text = page.text(Style.CLASSIC).splitlines()
    return [
        line[len(name) :].replace(f'training_job="{JOB}"', "").replace("{,", "{")
        for line in text
        if line.startswith(name + "{")
    ]


def faults(known: JobState, counts: JobCounts | None = None, now: float = 130.0) -> Page:
    page = Page(WATCHDOG_METRICS)
    write_faults(page, known, counts or JobCounts(), now=now)
    return page


def test_the_phase_is_one_of_all() -> None:
    page = Page(WATCHDOG_METRICS)
    write_course(page, state(phase=JobPhase.RUNNING), step_time_s=None, now=0.0)
    phases = lines(page, "holdfast_job_phase")
    assert len(phases) == len(JobPhase)
    assert [line for line in phases if line.endswith(" 1")] == ['{phase="Running"} 1']
    assert '{state="spares_wanted"} 1' in lines(page, "holdfast_job_members")


def test_a_checkpoint_has_a_step_and_an_age() -> None:
    page = Page(WATCHDOG_METRICS)
    write_course(
        page, state(checkpoints=(Checkpoint(70, "/ckpt", 1, 25.0),), verified_step=60), step_time_s=None, now=30.0
    )
    assert lines(page, "holdfast_job_checkpoint_step") == ["{} 70"]
    assert lines(page, "holdfast_job_checkpoint_age_seconds") == ["{} 5.0"]
    assert lines(page, "holdfast_job_verified_step") == ["{} 60"]


def test_the_ranks_are_told_as_one_and_the_newest_step_counts() -> None:
    page = Page(WATCHDOG_METRICS)
    write_vitals(page, JOB, Vitals(fresh=2, step_s=Spread(0.1, 0.2, 0.3, 0.4)), (7, None))
    assert lines(page, "holdfast_job_step") == ["{} 7"]
    stats = {'{stat="min"} 0.1', '{stat="median"} 0.2', '{stat="p99"} 0.3', '{stat="max"} 0.4'}
    assert set(lines(page, "holdfast_job_step_seconds")) == stats
    assert lines(page, "holdfast_job_loss") == []


def test_an_open_incident_names_its_culprit_for_as_long_as_it_is_open() -> None:
    opened = incident(culprit=Subject(JOB, node="n1", gpu="GPU-a", rank=3))
    labels = '{kind="Xid",state="Open",node="n1",gpu="GPU-a",rank="3"}'
    assert lines(faults(state(incidents=(opened,))), "holdfast_job_incident_age_seconds") == [f"{labels} 30.0"]
    healed = msgspec.structs.replace(opened, state=IncidentState.RECOVERED, recovered_at=110.0)
    page = faults(state(incidents=(healed,)))
    assert lines(page, "holdfast_job_incident_age_seconds") == []
    assert lines(page, "holdfast_job_last_recovery_seconds") == ["{} 10.0"]


@pytest.mark.parametrize(("after_s", "shown"), [(0.0, 1), (PAGED_SHOWN_S, 1), (PAGED_SHOWN_S + 1.0, 0)])
def test_what_was_left_to_a_human_names_its_culprit_for_an_hour(after_s: float, shown: int) -> None:
    paged = incident(state=IncidentState.PAGED, timeline=(Moment(100.0, "began"), Moment(120.0, "paged")))
    page = faults(state(incidents=(paged,)), now=120.0 + after_s)
    told = lines(page, "holdfast_job_incident_age_seconds")
    assert [line for line in told if 'state="Paged"' in line] == told
    assert len(told) == shown


@pytest.mark.parametrize(
    ("phase", "number", "shown"),
    [(JobPhase.RUNNING, 3, 1), (JobPhase.RUNNING, 4, 0), (JobPhase.FORMING, 4, 1), (JobPhase.FAILED, 3, 1)],
)
def test_training_in_a_later_round_answers_a_page(phase: JobPhase, number: int, shown: int) -> None:
    paged = incident(state=IncidentState.PAGED, timeline=(Moment(120.0, "paged"),), round=3)
    round_ = Round(JOB, number, (), Endpoint("10.0.0.1", 7000), Restore(), Entry.RESPAWN, "")
    page = faults(state(phase=phase, round=round_, incidents=(paged,)))
    assert len(lines(page, "holdfast_job_incident_age_seconds")) == shown


@pytest.mark.parametrize(
    ("state_", "after_s", "shown"),
    [
        (IncidentState.OPEN, 0.0, ["Open", "Notified"]),
        (IncidentState.RECOVERED, PAGED_SHOWN_S, ["Notified"]),
        (IncidentState.RECOVERED, PAGED_SHOWN_S + 1.0, []),
        (IncidentState.OPEN, PAGED_SHOWN_S + 1.0, ["Open"]),
        (IncidentState.OBSERVED, 0.0, []),
    ],
)
def test_what_a_human_was_told_of_while_healing_went_on_is_shown_for_an_hour(
    state_: IncidentState, after_s: float, shown: list[str]
) -> None:
    told_of = incident(state=state_, actions=(paging("nothing can take its place", 120.0),), round=3)
    round_ = Round(JOB, 4, (), Endpoint("10.0.0.1", 7000), Restore(), Entry.RESPAWN, "")
    page = faults(state(phase=JobPhase.RUNNING, round=round_, incidents=(told_of,)), now=120.0 + after_s)
    told = lines(page, "holdfast_job_incident_age_seconds")
    assert [line.partition('state="')[2].partition('"')[0] for line in told] == shown


def test_two_incidents_alike_are_one_series_and_the_older_one_counts() -> None:
    alike = (incident(began_at=90.0), incident(began_at=100.0))
    assert [
        line.split()[-1] for line in lines(faults(state(incidents=alike)), "holdfast_job_incident_age_seconds")
    ] == ["40.0"]


def test_labels_are_bounded() -> None:
    many = tuple(incident(number) for number in range(2 * INCIDENTS_MAX))
    avoided = tuple(NodeOrder(f"n{number}", "it broke") for number in range(2 * NODES_MAX))
    page = faults(state(incidents=many, avoided=(*avoided, avoided[-1])))
    assert len(lines(page, "holdfast_job_incident_age_seconds")) == INCIDENTS_MAX
    assert len(lines(page, "holdfast_job_node_avoided")) == NODES_MAX - 1
    assert lines(page, "holdfast_job_avoided_nodes") == [f"{{}} {2 * NODES_MAX + 1}"]


def test_budgets_are_told_by_how_much_of_them_is_used() -> None:
    page = faults(state(restarts=(29.0, 31.0, 129.0), evictions=(79.0, 81.0), eviction_count=1030), now=130.0)
    assert lines(page, "holdfast_job_restart_budget_used_ratio") == ["{} 0.5"]
    assert lines(page, "holdfast_job_eviction_budget_used_ratio") == ["{} 0.5"]
    assert lines(page, "holdfast_job_evictions_total") == ["{} 1030"], "more than the budget remembers"


def test_time_is_useful_lost_or_suspended_and_money_is_counted_at_the_price_of_its_time() -> None:
    ledger = LedgerOfBefore(
        began_at=100.0,
        useful_s=30.0,
        useful_gpu_s=60.0,
        stepped_at=150.0,
        held_s=5.0,
        gpus=2,
        since=140.0,
        gpu_s=70.0,
        price=GpuHour(36.0, "EUR"),
        cost=0.7,
    ).carried()
    page = Page(WATCHDOG_METRICS)
    write_worth(page, state(ledger=ledger, publishes=True), step_time_s=None, now=160.0)
    assert lines(page, "holdfast_job_time_seconds") == [
        '{spent="suspended"} 5.0',
        '{spent="useful"} 30.0',
        '{spent="lost"} 15.0',
    ]
    assert lines(page, "holdfast_job_ettr_ratio") == [f"{{}} {30 / 45}"]
    assert lines(page, "holdfast_job_gpu_seconds_total") == ["{} 110.0"]
    by_row = lines(page, "holdfast_job_gpu_time_seconds")
    assert '{row="Productive"} 60.0' in by_row
    assert sum(float(each.split()[1]) for each in by_row) == 110.0
    money = [float(each.split()[1]) for each in lines(page, "holdfast_job_gpu_time_cost")]
    assert sum(money) == pytest.approx(1.1)
    assert lines(page, "holdfast_job_cost_total") == [f'{{currency="EUR"}} {0.7 + 2 * 20 * 0.01}']
    assert lines(page, "holdfast_job_gpu_hour_cost") == ['{currency="EUR"} 2.5']


@pytest.mark.parametrize(
    ("step_time_s", "ready", "ettr"), [(1.0, 0, []), (10.0, 1, ["{} 1.0"])], ids=["stalled", "a slow step"]
)
def test_nobody_is_ready_and_no_ettr_is_told_while_no_step_is_seen(
    step_time_s: float, ready: int, ettr: list[str]
) -> None:
    known = state(
        phase=JobPhase.RUNNING,
        members=Roster.of(
            Member("m1", "n1", "b", "h", 2, (1,), warm=True, standing=MemberState.PRESENT, joined_at=0.0)
        ),
        ledger=LedgerOfBefore(began_at=100.0, useful_s=50.0, stepped_at=150.0).carried(),
        publishes=True,
    )
    page = Page(WATCHDOG_METRICS)
    write_course(page, known, step_time_s=step_time_s, now=220.0)
    write_worth(page, known, step_time_s=step_time_s, now=220.0)
    counted = {f'{{state="ready"}} {ready}', '{state="joined"} 1', '{state="spare"} 0'}
    assert counted <= set(lines(page, "holdfast_job_members"))
    assert lines(page, "holdfast_job_ettr_ratio") == ettr
    # It is neither useful nor lost yet: the next step tells, or a restore.
    assert lines(page, "holdfast_job_time_seconds")[1:] == ['{spent="useful"} 50.0', '{spent="lost"} 0.0']


def test_of_a_script_without_steps_nobody_knows_what_was_useful() -> None:
    page = Page(WATCHDOG_METRICS)
    write_worth(
        page,
        state(ledger=LedgerOfBefore(began_at=100.0, gpus=2, since=100.0).carried()),
        step_time_s=None,
        now=160.0,
    )
    assert lines(page, "holdfast_job_ettr_ratio") == []
    assert lines(page, "holdfast_job_time_seconds") == ['{spent="suspended"} 0.0']
    assert lines(page, "holdfast_job_gpu_seconds_total") == ["{} 120.0"]
    assert lines(page, "holdfast_job_cost_total") == []


def test_before_the_first_round_no_time_has_passed() -> None:
    page = Page(WATCHDOG_METRICS)
    write_worth(page, state(policy=None), step_time_s=None, now=160.0)
    assert lines(page, "holdfast_job_time_seconds") == []
    assert lines(page, "holdfast_job_gpu_hour_cost") == []


# 10 GFLOP for a token, a teraFLOP a second from each GPU.
FLOPS = ModelFlops(per_token=1e10, gpu_peak_per_s=1e12)
ROUND = Round(JOB, 3, (MemberRanks("m1", "n1", 0, 4),), Endpoint("h", 1), Restore(), Entry.REENTER, reason="test")


def utilization(tokens_per_s: float | None = 100.0, **fields: object) -> list[str]:
    known = {"policy": msgspec.structs.replace(POLICY, flops=FLOPS), "desired": ROUND, **fields}
    page = Page(WATCHDOG_METRICS)
    write_utilization(page, state(**known), tokens_per_s)
    return lines(page, "holdfast_job_mfu_ratio")


def test_mfu_is_the_tokens_a_second_over_those_of_all_gpus_at_their_peak() -> None:
    assert utilization() == ["{} 0.25"], "4 GPUs could make 400 tokens a second"


def test_mfu_of_palm_is_what_its_authors_found() -> None:
    """540 billion parameters, 118 layers of 48 heads of 256, 2,048 tokens a sequence, on 6,144 TPUs v4."""
    per_token = 6 * 540.35e9 + 12 * 118 * 48 * 256 * 2048
    ratio = mfu(238.3e3, ModelFlops(per_token, gpu_peak_per_s=275e12), gpus=6144)
    assert ratio == pytest.approx(0.462, abs=0.001)


@pytest.mark.parametrize(
    "missing",
    [{"tokens_per_s": None}, {"policy": POLICY}, {"policy": None}, {"desired": None}],
    ids=["no tokens told", "no numbers in the job", "no job", "no round"],
)
def test_without_one_of_its_facts_there_is_no_mfu(missing: dict[str, Any]) -> None:
    assert utilization(**missing) == []


def test_a_slow_rank_is_shown_with_its_cause_while_its_round_trains() -> None:
    round_ = Round(
        JOB, 3, (MemberRanks("m", "n1", 0, 2),), Endpoint("127.0.0.1", 1), Restore(), Entry.REENTER, "", ()
    )
    one = SlowRanks(
        "inc-0001",
        Slowness(SlowCause.MACHINE, 2.0, 0.5),
        "n1",
        (1,),
        2,
        9.0,
        100.0,
        movable=True,
        round=3,
        since_step=10,
    )
    all_ = msgspec.structs.replace(one, slow=Slowness(SlowCause.EVERYBODY, 2.0, 1.0), node=None, ranks=())
    before = msgspec.structs.replace(one, round=2)
    known = state(
        phase=JobPhase.RUNNING, round=round_, desired=round_, slow=(one, all_, before), slowed_rank_s=36.0
    )
    assert lines(faults(known), "holdfast_job_slow_rank_ratio") == [
        '{cause="Machine",node="n1",rank="1"} 0.25',
        '{cause="Everybody",node="",rank=""} 0.5',
    ]
    assert lines(faults(known), "holdfast_job_slowed_rank_seconds_total") == ["{} 36.0"]
    paused = msgspec.structs.replace(known, phase=JobPhase.SUSPENDED)
    assert lines(faults(paused), "holdfast_job_slow_rank_ratio") == []


def finding(kind: FindingKind, cause: str = "cause") -> FindingMade:
    return FindingMade(Finding(kind, Subject(JOB), cause, (), Confidence.CERTAIN, 1.0))


class TestCounts:
    def test_an_incident_is_counted_once_by_what_it_was_first_taken_for(self) -> None:
        counts = JobCounts()
        counts.note(finding(FindingKind.HANG), (IncidentOpened(incident(kind=FindingKind.HANG)),))
        counts.note(finding(FindingKind.XID), (IncidentUpdated(incident(kind=FindingKind.XID)),))
        told = lines(faults(state(), counts), "holdfast_job_incidents_total")
        assert [line for line in told if not line.endswith(" 0")] == ['{kind="Hang"} 1']

    def test_steps_that_several_incidents_cost_together_are_lost_once(self) -> None:
        counts = JobCounts()
        healed = [
            incident(number, state=IncidentState.RECOVERED, lost_steps=7, recovered_round=4) for number in (1, 2)
        ]
        counts.note(finding(FindingKind.XID), [IncidentClosed(each) for each in healed])
        paged = incident(3, state=IncidentState.PAGED, lost_steps=2)
        counts.note(finding(FindingKind.XID), (IncidentClosed(paged),))
        page = faults(state(), counts)
        assert lines(page, "holdfast_job_lost_steps_total") == ["{} 9"]
        assert lines(page, "holdfast_job_incidents_closed_total") == [
            '{outcome="Recovered"} 2',
            '{outcome="Paged"} 1',
            '{outcome="Observed"} 0',
        ]

    def test_a_restart_begins_with_what_the_state_knows(self) -> None:
        counts = JobCounts()
        counts.begin((incident(1), incident(2, state=IncidentState.RECOVERED, lost_steps=3, recovered_round=2)))
        assert counts.incidents == {FindingKind.XID: 2}
        assert counts.closed == {IncidentState.RECOVERED: 1}
        assert counts.lost_steps == 3

    def test_tests_and_comparisons_are_counted_by_what_came_of_them(self) -> None:
        counts = JobCounts()
        counts.note(MemberTested("m", 1, TestLevel.LIGHT, Verdict.FAILED), ())
        counts.note(ReplicasAgreed(1, 10), ())
        counts.note(ReplicasAgreed(1, 20, by=ProvedBy.DEVICES), ())
        counts.note(finding(FindingKind.CORRUPTION, "device vote"), ())
        counts.note(finding(FindingKind.CORRUPTION, "fingerprint vote"), ())
        page = Page(WATCHDOG_METRICS)
        write_proofs(page, JOB, counts)
        assert lines(page, "holdfast_job_fingerprint_comparisons_total") == ["{} 2"]
        assert lines(page, "holdfast_job_fingerprint_disagreements_total") == ["{} 1"]
        assert '{verdict="Failed"} 1' in lines(page, "holdfast_job_self_tests_total")
        assert '{verdict="Passed"} 0' in lines(page, "holdfast_job_self_tests_total")

    def test_a_step_done_again_on_which_all_agree_is_no_second_disagreement(self) -> None:
        counts = JobCounts()
        counts.note(finding(FindingKind.CORRUPTION, "fingerprint tie"), ())
        counts.note(ReplicasAgreed(2, 10), ())
        counts.note(finding(FindingKind.CORRUPTION, "fingerprint replay"), ())
        assert (counts.comparisons, counts.disagreements) == (2, 1)


def test_counters_say_so_in_their_names_and_nothing_else_does() -> None:
    totals = {row.name for row in WATCHDOG_METRICS if row.name.endswith("_total")}
    assert totals == {row.name for row in WATCHDOG_METRICS if row.kind is MetricKind.COUNTER}
    assert len({row.name for row in WATCHDOG_METRICS}) == len(WATCHDOG_METRICS)
    assert {row.labels[0] for row in WATCHDOG_METRICS if row.name.startswith("holdfast_job_")} == {"training_job"}
