"""What the stacks and the last collectives of all ranks say of a round that stands still."""

import pytest

from holdfast.api.stacks import Collective, RankStack, Stood
from holdfast.watchdog.standstill import CHARACTERS_MAX, LINES_MAX, evidence_of, standstill, stood

LOSS = "train.py:42 in step"
ITEM = "train.py:45 in step"
TOP = "train.py:90 in <module>"


def waiting(rank: int, *, came_to: int = 12, shapes: str = "[4] Float") -> RankStack:
    """In an all_reduce, the user's line behind it."""
    issued = tuple(Collective("default_pg", n, "all_reduce", shapes, LOSS, n < came_to) for n in (11, came_to))
    return RankStack(rank, 100 + rank, ("distributed_c10d.py:3252 in all_reduce", LOSS, TOP), (1, 2), issued)


def away(rank: int, *frames: str, came_to: int = 11) -> RankStack:
    """Somewhere in the user's own code."""
    issued = (Collective("default_pg", came_to, "all_reduce", "[4] Float", LOSS, done=True),)
    return RankStack(rank, 100 + rank, (*frames, TOP), tuple(range(len(frames) + 1)), issued)


def test_a_rank_in_a_loop_comes_first_with_its_line_and_is_behind() -> None:
    found = standstill([waiting(0), away(1, "train.py:9 in spin"), waiting(2), waiting(3)], 4)
    assert found.stacks == (
        "rank 1 of 4: train.py:9 in spin, from train.py:90 in <module>",
        "ranks 0, 2-3 of 4: distributed_c10d.py:3252 in all_reduce, from train.py:42 in step, "
        "from train.py:90 in <module>",
    )
    (behind,) = found.collectives
    assert behind.startswith("rank 1 did not reach collective 12 of default_pg, where 3 wait in all_reduce")
    assert behind.endswith("rank 1 came to 11, all_reduce of [4] Float at train.py:42 in step")


def test_another_operation_at_the_same_place_is_named_with_both_sides() -> None:
    odd = Collective("default_pg", 12, "broadcast", "[4] Float", "train.py:23 in train")
    stacks = [waiting(0), RankStack(1, 101, (), (), (odd,)), waiting(2)]
    (says,) = standstill(stacks, 3).collectives
    assert says == (
        "collective 12 of default_pg is not the same on all ranks: rank 1 issued broadcast of [4] Float at "
        "train.py:23 in train; ranks 0, 2 issued all_reduce of [4] Float at train.py:42 in step"
    )


def test_another_shape_is_named_where_shapes_must_be_equal() -> None:
    (says,) = standstill([waiting(0), waiting(1, shapes="[5] Float"), waiting(2)], 3).collectives
    assert "rank 1 issued all_reduce of [5] Float" in says


@pytest.mark.parametrize("operation", ["all_to_all", "gather", "scatter"])
def test_shapes_of_uneven_operations_may_differ(operation: str) -> None:
    stacks = [
        RankStack(rank, rank, (), (), (Collective("tp 3", 5, operation, f"[{rank}] Float"),)) for rank in (0, 1)
    ]
    assert standstill(stacks, 2).collectives == ()


def test_all_at_one_place_is_one_line_and_nothing_is_wrong_with_their_collectives() -> None:
    stuck = [away(rank, "store.py:7 in read", came_to=12) for rank in range(8)]
    found = standstill(stuck, 8)
    assert found.stacks == ("ranks 0-7 of 8: store.py:7 in read, from train.py:90 in <module>",)
    assert found.collectives == ()


def test_why_a_stack_is_not_known_is_said() -> None:
    found = standstill([RankStack(0, 1, missing="the kernel does not run it"), waiting(1)], 2)
    assert found.stacks[0] == "rank 0 of 2: the kernel does not run it"


def test_sixteen_thousand_ranks_are_ten_lines() -> None:
    told = [waiting(rank) for rank in range(16_000)]
    told[77] = away(77, "train.py:9 in spin")
    for rank in range(300, 400):
        told[rank] = away(rank, f"data.py:{rank} in read")
    lines = evidence_of(told, 16_000, 5.0)
    assert len([each for each in lines if each.source == "stacks"]) == LINES_MAX
    assert "rank 77 of 16000: train.py:9 in spin, from train.py:90 in <module>" in [each.says for each in lines]
    assert lines[-2].says.startswith("ranks 0-76, 78-299, 400-15999 of 16000: distributed_c10d.py")
    assert lines[-1].says == "93 other ranks are at 93 other places"


def test_a_line_has_an_end() -> None:
    (line,) = evidence_of([RankStack(0, 1, missing="x" * 60_000)], 1, 0.0)
    assert len(line.says) == CHARACTERS_MAX


