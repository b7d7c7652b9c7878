"""Where the time and the money of a job went: every GPU-second in one row."""

import random

import msgspec
import pytest

from holdfast.api.ledger import MONEY_UNITS, NOTHING, Row
from holdfast.api.policy import GpuHour
from holdfast.watchdog.brain.accounts import DAY_US, EARLIER, NOBODY, POSTINGS_MAX, Accounts, Charge, Stretch
from holdfast.watchdog.brain.ledger import MARKS_MAX, Holding, Lane, Ledger, Parts, Spent
from holdfast.watchdog.brain.ledgerofbefore import LedgerOfBefore, MarkOfBefore

CENT = 36 * MONEY_UNITS  # an hour, so that a second costs a cent
FAULT = Charge("inc-0001", "ProcessExit", "node-1")


def held(
    row: Row, gpus: int = 2, *, price: int = CENT, currency: str = "EUR", charge: Charge = NOBODY, **also: object
) -> Holding:
    return Holding(Lane(row, gpus, gpus * price, charge), currency=currency, **also)  # type: ignore[arg-type]


RUN = held(Row.UNJUDGED)
HEAL = held(Row.DECIDING)


def spent(ledger: Ledger, now: float) -> Spent:
    told = ledger.spent(now)
    assert told is not None
    return told


def gpu_s(ledger: Ledger, now: float) -> dict[Row, float]:
    return {row: amount.gpu_s for row, amount in ledger.at(now).rows.items() if amount.gpu_us}


def trained(steps: int = 10, *, since: float = 100.0) -> Ledger:
    """Two GPUs, joined at 100; shown at 110, entered at 120, and a step a second from 131 on."""
    ledger = Ledger().follow(held(Row.WAITING_FOR_NODES), since).follow(held(Row.FORMING), since + 10)
    ledger = ledger.follow(held(Row.LOADING), since + 20)
    for step in range(1, steps + 1):
        ledger = ledger.step(step, since + 30 + step)
    return ledger


def test_before_anybody_joined_nothing_is_spent() -> None:
    assert Ledger().follow(held(Row.WAITING_FOR_NODES, 0), 50.0).spent(60.0) is None
    assert Ledger().ettr(60.0) is None


def test_what_comes_before_the_first_step_has_rows_of_its_own_and_is_lost() -> None:
    ledger = trained(10)
    assert gpu_s(ledger, 140.0) == {
        Row.WAITING_FOR_NODES: 20.0,
        Row.FORMING: 20.0,
        Row.LOADING: 22.0,
        Row.PRODUCTIVE: 18.0,
    }
    told = spent(ledger, 140.0)
    assert (told.useful_s, told.lost_s) == (9.0, 31.0)
    assert (told.gpu_s, told.useful_gpu_s) == (80.0, 18.0)
    assert ledger.ettr(140.0) == pytest.approx(9 / 40)


def test_what_a_step_does_is_judged_by_the_next_one_or_by_a_fault() -> None:
    ledger = trained(10)
    assert spent(ledger, 145.0).lost_s == 31.0
    assert gpu_s(ledger, 145.0)[Row.UNJUDGED] == 10.0
    assert spent(ledger.follow(HEAL, 145.0), 145.0).lost_s == 36.0


def test_a_fault_is_detected_from_its_beginning_and_the_step_before_it_is_broken_off() -> None:
    ledger = trained(10).follow(held(Row.DECIDING, charge=FAULT, fault_at=140.5), 144.0)
    ledger = ledger.follow(held(Row.FORMING, charge=FAULT), 145.0)
    ledger = ledger.follow(held(Row.LOADING, charge=FAULT), 147.0).back_to(4).step(5, 150.0)
    rows = gpu_s(ledger, 150.0)
    assert rows[Row.DETECTING] == 7.0
    assert rows[Row.DECIDING] == 2.0
    assert rows[Row.FORMING] == 20.0 + 4.0
    assert rows[Row.LOADING] == 22.0 + 6.0
    assert rows[Row.COMPUTED_AGAIN] == 1.0 + 12.0, "half a second of step 11, and steps 5 to 10"
    assert rows[Row.PRODUCTIVE] == 6.0
    blamed = {each.row: each.amount.gpu_s for each in ledger.accounts.postings if each.charge == FAULT}
    assert sum(blamed.values()) == 1.0 + 7.0 + 2.0 + 4.0 + 6.0 + 12.0


