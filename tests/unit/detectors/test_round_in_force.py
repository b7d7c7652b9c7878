"""The round that counts."""

import pytest
from msgspec import structs
from signals import JOB, a_round, rank_sample, reported, started

from holdfast.api.finding import Subject
from holdfast.api.round import MemberRanks
from holdfast.watchdog.detectors.detector import Heard, RoundInForce, RoundStarted, RoundStopped, Sample


def following(*samples: Sample) -> RoundInForce:
    rounds = RoundInForce(JOB)
    for sample in samples:
        rounds.follow(sample)
    return rounds


def test_before_any_round_nothing_counts() -> None:
    rounds = following(Heard("m0"))
    assert (rounds.round, rounds.number, rounds.world_size) == (None, None, 0)
    assert rounds.samples_in(reported("n0", rank_sample(0))) == ()
    assert rounds.subject(0) == Subject(JOB, rank=0)


@pytest.mark.parametrize(
    ("before", "sample", "news"),
    [
        (started(3), started(4), True),
        (started(3), RoundStopped(4), True),
        (started(3), RoundStopped(3), True),
        (RoundStopped(3), started(4), True),
        (started(3), started(3), False),
        (RoundStopped(3), RoundStopped(3), False),
        (started(3), started(2), False),
        (RoundStopped(3), started(2), False),
        (started(3), Heard("m0"), False),
    ],
)
def test_only_a_newer_round_or_its_end_is_news(before: Sample, sample: Sample, news: bool) -> None:
    assert following(before).follow(sample) is news


@pytest.mark.parametrize(
    ("rank", "node"), [(-1, None), (0, "n0"), (1, "n0"), (2, "n1"), (3, "n1"), (4, None), (10**9, None)]
)
def test_a_rank_is_placed_on_the_member_that_runs_it(rank: int, node: str | None) -> None:
    member = None if node is None else node.replace("n", "m")
    assert following(started(1)).subject(rank) == Subject(JOB, node=node, member=member, rank=rank)


def test_only_samples_of_this_round_from_the_node_that_runs_the_rank_count() -> None:
    rounds = following(started(5))
    samples = [rank_sample(rank, round=number) for number in (4, 5, 6) for rank in range(5)]
    counted = rounds.samples_in(reported("n1", *samples))
    assert [(sample.round, sample.rank) for sample in counted] == [(5, 2), (5, 3)]
    assert rounds.samples_in(reported("elsewhere", *samples)) == []


def test_several_members_on_one_node_all_count() -> None:
    members = (MemberRanks("a", "n0", 0, 1), MemberRanks("b", "n1", 1, 1), MemberRanks("c", "n0", 2, 1))
    rounds = following(RoundStarted(structs.replace(a_round(1), ranks=members)))
    samples = [rank_sample(rank) for rank in range(3)]
    assert [each.rank for each in rounds.samples_in(reported("n0", *samples))] == [0, 2]


def test_a_node_runs_its_ranks_while_a_round_does() -> None:
    force = RoundInForce(JOB)
    assert 2 not in force.ranks_on("n1")
    force.follow(started(1))
    assert [rank for rank in range(5) if rank in force.ranks_on("n1")] == [2, 3]
    assert 0 not in force.ranks_on("elsewhere")
