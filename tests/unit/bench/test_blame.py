"""What the soak calls a node that was blamed though nothing was done to it."""

import msgspec
from soak import BLAMED_WITHIN_S, Deed, Strike, blamed_without_cause

from holdfast.api.finding import Confidence, FindingKind, Subject
from holdfast.api.incident import Incident, IncidentState

STRUCK_AT = 1000.0
STRUCK = [Strike(STRUCK_AT, Deed.KILL_NODE, "node-2"), Strike(STRUCK_AT + 300.0, Deed.KILL_WATCHDOG, "")]


def incident(node: str, at: float) -> Incident:
    return Incident(
        id="inc-1",
        job="bench/soak",
        kind=FindingKind.HANG,
        culprit=Subject("bench/soak", node=node),
        confidence=Confidence.CERTAIN,
        cause="stands still",
        state=IncidentState.RECOVERED,
        began_at=at,
        detected_at=at,
        evidence=(),
    )


def test_a_node_is_blamed_rightly_shortly_after_it_was_struck() -> None:
    assert blamed_without_cause([incident("node-2", STRUCK_AT + 11.0)], STRUCK) == []


def test_what_was_done_to_a_node_excuses_no_blame_of_much_later_or_of_before() -> None:
    late, early = STRUCK_AT + BLAMED_WITHIN_S + 1.0, STRUCK_AT - 1.0
    for at in (late, early):
        assert blamed_without_cause([incident("node-2", at)], STRUCK) == ["inc-1 Hang of node-2: stands still"]


def test_a_node_that_was_never_struck_is_blamed_without_cause_and_nobody_is_not() -> None:
    assert len(blamed_without_cause([incident("node-1", STRUCK_AT + 1.0)], STRUCK)) == 1
    excused = msgspec.structs.replace(incident("node-1", STRUCK_AT + 1.0), innocent=True)
    assert blamed_without_cause([excused, incident("", STRUCK_AT + 1.0)], STRUCK) == []