def test_a_fault_that_began_before_the_newest_step_was_detected_from_that_step_on() -> None:
    ledger = trained(10).follow(held(Row.DECIDING, charge=FAULT, fault_at=100.0), 141.0)
    assert gpu_s(ledger, 141.0)[Row.DETECTING] == 2.0


def test_steps_that_are_discarded_are_no_longer_useful() -> None:
    ledger = trained(10).follow(HEAL, 141.0).back_to(4).follow(held(Row.LOADING), 145.0)
    assert spent(ledger, 150.0).useful_s == 3.0
    ledger = ledger.step(5, 150.0).step(6, 153.0)
    assert spent(ledger, 153.0).useful_s == 6.0, "made again, they count once"
    assert ledger.back_to(4).useful_s == 3.0, "and may be lost again"


def test_a_round_that_goes_further_back_than_anybody_told_discards_as_much() -> None:
    ledger = trained(10).follow(HEAL, 141.0).follow(held(Row.LOADING), 145.0).step(5, 150.0)
    assert ledger.useful_s == 3.0
    assert Ledger().back_to(5) == Ledger()


def test_what_ranks_waited_for_data_and_saves_is_taken_out_of_the_steps() -> None:
    ledger = trained(1).step(2, 134.0, Parts(2_000_000, 500_000)).step(3, 137.0, Parts(3_000_000, 500_000))
    rows = gpu_s(ledger, 137.0)
    assert (rows[Row.DATA_WAIT], rows[Row.CHECKPOINT_STALL]) == (3.0, 0.5)
    assert rows[Row.PRODUCTIVE] == 12.0 - 3.5
    assert ledger.useful_s == 6.0, "ETTR counts whole steps"
    anew = ledger.step(4, 139.0, Parts(1_000_000, 0))
    assert gpu_s(anew, 139.0)[Row.DATA_WAIT] == 4.0, "whoever counts has begun anew"
    more = ledger.step(4, 138.0, Parts(99_000_000, 9_000_000))
    assert gpu_s(more, 138.0)[Row.DATA_WAIT] == 5.0, "never more than the step took"


def test_slow_ranks_cost_what_is_found_and_no_more_than_there_was() -> None:
    slow = Charge("inc-0002", "Straggler", "node-3")
    ledger = trained(10).slowed(4.0, slow)
    assert gpu_s(ledger, 140.0)[Row.SLOW] == 4.0
    assert gpu_s(ledger, 140.0)[Row.PRODUCTIVE] == 14.0
    assert gpu_s(ledger.slowed(400.0, slow), 140.0)[Row.SLOW] == 18.0
    assert ledger.useful_s == 9.0


def test_members_without_ranks_are_in_rows_of_their_own() -> None:
    spare, away = Lane(Row.IDLE_SPARE, 8, 8 * CENT), Charge("inc-0001", node="node-4")
    ledger = trained(10).follow(held(Row.UNJUDGED, sides=(spare,)), 140.0)
    evicted = Lane(Row.IDLE_SPARE, 4, 4 * CENT, away)
    ledger = ledger.follow(held(Row.UNJUDGED, sides=(spare, evicted)), 150.0)
    assert gpu_s(ledger, 160.0)[Row.IDLE_SPARE] == 8 * 20 + 4 * 10
    innocent = ledger.exonerated(away, 160.0).follow(held(Row.UNJUDGED, sides=(spare,)), 160.0)
    rows = gpu_s(innocent, 170.0)
    assert (rows[Row.IDLE_SPARE], rows[Row.EVICTED_HEALTHY]) == (8 * 30, 4 * 10)
    assert innocent.useful_s == 9.0
    assert spent(innocent, 170.0).lost_s == 31.0, "those with ranks lost nothing by it"


def test_between_two_steps_that_are_known_time_is_shared_out() -> None:
    ledger = trained(1).step(11, 151.0)
    assert ledger.back_to(6).useful_s == 10.0


