"""Stories whose ledger was computed by hand: every second of every GPU, and whom it is charged to."""

import msgspec
import pytest
from story import Story

from holdfast.api.event import MemberEntered, NodeChanged, RestoreReported, RoundProgressed
from holdfast.api.finding import FindingKind
from holdfast.api.intervention import InterventionAction
from holdfast.api.ledger import LedgerReport, Row
from holdfast.api.plan import NodeState
from holdfast.api.policy import Budget, Capacity, EvictionBudget, GpuHour, Offer, Price
from holdfast.watchdog.brain.costs import day_of, report_of
from holdfast.watchdog.brain.state import JobState
from holdfast.watchdog.brain.status import bill_of

PRICE = GpuHour(36.0, "EUR")  # a cent a second


def entered(story: Story) -> Story:
    for share in story.round.ranks:
        story.tell(MemberEntered(share.member, story.round.number, reentrant=True))
    return story


def stepped(story: Story, step: int, data_us: int = 0, checkpoint_us: int = 0) -> Story:
    event = RoundProgressed(story.round.number, step, data_us=data_us, checkpoint_us=checkpoint_us)
    story.tell(event)
    return story


def started(nodes: int = 2, *, joined: int | None = None, **fields: object) -> Story:
    """Members join at 1000, are shown their round at once and enter it at 1002; step 1 is complete at 1005."""
    story = Story(nodes_max=nodes, nodes_min=nodes, gpu_hour=PRICE, processes_per_node=8, **fields)
    story.join(*range(1, (joined or nodes) + 1))
    story.now += 2.0
    entered(story)
    story.now += 3.0
    story.tell(RestoreReported(story.round.number, None))
    return stepped(story, 1)


def rows(story: Story) -> dict[str, float]:
    """GPU-seconds by row; they sum to what was held."""
    found = story.state.ledger.at(story.now)
    return {row.value: amount.gpu_s for row, amount in found.rows.items() if amount.gpu_us}


def charged(story: Story, incident: str) -> dict[str, float]:
    sums: dict[str, float] = {}
    for each in report_of(story.state, story.now).entries:
        if each.incident == incident:
            sums[each.row.value] = sums.get(each.row.value, 0.0) + each.gpu_us / 1e6
    return sums


def test_a_killed_worker_costs_what_the_clock_says() -> None:
    story = started()
    story.now += 20.0  # step 21 at 1025
    stepped(story, 21, data_us=32_000_000, checkpoint_us=8_000_000)
    story.commit(11)
    story.now += 4.0  # the worker dies at 1029, after four seconds of step 22
    died = story.now
    story.now += 1.5
    story.die(1, began_at=died)
    assert story.state.desired == story.round, "the next round is shown in the same turn"
    story.now += 2.0
    entered(story)
    story.now += 6.0
    story.tell(RestoreReported(story.round.number, 11))
    stepped(story, 12)
    story.now += 10.0
    stepped(story, 22)
    seconds = {
        "Forming": 2.0 + 2.0,
        "Loading": 3.0 + 6.0,
        "Detecting": 1.5,
        # Ten seconds of the steps that were kept, one to each, and what steps 13 to 22 took.
        "Productive": 10.0 + 10.0 - (32.0 + 8.0) / 16,
        "DataWait": 2.0,
        "CheckpointStall": 0.5,
        "ComputedAgain": 10.0 + 4.0,
    }
    assert rows(story) == pytest.approx({row: 16 * each for row, each in seconds.items()})
    assert sum(rows(story).values()) == 16 * (story.now - 1000.0)
    blamed = {"Forming": 2.0, "Loading": 6.0, "Detecting": 1.5, "ComputedAgain": 14.0}
    assert charged(story, "inc-0001") == pytest.approx({row: 16 * each for row, each in blamed.items()})
    told = [each for each in report_of(story.state, story.now).entries if each.incident]
    assert {(each.cause, each.node) for each in told} == {("ProcessExit", "node-1")}
    assert story.state.ledger.spent(story.now).cost == pytest.approx(0.16 * (story.now - 1000.0))  # type: ignore[union-attr]


def test_a_hang_is_detected_for_as_long_as_it_went_on() -> None:
    story = started()
    story.now += 10.0
    stepped(story, 11)
    story.now += 1.0
    stopped = story.now
    story.now += 60.0
    story.find(FindingKind.HANG, 2, cause="in a collective", began_at=stopped)
    assert charged(story, "inc-0001") == {"ComputedAgain": 16.0, "Detecting": 16 * 60.0}


