"""Replicas vote on what their parameters are."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from signals import JOB, a_round, policy, reported, started

from holdfast.api.event import ReplicasAgreed
from holdfast.api.finding import Confidence, Finding, FindingKind, Subject
from holdfast.api.policy import CorruptionPolicy, FaultAction, XidAction
from holdfast.api.round import MemberRanks, Round
from holdfast.api.telemetry import ParametersFingerprinted, XidRaised
from holdfast.watchdog.detectors.detector import Heard, RoundStarted, RoundStopped
from holdfast.watchdog.detectors.replica_vote import BALLOTS_MIN, FINDINGS_PER_ROUND, LATE_S, ReplicaVoteDetector

RIGHT, WRONG, OTHER = 0xA11CE, 0xBAD, 0xC0FFEE


class Replicas:
    """Ranks of a job on `nodes` nodes that say what their parameters are; collects what is proved."""

    def __init__(self, nodes: int = 4, local_size: int = 2, action: FaultAction = FaultAction.EVICT) -> None:
        self.nodes, self.local_size = nodes, local_size
        self.detector = ReplicaVoteDetector(policy(corruption=CorruptionPolicy(action=action)))
        self.proved: list[Finding | ReplicasAgreed] = []
        self.round = 0
        self.starts()

    @property
    def ranks(self) -> range:
        return range(self.nodes * self.local_size)

    def starts(self, nodes: int | None = None) -> None:
        self.round += 1
        self.nodes = nodes or self.nodes
        self.detector.observe(started(self.round, nodes=self.nodes, local_size=self.local_size), 0.0)

    def says(
        self, rank: int, step: int, value: int, *, group: int = 0, at: float = 0.0, round_number: int | None = None
    ) -> None:
        number = self.round if round_number is None else round_number
        event = ParametersFingerprinted(number, rank, group, step, value, 0.5)
        self.proved.extend(self.detector.observe(reported(f"n{rank // self.local_size}", events=(event,)), at))

    def all_say(self, step: int, *, but: dict[int, int] | None = None, at: float = 0.0) -> None:
        for rank in self.ranks:
            self.says(rank, step, (but or {}).get(rank, RIGHT), at=at)

    @property
    def found(self) -> list[Finding]:
        return [each for each in self.proved if isinstance(each, Finding)]

    @property
    def agreed(self) -> list[tuple[int, int]]:
        return [(each.round, each.step) for each in self.proved if isinstance(each, ReplicasAgreed)]


def test_replicas_that_all_say_the_same_agreed() -> None:
    replicas = Replicas()
    replicas.all_say(100)
    replicas.all_say(200)
    assert replicas.agreed == [(1, 100), (1, 200)]
    assert replicas.found == []


def test_nothing_is_proved_before_everybody_has_voted() -> None:
    replicas = Replicas()
    for rank in list(replicas.ranks)[:-1]:
        replicas.says(rank, 100, WRONG if rank == 2 else RIGHT)
    assert replicas.proved == []


def test_the_rank_in_the_minority_is_named_with_who_said_what() -> None:
    replicas = Replicas()
    replicas.all_say(100)
    replicas.all_say(200, but={5: WRONG}, at=9.0)
    (finding,) = replicas.found
    assert (finding.kind, finding.cause) == (FindingKind.CORRUPTION, "fingerprint vote")
    assert finding.subject == Subject(JOB, node="n2", member="m2", rank=5)
    assert (finding.confidence, finding.asks, finding.also) == (Confidence.CERTAIN, XidAction.EVICT, ())
    assert (finding.round, finding.step, finding.agreed_step, finding.began_at) == (1, 200, 100, 8.5)
    assert [each.says for each in finding.evidence] == [
        "ranks 0-4, 6-7 of group 0 say 0x00000000000a11ce after step 200",
        "rank 5 of group 0 say 0x0000000000000bad after step 200",
    ]


def test_several_ranks_of_one_node_are_that_node() -> None:
    replicas = Replicas()
    replicas.all_say(100, but={2: WRONG, 3: OTHER})
    (finding,) = replicas.found
    assert finding.subject == Subject(JOB, node="n1", member="m1")
    assert (finding.confidence, finding.agreed_step) == (Confidence.CERTAIN, None)


def test_ranks_of_two_members_on_one_node_are_the_node_alone() -> None:
    shares = tuple(MemberRanks(f"m{member}", f"n{member // 2}", member, 1) for member in range(8))
    template = a_round(1)
    two_a_node = Round(JOB, 1, shares, template.endpoint, template.restore, template.entry, "test")
    replicas = Replicas()
    replicas.detector = ReplicaVoteDetector(policy())
    replicas.detector.observe(RoundStarted(two_a_node), 0.0)
    replicas.all_say(100, but={2: WRONG, 3: WRONG})
    assert [finding.subject for finding in replicas.found] == [Subject(JOB, node="n1")]


def test_ranks_on_two_nodes_are_both_named() -> None:
    replicas = Replicas()
    replicas.all_say(100, but={0: WRONG, 7: OTHER})
    (finding,) = replicas.found
    assert [each.rank for each in (finding.subject, *finding.also)] == [0, 7]
    assert finding.confidence is Confidence.CERTAIN


def test_a_minority_on_many_nodes_looks_like_software_and_is_only_reported() -> None:
    replicas = Replicas(nodes=8)
    replicas.all_say(100, but={0: WRONG, 2: WRONG, 4: WRONG})
    (finding,) = replicas.found
    assert (finding.cause, finding.confidence) == ("fingerprint split", Confidence.UNKNOWN)
    assert finding.asks is XidAction.WATCH
    assert "software is suspect" in finding.error


@pytest.mark.parametrize(
    ("action", "asks"),
    [
        (FaultAction.EVICT, XidAction.EVICT),
        (FaultAction.RESTART, XidAction.RESTART),
        (FaultAction.REPORT, XidAction.WATCH),
    ],
)
def test_the_jobs_policy_says_what_is_asked_for(action: FaultAction, asks: XidAction) -> None:
    replicas = Replicas(action=action)
    replicas.all_say(100, but={5: WRONG})
    assert [finding.asks for finding in replicas.found] == [asks]


def test_groups_are_compared_within_themselves_only() -> None:
    replicas = Replicas()
    for rank in replicas.ranks:
        replicas.says(rank, 100, rank % 4, group=rank % 4)
    assert replicas.agreed == [(1, 100)]
    # Four groups of two: a difference in one of them is a tie there.
    for rank in replicas.ranks:
        replicas.says(rank, 200, WRONG if rank == 1 else rank % 4, group=rank % 4)
    (finding,) = replicas.found
    assert [each.rank for each in (finding.subject, *finding.also)] == [1, 5]


def test_where_nobody_has_a_replica_nothing_was_compared() -> None:
    replicas = Replicas()
    for rank in replicas.ranks:
        replicas.says(rank, 100, rank, group=rank)
    assert replicas.proved == []


def test_replicas_that_go_on_differing_are_one_finding_a_round() -> None:
    replicas = Replicas(action=FaultAction.REPORT)
    for step in range(100, 1000, 100):
        replicas.all_say(step, but={5: step})
    assert len(replicas.found) == 1
    replicas.starts()
    replicas.all_say(1000, but={5: WRONG})
    assert len(replicas.found) == 2
    for step in range(2000, 2000 + 100 * FINDINGS_PER_ROUND * 2, 100):
        replicas.all_say(step, but={step // 100 % 8: step, (step // 300 + 1) % 8: WRONG})
    assert len(replicas.found) == 1 + FINDINGS_PER_ROUND


def test_votes_of_other_rounds_other_nodes_and_unknown_ranks_do_not_count() -> None:
    replicas = Replicas()
    replicas.starts()
    for rank in replicas.ranks:
        replicas.says(rank, 100, WRONG, round_number=1)
    stranger = ParametersFingerprinted(2, 0, 0, 100, WRONG, 0.0)
    replicas.detector.observe(reported("n3", events=(stranger,)), 0.0)
    outside = ParametersFingerprinted(2, 99, 0, 100, WRONG, 0.0)
    replicas.detector.observe(reported("n0", events=(outside,)), 0.0)
    replicas.all_say(100)
    assert replicas.proved == [ReplicasAgreed(2, 100)]


def test_the_first_vote_of_a_rank_counts_and_late_ones_change_nothing() -> None:
    replicas = Replicas()
    replicas.says(0, 100, RIGHT)
    replicas.says(0, 100, WRONG)
    replicas.all_say(100)
    replicas.all_say(100, but={3: WRONG})
    replicas.all_say(50, but={3: WRONG})
    assert replicas.proved == [ReplicasAgreed(1, 100)]


def test_nothing_counts_while_no_round_runs() -> None:
    replicas = Replicas()
    replicas.detector.observe(RoundStopped(1), 0.0)
    replicas.all_say(100, but={3: WRONG})
    assert replicas.proved == []


def test_other_events_other_samples_and_silence_prove_nothing() -> None:
    replicas = Replicas()
    assert list(replicas.detector.observe(reported("n0", events=(XidRaised("GPU-0", 79, 0.0),)), 0.0)) == []
    assert replicas.detector.observe(reported("n0"), 0.0) == ()
    assert replicas.detector.observe(Heard("m0"), 0.0) == ()
    assert replicas.detector.elapse(1e9) == ()
    assert replicas.detector.next_wakeup() is None


def test_a_lost_vote_keeps_no_later_step_from_agreeing() -> None:
    replicas = Replicas()
    for rank in list(replicas.ranks)[1:]:
        replicas.says(rank, 100, RIGHT)
    replicas.all_say(200)
    assert replicas.proved == [ReplicasAgreed(1, 200)]


def test_a_lost_vote_does_not_hide_who_is_in_the_minority_whatever_the_missing_one_would_have_said() -> None:
    replicas = Replicas()
    for rank in list(replicas.ranks)[1:]:
        replicas.says(rank, 100, WRONG if rank == 5 else RIGHT)
    replicas.all_say(200, but={5: WRONG})
    assert [finding.step for finding in replicas.found] == [100]
    assert replicas.found[0].evidence[-1].says == "1 ranks say nothing"


def test_a_majority_that_the_missing_ones_could_overturn_convicts_nobody() -> None:
    replicas = Replicas(nodes=3, local_size=1)
    replicas.says(0, 100, RIGHT)
    replicas.says(1, 100, WRONG)
    for rank in replicas.ranks:
        replicas.says(rank, 200, RIGHT)
    assert replicas.proved == [ReplicasAgreed(1, 200)]


def test_a_rank_that_never_votes_is_waited_for_no_longer_than_needed() -> None:
    replicas = Replicas()
    for step in (100, 200, 300, 400):
        for rank in list(replicas.ranks)[1:]:
            replicas.says(rank, step, WRONG if rank == 5 else RIGHT, at=step / 5)
    assert [finding.step for finding in replicas.found] == [100]
    assert replicas.found[0].began_at <= 400 / 5 - LATE_S


def test_ballots_are_bounded_however_many_steps_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.watchdog.detectors.replica_vote.VOTES_KEPT", 8)
    replicas = Replicas()
    replicas.starts()
    for step in range(1000):
        replicas.says(0, step, RIGHT)
    assert len(replicas.detector._ballots) <= BALLOTS_MIN
    replicas.all_say(5000)
    assert replicas.proved == [ReplicasAgreed(2, 5000)]


def test_two_replicas_that_differ_are_a_tie_that_names_both_and_convicts_neither() -> None:
    replicas = Replicas(nodes=2, local_size=1)
    replicas.all_say(100)
    replicas.all_say(200, but={1: WRONG})
    (finding,) = replicas.found
    assert (finding.cause, finding.confidence) == ("fingerprint tie", Confidence.UNKNOWN)
    assert [each.node for each in (finding.subject, *finding.also)] == ["n0", "n1"]
    assert (finding.step, finding.agreed_step, finding.asks) == (200, 100, XidAction.EVICT)


def test_doing_the_step_again_tells_who_was_wrong() -> None:
    replicas = Replicas(nodes=2, local_size=1)
    replicas.all_say(100)
    replicas.all_say(200, but={1: WRONG})
    replicas.starts()
    replicas.all_say(150, at=20.0)
    replicas.all_say(200, at=30.0)
    assert replicas.agreed == [(1, 100), (2, 150), (2, 200)]
    conviction = replicas.found[1]
    assert (conviction.cause, conviction.confidence) == ("fingerprint replay", Confidence.CERTAIN)
    assert conviction.subject == Subject(JOB, node="n1")
    assert (conviction.round, conviction.step, conviction.agreed_step) == (2, 200, 200)
    assert conviction.asks is XidAction.EVICT
    assert len(conviction.evidence) == 3
    replicas.starts()
    replicas.all_say(200)
    assert len(replicas.found) == 2


def test_a_replay_on_another_node_convicts_as_well() -> None:
    replicas = Replicas(nodes=2, local_size=1)
    replicas.all_say(200, but={0: WRONG})
    replicas.starts(nodes=3)
    replicas.all_say(200)
    assert [finding.subject.node for finding in replicas.found] == ["n0", "n0"]
    assert replicas.found[1].confidence is Confidence.CERTAIN


def test_a_replay_that_comes_to_a_third_value_proves_nothing_and_says_so() -> None:
    replicas = Replicas(nodes=2, local_size=1)
    replicas.all_say(200, but={1: WRONG})
    replicas.starts()
    replicas.all_say(200, but={0: OTHER, 1: OTHER})
    unproved = replicas.found[1]
    assert (unproved.cause, unproved.confidence, unproved.asks) == (
        "fingerprint replay",
        Confidence.UNKNOWN,
        XidAction.WATCH,
    )
    assert "nothing is proved" in unproved.error


def test_a_replay_that_ties_again_proves_nothing_and_is_remembered() -> None:
    replicas = Replicas(nodes=2, local_size=1)
    replicas.all_say(200, but={1: WRONG})
    replicas.starts()
    replicas.all_say(200, but={1: WRONG})
    assert [finding.cause for finding in replicas.found] == ["fingerprint tie"] * 2
    replicas.starts()
    replicas.all_say(200)
    assert (replicas.found[2].cause, replicas.found[2].subject.node) == ("fingerprint replay", "n1")


def test_a_replay_in_which_too_many_are_missing_proves_nothing_yet() -> None:
    replicas = Replicas(nodes=2, local_size=1)
    replicas.all_say(200, but={1: WRONG})
    replicas.starts()
    replicas.says(0, 200, RIGHT)
    replicas.all_say(300)
    assert [finding.cause for finding in replicas.found] == ["fingerprint tie"]
    replicas.starts()
    replicas.all_say(200)
    assert replicas.found[1].subject.node == "n1"


def test_one_that_only_repeats_itself_confirms_nothing() -> None:
    # What is broken may compute the same wrong value each time: alone it must not convict the other.
    replicas = Replicas(nodes=2, local_size=2)
    replicas.all_say(200, but={2: WRONG, 3: WRONG})
    replicas.starts(nodes=1)
    replicas.all_say(200)
    assert [finding.cause for finding in replicas.found] == ["fingerprint tie"]
    assert replicas.agreed == [(2, 200)]


def test_what_was_agreed_on_the_line_that_was_left_is_not_the_last_agreement() -> None:
    replicas = Replicas()
    for step in (100, 200, 300):
        replicas.all_say(step)
    replicas.starts()
    replicas.all_say(200, but={5: WRONG})
    assert replicas.found[0].agreed_step == 100


def test_disputes_of_the_same_round_are_no_replay() -> None:
    replicas = Replicas(nodes=2, local_size=1, action=FaultAction.REPORT)
    for step in range(100, 2000, 100):
        replicas.all_say(step, but={1: WRONG})
    assert [finding.cause for finding in replicas.found] == ["fingerprint tie"]


def test_disputes_are_bounded_by_the_newest() -> None:
    replicas = Replicas(nodes=2, local_size=1)
    for step in range(100, 2000, 100):
        replicas.starts()
        replicas.all_say(step, but={1: WRONG})
    replicas.starts()
    replicas.all_say(100)
    assert replicas.found[-1].cause == "fingerprint tie"
    replicas.all_say(1900)
    assert replicas.found[-1].cause == "fingerprint replay"


@st.composite
def corrupted_worlds(draw: st.DrawFn) -> tuple[int, frozenset[int], int]:
    """A world of one group, the ranks that compute wrong (fewer than half), and a seed for the order."""
    nodes = draw(st.integers(2, 12))
    world = nodes * 2
    wrong = draw(st.sets(st.integers(0, world - 1), max_size=(world - 1) // 2))
    return nodes, frozenset(wrong), draw(st.integers(0, 1 << 30))


@given(corrupted_worlds())
@settings(max_examples=100)
def test_of_any_group_exactly_those_that_compute_wrong_are_named(world: tuple[int, frozenset[int], int]) -> None:
    nodes, wrong, seed = world
    chance = random.Random(seed)
    replicas = Replicas(nodes=nodes)
    votes = [(rank, WRONG + rank if rank in wrong else RIGHT) for rank in replicas.ranks]
    votes += chance.choices(votes, k=5)
    chance.shuffle(votes)
    for rank, value in votes:
        replicas.says(rank, 100, value)
    if not wrong:
        assert replicas.proved == [ReplicasAgreed(1, 100)]
        return
    (finding,) = replicas.found
    named = (finding.subject, *finding.also)
    assert {each.node for each in named} == {f"n{rank // 2}" for rank in wrong}
    if finding.subject.rank is not None:
        assert {each.rank for each in named} == wrong


@given(st.integers(1, 6), st.integers(0, 1 << 30), st.floats(0.0, 0.5))
@settings(max_examples=100)
def test_replicas_that_are_equal_are_never_found_whatever_is_lost_repeated_or_late(
    nodes: int, seed: int, lost: float
) -> None:
    chance = random.Random(seed)
    replicas = Replicas(nodes=nodes)
    groups = chance.choice((1, 2, 4))
    for _ in range(3):
        votes = [(rank, step) for rank in replicas.ranks for step in (100, 200, 300)]
        votes += chance.choices(votes, k=10)
        chance.shuffle(votes)
        for rank, step in votes:
            if chance.random() >= lost:
                group = rank % groups
                replicas.says(rank, step, 1000 * step + group, group=group, at=chance.random())
        replicas.starts()
    assert replicas.found == []
    assert all(later > earlier for earlier, later in zip(replicas.agreed, replicas.agreed[1:], strict=False))


def test_who_differs_again_after_all_agreed_is_named_again() -> None:
    replicas = Replicas(nodes=4, local_size=1)
    for step, wrong in enumerate([{2: WRONG}, {2: WRONG}, {}, {2: OTHER}], start=1):
        replicas.all_say(10 * step, but=wrong)
    assert [each.step for each in replicas.found] == [10, 40]
