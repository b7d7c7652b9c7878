"""What the agent sends and when, in virtual time."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.agent.jobstream import MANNER
from holdfast.agent.outbox import (
    ALL_CLEAR_EVERY_S,
    EVENTS_KEPT_MAX,
    EVENTS_PER_REPORT_MAX,
    RANKS_MAX,
    STATEMENTS_PER_RANK_MAX,
    Outbox,
    fitting_ranks,
)
from holdfast.agent.reading import Reading
from holdfast.api.condition import AllClear, Condition, ConditionKind, ConditionState
from holdfast.api.rankrecord import Phase
from holdfast.api.telemetry import (
    GpuHealth,
    GpuSample,
    NodeEvent,
    NodeReport,
    Pace,
    ParametersChanged,
    ParametersFingerprinted,
    ProcessState,
    RankSample,
    Unreadable,
    XidRaised,
)
from holdfast.watchdog.server.peers import REPORT_BYTES_MAX
from holdfast.wire.backoff import Backoff

RANK = RankSample(
    round=1,
    rank=0,
    process=ProcessState.RUNNING,
    phase=Phase.FORWARD,
    progress_age_s=0.05,
    phase_age_s=0.05,
    pulse_age_s=0.01,
    step=10,
)
GPU = GpuSample("GPU-a", 0, GpuHealth.HEALTHY)
XID = XidRaised("GPU-a", 79, age_s=0.0)
QUIET = Reading(ranks=(RANK,), gpus=(GPU,))


def outbox_at_work(reading: Reading = QUIET) -> Outbox:
    """Connected at second 100, first report sent, acknowledged."""
    outbox = Outbox(node="node-1", boot="b", interval_s=1.0)
    assert outbox.reconnected(100.0) == ()
    outbox.observe(reading, 100.0)
    first = taken(outbox, 100.0)
    outbox.taken(first.sequence)
    return outbox


def taken(outbox: Outbox, now: float) -> NodeReport:
    report = outbox.take(now)
    assert report is not None
    return report


def with_rank(**changed: object) -> Reading:
    return Reading(ranks=(replace(RANK, **changed),), gpus=(GPU,))


def test_the_first_report_of_a_connection_goes_out_at_once_and_holds_everything() -> None:
    outbox = Outbox(node="node-1", boot="b", interval_s=1.0)
    outbox.reconnected(100.0)
    problem = Unreadable("ranks", "gone")
    outbox.observe(Reading(ranks=(RANK,), gpus=(GPU,), unreadable=(problem,)), 100.0)
    assert taken(outbox, 100.0) == NodeReport("node-1", "b", 1, (RANK,), (GPU,), (), (problem,))


def test_a_quiet_node_reports_once_an_interval_on_a_steady_grid() -> None:
    outbox = outbox_at_work()
    sent_at = []
    for look in range(1, 101):
        now = 100.0 + 0.1037 * look
        outbox.observe(QUIET, now)
        if outbox.take(now):
            sent_at.append(now)
    assert len(sent_at) == 10


def test_each_report_has_the_next_number() -> None:
    outbox = outbox_at_work()
    assert [taken(outbox, now).sequence for now in (101.0, 102.0, 103.0)] == [2, 3, 4]


def test_an_event_goes_out_at_once_with_its_age() -> None:
    outbox = outbox_at_work()
    outbox.observe(Reading(events=(replace(XID, age_s=0.25),)), 100.5)
    report = taken(outbox, 100.75)
    assert report.events == (replace(XID, age_s=0.5),)
    assert outbox.take(101.0) is None


def test_a_stall_goes_out_once_and_again_only_after_progress() -> None:
    outbox = outbox_at_work()
    outbox.keep_pace(Pace(interval_s=10.0, stalled_after_s=0.8), 100.0)
    sent_at = []
    for tenths in range(1, 61):
        now = 100.0 + tenths / 10
        outbox.observe(with_rank(progress_age_s=(tenths % 30) / 10), now)
        if outbox.take(now):
            sent_at.append(round(now - 100.0, 1))
    assert sent_at == [0.9, 3.9]


def test_without_a_wish_for_it_a_stall_waits_for_the_interval() -> None:
    outbox = outbox_at_work()
    outbox.observe(with_rank(progress_age_s=100.0), 100.5)
    assert outbox.take(100.5) is None


def test_a_first_step_of_a_new_round_goes_out_at_once_and_later_steps_wait() -> None:
    outbox = outbox_at_work()
    outbox.observe(with_rank(round=2, step=None), 100.1)
    assert outbox.take(100.1) is None
    outbox.observe(with_rank(round=2, step=11), 100.2)
    assert taken(outbox, 100.2).ranks[0].step == 11
    outbox.observe(with_rank(round=2, step=12), 100.3)
    assert outbox.take(100.3) is None


def test_a_process_that_stops_or_goes_is_reported_at_once_and_one_that_continues_is_not() -> None:
    outbox = outbox_at_work()
    urgent = []
    states = (ProcessState.STOPPED, ProcessState.STOPPED, ProcessState.RUNNING, ProcessState.GONE)
    for tenths, state in enumerate(states, start=1):
        outbox.observe(with_rank(process=state), 100.0 + tenths / 10)
        urgent.append(outbox.take(100.0 + tenths / 10) is not None)
    assert urgent == [True, False, False, True]


def test_an_early_report_puts_the_next_one_off_by_a_whole_interval() -> None:
    outbox = outbox_at_work()
    outbox.observe(with_rank(process=ProcessState.STOPPED), 100.75)
    taken(outbox, 100.75)
    assert not outbox.is_due(101.7)
    assert outbox.is_due(101.75)


def test_the_watchdogs_pace_is_followed_within_what_makes_sense() -> None:
    outbox = outbox_at_work()
    for wish, interval_s in ((5.0, 5.0), (0.0, 0.1), (float("nan"), 0.1), (1e9, 60.0)):
        outbox.reconnected(200.0)
        outbox.keep_pace(Pace(interval_s=wish), 200.0)
        taken(outbox, 200.0)
        assert not outbox.is_due(200.0 + interval_s * 0.99)
        assert outbox.is_due(200.0 + interval_s * 1.01)


def test_an_unacknowledged_event_goes_out_again_under_its_number_with_its_true_age() -> None:
    outbox = outbox_at_work()
    outbox.observe(Reading(ranks=(RANK,), events=(XID,)), 101.0)
    carried = taken(outbox, 101.0)
    (again,) = outbox.reconnected(109.0)
    assert again.sequence == carried.sequence
    assert again.events == (replace(XID, age_s=8.0),)


def test_what_goes_out_again_holds_no_old_telemetry() -> None:
    outbox = outbox_at_work()
    outbox.observe(Reading(ranks=(RANK,), gpus=(GPU,), events=(XID,)), 101.0)
    taken(outbox, 101.0)
    (again,) = outbox.reconnected(109.0)
    assert (again.ranks, again.gpus, again.unreadable) == ((), (), ())


def test_an_acknowledged_event_does_not_go_out_again() -> None:
    outbox = outbox_at_work()
    outbox.observe(Reading(events=(XID,)), 101.0)
    outbox.taken(taken(outbox, 101.0).sequence)
    assert outbox.reconnected(109.0) == ()


def test_an_event_raised_while_the_watchdog_is_away_goes_out_with_the_next_report() -> None:
    outbox = outbox_at_work()
    outbox.observe(Reading(events=(XID,)), 101.0)
    outbox.observe(QUIET, 105.0)
    assert outbox.reconnected(106.0) == ()
    assert taken(outbox, 106.0).events == (replace(XID, age_s=5.0),)


def test_a_report_taken_late_has_its_ages_corrected() -> None:
    outbox = outbox_at_work()
    outbox.observe(Reading(ranks=(RANK, replace(RANK, rank=1, pulse_age_s=None))), 101.0)
    first, second = taken(outbox, 101.5).ranks
    assert (first.progress_age_s, first.phase_age_s, first.pulse_age_s) == (0.55, 0.55, 0.51)
    assert second.pulse_age_s is None


def test_a_storm_of_events_goes_out_in_several_reports_in_its_order() -> None:
    outbox = outbox_at_work()
    storm = tuple(replace(XID, text=str(number)) for number in range(EVENTS_PER_REPORT_MAX + 5))
    outbox.observe(Reading(events=storm), 101.0)
    reports = [taken(outbox, 101.0), taken(outbox, 101.0)]
    assert [len(report.events) for report in reports] == [EVENTS_PER_REPORT_MAX, 5]
    assert tuple(event for report in reports for event in report.events) == storm
    assert outbox.take(101.0) is None
    assert [again.sequence for again in outbox.reconnected(102.0)] == [report.sequence for report in reports]


def test_events_past_the_bound_are_dropped_and_the_loss_is_said_until_it_is_known() -> None:
    outbox = outbox_at_work()
    outbox.observe(Reading(events=(XID,) * (EVENTS_KEPT_MAX + 3)), 101.0)
    report = taken(outbox, 101.0)
    assert report.unreadable == (Unreadable("events", "3 events were dropped while the watchdog was away"),)
    assert (outbox.dropped_ever, outbox.reports) == (3, report.sequence)
    while (more := outbox.take(101.0)) is not None:
        report = more
    outbox.taken(report.sequence)
    assert taken(outbox, 102.0).unreadable == ()


@given(st.lists(st.sampled_from(["event", "take", "ack", "lost"]), max_size=60))
def test_no_event_is_lost_and_none_is_new_twice_whatever_the_connection_does(happenings: list[str]) -> None:
    """A receiver that drops repeated numbers, as the watchdog does, ends up with every event exactly once."""
    outbox = Outbox(node="node-1", boot="b", interval_s=1.0)
    now, raised = 0.0, 0
    received: list[str] = []
    newest = acknowledged = 0
    on_the_wire: list[NodeReport] = []

    def arrive() -> None:
        nonlocal newest
        for report in on_the_wire:
            if report.sequence > newest:
                newest = report.sequence
                received.extend(event.text for event in report.events)
        on_the_wire.clear()

    for happening in [*happenings, "lost", "take", "ack"]:
        now += 1.0
        if happening == "event":
            outbox.observe(Reading(events=(replace(XID, text=str(raised)),)), now)
            raised += 1
        elif happening == "take":
            on_the_wire.append(taken(outbox, now))
        elif happening == "ack":
            arrive()
            acknowledged = newest
            outbox.taken(acknowledged)
        else:  # what is on the wire never arrives; a new connection stands
            on_the_wire[:] = outbox.reconnected(now)
    assert received == [str(number) for number in range(raised)]


def test_reconnecting_slows_down_to_a_bound_that_lets_decisions_resume_in_time() -> None:
    backoff = Backoff(MANNER.retry_first_s, MANNER.retry_most_s)
    waits = [backoff.next_s() for _ in range(50)]
    assert waits[0] <= 0.1
    assert waits[-1] >= 0.75
    assert max(waits) <= 1.5


def condition(state: ConditionState, age_s: float, kind: ConditionKind = ConditionKind.PCIE_DEGRADED) -> Condition:
    return Condition(kind, state, age_s, "8 of 16 lanes", gpu="GPU-a")


def test_a_condition_that_holds_is_in_every_report_with_its_age() -> None:
    outbox = outbox_at_work(Reading(conditions=(condition(ConditionState.RAISED, 500.0),)))
    assert taken(outbox, 101.0).conditions == (condition(ConditionState.RAISED, 501.0),)


def test_a_cleared_condition_is_reported_for_a_minute_and_then_no_more() -> None:
    outbox = outbox_at_work(Reading(conditions=(condition(ConditionState.CLEARED, 58.5),)))
    assert taken(outbox, 101.0).conditions == (condition(ConditionState.CLEARED, 59.5),)
    assert taken(outbox, 102.0).conditions == ()


def test_a_new_condition_does_not_wait_for_the_interval_but_one_that_goes_on_does() -> None:
    outbox = outbox_at_work()
    outbox.observe(Reading(conditions=(condition(ConditionState.RAISED, 0.0),)), 100.1)
    assert outbox.is_due(100.1)
    taken(outbox, 100.1)
    outbox.observe(Reading(conditions=(condition(ConditionState.RAISED, 0.1),)), 100.2)
    assert not outbox.is_due(100.2)


def fingerprinted(step: int, rank: int = 0) -> ParametersFingerprinted:
    return ParametersFingerprinted(round=1, rank=rank, group=0, step=step, value=7, age_s=0.0)


def with_events(*events: NodeEvent) -> Reading:
    return Reading(ranks=(RANK,), gpus=(GPU,), events=events)


def test_a_fingerprint_waits_for_the_next_report_and_is_then_kept_until_taken() -> None:
    outbox = outbox_at_work()
    outbox.observe(with_events(fingerprinted(10)), 100.2)
    assert outbox.take(100.2) is None
    report = taken(outbox, 101.0)
    assert [event.age_s for event in report.events] == [pytest.approx(0.8)]
    assert [again.events[0].age_s for again in outbox.reconnected(102.0)] == [pytest.approx(1.8)]
    outbox.taken(report.sequence)
    assert outbox.reconnected(103.0) == ()


def test_while_the_watchdog_is_away_the_newest_fingerprints_of_each_rank_are_kept() -> None:
    outbox = outbox_at_work()
    for step in range(100):
        outbox.observe(with_events(fingerprinted(step, rank=0), fingerprinted(step, rank=1)), 100.0 + step)
    outbox.reconnected(300.0)
    reports = [taken(outbox, 300.0)]
    told = [(event.rank, event.step) for event in reports[0].events if isinstance(event, ParametersFingerprinted)]
    newest = range(100 - STATEMENTS_PER_RANK_MAX, 100)
    assert sorted(told) == [(rank, step) for rank in (0, 1) for step in newest]
    assert reports[0].unreadable == ()


def test_any_number_of_ranks_neither_fills_the_outbox_nor_keeps_a_fault_out() -> None:
    outbox = outbox_at_work()
    for rank in range(EVENTS_KEPT_MAX + 50):
        outbox.observe(with_events(fingerprinted(1, rank)), 100.0)
    outbox.observe(with_events(XID), 100.0)
    carried = []
    while outbox.is_due(100.0):
        carried += taken(outbox, 100.0).events
    assert carried[-1] == XID
    assert [event.rank for event in carried[:-1]] == list(range(50, EVENTS_KEPT_MAX + 50))


def test_what_is_clear_is_said_now_and_then_and_at_once_on_a_new_connection() -> None:
    clear = (AllClear(ConditionKind.PCIE_DEGRADED),)
    outbox = outbox_at_work()
    outbox.observe(Reading(all_clear=clear), 101.0)
    seconds = range(101, 101 + 2 * int(ALL_CLEAR_EVERY_S))
    told = [second for second in seconds if taken(outbox, float(second)).all_clear == clear]
    assert told == [101, 101 + int(ALL_CLEAR_EVERY_S)]
    outbox.reconnected(161.5)
    assert taken(outbox, 161.5).all_clear == clear


def test_what_one_pod_says_pushes_out_nothing_that_another_pod_or_the_node_says() -> None:
    outbox = outbox_at_work()
    honest = ParametersFingerprinted(1, 0, 0, 10, 99, 0.0, "gpt-0")
    noise: list[NodeEvent] = []
    for number in range(4 * EVENTS_KEPT_MAX):
        noise.append(ParametersFingerprinted(1, number % 64, 0, number, 1, 0.0, "bystander"))
        noise.append(ParametersChanged(1, number % 64, number, 0.0, member="bystander"))
    outbox.observe(Reading(events=(honest, *noise, XID)), 101.0)
    told: list[NodeEvent] = []
    while (report := outbox.take(101.0)) is not None:
        told += report.events
    assert honest in told
    assert XID in told
    assert len(told) <= 2 * EVENTS_KEPT_MAX


def test_many_pods_that_say_much_leave_a_member_its_word_and_the_report_short() -> None:
    loud = tuple(
        replace(RANK, rank=rank, member=f"bystander-{pod}-{'x' * 200}") for pod in range(40) for rank in range(256)
    )
    problems = tuple(
        Unreadable(f"bystander-{pod}/rank-{one}", "y" * 200) for pod in range(40) for one in range(256)
    )
    own = tuple(replace(RANK, rank=rank, member="gpt-0") for rank in range(8))
    said = (*problems, Unreadable("gpt-0/rank-9", "torn"), Unreadable("nvml", "no driver"))
    outbox = outbox_at_work()
    outbox.observe(Reading(ranks=(*loud, *own), gpus=(GPU,), unreadable=said), 101.0)
    report = taken(outbox, 101.0)
    assert [each.rank for each in report.ranks if each.member == "gpt-0"] == list(range(8))
    assert len(report.ranks) <= RANKS_MAX
    assert {"gpt-0/rank-9", "nvml"} <= {each.source for each in report.unreadable}
    left_out = len(loud) + len(own) - len(report.ranks)
    says = f"{left_out} of 10248 records do not fit a report: of each pod the first are told"
    assert Unreadable("ranks", says) in report.unreadable
    assert any(each.source == "sources" and "more cannot be read" in each.reason for each in report.unreadable)
    encoded = msgspec.msgpack.encode(report)
    assert len(encoded) < REPORT_BYTES_MAX / 2
    assert msgspec.msgpack.decode(encoded, type=NodeReport) == report


@given(st.lists(st.integers(1, 300), min_size=1, max_size=60))
def test_who_says_no_more_than_a_fair_share_is_heard_whole(counts: list[int]) -> None:
    ranks = tuple(
        replace(RANK, rank=rank, member=f"m{pod}") for pod, count in enumerate(counts) for rank in range(count)
    )
    kept, left_out = fitting_ranks(ranks)
    assert len(kept) == min(len(ranks), RANKS_MAX)
    assert bool(left_out) == (len(kept) < len(ranks))
    for pod, count in enumerate(counts):
        heard = [each.rank for each in kept if each.member == f"m{pod}"]
        assert heard == list(range(len(heard)))
        assert len(heard) >= min(count, RANKS_MAX // len(counts))