def test_frames_that_are_not_there_are_no_places() -> None:
    assert standstill([RankStack(0, 1, ("a.py:1 in f",), (7, 0))], 1).stacks == ("rank 0 of 1: a.py:1 in f",)


def test_what_a_rank_says_is_one_plain_line_of_bounded_length() -> None:
    hostile = RankStack(0, 1, ("a\x1b]0;mine\x07\nranks 1-9: fine.py:1 in f",), (0,))
    long = RankStack(1, 1, missing="m" * 60_000)
    wide = tuple(Collective(f"group-{each}\x9b", 1 + rank, "o" * 253) for rank in (0, 1) for each in range(40))
    ranks = [hostile, long, RankStack(2, 1, collectives=wide[:40]), RankStack(3, 1, collectives=wide[40:])]
    found = standstill(ranks, 4)
    assert found.stacks[0] == "rank 0 of 4: a?]0;mine??ranks 1-9: fine.py:1 in f"
    assert len(found.collectives) == LINES_MAX
    assert all(line.isprintable() and len(line) <= CHARACTERS_MAX for line in (*found.stacks, *found.collectives))


def asks_for_result(rank: int, *, came_to: int = 12) -> RankStack:
    """It issued an all_reduce on its device, went on, and stands where it asks for what came of it."""
    issued = tuple(
        Collective("default_pg", n, "all_reduce", "[4] Float", LOSS, n < came_to) for n in (11, came_to)
    )
    return RankStack(rank, 100 + rank, (ITEM, TOP), (0, 1), issued)


@pytest.mark.parametrize(
    ("told", "line", "stood_in"),
    [
        ([waiting(0), away(1, "train.py:9 in export")], "train.py:9 in export", Stood.OWN),
        ([away(0, "train.py:9 in export"), waiting(1)], LOSS, Stood.WAITS),  # it spins, or sleeps: it waits
        ([waiting(0, came_to=13), waiting(1)], LOSS, Stood.HELD),
        ([waiting(0, came_to=40), waiting(1)], LOSS, Stood.HELD),  # what it held is told no more
        ([away(0, "train.py:9 in export", came_to=12), waiting(1)], LOSS, Stood.HELD),  # it is done, and elsewhere
        ([asks_for_result(0, came_to=13), asks_for_result(1)], ITEM, Stood.HELD),
        ([asks_for_result(0), asks_for_result(1)], ITEM, Stood.WAITS),
        ([waiting(0)], "", Stood.UNKNOWN),
        ([waiting(0), RankStack(1, 101, missing="it is stopped")], "", Stood.UNKNOWN),
    ],
)
def test_where_a_rank_stood_in_the_script_and_what_it_was_in(
    told: list[RankStack], line: str, stood_in: Stood
) -> None:
    assert stood(told, 1) == (line, stood_in)
    assert stood(told, None) == ("", Stood.UNKNOWN)


def test_who_only_issued_more_has_not_passed_what_it_is_in_itself() -> None:
    """A host that runs ahead of its device has a row of collectives open."""
    ahead = tuple(Collective("default_pg", n, "all_gather", "", LOSS) for n in (12, 13, 14))
    assert stood([RankStack(0, 100, (ITEM,), (0,), ahead), waiting(1)], 1) == (LOSS, Stood.WAITS)


@pytest.mark.parametrize("operation", ["gather", "broadcast"])
def test_who_waits_for_a_rank_that_has_not_come_is_not_held_though_others_are_done(operation: str) -> None:
    """As gloo shows it: who sent to the root of a gather, or had its part of a broadcast, has gone on."""
    in_it = RankStack(1, 101, (LOSS,), (0,), (Collective("default_pg", 3, operation),))
    gone_on = (Collective("default_pg", 3, operation, done=True), Collective("default_pg", 4, "barrier"))
    passed = RankStack(0, 100, (TOP,), (0,), gone_on)
    export = RankStack(2, 102, (ITEM,), (0,), (Collective("default_pg", 2, "barrier", done=True),))
    assert stood([passed, in_it, export], 1) == (LOSS, Stood.WAITS)
    assert stood([passed, in_it], 1) == (LOSS, Stood.HELD)


def test_what_ended_behind_a_later_one_of_its_group_is_not_what_a_rank_was_in() -> None:
    """Not every backend tells of each that it is over."""
    issued = (Collective("dp", 3, "barrier"), Collective("dp", 4, "all_reduce", done=True))
    own = RankStack(1, 101, ("train.py:9 in export",), (0,), issued)
    assert stood([waiting(0), own], 1) == ("train.py:9 in export", Stood.OWN)
