"""Which steps are published: none twice, and those of the history that counts, whatever is trained again."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.console.trackers.records import Ended, Mark, Note, Record, Row
from holdfast.console.trackers.settling import Back, Retold, Settling, Shown, Standing, Word


def row(step: int, *, round_: int = 1, since: int | None = 0, value: float | None = None) -> Row:
    return Row(step, float(step), {"loss": round_ + step / 1000 if value is None else value}, round_, since)


def words(records: Sequence[Record], *, forgets: bool = False, standing: Standing | None = None) -> list[Word]:
    settling = Settling(standing or Standing(), forgets=forgets)
    return [word for number, record in enumerate(records) for word in settling.take(number, record)]


def steps(told: Sequence[Word]) -> list[tuple[str, int]]:
    return [(word.series, word.step) for word in told if isinstance(word, Shown)]


def test_a_step_waits_until_it_is_final_and_all_that_was_said_of_it_is_shown_at_once() -> None:
    told = words([row(1), row(2), row(1, value=7.0), Row(1, 1.0, {"mine": 3.0}, 1, 0), Mark(heard=2, final=1)])
    assert told == [Shown(1, 1.0, {"loss": 7.0, "mine": 3.0})]


def test_one_that_forgets_takes_a_step_as_soon_as_all_of_it_was_heard() -> None:
    assert steps(words([row(1), row(2), row(3), Mark(heard=2, final=None)], forgets=True)) == [("", 1), ("", 2)]


def test_a_mark_that_knows_less_than_the_one_before_makes_steps_wait_again() -> None:
    records = [row(1), Mark(10**15, None), row(2), Mark(1, None), row(3), Mark(None, None)]
    assert steps(words(records, forgets=True)) == [("", 1)]


def test_steps_trained_again_before_they_were_final_are_shown_once_with_their_new_values() -> None:
    first = [row(step) for step in (1, 2, 3, 4)]
    again = [row(step, round_=2, since=2) for step in (3, 4, 5)]
    told = words([*first, Mark(4, 2), *again, Mark(5, 5)])
    assert steps(told) == [("", step) for step in (1, 2, 3, 4, 5)]
    assert [int(word.values["loss"]) for word in told if isinstance(word, Shown)] == [1, 1, 2, 2, 2]


def test_where_nobody_says_what_a_round_went_on_from_its_first_step_says_it() -> None:
    records = [row(1, since=None), row(2, since=None), row(9, since=None), row(3, round_=2, since=None)]
    assert steps(words([*records, Mark(9, 9)])) == [("", 1), ("", 2), ("", 3)]


def test_where_a_round_went_on_from_is_corrected_once_it_is_said() -> None:
    first = [row(step) for step in (1, 2, 3, 4)]
    late = [row(4, round_=2, since=None), row(3, round_=2, since=2), row(5, round_=2, since=2)]
    told = words([*first, *late, Mark(5, 5)])
    assert [(word.step, int(word.values["loss"])) for word in told if isinstance(word, Shown)] == [
        *((1, 1), (2, 1)),
        *((3, 2), (4, 2), (5, 2)),
    ]
    # What is lost of the newer round is missing then: no value of the older one stands for it.
    told = words([*first, row(5, round_=2, since=None), row(6, round_=2, since=2), Mark(6, 6)])
    assert steps(told) == [("", 1), ("", 2), ("", 5), ("", 6)]


def test_a_step_that_is_trained_again_keeps_no_value_of_before() -> None:
    mine = Row(3, 3.0, {"mine": 1.0}, 1, 0)
    told = words([row(1), row(2), mine, row(4, round_=2, since=None), row(3, round_=2, since=2), Mark(4, 4)])
    assert [word.values.keys() for word in told if isinstance(word, Shown) and word.step == 3] == [{"loss"}]


def test_what_arrives_late_of_a_history_that_was_given_up_is_left_out_and_the_rest_of_it_is_not() -> None:
    records = [row(1), row(2), row(5, round_=2, since=4), row(4), row(6), Mark(6, 6)]
    assert steps(words(records)) == [("", 1), ("", 2), ("", 4), ("", 5)]


def test_one_that_forgets_is_told_to_where_the_job_went_back_and_shown_the_steps_anew() -> None:
    told = words([row(1), row(2), row(3), Mark(3, None), row(2, round_=2, since=1), Mark(2, None)], forgets=True)
    assert told[3] == Back(1)
    assert steps(told) == [("", 1), ("", 2), ("", 3), ("", 2)]


def test_going_back_behind_what_is_published_shows_those_steps_in_a_series_of_their_own() -> None:
    before = [row(step) for step in range(1, 7)]
    again = [row(step, round_=2, since=3) for step in range(4, 9)]
    told = words([*before, Mark(6, 6), *again, Mark(8, 8)])
    assert [word for word in told if isinstance(word, Retold)] == [Retold(3, 6, "again-1/")]
    assert steps(told)[6:] == [("again-1/", 4), ("again-1/", 5), ("again-1/", 6), ("", 7), ("", 8)]


def test_a_second_time_back_within_what_is_told_again_is_a_third_series_only_where_steps_meet() -> None:
    start = [*(row(step) for step in range(1, 11)), Mark(10, 10)]
    first = [*(row(step, round_=2, since=3) for step in range(4, 7)), Mark(6, 6)]
    beyond = [row(9, round_=3, since=8), row(10, round_=3, since=8), Mark(10, 10)]
    assert steps(words([*start, *first, *beyond]))[13:] == [("again-1/", 9), ("again-1/", 10)]
    below = [row(5, round_=3, since=4), Mark(5, 5)]
    assert steps(words([*start, *first, *below]))[13:] == [("again-2/", 5)]


def test_the_end_of_the_job_shows_the_rest() -> None:
    end = Ended(9.0, succeeded=True, reason="every rank finished")
    assert words([row(1), row(2), end])[-1] == end
    assert steps(words([row(1), row(2), end])) == [("", 1), ("", 2)]


def test_too_many_steps_that_wait_are_shown_before_they_are_final() -> None:
    settling = Settling(Standing(), forgets=False, pending_max=3)
    told = [word for step in range(1, 6) for word in settling.take(step, row(step))]
    assert steps(told) == [("", 1), ("", 2)]


def test_a_note_is_passed_on_once_also_to_who_begins_anew() -> None:
    note = Note("inc-0001", "opened", 1.0, 2, "a title", "a text")
    settling = Settling(Standing(), forgets=False)
    told = [settling.take(number, each) for number, each in enumerate([row(1), note, row(2)])]
    assert told == [[], [note], []]
    assert settling.safe == 0
    anew = Settling(msgspec.convert(msgspec.to_builtins(settling.standing), Standing), forgets=False)
    assert [anew.take(number, each) for number, each in enumerate([row(1), note, row(2)])] == [[], [], []]


@dataclass
class Published:
    """What a tracker shows in the end."""

    series: dict[str, dict[int, int]] = field(default_factory=dict)
    retold: list[Retold] = field(default_factory=list)

    def take(self, told: Sequence[Word]) -> None:
        for word in told:
            if isinstance(word, Shown):
                known = self.series.setdefault(word.series, {})
                assert word.step not in known, f"step {word.step} is there twice"
                assert word.step > max(known, default=-1), "steps only grow"
                known[word.step] = int(word.values["loss"])
            elif isinstance(word, Back):
                known = self.series.get("", {})
                self.series[""] = {step: of for step, of in known.items() if step <= word.step}
            elif isinstance(word, Retold):
                self.retold.append(word)

    def counting(self) -> dict[int, int]:
        """Of each step the round that counts, as somebody reads it who knows what was given up."""
        read = dict(self.series.get("", {}))
        for word in self.retold:
            read = {step: of for step, of in read.items() if not word.after < step <= word.until}
            read |= self.series.get(word.series, {})
        return read


@st.composite
def lives(draw: st.DrawFn) -> tuple[list[Record], dict[int, int]]:
    """A job's records, and of each step the round that counts in the end."""
    records: list[Record] = []
    counts: dict[int, int] = {}
    step, saved = 0, 0
    for round_ in range(1, draw(st.integers(1, 6)) + 1):
        if round_ > 1:
            # As a rule back to what was saved; a human may ask for any step.
            step = draw(st.sampled_from([saved, saved, saved, draw(st.integers(0, max(saved, 1)))]))
            saved = min(saved, step)
            counts = {each: of for each, of in counts.items() if each <= step}
        since = step
        for _ in range(draw(st.integers(1, 12))):
            step += 1
            counts[step] = round_
            records.append(row(step, round_=round_, since=since))
            if draw(st.integers(0, 4)) == 0:
                saved = step
            if draw(st.booleans()):
                records.append(Mark(step, saved or None))
    return [*records, Ended(1.0, succeeded=True, reason="")], counts


@settings(deadline=None, max_examples=150)
@given(life=lives(), dies_after=st.sets(st.integers(0, 60), max_size=5), forgets=st.booleans())
def test_whatever_happens_each_step_is_there_once_with_the_value_that_counts(
    life: tuple[list[Record], dict[int, int]], dies_after: set[int], forgets: bool
) -> None:
    records, counts = life
    published, settling = Published(), Settling(Standing(), forgets=forgets)
    number = turns = 0
    while number < len(records):
        published.take(settling.take(number, records[number]))
        number, turns = number + 1, turns + 1
        if turns in dies_after:  # the process ends and goes on from what it wrote down
            number = settling.safe
            known = msgspec.json.decode(msgspec.json.encode(settling.standing), type=Standing)
            settling = Settling(known, forgets=forgets)
    assert published.counting() == counts
    if forgets:
        assert published.retold == []
