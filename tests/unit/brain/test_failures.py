"""What the fleet's record keeps of incidents and of GPU time."""

import pytest
from msgspec.structs import replace

from holdfast.api.finding import Confidence, FindingKind, Subject
from holdfast.api.incident import Action, Incident, IncidentState, Rung
from holdfast.api.place import FaultFamily, Place
from holdfast.watchdog.brain import failures
from holdfast.watchdog.brain.failures import (
    EPISODE_S,
    WEEK_S,
    WEEKS_JUDGED,
    WEEKS_KEPT,
    Failures,
    exposure,
    failed,
    located,
    trained,
    week_of,
)

NOW = 100 * WEEK_S + 10.0
LEAF = Place("switch", "l1")
PLACES = {"n1": (LEAF,), "n2": (Place("switch", "l2"),)}


def incident(number: int = 1, **fields: object) -> Incident:
    known: dict[str, object] = {
        "id": f"inc-{number}",
        "job": "team/a",
        "kind": FindingKind.HANG,
        "culprit": Subject("team/a", node="n1"),
        "confidence": Confidence.PROBABLE,
        "cause": "it waits",
        "state": IncidentState.OPEN,
        "began_at": NOW,
        "detected_at": NOW,
        "evidence": (),
    }
    return Incident(**{**known, **fields})  # type: ignore[arg-type]


def test_an_incident_told_again_is_one_failure_and_knows_more() -> None:
    known = failed(Failures(), incident(), PLACES)
    assert failed(known, incident(), PLACES) is known
    (failure,) = known.failures
    assert (failure.family, failure.interrupts, failure.where) == (FaultFamily.NETWORK, False, {"n1": (LEAF,)})
    healed = incident(actions=(Action(Rung.RESPAWN, NOW, "round 2", "it waits", round=2),))
    (failure,) = failed(known, healed, {}).failures  # its node may be gone by then
    assert (failure.interrupts, failure.where) == (True, {"n1": (LEAF,)})


def test_what_turns_out_to_be_nothing_of_the_fleets_is_taken_out_again() -> None:
    known = failed(Failures(), incident(), PLACES)
    assert failed(known, incident(kind=FindingKind.USER_CODE), PLACES).failures == ()
    for nothing in (
        incident(kind=FindingKind.STRAGGLER),
        incident(innocent=True),
        incident(own_rule=True),
        incident(kind=FindingKind.PROCESS_EXIT, cause="exit code 1"),
    ):
        assert failed(Failures(), nothing, PLACES) == Failures()
    assert failed(Failures(), incident(kind=FindingKind.PROCESS_EXIT, cause="signal 9"), PLACES).failures


def test_a_failure_that_comes_back_within_the_hour_was_not_mended_in_between() -> None:
    known = failed(Failures(), incident(), PLACES)
    again = incident(2, detected_at=NOW + EPISODE_S - 1)
    assert failed(known, again, PLACES) is known
    assert len(failed(known, replace(again, culprit=Subject("team/a", node="n2")), PLACES).failures) == 2
    assert len(failed(known, replace(again, detected_at=NOW + EPISODE_S), PLACES).failures) == 2


def test_a_link_is_behind_the_places_of_both_its_ends() -> None:
    link = incident(culprit=Subject("team/a", node="n1", peer="n2"))
    known = failed(Failures(), link, PLACES)
    (fault,) = located(known, NOW)
    assert fault.where == PLACES


def test_gpu_time_is_told_by_place_and_by_week() -> None:
    nodes = [(LEAF, Place("rack", "r1")), (LEAF, Place("rack", "r2")), ()]
    known = trained(Failures(), NOW - 100.0, NOW, 8, nodes)
    this, last = known.spent[week_of(NOW)], known.spent[week_of(NOW) - 1]
    assert (this.gpu_s, this.node_s, last.gpu_s) == (240.0, 30.0, 2160.0)
    assert this.behind == {"switch": {"l1": 160.0}, "rack": {"r1": 80.0, "r2": 80.0}}
    told = exposure(known, NOW)
    assert told.share(LEAF) == 1.0
    assert told.share(Place("rack", "r1")) == 0.5
    assert told.share(Place("rack", "r9")) == 0.0


def test_a_week_goes_with_its_failures_and_its_gpu_time() -> None:
    known = trained(failed(Failures(), incident(), PLACES), NOW - 10.0, NOW, 8, [(LEAF,)])
    later = NOW + WEEKS_JUDGED * WEEK_S
    assert (located(known, later), exposure(known, later).behind) == ([], {})
    kept = trained(known, later - 10.0, later, 8, [(LEAF,)])
    assert len(kept.failures) == 1
    end = NOW + WEEKS_KEPT * WEEK_S
    gone = trained(kept, end - 5.0, end, 8, [(LEAF,)])
    assert (gone.failures, week_of(NOW) in gone.spent) == ((), False)


def test_with_too_many_failures_the_oldest_week_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "FAILURES_KEPT", 8)
    known = trained(Failures(), NOW - 20.0, NOW, 8, [(LEAF,)])
    for number in range(9):
        at = NOW - 20.0 if number < 2 else NOW
        known = failed(known, incident(number, cause=f"it {number}", detected_at=at), PLACES)
    assert len(known.failures) == 7
    assert list(known.spent) == [week_of(NOW)]
