"""Replica groups under whatever comes, in any order: what holds of every round that is shown."""

import random
from collections.abc import Callable

import pytest
from story import JOB, Story

from holdfast.api.event import MemberReady, RoundProgressed
from holdfast.api.finding import Confidence, FindingKind, Subject
from holdfast.api.round import Closed, Round
from holdfast.watchdog.brain.groups import by_group
from holdfast.watchdog.brain.roster import MemberState
from holdfast.watchdog.brain.step import Show

SIZE, GROUPS, LEAST = 2, 4, 2
NODES = range(1, SIZE * GROUPS + 4)


class Watched(Story):
    """A story in which every round that is shown is looked at."""

    def __init__(self) -> None:
        self.before: Round | None = None
        self.ready: set[tuple[str, int]] = set()
        self.looked_at = 0
        super().__init__(
            nodes_min=SIZE * LEAST, nodes_max=SIZE * GROUPS, spares=2, replica_nodes=SIZE, startup_timeout_s=120.0
        )

    def tell(self, event: object) -> object:
        if isinstance(event, MemberReady):
            self.ready.add((event.member, event.epoch))
        step = super().tell(event)  # type: ignore[arg-type]
        for effect in step.effects:
            if isinstance(effect, Show) and isinstance(effect.desired, Round):
                self.look_at(effect.desired)
                self.before = effect.desired
            elif isinstance(effect, Show):
                self.before = None
        return step

    def look_at(self, shown: Round) -> None:
        self.looked_at += 1
        before = self.before
        assert before is None or shown.number > before.number
        assert [share.first_rank for share in shown.ranks] == list(range(len(shown.ranks)))
        assert sum(each.members for each in shown.groups) == len(shown.ranks) <= SIZE * GROUPS
        assert {each.members for each in shown.groups} == {SIZE}
        trains = [each.trains for each in shown.groups]
        assert trains == sorted(trains, reverse=True), "those that train come first"
        assert shown.training >= SIZE * LEAST
        avoided = self.state.avoided_nodes
        for share in shown.ranks:
            member = self.state.member(share.member)
            assert member is not None
            assert member.standing is MemberState.PRESENT
            assert share.node not in avoided
        was = (
            {}
            if before is None
            else {each.endpoint: (each, tuple(s.member for s in of)) for each, of in by_group(before)}
        )
        for group, shares in by_group(shown):
            names = tuple(share.member for share in shares)
            if group.epoch == shown.number:
                assert group.trains is not shown.goes_on, "who is new begins with everybody, or is formed"
                continue
            known, members = was[group.endpoint]
            assert (group.epoch, names) == (known.epoch, members), "who goes on is the same, in the same order"
            newly = group.trains and not known.trains
            assert not newly or {(name, group.epoch) for name in names} <= self.ready
            assert group.trains or not known.trains, "who trains is not formed anew in its epoch"
        if shown.goes_on:
            assert before is not None
            assert any(each.trains and each in before.groups for each in shown.groups), "somebody has the state"
            assert self.state.restored_step == self.state.step or self.state.step is None
            assert before.broke_in <= shown.broke_in <= shown.number


def get_ready(story: Watched, dice: random.Random) -> None:
    round_ = story.state.round
    for group, shares in by_group(round_) if round_ is not None else ():
        if not group.trains:
            for share in shares if dice.random() < 0.7 else shares[:1]:
                story.tell(MemberReady(share.member, group.epoch))


def make_progress(story: Watched, dice: random.Random) -> None:
    if isinstance(story.state.desired, Round):
        story.tell(RoundProgressed(story.state.desired.number, (story.state.step or 0) + dice.randint(1, 5)))


def of_ranks(act: Callable[[Watched, int], object]) -> Callable[[Watched, random.Random], object]:
    def acts(story: Watched, dice: random.Random) -> object:
        round_ = story.state.desired
        if not isinstance(round_, Round):
            return None
        return act(story, int(dice.choice(round_.ranks).member.removeprefix("node-")))

    return acts


NOBODY = {"subject": Subject(JOB), "confidence": Confidence.UNKNOWN}
ACTS: list[tuple[int, Callable[[Watched, random.Random], object]]] = [
    (30, get_ready),
    (30, make_progress),
    (15, lambda story, dice: story.wait(dice.choice([0.1, 1.0, 15.0, 130.0]))),
    (12, of_ranks(lambda story, node: story.die(node, cause="exit code 1"))),
    (6, of_ranks(lambda story, node: story.lose(node))),
    (12, lambda story, dice: story.join(dice.choice(NODES), boot=str(dice.random()))),
    (3, of_ranks(lambda story, node: story.find(FindingKind.COLLECTIVE_FAILED, node, **NOBODY))),
    (
        3,
        of_ranks(
            lambda story, node: story.find(FindingKind.COLLECTIVE_FAILED, node, confidence=Confidence.UNKNOWN)
        ),
    ),
    (2, of_ranks(lambda story, node: story.find(FindingKind.HANG, node))),
    (1, of_ranks(lambda story, node: story.find(FindingKind.HANG, node, **NOBODY))),
    (2, of_ranks(lambda story, node: story.leave(node))),
    (2, of_ranks(lambda story, node: story.drain(node))),
    (1, of_ranks(lambda story, node: story.find(FindingKind.GPU_LOST, node, round=None))),
    (1, lambda story, dice: story.restart_watchdog()),
]


@pytest.mark.parametrize("seed", range(40))
def test_every_round_keeps_what_replica_groups_promise(seed: int) -> None:
    dice, story = random.Random(seed), Watched()
    story.join(*range(1, SIZE * GROUPS + 2)).run(1)
    weights = [weight for weight, _ in ACTS]
    for _ in range(120):
        if isinstance(story.state.desired, Closed):
            break
        (_, act), *_ = dice.choices(ACTS, weights)
        act(story, dice)
    assert story.looked_at


def test_after_faults_the_job_trains_with_all_its_groups_again() -> None:
    """Liveness: members come, groups get ready, and nothing is left to wait for."""
    for seed in range(20):
        dice, story = random.Random(seed), Watched()
        story.join(*range(1, SIZE * GROUPS + 2)).run(1)
        for _ in range(dice.randint(1, 6)):
            of_ranks(lambda story, node: story.lose(node))(story, dice)
            make_progress(story, dice)
        for _ in range(40):
            gone = [each for each in NODES if f"node-{each}" not in story.state.members]
            story.join(*(gone or [1][:0]))
            story.wait(20.0)
            get_ready(story, random.Random(0))
            get_ready(story, random.Random(1))
            make_progress(story, dice)
        assert isinstance(story.state.desired, Round), story.state.reason
        assert [each.trains for each in story.round.groups] == [True] * GROUPS, seed