def test_the_time_of_a_suspended_job_is_its_own_while_its_members_are_there() -> None:
    story = started()
    story.now += 10.0
    stepped(story, 11)
    story.ask(InterventionAction.PAUSE)
    story.save(11)
    story.now += 30.0
    for number in (1, 2):
        story.leave(number)
    story.now += 3600.0
    assert rows(story)["Suspended"] == 16 * 30.0, "nobody holds anything in the hour after"
    assert sum(rows(story).values()) == 16 * (5.0 + 10.0 + 30.0)
    assert story.state.ledger.ettr(story.now) == pytest.approx(10.0 / 15.0)
    story.ask(InterventionAction.RESUME, "i2")
    story.now += 60.0
    story.join(1, boot="b")
    story.now += 5.0
    story.join(2, boot="b")
    story.now += 1.0
    assert rows(story)["WaitingForNodes"] == 8 * 5.0


def test_a_spare_waits_and_then_works() -> None:
    story = started(joined=3, spares=1)
    story.now += 10.0
    stepped(story, 11)
    assert rows(story)["IdleSpare"] == 8 * 15.0
    story.commit(11)
    story.lose(1)
    story.now += 2.0
    assert [each for each in story.members if each == "node-3"], "the spare has ranks now"
    assert rows(story)["IdleSpare"] == 8 * 15.0
    assert sum(rows(story).values()) == 24 * 15.0 + 16 * 2.0, "who was lost holds nothing"


def test_who_came_in_place_of_those_that_were_lost_waits_for_the_rest() -> None:
    story = started()
    story.now += 10.0
    stepped(story, 11)
    story.commit(11)
    story.lose(1)
    story.lose(2)
    story.join(3)
    story.now += 20.0
    assert rows(story)["WaitingForNodes"] == 8 * 20.0
    assert "IdleSpare" not in rows(story)
    story.join(4).join(5)
    story.now += 2.0
    assert rows(story)["IdleSpare"] == 8 * 2.0, "one is too many"
    assert sum(rows(story).values()) == 16 * 15.0 + 8 * 20.0 + 24 * 2.0


def test_an_innocent_node_was_evicted_while_it_was_healthy() -> None:
    story = started(joined=4, spares=2, evictions=EvictionBudget(fraction=1.0))
    story.now += 10.0
    stepped(story, 11)
    story.commit(11)
    story.xid(1, 31)
    assert [each.node for each in story.state.avoided] == ["node-1"]
    evicted_at = story.now
    story.now += 20.0
    entered(story)
    story.tell(RestoreReported(story.round.number, 11))
    stepped(story, 12)
    # Nobody has said yet that it was innocent: it has no ranks, and that is all that is known.
    assert rows(story).get("EvictedHealthy") is None
    idle_s = rows(story)["IdleSpare"]
    assert idle_s == 16 * 15.0 + 16 * 20.0, "two spares, then one and the node that was left"
    story.now += 10.0
    story.xid(2, 31)
    assert story.state.avoided == (), "the fault follows the job: the software is suspect"
    assert rows(story)["EvictedHealthy"] == 8 * (story.now - evicted_at)
    assert rows(story)["IdleSpare"] == idle_s + 16 * 10.0 - 8 * 30.0
    nodes = {each.node for each in report_of(story.state, story.now).entries if each.row is Row.EVICTED_HEALTHY}
    assert nodes == {"node-1"}


def test_what_a_node_is_sets_its_price() -> None:
    prices = (
        Price(72.0, "H100"),
        Price(10.0, capacity=Capacity.SPOT),
        Price(7.2, "H100", Capacity.SPOT),
    )
    story = started(prices=prices, budget=Budget(20.0, 0.5), joined=3, spares=1)
    assert story.state.ledger.spent(story.now).cost == pytest.approx(24 * 0.01 * 5)  # type: ignore[union-attr]
    story.tell(_seen(1, Offer("H100", Capacity.SPOT)))
    story.tell(_seen(2, Offer("H100", Capacity.ON_DEMAND)))
    story.tell(_seen(3, Offer("L4", Capacity.SPOT)))
    stepped(story, 2)  # from here on the new prices count: what a step began with stays
    before = story.state.ledger.at(story.now).total().price
    story.now += 36.0
    stepped(story, 3)
    spent = story.state.ledger.at(story.now).total().price - before
    assert spent == pytest.approx(8 * (0.072 + 0.72 + 0.1))
    bill = bill_of(story.state, story.now)
    assert bill is not None
    assert (bill.currency, bill.budget, bill.alert_ratio) == ("EUR", 20.0, 0.5)
    assert bill.amount == pytest.approx(before + spent)


