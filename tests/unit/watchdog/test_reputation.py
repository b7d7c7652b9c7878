"""What adds up against a node over all jobs, what fades, and what is forgiven."""

import pytest
from msgspec.structs import replace

from holdfast.api.finding import Confidence, FindingKind, Subject
from holdfast.api.incident import Action, Incident, IncidentState, Rung
from holdfast.api.selftest import LINKS_FAILED
from holdfast.watchdog.brain import reputation
from holdfast.watchdog.brain.reputation import (
    HALF_LIFE_S,
    MARKS_KEPT,
    Fleet,
    judged,
    marked,
    pardoned,
    repute_of,
    score,
    weight_of,
)

NOW = 1_000_000.0
DAY = 86400.0


def incident(
    kind: FindingKind,
    number: int = 1,
    *,
    job: str = "team/a",
    node: str = "n1",
    at: float = NOW,
    cause: str = "it",
) -> Incident:
    action = Action(Rung.SWAP, at, "evict", "because")
    return Incident(
        id=f"inc-{number}",
        job=job,
        kind=kind,
        culprit=Subject(job, node=node),
        confidence=Confidence.CERTAIN,
        cause=cause,
        state=IncidentState.OPEN,
        began_at=at,
        detected_at=at,
        evidence=(),
        actions=(action,),
    )


def learned(*incidents: Incident, now: float = NOW, nodes: int = 100) -> Fleet:
    fleet = Fleet()
    for each in incidents:
        fleet = marked(fleet, each)
    return judged(fleet, now, nodes=nodes)


@pytest.mark.parametrize("kind", [FindingKind.SELF_TEST, FindingKind.CORRUPTION, FindingKind.GPU_LOST])
def test_one_proof_is_enough(kind: FindingKind) -> None:
    assert learned(incident(kind)).quarantined == ("n1",)


def test_links_that_were_worse_than_others_twice_are_a_proof_and_once_are_none() -> None:
    worse = [incident(FindingKind.SELF_TEST, n, cause=LINKS_FAILED, at=NOW - n * DAY) for n in range(2)]
    assert learned(worse[0]).quarantined == ()
    assert learned(*worse).quarantined == ("n1",)


def test_an_xid_of_hardware_is_a_proof_and_one_of_either_is_not() -> None:
    assert learned(incident(FindingKind.XID, cause="xid 79")).quarantined == ("n1",)
    assert learned(incident(FindingKind.XID, cause="xid 13")).quarantined == ()


def test_what_happens_to_sound_nodes_has_to_add_up_over_days() -> None:
    losses = [incident(FindingKind.MEMBER_LOST, n, at=NOW - n * DAY) for n in range(5)]
    assert learned(*losses[:3]).quarantined == ()
    assert learned(*losses).quarantined == ("n1",)


def test_one_fault_told_by_several_jobs_is_one_fault() -> None:
    told = [incident(FindingKind.MEMBER_LOST, 1, job=f"team/{n}", at=NOW + n) for n in range(5)]
    fleet = learned(*told, now=NOW + 5)
    assert score(fleet.marks["n1"], NOW + 5) == pytest.approx(0.3, rel=1e-3)


def test_a_mark_loses_half_its_weight_in_two_weeks_and_a_quarantine_ends_below_half() -> None:
    fleet = learned(incident(FindingKind.GPU_LOST))
    assert repute_of(fleet, "n1", NOW + HALF_LIFE_S, "team/a").score == pytest.approx(1.0)
    assert judged(fleet, NOW + 1.99 * HALF_LIFE_S, nodes=100).quarantined == ("n1",)
    assert judged(fleet, NOW + 2.01 * HALF_LIFE_S, nodes=100).quarantined == ()


def test_a_pardon_forgives_all() -> None:
    fleet = judged(pardoned(learned(incident(FindingKind.GPU_LOST)), "n1", NOW), NOW, nodes=100)
    assert (fleet.marks, fleet.quarantined) == ({}, ())


