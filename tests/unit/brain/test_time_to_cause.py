"""From which moment on the cause of an incident is known: kind and culprit as they stand in the end."""

from story import Story

from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.incident import CAUSE_WITHIN_S, IncidentState
from holdfast.watchdog.brain.incidents import close, join_finding, open_incident
from holdfast.watchdog.brain.state import JobState
from holdfast.watchdog.brain.status import causes_of
from holdfast.watchdog.brain.step import IncidentClosed
from holdfast.watchdog.metrics.counts import JobCounts

JOB = "team/run"


def a_finding(kind: FindingKind, confidence: Confidence, cause: str = "it") -> Finding:
    return Finding(kind, Subject(JOB, node="node-1"), cause, (Evidence("a", "b", 1.0),), confidence, 1.0)


def opened(kind: FindingKind, confidence: Confidence) -> tuple[JobState, str]:
    state, incident, _ = open_incident(Story().state, a_finding(kind, confidence), 10.0)
    return state, incident.id


def test_who_is_named_at_least_probably_is_known_at_once() -> None:
    for confidence in (Confidence.CERTAIN, Confidence.PROBABLE):
        state, _ = opened(FindingKind.XID, confidence)
        assert state.incidents[-1].time_to_cause_s == 0.0


def test_what_nobody_is_named_for_is_not_known_and_a_symptom_never_is() -> None:
    for kind, confidence in (
        (FindingKind.HANG, Confidence.UNKNOWN),
        (FindingKind.COLLECTIVE_FAILED, Confidence.CERTAIN),
    ):
        state, _ = opened(kind, confidence)
        assert (state.incidents[-1].known_at, state.incidents[-1].has_known_cause) == (None, False)


def test_what_explains_more_begins_the_time_anew() -> None:
    state, _ = opened(FindingKind.HANG, Confidence.PROBABLE)
    hang = state.incidents[-1]
    assert join_finding(hang, a_finding(FindingKind.XID, Confidence.CERTAIN), 70.0).time_to_cause_s == 60.0
    assert join_finding(hang, a_finding(FindingKind.XID, Confidence.UNKNOWN), 70.0).known_at is None
    less = join_finding(hang, a_finding(FindingKind.COLLECTIVE_FAILED, Confidence.CERTAIN), 70.0)
    assert less.time_to_cause_s == 0.0, "it changes nothing about the judgement"


def test_a_death_that_is_understood_later_is_known_then() -> None:
    state, _ = opened(FindingKind.PROCESS_EXIT, Confidence.CERTAIN)
    death = state.incidents[-1]
    later = a_finding(FindingKind.PROCESS_EXIT, Confidence.CERTAIN, "out of memory")
    again = join_finding(
        death,
        Finding(
            *[getattr(later, name) for name in ("kind", "subject", "cause", "evidence")],
            later.confidence,
            1.0,
            round=death.round,
        ),
        40.0,
    )
    assert (again.cause, again.time_to_cause_s) == ("out of memory", 30.0)


def test_a_job_tells_how_soon_its_causes_were_known() -> None:
    assert causes_of(Story().state) is None
    state, _ = opened(FindingKind.XID, Confidence.CERTAIN)
    state, hang, _ = open_incident(state, a_finding(FindingKind.HANG, Confidence.UNKNOWN), 10.0)
    late = join_finding(hang, a_finding(FindingKind.GPU_LOST, Confidence.CERTAIN), 10.0 + CAUSE_WITHIN_S + 1)
    state = type(state)(
        **{name: getattr(state, name) for name in state.__struct_fields__}
        | {"incidents": (*state.incidents, late)}
    )
    told = causes_of(state)
    assert told is not None
    assert (told.known, told.within, told.unknown, told.median_s) == (2, 1, 1, (CAUSE_WITHIN_S + 1) / 2)


def test_what_is_over_is_counted_once_by_how_long_it_took() -> None:
    state, first = opened(FindingKind.XID, Confidence.CERTAIN)
    state, second, _ = open_incident(state, a_finding(FindingKind.HANG, Confidence.UNKNOWN), 10.0)
    state, effects = close(state, IncidentState.RECOVERED, 20.0, "over")
    assert {each.incident.id for each in effects if isinstance(each, IncidentClosed)} == {first, second.id}
    counts = JobCounts()
    counts.begin([each for each in state.incidents if each.id == first])
    for _ in range(2):
        counts.causes.add(state.incidents[0])
        counts.causes.add(state.incidents[1])
    assert (list(counts.causes.within.values()), counts.causes.unexplained) == ([1] * 7, 1)
