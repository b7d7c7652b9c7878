"""A node that fails more often than by chance leaves; what fails anywhere, or goes with ranks, evicts nobody."""

import random

import pytest
from story import Story, running

from holdfast.api.finding import FindingKind
from holdfast.api.policy import EvictionBudget
from holdfast.watchdog.brain.repetition import CHANCE_MAX, MEMORY_S, by_chance

HOUR_S, DAY_S = 3600.0, 86_400.0
NODES = 48
SEGFAULT = "signal 11 (SIGSEGV)"


def large() -> Story:
    return running(NODES, spares=6, nodes_min=NODES)


def fails(story: Story, node: int, after_s: float, **fields: object) -> Story:
    """So much later a worker on the node dies, and training goes on."""
    story.wait(after_s)
    story.die(node, **{"cause": SEGFAULT, **fields})
    return story.run(story.state.high_step + 100, restored=story.state.high_step)


def fails_with_rank(story: Story, rank: int, after_s: float) -> Story:
    """The worker that has this rank does, wherever it is."""
    share = story.round.member_of(rank)
    assert share is not None
    return fails(story, int(share.node.removeprefix("node-")), after_s)


def left(story: Story) -> list[str]:
    return [order.node for order in story.state.avoided]


def test_a_node_whose_worker_dies_every_few_hours_leaves_at_the_third_time() -> None:
    story = fails(fails(large(), 7, 5 * HOUR_S), 7, 5 * HOUR_S)
    assert left(story) == []
    fails(story, 7, 5 * HOUR_S)
    assert left(story) == ["node-7"]
    assert story.round.reason.startswith("3 workers died by signal on node node-7 within a week, none elsewhere")


def test_so_it_does_though_others_died_meanwhile() -> None:
    story = large()
    for node in (7, 20, 7, 31, 7, 7):
        fails(story, node, 5 * HOUR_S)
    assert left(story) == ["node-7"]
    assert "4 workers died by signal on node node-7 within a week, 2 elsewhere" in story.round.reason


def test_few_nodes_show_less_by_the_same_number() -> None:
    story = running(4, spares=1, nodes_min=4, evictions=EvictionBudget(count=4, fraction=1.0))
    for _ in range(5):
        fails(story, 2, 5 * HOUR_S)
    assert left(story) == [], "one of four is it by chance now and then"
    for _ in range(2):
        fails(story, 2, 5 * HOUR_S)
    assert left(story) == ["node-2"]


def test_what_was_longer_ago_is_forgotten() -> None:
    story = large()
    for _ in range(6):
        fails(story, 7, MEMORY_S / 2.0 + HOUR_S)
    assert left(story) == []


@pytest.mark.parametrize("seed", range(4))
def test_a_script_that_crashes_on_any_node_evicts_none(seed: int) -> None:
    """Twenty times a day for a week."""
    story, draw = large(), random.Random(seed)
    for _ in range(140):
        fails(story, draw.randrange(1, NODES + 1), DAY_S / 20.0)
    assert left(story) == []


@pytest.mark.parametrize("every_s", [0.2 * HOUR_S, HOUR_S, 6 * HOUR_S])
def test_a_rank_that_crashes_wherever_it_is_costs_one_node(every_s: float) -> None:
    story = large()
    for _ in range(60):
        fails_with_rank(story, 0, every_s)
    assert left(story) == ["node-1"]


def test_a_second_bad_node_leaves_too_where_it_has_the_ranks_of_the_first() -> None:
    story = large()
    for _ in range(3):
        fails_with_rank(story, 5, HOUR_S)
    story.wait(2 * DAY_S)
    for _ in range(4):
        fails_with_rank(story, 5, 6 * HOUR_S)
    assert len(left(story)) == 2


def test_hangs_and_losses_are_counted_likewise() -> None:
    story = running(NODES, spares=6, nodes_min=NODES)
    for _ in range(3):
        story.wait(5 * HOUR_S).find(FindingKind.HANG, 3, cause="did not reach the collective")
        story.run(story.state.high_step + 100, restored=story.state.high_step)
    assert left(story) == ["node-3"]
    for number in range(3):
        story.wait(5 * HOUR_S).lose(9).join(9, boot=f"b{number}")
        if "node-9" not in {each.node for each in story.round.ranks}:  # it came back as a spare
            break
        story.run(story.state.high_step + 100, restored=story.state.high_step)
    assert "node-9" not in {each.node for each in story.round.ranks}


@pytest.mark.parametrize("apart_s", [5 * HOUR_S, HOUR_S / 12.0])
def test_a_machine_that_comes_back_under_its_name_is_as_good_as_new(apart_s: float) -> None:
    story = large()
    for _ in range(2):
        fails(story, 7, apart_s)
    story.gone(7).join(7, boot="another")
    assert left(fails(story, 7, apart_s)) == []


def test_no_more_nodes_are_condemned_by_chance_than_is_said() -> None:
    """Crashes on any of 64 nodes alike, thirty a week for two thousand weeks: whom the formula would condemn."""
    draw, nodes, total, weeks, wrong = random.Random(1), 64, 30, 2000, 0
    for _ in range(weeks):
        came = [draw.randrange(nodes) for _ in range(total)]
        rows = [place for place, node in enumerate(came) if node == came[-1]]
        looked = ((len(rows) - n, total - place) for n, place in enumerate(rows))
        wrong += any(times >= 3 and by_chance(times, row, total, nodes) <= CHANCE_MAX for times, row in looked)
    assert wrong * total / weeks <= 3.0 * CHANCE_MAX, "of each of a week's crashes, as the last of its week"