def test_of_a_long_run_the_checkpoints_stay_known_exactly() -> None:
    ledger, at, randomly = trained(1), 131.0, random.Random(7)
    useful = {1: 0.0}
    saved, all_marks = [], 0
    for step in range(2, 5000):
        at += randomly.choice((0.5, 1.0, 4.0))
        ledger = ledger.step(step, at)
        useful[step] = ledger.useful_s
        if step % 500 == 0:
            ledger = ledger.saved(step)
            saved.append(step)
        all_marks = max(all_marks, len(ledger.marks))
    assert all_marks <= MARKS_MAX
    for step in saved[-4:]:
        assert ledger.back_to(step).useful_s == pytest.approx(useful[step], abs=1e-6)
    assert ledger.back_to(1234).useful_s == pytest.approx(useful[1234], rel=0.05)
    assert ledger.saved(5000) == ledger


def test_a_commit_may_tell_of_a_step_before_anybody_reports_it() -> None:
    ledger = trained(10)
    assert ledger.reached_at(12, 141.0) == 141.0
    assert ledger.reached_at(12, 200.0) == pytest.approx(142.0)
    assert ledger.reached_at(3, 200.0) == pytest.approx(140.0)


def test_money_grows_by_the_price_and_the_gpus_of_its_time_and_is_kept_while_suspended() -> None:
    ledger = trained(10)
    costs = [spent(ledger, 140.0).cost]
    tenth = CENT // 10
    for holding, now in (
        (HEAL, 150.0),
        (held(Row.DECIDING, 1), 150.0),
        (held(Row.DECIDING, 1, price=tenth), 160.0),
        (held(Row.SUSPENDED, 0, price=tenth), 170.0),
        (held(Row.DECIDING, 1, price=tenth), 180.0),
    ):
        ledger = ledger.follow(holding, now)
        costs.append(spent(ledger, now).cost)
    assert costs == pytest.approx([0.8, 1.0, 1.0, 1.1, 1.11, 1.11])
    ledger = ledger.follow(Holding(), 190.0)
    assert spent(ledger, 500.0).cost == pytest.approx(1.12), "nothing is held any more"
    assert spent(ledger, 180.0).held_s == 10.0
    dollars = ledger.follow(held(Row.DECIDING, 1, price=3600 * MONEY_UNITS, currency="USD"), 190.0)
    assert spent(dollars, 191.0).cost == 1.0


def test_what_changes_nothing_is_the_same_ledger() -> None:
    ledger = trained(10)
    assert ledger.follow(RUN, 141.0) is ledger
    assert ledger.step(10, 160.0) is ledger, "told twice"
    suspended = ledger.follow(held(Row.SUSPENDED, 0), 150.0)
    assert suspended.follow(held(Row.SUSPENDED, 0), 160.0) is suspended
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(ledger), type=Ledger) == ledger
    assert msgspec.json.decode(msgspec.json.encode(ledger), type=Ledger) == ledger


def test_what_a_day_cost_is_of_that_day() -> None:
    night = DAY_US - 10_000_000
    books = Accounts().book(Row.LOADING, Stretch(night, DAY_US + 5_000_000, 4, 4 * CENT, wall=True))
    assert [(each.day, each.amount.gpu_s) for each in books.postings] == [(0, 40.0), (1, 20.0)]
    moved = books.move(Row.LOADING, Row.COMPUTED_AGAIN, 30_000_000, FAULT)
    found = {(each.row, each.day): each.amount.gpu_s for each in moved.postings}
    assert found[Row.COMPUTED_AGAIN, 1] == 20.0, "what was done last is discarded first"
    assert found[Row.COMPUTED_AGAIN, 0] == 10.0
    assert moved.total() == books.total()


