"""A launcher is gone: its connection closed, or it fell silent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from signals import JOB, policy, started

from holdfast.api.finding import Confidence, Finding, FindingKind, Subject
from holdfast.watchdog.detectors.detector import Connected, Disconnected, Expected, Heard, Left, RoundStopped
from holdfast.watchdog.detectors.member_lost import GATHER_S, MemberLostDetector


def run_until(detector: MemberLostDetector, until: float) -> list[Finding]:
    """Wake the detector whenever it asks to be woken, exactly on time."""
    findings: list[Finding] = []
    while (wakeup := detector.next_wakeup()) is not None and wakeup <= until:
        findings.extend(detector.elapse(wakeup))
    return findings


def members_of(finding: Finding) -> list[str | None]:
    return [each.member for each in (finding.subject, *finding.also) if each.member is not None]


def connected(*members: str, at: float = 0.0) -> MemberLostDetector:
    detector = MemberLostDetector(policy(lost_after_s=3.0))
    for member in members:
        assert detector.observe(Connected(member, f"node-of-{member}"), at) == ()
    return detector


def test_a_closed_connection_is_found_at_once() -> None:
    detector = connected("a", at=1.0)
    (finding,) = detector.observe(Disconnected("a"), 1.5)
    assert finding.kind is FindingKind.MEMBER_LOST
    assert finding.subject == Subject(JOB, node="node-of-a", member="a")
    assert (finding.cause, finding.confidence) == ("connection closed", Confidence.CERTAIN)
    assert (finding.began_at, finding.round) == (1.5, None)


def test_silence_is_found_after_the_policys_time_and_began_when_last_heard() -> None:
    detector = connected("a")
    detector.observe(Heard("a"), 0.4)
    (finding,) = run_until(detector, 10.0)
    assert (finding.cause, finding.confidence) == ("silent for 3.0 s", Confidence.PROBABLE)
    assert finding.began_at == 0.4
    assert finding.evidence[0].at == pytest.approx(3.4)


def test_a_member_that_speaks_is_not_lost() -> None:
    detector = connected("a")
    for beat in range(1, 30):
        assert run_until(detector, float(beat)) == []
        detector.observe(Heard("a"), float(beat))


def test_a_member_is_lost_once() -> None:
    detector = connected("a")
    assert len(run_until(detector, 100.0)) == 1
    assert detector.observe(Disconnected("a"), 101.0) == ()
    assert detector.next_wakeup() is None


def test_a_lost_member_that_connects_again_is_watched_again() -> None:
    detector = connected("a")
    assert len(run_until(detector, 10.0)) == 1
    detector.observe(Heard("a"), 10.5)
    assert detector.next_wakeup() is None, "only a new connection makes it a member again"
    detector.observe(Connected("a", "n9"), 11.0)
    (finding,) = detector.observe(Disconnected("a"), 12.0)
    assert finding.subject.node == "n9"


def test_a_member_that_left_is_not_watched() -> None:
    detector = connected("a")
    detector.observe(Left("a"), 1.0)
    detector.observe(Left("never there"), 1.0)
    assert detector.next_wakeup() is None
    assert detector.elapse(100.0) == []
    assert detector.observe(Disconnected("a"), 101.0) == ()


def test_members_of_a_round_are_watched_from_its_start_even_when_they_never_connected() -> None:
    detector = MemberLostDetector(policy(lost_after_s=3.0))
    detector.observe(started(4), 100.0)
    findings = run_until(detector, 110.0)
    assert [(each.subject.member, each.subject.node, each.round) for each in findings] == [
        ("m0", "n0", 4),
        ("m1", "n1", 4),
    ]
    assert {each.began_at for each in findings} == {100.0}


def test_a_round_grants_no_new_time_to_a_member_that_is_already_watched() -> None:
    detector = MemberLostDetector(policy(lost_after_s=3.0))
    detector.observe(Connected("m0", "n0"), 0.0)
    detector.observe(Connected("m1", "n1"), 0.0)
    detector.observe(started(1), 0.4)
    assert all(each.began_at == 0.0 for each in run_until(detector, 10.0))


def test_a_spare_is_watched_and_its_loss_concerns_no_round() -> None:
    detector = connected("m0", "spare")
    detector.observe(started(1), 0.1)
    (finding,) = detector.observe(Disconnected("spare"), 0.2)
    assert finding.round is None
    detector.observe(RoundStopped(2), 0.3)
    (finding,) = detector.observe(Disconnected("m0"), 0.5)
    assert finding.round is None


@given(stall_s=st.floats(1.1, 1000.0), at=st.floats(0.0, 0.9))
def test_a_stall_of_the_watchdog_itself_kills_nobody(stall_s: float, at: float) -> None:
    detector = connected("a", "b", "c")
    run_until(detector, at)
    awake = at + stall_s
    assert detector.elapse(awake) == []
    for member in "abc":
        assert detector.observe(Heard(member), awake + 0.1) == ()
    assert run_until(detector, awake + 3.0) == []
    assert len(run_until(detector, awake + 4.0)) == 3


def test_after_a_stall_a_member_that_is_really_gone_is_still_found() -> None:
    detector = connected("a", "b")
    detector.elapse(60.0)
    detector.observe(Heard("a"), 60.1)
    (finding,) = run_until(detector, 63.05)
    assert finding.subject.member == "b"
    assert finding.began_at == 0.0


def test_messages_that_waited_in_the_queue_during_a_stall_are_taken_for_life() -> None:
    detector = connected("a", "b")
    assert detector.observe(Heard("a"), 50.0) == ()
    assert detector.observe(Heard("b"), 50.2) == ()
    assert run_until(detector, 52.9) == []


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.floats(0.01, 0.4)), max_size=60))
def test_every_member_is_lost_exactly_when_it_was_last_heard_of_long_enough_ago(
    beats: list[tuple[str, float]],
) -> None:
    detector = connected(*"abcd")
    heard = dict.fromkeys("abcd", 0.0)
    lost: dict[str | None, float] = {}
    now = 0.0
    for member, pause in beats:
        now += pause
        lost |= {name: each.evidence[0].at for each in run_until(detector, now) for name in members_of(each)}
        detector.observe(Heard(member), now)
        if member not in lost:
            heard[member] = now
    lost |= {name: each.evidence[0].at for each in run_until(detector, now + 10.0) for name in members_of(each)}
    assert lost == {member: pytest.approx(at + 3.0) for member, at in heard.items()}


def test_a_member_of_an_earlier_watchdog_has_time_to_connect_to_this_one() -> None:
    detector = MemberLostDetector(policy(lost_after_s=3.0))
    detector.observe(Expected("a", "n1", by=8.0), 0.0)
    assert run_until(detector, 7.9) == []
    (finding,) = run_until(detector, 8.1)
    assert finding.subject.member == "a"


def test_a_member_that_came_back_early_is_judged_by_its_beats_again() -> None:
    detector = MemberLostDetector(policy(lost_after_s=3.0))
    detector.observe(Expected("a", "n1", by=8.0), 0.0)
    detector.observe(Connected("a", "n1"), 1.0)
    (finding,) = run_until(detector, 5.0)
    assert finding.evidence[0].at == pytest.approx(4.0)


def of_a_round_and(*members: str) -> MemberLostDetector:
    """A detector with m0 and m1 in round 4 and others beside them, of which four were told to be gone at 0.1."""
    detector = connected(*"abcd", *members)
    detector.observe(started(4), 0.0)
    for member in "abcd":
        (finding,) = detector.observe(Disconnected(member), 0.1)
        assert (finding.subject.member, finding.also) == (member, ())
    return detector


def test_of_many_that_close_the_first_few_are_told_at_once_and_the_others_together() -> None:
    detector = of_a_round_and("e", "f")
    for member in ("m1", "e", "f"):
        assert detector.observe(Disconnected(member), 0.2) == ()
    assert detector.elapse(0.25) == []
    assert detector.next_wakeup() == pytest.approx(0.1 + GATHER_S)
    (rest,) = detector.elapse(0.1 + GATHER_S)
    assert members_of(rest) == ["m1", "e", "f"]
    assert (rest.subject, rest.cause) == (Subject(JOB), "many members lost at once")
    assert (rest.confidence, rest.began_at, rest.round) == (Confidence.UNKNOWN, 0.2, 4)
    assert rest.evidence[0].source == "connections of 3 members"
    assert rest.evidence[0].says == "nodes n1, node-of-e, node-of-f: connection closed"


def test_as_long_as_more_follow_they_are_gathered_anew() -> None:
    detector = of_a_round_and("e", "f", "g", "h")
    detector.observe(Disconnected("e"), 0.2)
    detector.observe(Disconnected("f"), 0.2)
    (first,) = detector.observe(Disconnected("g"), 0.1 + GATHER_S)
    assert members_of(first) == ["e", "f"]
    detector.observe(Disconnected("h"), 0.1 + GATHER_S)
    (second,) = detector.elapse(0.1 + 2 * GATHER_S)
    assert members_of(second) == ["g", "h"]


def test_one_that_follows_alone_is_told_of_by_name() -> None:
    detector = of_a_round_and()
    assert detector.observe(Disconnected("m1"), 0.2) == ()
    (finding,) = detector.elapse(0.1 + GATHER_S)
    assert (finding.subject, finding.also) == (Subject(JOB, node="n1", member="m1"), ())


def test_after_a_quiet_while_connections_are_told_of_at_once_again() -> None:
    detector = of_a_round_and("e", "f")
    assert len(detector.observe(Disconnected("e"), 0.1 + GATHER_S)) == 1
    assert len(detector.observe(Disconnected("f"), 0.1 + GATHER_S)) == 1


def test_many_that_fall_silent_within_moments_are_told_of_together() -> None:
    detector = connected(*(f"s{number}" for number in range(20)))
    for number in range(20):
        detector.observe(Heard(f"s{number}"), number * 0.01)
    found = run_until(detector, 10.0)
    assert [len(members_of(each)) for each in found] == [1, 1, 1, 1, 16]
    assert found[-1].began_at == pytest.approx(0.04)


def test_a_member_that_is_back_before_it_was_told_of_was_never_lost() -> None:
    detector = of_a_round_and("e")
    detector.observe(Disconnected("e"), 0.2)
    detector.observe(Connected("e", "node-of-e"), 0.25)
    detector.observe(Heard("e"), 0.3)
    assert "e" not in [each.subject.member for each in run_until(detector, 3.25)]
    assert [each.cause for each in run_until(detector, 4.0) if each.subject.member == "e"] == ["silent for 3.0 s"]


def test_a_round_does_not_wait_for_a_member_that_has_closed() -> None:
    detector = of_a_round_and()
    detector.observe(Disconnected("m0"), 0.2)
    detector.observe(started(5), 0.25)
    found = [each.subject.member for each in run_until(detector, 0.5)]
    assert found == ["m0"], "which is told of once its time has come, not after three more seconds"
