"""XID errors out of what an exporter shows of them."""

from holdfast.agent.sensors.dcgm_text import TOLD_FOR_S, XidGauge, XidsShown


class Exporter:
    def __init__(self) -> None:
        self.gauge = XidGauge()
        self.now = 0.0

    def shows(self, last: int | None = None, after_s: float = 30.0, **totals: int) -> list[int]:
        self.now += after_s
        shown = XidsShown(last, "", {int(xid.removeprefix("xid_")): total for xid, total in totals.items()})
        return [event.xid for event in self.gauge.observe({"GPU-0": shown}, self.now)]


def test_what_is_shown_first_is_history() -> None:
    assert Exporter().shows(79, xid_31=4) == []


def test_the_gauge_tells_a_change_once_however_long_it_stays() -> None:
    exporter = Exporter()
    exporter.shows(0)
    assert exporter.shows(79) == [79]
    assert [exporter.shows(79) for _ in range(100)] == [[]] * 100
    assert exporter.shows(48) == [48]


def test_a_gauge_that_is_set_back_tells_nothing_and_the_same_error_after_it_is_not_new() -> None:
    exporter = Exporter()
    exporter.shows(31)
    assert exporter.shows(0) == []
    assert exporter.shows(31) == []


def test_a_gauge_that_begins_with_its_first_error_tells_it() -> None:
    exporter = Exporter()
    exporter.shows(None)
    assert exporter.shows(79) == [79]


def test_totals_tell_every_repetition() -> None:
    exporter = Exporter()
    exporter.shows()
    assert exporter.shows(xid_94=1) == [94]
    assert exporter.shows(xid_94=1) == []
    assert exporter.shows(xid_94=3) == [94]


def test_gauge_and_totals_together_tell_an_error_once() -> None:
    exporter = Exporter()
    exporter.shows(0)
    assert exporter.shows(79) == [79]
    assert exporter.shows(79, xid_79=1) == []
    assert exporter.shows(79, after_s=TOLD_FOR_S, xid_79=2) == [79]


def test_repetitions_are_told_as_soon_as_totals_grow_past_what_the_gauge_told() -> None:
    exporter = Exporter()
    exporter.shows(0, xid_94=0)
    assert exporter.shows(94, xid_94=0) == [94]
    assert [exporter.shows(94, after_s=10.0, xid_94=total) for total in (1, 2, 3)] == [[], [94], [94]]
    assert exporter.shows(31, after_s=10.0, xid_94=3, xid_31=1) == [31]
    assert exporter.shows(94, after_s=10.0, xid_94=4, xid_31=2) == [94, 31]


def test_what_begins_to_be_shown_after_a_restart_of_the_exporter_is_history() -> None:
    exporter = Exporter()
    exporter.shows(None, xid_31=5)
    exporter.gauge.gap()
    assert exporter.shows(79, xid_31=1, xid_48=1) == []
    assert exporter.shows(79, xid_31=2, xid_48=1) == [31]


def test_a_change_over_a_gap_is_told() -> None:
    exporter = Exporter()
    exporter.shows(31)
    exporter.gauge.gap()
    assert exporter.shows(79) == [79]
