"""How ranks agree on the step of one more checkpoint, whatever the order they hear, step and ask in."""

import random

import pytest

from holdfast.trainer.stay import WantedSave
from holdfast.trainer.storetable import Add, CompareSet, StoreTable


class Notes:
    """The round's store, without the wire between."""

    def __init__(self) -> None:
        self._table = StoreTable("research/gpt", 0)
        self.asked = 0

    def add(self, key: str, value: int) -> int:
        self.asked += 1
        ((_, answer),) = self._table.ask(0, Add(key, value), 0.0)
        return answer.number

    def compare_set(self, key: str, expected: str | bytes, value: str | bytes) -> bytes:
        self.asked += 1
        given = [each.encode() if isinstance(each, str) else each for each in (expected, value)]
        ((_, answer),) = self._table.ask(0, CompareSet(key, *given), 0.0)
        return answer.value


class Rank:
    """Completes one step after the other and writes down which it saves, and for which request."""

    def __init__(self, notes: Notes, world_size: int, step_time_s: float | None = None) -> None:
        self._notes = notes
        self._step_time_s = step_time_s
        self.saves = WantedSave(world_size)
        self.step = 0
        self.saved: list[tuple[int, int]] = []

    def advance(self) -> None:
        self.step += 1
        if self.saves.newest == self.saves.answered:
            return
        number = self.saves.due(self.step, self._notes, self._step_time_s)
        if number is not None:
            self.saved.append((self.step, number))


def in_lockstep(ranks: list[Rank], steps: int) -> None:
    for _ in range(steps):
        for rank in ranks:
            rank.advance()


def test_a_single_rank_saves_at_its_next_step() -> None:
    alone = WantedSave(1)
    alone.want(4)
    assert alone.due(17, None, None) == 4
    assert alone.answered == alone.newest


def test_all_ranks_save_the_same_step_some_way_ahead() -> None:
    notes = Notes()
    ranks = [Rank(notes, 3) for _ in range(3)]
    in_lockstep(ranks, 5)
    for rank in ranks:
        rank.saves.want(1)
    in_lockstep(ranks, 20)
    assert [rank.saved for rank in ranks] == [[(8, 1)]] * 3


@pytest.mark.parametrize(("step_time_s", "lead"), [(0.1, 10), (0.3, 4), (40.0, 2), (None, 2)])
def test_it_looks_a_second_ahead_and_two_steps_at_least(step_time_s: float | None, lead: int) -> None:
    notes = Notes()
    ranks = [Rank(notes, 2, step_time_s) for _ in range(2)]
    for rank in ranks:
        rank.saves.want(1)
    in_lockstep(ranks, 20)
    assert ranks[0].saved == [(1 + lead, 1)]


def test_a_rank_that_hears_too_late_makes_all_save_a_later_step() -> None:
    notes = Notes()
    early, late = Rank(notes, 2), Rank(notes, 2)
    early.saves.want(1)
    in_lockstep([early, late], 10)
    assert early.saved == []
    late.saves.want(1)
    in_lockstep([early, late], 40)
    assert len(early.saved) == 1
    assert early.saved == late.saved


def test_a_rank_that_never_hears_keeps_all_from_saving_and_costs_ever_less() -> None:
    notes = Notes()
    early, deaf = Rank(notes, 2), Rank(notes, 2)
    early.saves.want(1)
    in_lockstep([early, deaf], 10_000)
    assert early.saved == deaf.saved == []
    assert notes.asked < 60


def test_a_request_shown_again_is_answered_once_and_a_newer_one_again() -> None:
    notes = Notes()
    ranks = [Rank(notes, 2) for _ in range(2)]
    for number in (1, 1, 2, 2):
        for rank in ranks:
            rank.saves.want(number)
        in_lockstep(ranks, 20)
    assert [number for _, number in ranks[0].saved] == [1, 2]
    assert ranks[0].saved == ranks[1].saved


def test_a_promise_is_kept_when_a_newer_request_comes_before_its_step() -> None:
    notes = Notes()
    ranks = [Rank(notes, 2, 0.1) for _ in range(2)]
    for rank in ranks:
        rank.saves.want(1)
    in_lockstep(ranks, 3)
    ranks[0].saves.want(2)
    in_lockstep(ranks, 20)
    ranks[1].saves.want(2)
    in_lockstep(ranks, 60)
    assert [number for _, number in ranks[0].saved] == [1, 2]
    assert ranks[0].saved == ranks[1].saved


def test_nothing_is_asked_of_the_store_while_nothing_is_wanted() -> None:
    notes = Notes()
    in_lockstep([Rank(notes, 2) for _ in range(2)], 100)
    assert notes.asked == 0


@pytest.mark.parametrize("seed", range(200))
def test_in_any_order_of_events_every_rank_saves_the_same_steps(seed: int) -> None:
    source = random.Random(seed)
    notes = Notes()
    ranks = [Rank(notes, 4, source.choice([None, 0.1, 2.0])) for _ in range(4)]
    last = 0
    for _ in range(source.randrange(1, 4)):
        last += 1
        waiting = list(ranks)
        source.shuffle(waiting)
        for _ in range(source.randrange(400)):
            if waiting and source.random() < 0.05:
                waiting.pop().saves.want(last)
            # Ranks without a collective in every step drift apart, yet not for ever.
            behind = min(rank.step for rank in ranks)
            source.choice([rank for rank in ranks if rank.step <= behind + 5]).advance()
        for rank in waiting:
            rank.saves.want(last)
    for rank in ranks:
        rank.saves.want(last)
    end = max(rank.step for rank in ranks) + 3000
    while min(rank.step for rank in ranks) < end:
        in_lockstep(ranks, 1)
    reached = [[save for save in rank.saved if save[0] <= end] for rank in ranks]
    assert reached[0][-1][1] == last
    assert all(saves == reached[0] for saves in reached)
