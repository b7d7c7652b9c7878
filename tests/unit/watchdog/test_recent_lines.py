"""The newest lines of the journal, remembered by who wrote them."""

import math

import msgspec

from holdfast.api.event import ClockTicked, Event, Journaled, MemberDeparting, MemberLeft
from holdfast.watchdog.store.redis import RecentLines, unwritten


def test_lines_are_found_by_job_and_place() -> None:
    recent = RecentLines()
    recent.keep("a/one", 1, [b"1", b"2", b"3"])
    recent.keep("a/two", 1, [b"x"])
    recent.keep("a/one", 4, [b"4"])
    assert recent.between("a/one", 1, 4) == (b"2", b"3", b"4")
    assert recent.between("a/two", 0, 1) == (b"x",)


def test_what_is_not_known_from_end_to_end_is_not_given() -> None:
    recent = RecentLines(lines_max=2)
    recent.keep("a/one", 1, [b"1", b"2", b"3"])
    assert recent.between("a/one", 1, 3) == (b"2", b"3")
    assert recent.between("a/one", 0, 3) is None
    assert recent.between("a/one", 2, 4) is None


def test_a_forgotten_job_leaves_the_others() -> None:
    recent = RecentLines()
    recent.keep("a/one", 1, [b"1"])
    recent.keep("a/two", 1, [b"x"])
    recent.forget("a/one")
    assert recent.between("a/one", 0, 1) is None
    assert recent.between("a/two", 0, 1) == (b"x",)


class TestUnwritten:
    """What is still to be written when a lost answer may have been a yes."""

    a, b, c = (MemberLeft(name, "done") for name in "abc")

    def check(self, asked: list[Event], written: list[Event], rest: list[Event]) -> None:
        lines = [Journaled(place, 1.0, event) for place, event in enumerate(written, start=1)]
        assert list(unwritten(asked, lines)) == rest

    def test_nothing_written_leaves_everything(self) -> None:
        self.check([self.a, self.b], [], [self.a, self.b])

    def test_what_stands_at_the_head_is_done(self) -> None:
        self.check([self.a, self.b, self.c], [self.a, self.b], [self.c])

    def test_what_became_needless_is_passed_over(self) -> None:
        self.check([self.a, self.b, self.c], [self.a, ClockTicked(), self.b], [self.c])

    def test_what_was_given_up_takes_nothing_away(self) -> None:
        self.check([self.a, self.b], [self.c], [self.a, self.b])

    def test_order_counts(self) -> None:
        self.check([self.a, self.b], [self.b], [self.a, self.b])

    def test_a_figure_that_is_no_number_is_recognised(self) -> None:
        odd = MemberDeparting("a", "told to", math.nan)
        assert odd != msgspec.msgpack.decode(msgspec.msgpack.encode(odd), type=MemberDeparting)
        self.check([odd, self.a], [odd], [self.a])