def test_spares_cost_what_they_are_and_not_what_is_kept_away_from() -> None:
    prices = (Price(72.0, "A"), Price(7.2, "B"))
    story = started(joined=4, spares=2, prices=prices, evictions=EvictionBudget(fraction=1.0))
    for number, product in enumerate("AABB", start=1):
        story.tell(_seen(number, Offer(product)))
    stepped(story, 2)
    story.xid(1, 31)
    assert [each.node for each in story.state.avoided] == ["node-1"]
    before = story.state.ledger.at(story.now).total().price
    story.now += 10.0
    assert story.state.ledger.at(story.now).total().price - before == pytest.approx(8 * 10 * 2 * (0.02 + 0.002))


def test_members_of_a_suspended_job_cost_what_those_do_that_are_there() -> None:
    story = started(prices=(Price(72.0, "A"), Price(7.2, "B")))
    story.tell(_seen(1, Offer("A")))
    story.tell(_seen(2, Offer("B")))
    stepped(story, 2)
    story.ask(InterventionAction.PAUSE)
    story.save(2)
    story.leave(1)
    before = story.state.ledger.at(story.now).total().price
    story.now += 10.0
    assert story.state.ledger.at(story.now).total().price - before == pytest.approx(8 * 10 * 0.002)


def _seen(number: int, offer: Offer) -> NodeChanged:
    return NodeChanged(f"node-{number}", NodeState.READY, offer=offer)


def test_a_restart_at_any_time_changes_no_figure() -> None:
    story = started()
    for step in range(2, 12):
        story.now += 1.0
        stepped(story, step)
        story.state = msgspec.msgpack.decode(msgspec.msgpack.encode(story.state), type=JobState)
    story.die(1).restart_watchdog()
    story.state = msgspec.msgpack.decode(msgspec.msgpack.encode(story.state), type=JobState)
    story.now += 2.0
    assert sum(rows(story).values()) == 16 * (story.now - 1000.0)


def test_the_report_sums_to_what_was_held_and_survives_as_a_file() -> None:
    story = started(team="vision", budget=Budget(1e6))
    story.now += 86_400.0
    stepped(story, 2)
    report = report_of(story.state, story.now)
    assert sum(each.gpu_us for each in report.entries) == report.gpu_us
    assert sum(each.money for each in report.entries) == report.money
    assert (report.team, report.currency, report.budget) == ("vision", "EUR", 1e6)
    assert {each.day for each in report.entries} == {"earlier", "1970-01-02"}, "the clock begins in 1970"
    assert msgspec.json.decode(msgspec.json.encode(report), type=LedgerReport) == report
    assert day_of(20_000) == "2024-10-04"


def test_an_hour_costs_what_is_held_spares_and_recoveries_included() -> None:
    story = started(joined=3)
    assert story.state.ledger.price_of_all == 3 * 8 * PRICE.amount
    story.now += 10.0
    stepped(story, 11)
    story.die(1, began_at=story.now)
    assert story.state.ledger.price_of_all >= 2 * 8 * PRICE.amount, "nobody trains, and it is paid for"
    unpriced = Story(nodes_max=1).join(1)
    assert unpriced.state.ledger.price_of_all is None
    ended = started()
    stepped(ended, 2).finish()
    assert ended.state.ledger.price_of_all is None


def test_a_job_that_has_ended_holds_nothing() -> None:
    story = started()
    story.now += 10.0
    stepped(story, 11)
    story.finish()
    held = rows(story)
    story.now += 1000.0
    assert rows(story) == held
    assert sum(held.values()) == 16 * 15.0


def test_a_script_that_tells_of_steps_later_was_loading_until_then() -> None:
    story = Story(nodes_max=1, gpu_hour=PRICE).join(1)
    story.now += 1.0
    story.tell(MemberEntered("node-1", story.round.number, reentrant=False))
    story.now += 2.0
    assert rows(story)["Unjudged"] == 2.0, "nothing is known of its steps"
    story.tell(MemberEntered("node-1", story.round.number, reentrant=True))
    story.now += 3.0
    stepped(story, 1)
    assert rows(story) == {"Forming": 1.0, "Loading": 5.0}


def test_what_a_script_does_that_tells_no_steps_stays_unjudged() -> None:
    story = Story(nodes_max=1, gpu_hour=PRICE).join(1)
    story.tell(MemberEntered("node-1", story.round.number, reentrant=False))
    story.now += 60.0
    story.die(1, began_at=story.now - 2.0)
    assert rows(story) == {"Unjudged": 58.0, "Detecting": 2.0}