def test_what_was_pardoned_is_not_held_against_the_node_when_its_incident_is_closed() -> None:
    fleet = pardoned(learned(incident(FindingKind.GPU_LOST)), "n1", NOW + 60)
    assert marked(fleet, incident(FindingKind.GPU_LOST)).marks == {}
    assert len(marked(fleet, incident(FindingKind.GPU_LOST, at=NOW + 61)).marks["n1"]) == 1


def test_incidents_of_jobs_of_one_name_are_not_one_although_their_numbers_are() -> None:
    losses = [incident(FindingKind.MEMBER_LOST, 1, at=NOW - n * DAY) for n in range(5)]
    assert learned(*losses).quarantined == ("n1",)


def test_nobody_is_trusted_again_because_a_job_ended() -> None:
    bad = [incident(FindingKind.GPU_LOST, 1, node=f"n{n}", job=f"team/{n}") for n in range(5)]
    fleet = learned(*bad, nodes=100)
    assert judged(fleet, NOW, nodes=0) is fleet


def test_an_incident_told_again_counts_once_and_a_better_judgement_replaces_the_first() -> None:
    first = incident(FindingKind.MEMBER_LOST)
    fleet = learned(first, first, incident(FindingKind.GPU_LOST))
    assert [mark.weight for mark in fleet.marks["n1"]] == [2.0]


def test_no_more_than_a_share_of_the_nodes_is_kept_away_from_and_those_that_are_stay_first() -> None:
    bad = [incident(FindingKind.GPU_LOST, 1, node=f"n{n}", job=f"team/{n}") for n in range(10)]
    assert len(learned(*bad, nodes=100).quarantined) == 5
    assert len(learned(*bad, nodes=10).quarantined) == 2
    fleet = learned(*bad[5:7], nodes=10)
    for each in bad:
        fleet = marked(fleet, each)
    assert judged(fleet, NOW, nodes=10).quarantined == ("n5", "n6")


def test_what_cannot_be_pinned_on_the_node_weighs_nothing() -> None:

    unsure = replace(incident(FindingKind.HANG), confidence=Confidence.UNKNOWN)
    exit_code = replace(incident(FindingKind.PROCESS_EXIT, cause="exit code 1"), actions=())
    nobody = replace(incident(FindingKind.GPU_LOST), culprit=Subject("team/a"))
    reported = replace(incident(FindingKind.THERMAL), actions=())
    assert [weight_of(each) for each in (unsure, exit_code)] == [0.0, 0.0]
    assert weight_of(reported) == 0.2
    assert learned(unsure, exit_code, nobody).marks == {}


def test_a_mark_is_taken_back_when_the_node_had_no_part_in_it() -> None:
    losses = [incident(FindingKind.MEMBER_LOST, n, at=NOW - n * DAY) for n in range(5)]
    assert learned(*losses).quarantined == ("n1",)
    assert learned(*losses, *(replace(each, innocent=True) for each in losses)).marks == {}


def test_memory_is_bounded() -> None:
    fleet = Fleet()
    for number in range(100):
        fleet = marked(fleet, incident(FindingKind.HANG, number))
    assert len(fleet.marks["n1"]) == MARKS_KEPT


def test_the_reason_names_what_weighs_most() -> None:
    fleet = learned(
        incident(FindingKind.HANG, 1, cause="hang"), incident(FindingKind.GPU_LOST, 2, cause="GPU lost")
    )
    assert repute_of(fleet, "n1", NOW, "team/a").reason == "GPU lost in team/a; hang in team/a"
    assert repute_of(fleet, "n2", NOW, "team/a").reason == "nothing is known against it"


def test_what_was_only_reported_is_no_proof() -> None:
    assert learned(replace(incident(FindingKind.CORRUPTION), actions=())).quarantined == ()


def told(*incidents: Incident, now: float = NOW) -> Fleet:
    """What jobs of several owners say."""
    fleet = Fleet()
    for each in incidents:
        fleet = marked(fleet, each, by_word=False)
    return judged(fleet, now, nodes=100)


