"""Snapshots in memory, as rounds speak of them: who keeps whose copies, and when a snapshot may be restored."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from story import Story

from holdfast.api.event import RestoreReported
from holdfast.api.intervention import InterventionAction
from holdfast.api.memory import MemoryOrder, MemoryRound
from holdfast.api.plan import NodeState
from holdfast.api.policy import MemoryPolicy
from holdfast.api.round import Tier
from holdfast.watchdog.brain.copies import plan_copies
from holdfast.watchdog.brain.roster import Member, MemberState
from holdfast.watchdog.brain.step import changed


def member(number: int, node: str | None = None, *, serves: bool = True) -> Member:
    name = f"node-{number}"
    transfer = f"10.0.0.{number}:7900" if serves else ""
    return Member(
        name,
        node or name,
        "a",
        "h",
        1,
        (1,),
        warm=True,
        standing=MemberState.PRESENT,
        joined_at=0.0,
        transfer=transfer,
    )


def keepers(seats: list[Member], racks: dict[str, str], replicas: int = 1) -> tuple[tuple[int, ...], ...]:
    return plan_copies(MemoryPolicy(1, replicas), seats, racks, since_round=1).keepers


def remembering(nodes: int, *, spares: int = 0) -> Story:
    story = Story(nodes_max=nodes, spares=spares, memory=MemoryPolicy())
    return story.join(*range(1, nodes + spares + 1)).run(1)


def memory(story: Story) -> MemoryRound:
    assert story.round.memory is not None
    return story.round.memory


class TestPlacement:
    def test_a_copy_is_kept_in_another_rack(self) -> None:
        seats = [member(number) for number in range(4)]
        racks = {"node-0": "r1", "node-1": "r1", "node-2": "r2", "node-3": "r2"}
        assert keepers(seats, racks) == ((2,), (3,), (0,), (1,))

    def test_without_racks_the_next_node_keeps_it(self) -> None:
        assert keepers([member(number) for number in range(3)], {}) == ((1,), (2,), (0,))

    def test_a_member_on_the_same_node_is_no_keeper(self) -> None:
        seats = [member(0, "a"), member(1, "a"), member(2, "b")]
        assert keepers(seats, {}) == ((2,), (2,), (0,))

    def test_who_serves_nothing_keeps_nothing(self) -> None:
        seats = [member(0), member(1, serves=False), member(2)]
        assert keepers(seats, {}) == ((2,), (), (0,))

    def test_alone_nobody_keeps_anything(self) -> None:
        assert keepers([member(0)], {}, replicas=2) == ((),)

    def test_more_copies_than_nodes_are_as_many_as_there_are_nodes(self) -> None:
        assert keepers([member(0), member(1), member(2)], {}, replicas=5) == ((1, 2), (2, 0), (0, 1))

    @pytest.mark.parametrize("order", ["of racks", "of arrival"])
    @pytest.mark.parametrize("seed", range(20))
    def test_copies_leave_the_rack_and_are_spread(self, seed: int, order: str) -> None:
        random = Random(seed)
        size = random.randint(2, 12)
        numbers = list(range(size * random.randint(2, 5)))
        racks = {f"node-{number}": f"r{number // size}" for number in numbers}
        if order == "of arrival":
            random.shuffle(numbers)
        rack_at = [racks[f"node-{number}"] for number in numbers]
        found = keepers([member(number) for number in numbers], racks, 2)
        for kept in zip(*found, strict=True):
            assert sorted(kept) == list(range(len(numbers)))
            assert all(rack_at[place] != rack_at[keeper] for place, keeper in enumerate(kept))

    def test_a_rack_of_most_members_is_kept_by_all_others_alike(self) -> None:
        racks = {f"node-{number}": "big" if number % 3 else f"small-{number % 2}" for number in range(12)}
        found = keepers([member(number) for number in range(12)], racks)
        assert [[kept for (kept,) in found].count(place) for place in (0, 3, 6, 9)] == [2, 2, 2, 2]

    @given(
        racks=st.lists(st.integers(0, 4), min_size=1, max_size=24),
        silent=st.sets(st.integers(0, 23)),
        replicas=st.integers(1, 5),
    )
    def test_as_many_copies_as_nodes_allow_are_outside_the_rack_first_and_then_spread_in_it(
        self, racks: list[int], silent: set[int], replicas: int
    ) -> None:
        seats = [member(place, serves=place not in silent) for place in range(len(racks))]
        found = keepers(seats, {f"node-{place}": f"r{rack}" for place, rack in enumerate(racks)}, replicas)
        serving = [place for place in range(len(racks)) if place not in silent]
        kept_in_rack = Counter[int]()
        for place in serving:
            kept = found[place]
            outside = [each for each in kept if racks[each] != racks[place]]
            others = [each for each in serving if racks[each] != racks[place]]
            assert len(set(kept)) == len(kept) == min(replicas, len(serving) - 1)
            assert place not in kept
            assert set(kept) <= set(serving)
            assert len(outside) == min(replicas, len(others))
            assert list(kept[: len(outside)]) == outside, "those that outlive the rack come first"
            kept_in_rack.update(set(kept) - set(outside))
        for rack in set(racks):
            counts = [kept_in_rack[place] for place in serving if racks[place] == rack]
            assert max(counts, default=0) - min(counts, default=0) == 0

    @given(racks=st.integers(1, 5), size=st.integers(1, 6), replicas=st.integers(1, 5))
    def test_in_racks_of_one_size_everybody_keeps_as_many_as_it_gives(
        self, racks: int, size: int, replicas: int
    ) -> None:
        seats = [member(number) for number in range(racks * size)]
        found = keepers(seats, {f"node-{each}": f"r{each // size}" for each in range(len(seats))}, replicas)
        kept = Counter([each for all_of in found for each in all_of])
        assert {kept[place] for place in range(len(seats))} == {min(replicas, len(seats) - 1)}


class TestDirective:
    def test_a_fault_is_healed_from_memory_or_the_newest_checkpoint(self) -> None:
        story = remembering(2)
        first = story.round.number
        story.commit(40).run_on(55).die(1)
        assert (story.round.restore.tier, story.round.restore.step) == (Tier.MEMORY, 40)
        assert memory(story).since_round == first

    def test_without_snapshots_nothing_is_said_of_them(self) -> None:
        story = Story(nodes_max=2).join(1, 2).run(1).commit(40).die(1)
        assert story.round.restore.tier is Tier.CHECKPOINT
        assert story.round.memory is None

    def test_what_a_rewind_gave_up_is_not_remembered(self) -> None:
        story = remembering(2).commit(40).run_on(55)
        story.ask(InterventionAction.REWIND, to_step=40)
        rewound = story.round
        assert (rewound.restore.tier, memory(story).since_round) == (Tier.CHECKPOINT, rewound.number)
        story.run(41, restored=40).die(1).wait(15)
        assert (story.round.restore.tier, memory(story).since_round) == (Tier.MEMORY, rewound.number)
        after = story.run(41, restored=40).commit(42).run_on(60)
        since = memory(after).since_round
        after.die(1)
        assert (story.round.restore.tier, memory(story).since_round) == (Tier.MEMORY, since)

    def test_what_was_rewound_is_told_on_until_it_is_saved_beside_what_is_remembered_since(self) -> None:
        story = remembering(2).commit(40).run_on(55)
        story.ask(InterventionAction.REWIND, to_step=40, skip_batches=7, learning_rate_scale=0.5)
        told = story.round.restore
        story.run(41, restored=40).die(1).wait(15)
        assert story.round.restore == structs.replace(told, tier=Tier.MEMORY)
        story.run(42, restored=41).commit(43).die(1).wait(15)
        restore = story.round.restore
        assert (restore.step, restore.skip_batches, restore.learning_rate_scale) == (43, 0, 1.0)

    def test_a_second_rewind_gives_up_what_was_remembered_since_the_first(self) -> None:
        story = remembering(2).commit(40).run_on(55)
        story.ask(InterventionAction.REWIND, to_step=40)
        story.run(45, restored=40).ask(InterventionAction.REWIND, "again", to_step=40)
        assert (story.round.restore.tier, memory(story).since_round) == (Tier.CHECKPOINT, story.round.number)

    def test_what_is_not_healthy_is_not_remembered(self) -> None:
        story = remembering(2).commit(40).run_on(55)
        story.state = changed(story.state, unhealthy_from=50)
        story.die(1)
        assert story.round.restore.unhealthy_from == 50
        assert memory(story).since_round == story.round.number, "nor by the round after it"

    def test_members_are_told_the_addresses_of_their_keepers(self) -> None:
        story = remembering(2)
        seat = story.round.seat_of(story.members[0])
        assert seat is not None
        assert seat.memory == MemoryOrder(1, story.round.number, ("10.0.0.2:7900",))

    def test_copies_follow_the_racks_that_the_cluster_tells(self) -> None:
        story = remembering(4)
        for number in (1, 2):
            story.node(number, NodeState.READY, rack="left")
        for number in (3, 4):
            story.node(number, NodeState.READY, rack="right")
        story.die(1)
        assert memory(story).keepers == ((2,), (3,), (0,), (1,))

    def test_the_incident_says_from_where_the_round_began(self) -> None:
        story = remembering(2).commit(40).run_on(55).die(1)
        number = story.round.number
        story.tell(RestoreReported(number, 54, ("step-00000054: torn",), Tier.MEMORY, ("block 3 of rank 1",)))
        (said,) = [each.what for each in story.incident.timeline if "begins after" in each.what]
        assert said == (
            f"round {number} begins after step 54, from memory; passed over step-00000054: torn; "
            "healed block 3 of rank 1"
        )