def test_the_books_stay_small_and_their_sum_is_exact() -> None:
    books, randomly, at = Accounts(), random.Random(3), 0
    for number in range(4000):
        took = randomly.randrange(1, 20_000_000_000)
        charge = Charge(f"inc-{number // 4:04d}", "Hang", f"node-{number % 7}")
        books = books.book(randomly.choice(list(Row)), Stretch(at, at + took, 3, 7, wall=True), charge)
        books = books.move(Row.PRODUCTIVE, Row.COMPUTED_AGAIN, randomly.randrange(took), charge)
        at += took
        assert len(books.postings) <= POSTINGS_MAX
    assert books.total().gpu_us == 3 * at
    assert sum((each.amount for each in books.postings), NOTHING) == books.total()
    assert min(each.amount.gpu_us for each in books.postings) >= 0
    assert any(each.day == EARLIER for each in books.postings)


def test_sixteen_thousand_gpus_for_a_month_are_counted_to_the_microsecond() -> None:
    """16,384 GPUs at 4 $ an hour are 65,536 $ an hour; one per cent of a month of them is some 470,000 $."""
    price, month = 4 * MONEY_UNITS, 30 * DAY_US
    hour = Accounts().book(Row.PRODUCTIVE, Stretch(0, 3_600_000_000, 16_384, 16_384 * price, wall=True))
    assert hour.total().price == 65_536.0
    whole = Accounts()
    for second in range(0, month, 100_000_000_000):
        until = min(month, second + 100_000_000_000)
        whole = whole.book(Row.PRODUCTIVE, Stretch(second, until, 16_384, 16_384 * price, wall=True))
    assert whole.total().gpu_hours == 16_384 * 720
    assert whole.total().price == pytest.approx(47_185_920.0, abs=1e-6)
    slow = whole.move(Row.PRODUCTIVE, Row.SLOW, whole.total().gpu_us // 100, FAULT)
    assert slow.of(Row.SLOW).price == pytest.approx(471_859.2, abs=0.01)
    assert slow.total() == whole.total()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(slow), type=Accounts) == slow, "64 bits hold it"


def test_what_an_earlier_version_counted_goes_on() -> None:
    before = LedgerOfBefore(
        began_at=100.0,
        first_round_at=120.0,
        useful_s=30.0,
        useful_gpu_s=60.0,
        stepped_at=150.0,
        marks=(MarkOfBefore(1, 0.0, 0.0), MarkOfBefore(31, 30.0, 60.0, saved=True)),
        held_s=5.0,
        gpus=2,
        since=140.0,
        gpu_s=70.0,
        price=GpuHour(36.0, "EUR"),
        cost=0.7,
    )
    ledger = before.carried()
    told = spent(ledger, 160.0)
    assert (told.useful_s, told.lost_s, told.held_s) == (30.0, 15.0, 5.0)
    assert (told.gpu_s, told.useful_gpu_s) == (110.0, 60.0)
    assert told.cost == pytest.approx(1.1)
    assert ledger.step(41, 160.0).useful_s == 40.0
    assert ledger.back_to(16).useful_s == 15.0
    assert LedgerOfBefore(first_round_at=3.0).carried() == Ledger(first_round_at=3.0)


def test_what_an_earlier_version_counted_as_held_before_anybody_joined_is_not_lost_time_below_nothing() -> None:
    before = LedgerOfBefore(began_at=3000.0, held_s=2900.0, gpus=2, since=3000.0, stepped_at=3010.0)
    told = spent(before.carried().step(11, 3020.0), 3020.0)
    assert (told.useful_s, told.lost_s) == (10.0, 0.0), "nobody can say any more what was which"


def test_a_move_over_more_lines_than_the_books_hold_leaves_nothing_below_nothing() -> None:
    away, books = Charge("inc-0001", node="node-4"), Accounts()
    for day in range(POSTINGS_MAX - 2):
        books = books.book(Row.IDLE_SPARE, Stretch(day * DAY_US, day * DAY_US + 10, 1, 0, wall=False), away)
    idle_us = books.of(Row.IDLE_SPARE).gpu_us
    moved = books.move(Row.IDLE_SPARE, Row.EVICTED_HEALTHY, idle_us, away, only=away)
    assert min(each.amount.gpu_us for each in moved.postings) >= 0
    assert moved.of(Row.EVICTED_HEALTHY).gpu_us == idle_us
    assert sum((each.amount for each in moved.postings), NOTHING) == moved.total() == books.total()