def test_one_namespaces_word_takes_a_node_from_its_own_jobs_alone() -> None:
    fleet = told(*(incident(FindingKind.SELF_TEST, n, at=NOW - n * 100.0) for n in range(10)))
    assert fleet.quarantined == ()
    assert fleet.kept_from("team/b") == {"n1"}
    assert fleet.kept_from("other/a") == frozenset()
    assert repute_of(fleet, "n1", NOW, "other/a").score == 0.0


def test_two_namespaces_that_say_the_same_are_believed_by_all() -> None:
    second = (incident(FindingKind.HANG, n, job="other/b", at=NOW - n * 100.0) for n in (1, 2))
    fleet = told(incident(FindingKind.SELF_TEST), *second)
    assert fleet.quarantined == ("n1",)
    assert fleet.kept_from("third/c") == {"n1"}


def test_a_small_thing_that_another_namespace_says_lends_nobodys_proof_weight() -> None:
    slander = [incident(FindingKind.SELF_TEST, n, job="evil/a", at=NOW - n * 100.0) for n in range(10)]
    fleet = told(*slander, incident(FindingKind.PROCESS_EXIT, job="team/a", cause="signal 9", at=NOW - 50.0))
    assert fleet.quarantined == ()
    assert fleet.kept_from("team/a") == frozenset()
    assert fleet.kept_from("evil/a") == {"n1"}
    assert repute_of(fleet, "n1", NOW, "team/a").score == pytest.approx(0.1, rel=1e-2)


def test_what_sensors_read_is_believed_by_all() -> None:
    assert told(incident(FindingKind.GPU_LOST)).quarantined == ("n1",)


def test_a_namespace_pardons_what_its_own_jobs_found() -> None:
    fleet = told(incident(FindingKind.GPU_LOST), incident(FindingKind.SELF_TEST, job="other/b", at=NOW - 100.0))
    fleet = judged(pardoned(fleet, "n1", NOW, namespace="other"), NOW, nodes=100)
    assert fleet.quarantined == ("n1",), "what another namespace's sensors found stays"
    fleet = judged(pardoned(fleet, "n1", NOW, namespace="team"), NOW, nodes=100)
    assert fleet.kept_from("team/a") == frozenset()
    assert marked(fleet, incident(FindingKind.GPU_LOST), by_word=False) == fleet, "told again, it stays pardoned"


def test_jobs_of_other_namespaces_are_not_named() -> None:
    fleet = told(incident(FindingKind.GPU_LOST, cause="GPU lost"))
    assert repute_of(fleet, "n1", NOW, "team/b").reason == "GPU lost in team/a"
    assert repute_of(fleet, "n1", NOW, "other/b").reason == "GPU lost in a job of another namespace"


def test_what_a_job_can_bring_about_counts_as_its_word() -> None:
    xids = [incident(FindingKind.XID, n, job="evil/a", cause="xid 31", at=NOW - n * 100.0) for n in range(10)]
    full = [incident(FindingKind.CONDITION, n, job="evil/a", node="n2", cause="DiskFull") for n in range(2)]
    fleet = told(*xids, *(replace(each, detected_at=NOW - n * 100.0) for n, each in enumerate(full)))
    assert fleet.quarantined == ()
    assert fleet.kept_from("evil/a") == {"n1", "n2"}
    assert told(incident(FindingKind.XID, cause="xid 79")).quarantined == ("n1",)


def test_nobody_talks_away_what_others_know_of_a_node() -> None:
    noise = [incident(FindingKind.HANG, n, job="evil/a", at=NOW + n) for n in range(2 * MARKS_KEPT)]
    fleet = told(incident(FindingKind.GPU_LOST), *noise, now=NOW + 100.0)
    assert len(fleet.marks["n1"]) == MARKS_KEPT
    assert fleet.quarantined == ("n1",)


def test_invented_nodes_push_out_none_that_sensors_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reputation, "NODES_KEPT", 8)
    invented = [incident(FindingKind.HANG, n, job="evil/a", node=f"made-up-{n}") for n in range(20)]
    fleet = told(incident(FindingKind.GPU_LOST), *invented)
    assert len(fleet.marks) == 8
    assert fleet.quarantined == ("n1",)
