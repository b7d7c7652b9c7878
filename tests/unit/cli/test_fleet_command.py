"""`holdfast fleet` as people read it, and as planners do."""

import msgspec

from holdfast.api.fleet import FleetReport, Rate, SpareAdvice
from holdfast.api.place import FaultFamily, Gathering, Place
from holdfast.cli.commands.fleet import fleet_text, fleet_wide_text

RACKS = tuple(Rate(f"r{number}", 1, 100.0, 10.0, 0.253, 55.7) for number in range(12))
REPORT = FleetReport(
    at=1000.0,
    since=0.0,
    all=Rate("all", 3, 4000.0, 0.75, 0.155, 2.19),
    tables={"kind": (Rate("Hang", 3, 4000.0, 0.75, 0.155, 2.19),), "rack": RACKS},
    spares=(SpareAdvice("team/a", 64, 1, 2),),
    gatherings=(
        Gathering(
            Place("switch", "l2"), FaultFamily.NETWORK, 7, 13, 0.0625, 8e-5, ("n1", "n2"), (Place("rack", "r2"),)
        ),
    ),
)


def lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_rates_spares_and_places_are_told_the_worst_first_and_no_more_than_are_read() -> None:
    told = lines(fleet_text(REPORT))
    assert ["all", "3", "4,000.0", "0.75", "0.155", "2.19"] in told
    assert ["team/a", "64", "1", "2"] in told
    assert ["(2", "more:", "-o", "wide)"] in told
    assert sum(row[:1] == ["r11"] for row in told) == 0
    assert "switch l2 or rack r2" in fleet_text(REPORT)
    assert sum(row[:1] == ["r11"] for row in lines(fleet_wide_text(REPORT))) == 1


def test_a_fleet_of_which_nothing_is_known_says_so() -> None:
    empty = FleetReport(1.0, all=Rate("all", 0, 0.0))
    assert ["all", "0", "0.0", "?", "?", "?"] in lines(fleet_text(empty))
    assert fleet_text(empty).endswith("faults gather behind no place")


def test_what_a_planner_reads_is_what_was_told() -> None:
    assert msgspec.json.decode(msgspec.json.encode(REPORT), type=FleetReport) == REPORT
