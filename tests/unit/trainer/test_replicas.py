"""Replica groups against a network that fails where it is told to. Each group is one rank, and a thread."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, cast

import msgspec
import pytest
import torch
from patience import patient
from torch import Tensor, nn
from trainer_builders import assignment

from holdfast.api.control import Assignment, AtTheDoor
from holdfast.api.errors import InvalidInput
from holdfast.api.membership import CollectiveFailed
from holdfast.api.round import Endpoint, GroupSeat
from holdfast.trainer import OuterStep, Replicas, Run, replicas
from holdfast.trainer.group import NotFormed, RoundGroup
from holdfast.trainer.replicas import NobodyHasIt
from holdfast.trainer.stay import Stay

HOST = Endpoint("127.0.0.1", 29500)
LIMIT_S = patient(20.0)


def part(number: int, index: int | None, count: int, *, epoch: int = 1, broke_in: int = 0) -> Assignment:
    seat = GroupSeat(epoch, index or 0, 1, HOST, index, count, meets_in=1, broke_in=broke_in)
    return msgspec.structs.replace(assignment(round=number, rank=index or 0, world_size=count), group=seat)


class Net:
    """What all groups say, by round and turn; who is gone, and which turn fails for whom: (round, index, turn)."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.said: dict[tuple[int, int], dict[int, Any]] = {}
        self.sent: dict[tuple[int, int, int, int], Tensor] = {}
        self.joined: dict[int, set[int]] = {}
        self.gone: set[tuple[int, int]] = set()
        self.fails: set[tuple[int, int, int]] = set()
        self.copies_left: int | None = None  # how many more tensors are copied before a copy breaks

    def await_all(self, condition: Callable[[], bool], check: Callable[[], None]) -> None:
        with self.changed:
            while not condition():
                check()
                self.changed.wait(0.002)


class Faked:
    """As `Across`, over a `Net`."""

    net: Net

    def __init__(self, part: Assignment, *, timeout_s: float) -> None:
        assert part.group is not None
        assert part.group.index is not None
        self.round, self.index, self.size = part.round, part.group.index, part.group.count
        self._turn, self._is_aborted, self._is_forming = 0, False, True
        self._letters: dict[tuple[int, int], int] = {}

    def form(self, check: Callable[[], None]) -> None:
        with self.net.changed:
            joined = self.net.joined.setdefault(self.round, set())
            joined.add(self.index)
            self.net.changed.notify_all()
        self.net.await_all(lambda: len(joined) == self.size, check)
        self._is_forming = False

    def sum(self, values: Tensor) -> None:
        values.copy_(sum(self._exchanged(values), start=torch.zeros_like(values)))

    def begin_sum(self, values: Tensor) -> Tensor:
        return values

    def end_sum(self, begun: Tensor) -> None:
        self.sum(begun)

    def gather(self, values: Tensor) -> list[Tensor]:
        return self._exchanged(values)

    def _exchanged(self, values: Tensor) -> list[Tensor]:
        turn, net = self._turn, self.net
        self._turn += 1
        with net.changed:
            told = net.said.setdefault((self.round, turn), {})
            told[self.index] = values.clone()
            net.changed.notify_all()
        net.await_all(lambda: len(told) == self.size, self._check)
        if (self.round, self.index, turn) in net.fails:
            raise RuntimeError("Connection closed by peer")
        return [told[at] for at in range(self.size)]

    def _check(self) -> None:
        if self._is_aborted or any(number == self.round for number, _ in self.net.gone):
            raise NotFormed("gone")

    def send(self, values: Tensor, to: int) -> None:
        at = self._letters[self.index, to] = self._letters.get((self.index, to), 0) + 1
        with self.net.changed:
            self.net.sent[self.round, self.index, to, at] = values.clone()
            self.net.changed.notify_all()

    def receive(self, values: Tensor, source: int) -> None:
        at = self._letters[source, self.index] = self._letters.get((source, self.index), 0) + 1
        key = (self.round, source, self.index, at)
        self.net.await_all(lambda: key in self.net.sent, self._check)
        if self.net.copies_left is not None:
            self.net.copies_left -= 1
            if self.net.copies_left < 0:
                self.net.copies_left = None
                raise RuntimeError("Connection reset by peer")
        values.copy_(self.net.sent[key])

    def overtaken_by(self, later: Assignment) -> None:
        if self._is_forming or (later.group is not None and later.group.broke_in > self.round):
            self._is_aborted = True

    def close(self) -> None:
        pass

    def release(self) -> None:
        pass


class Group:
    """One group: its part of a run, a model of its own seed, and what it did."""

    def __init__(self, at: int, first: Assignment, *, steps: int = 6) -> None:
        self.at, self.steps = at, steps
        self.stay = Stay(first, cast(RoundGroup, None))
        self.said: list[object] = []
        self.done: list[int] = []
        self.passes = 0
        self.timeout_s = 60.0
        self.dies_at = -1
        self.gate, self.holds_at = threading.Event(), -1  # before which step it waits for the gate
        torch.manual_seed(at)
        self.model = nn.Linear(3, 1)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.outer: OuterStep | None = None
        self.at_outer: dict[int, list[Tensor]] = {}

    @property
    def assignment(self) -> Assignment:
        return self.stay.assignment

    def take_up(self, part: Assignment) -> None:
        self.stay.taken_up(part)

    def say(self, message: object) -> None:
        self.said.append(message)

    def train(self) -> int:
        with Replicas(cast(Run, self), model=self.model, optimizer=self.optimizer, outer=self.outer) as mine:
            while mine.step < self.steps:
                if mine.step + 1 == self.dies_at:
                    Faked.net.gone.add((self.stay.assignment.round, mine.index))
                    raise KeyboardInterrupt
                if mine.step + 1 == self.holds_at:
                    assert self.gate.wait(LIMIT_S)
                self.optimizer.zero_grad()
                dice = torch.Generator().manual_seed(10 * mine.step + mine.index)
                self.passes += 1
                self.model(torch.randn(4, 3, generator=dice)).square().mean().backward()
                if mine.average():
                    self.optimizer.step()
                    mine.stepped()
                    self.done.append(mine.step)
                    self.at_outer[mine.step] = [each.detach().clone() for each in self.model.parameters()]
        return mine.step

    @property
    def held(self) -> list[Tensor]:
        kept = [self.optimizer.state[each] for each in self.model.parameters()]
        return [*self.model.parameters(), *(each[name] for each in kept for name in sorted(each))]

    def has_done(self, step: int) -> Callable[[], bool]:
        return lambda: step in self.done


@pytest.fixture(autouse=True)
def net(monkeypatch: pytest.MonkeyPatch) -> Net:
    Faked.net = Net()
    monkeypatch.setattr(replicas, "Across", Faked)
    return Faked.net


class Stage:
    """Runs groups, and shows them rounds."""

    def __init__(self, *groups: Group) -> None:
        self.pool = ThreadPoolExecutor(8)
        self.running: list[Future[int]] = [self.pool.submit(each.train) for each in groups]

    def join(self, group: Group) -> None:
        self.running.append(self.pool.submit(group.train))

    def wait(self, condition: Callable[[], bool]) -> None:
        reached = threading.Event()

        def look() -> None:
            Faked.net.await_all(condition, lambda: None)
            reached.set()

        self.pool.submit(look)
        assert reached.wait(LIMIT_S), "what was waited for did not come"

    def ends(self) -> list[int | BaseException]:
        self.pool.shutdown(wait=False)
        return [each.exception(LIMIT_S) or each.result() for each in self.running]


def equal(*groups: Group) -> bool:
    return all(
        torch.equal(one, other)
        for each in groups[1:]
        for one, other in zip(groups[0].held, each.held, strict=True)
    )


def one_that_trains_and_one_at_the_door(
    *, steps: int, outer: OuterStep | None = None
) -> tuple[Group, Group, Stage]:
    """The first waits before its fifth step."""
    one = Group(0, part(2, 0, 1), steps=steps)
    back = Group(7, part(2, None, 1, epoch=2), steps=steps)
    one.outer = back.outer = outer
    one.holds_at = 5
    stage = Stage(one, back)
    stage.wait(lambda: back.said == [AtTheDoor(2)] and one.has_done(4)())
    return one, back, stage


def show_both(one: Group, back: Group) -> None:
    """The round in which both train; then the first goes on."""
    one.stay.go_on(part(3, 0, 2))
    back.stay.go_on(part(3, 1, 2, epoch=2))
    one.gate.set()


def test_groups_begin_alike_and_stay_so_whatever_their_seeds() -> None:
    one, other = Group(0, part(1, 0, 2)), Group(1, part(1, 1, 2))
    assert Stage(one, other).ends() == [6, 6]
    assert equal(one, other)
    assert one.done == other.done == [1, 2, 3, 4, 5, 6]


def test_a_step_is_the_mean_of_the_groups() -> None:
    one, other = Group(0, part(1, 0, 2), steps=1), Group(1, part(1, 1, 2), steps=1)
    grads: list[Tensor] = []
    for each in (one, other):
        each.optimizer.register_step_pre_hook(lambda *_, each=each: grads.append(each.model.weight.grad.clone()))
    assert Stage(one, other).ends() == [1, 1]
    assert torch.equal(grads[0], grads[1])
    torch.manual_seed(0)
    alone = nn.Linear(3, 1)
    for index in range(2):
        values = torch.randn(4, 3, generator=torch.Generator().manual_seed(index))
        alone(values).square().mean().div(2).backward()
    assert torch.allclose(grads[0], alone.weight.grad)


def test_a_group_that_dies_costs_the_other_no_step_and_no_second_pass() -> None:
    one, other = Group(0, part(1, 0, 2)), Group(1, part(1, 1, 2))
    other.dies_at = 4
    stage = Stage(one, other)
    stage.wait(lambda: bool(one.said))
    assert isinstance(one.said[0], CollectiveFailed)
    assert one.said[0].across
    one.stay.go_on(part(2, 0, 1, broke_in=2))
    assert stage.ends()[0] == 6
    assert one.done == [1, 2, 3, 4, 5, 6]
    assert one.passes == 6


def test_a_group_that_comes_back_is_equal_to_its_peers_bit_by_bit() -> None:
    one, back, stage = one_that_trains_and_one_at_the_door(steps=8)
    show_both(one, back)
    assert stage.ends() == [8, 8]
    assert equal(one, back)
    assert back.done == [6, 7, 8], "all hear of it in the fifth step, and change before the sixth"
    assert one.passes == 8


@pytest.mark.parametrize("turn", [3, 4], ids=["in the gradients", "in the counts"])
def test_a_group_that_missed_a_step_of_another_copies_it(net: Net, turn: int) -> None:
    """Of turn 0, the first step has 1 and 2, the second 3 and 4."""
    one, other = Group(0, part(1, 0, 2)), Group(1, part(1, 1, 2))
    net.fails = {(1, 1, turn)}
    stage = Stage(one, other)
    stage.wait(lambda: bool(other.said))
    for index, each in enumerate((one, other)):
        each.stay.go_on(part(2, index, 2, broke_in=2))
    assert stage.ends() == [6, 6]
    assert equal(one, other)
    assert one.done == [1, 2, 3, 4, 5, 6]
    assert sorted(set(other.done)) == other.done


def test_a_copy_that_breaks_is_begun_anew(net: Net) -> None:
    net.copies_left = 3
    one, back, stage = one_that_trains_and_one_at_the_door(steps=8)
    show_both(one, back)
    stage.wait(lambda: any(isinstance(each, CollectiveFailed) for each in back.said))
    one.stay.go_on(part(4, 0, 2, broke_in=4))
    back.stay.go_on(part(4, 1, 2, epoch=2, broke_in=4))
    assert stage.ends() == [8, 8]
    assert equal(one, back)


def test_when_nobody_has_the_state_the_group_fails(net: Net) -> None:
    net.copies_left = 3
    one, back, stage = one_that_trains_and_one_at_the_door(steps=8)
    show_both(one, back)
    stage.wait(lambda: any(isinstance(each, CollectiveFailed) for each in back.said))
    one.stay.end("lost")
    net.gone.add((3, 0))
    back.stay.go_on(part(4, 0, 1, epoch=2, broke_in=4))
    assert isinstance(stage.ends()[1], NobodyHasIt)


def test_one_that_missed_the_last_step_copies_it_from_one_that_has_finished(net: Net) -> None:
    one, other = Group(0, part(1, 0, 2), steps=2), Group(1, part(1, 1, 2), steps=2)
    net.fails = {(1, 1, 4)}
    stage = Stage(one, other)
    stage.wait(lambda: bool(other.said))
    for index, each in enumerate((one, other)):
        each.stay.go_on(part(2, index, 2, broke_in=2))
    assert stage.ends() == [2, 2]
    assert equal(one, other)
    assert (one.done, other.done) == ([1, 2], [1])


def test_without_groups_it_only_counts() -> None:
    alone = Group(0, assignment(round=1, world_size=1))
    assert Stage(alone).ends() == [6]
    assert not alone.said


def test_bad_input_names_what_is_wrong() -> None:
    alone = cast(Run, Group(0, assignment(round=1, world_size=1)))
    model = nn.Linear(1, 1)
    with pytest.raises(InvalidInput, match="step"):
        Replicas(alone, model=model, optimizer=torch.optim.SGD(model.parameters()), step=-1)
    with pytest.raises(InvalidInput, match="model"):
        Replicas(alone, model=nn.ReLU(), optimizer=torch.optim.SGD(model.parameters()))


def alike(step: int, *groups: Group) -> bool:
    first, *others = [each.at_outer[step] for each in groups]
    return all(torch.equal(one, two) for other in others for one, two in zip(first, other, strict=True))


def test_with_outer_steps_groups_are_equal_after_each_and_part_in_between() -> None:
    one, other = Group(0, part(1, 0, 2)), Group(1, part(1, 1, 2))
    one.outer = other.outer = OuterStep(every=3)
    assert Stage(one, other).ends() == [6, 6]
    assert [alike(step, one, other) for step in range(1, 7)] == [False, False, True] * 2


def test_an_outer_step_is_nesterov_momentum_over_the_mean_of_what_groups_changed() -> None:
    one, other = Group(0, part(1, 0, 2), steps=2), Group(1, part(1, 1, 2), steps=2)
    one.outer = other.outer = OuterStep(every=1, learning_rate=0.7, momentum=0.9)
    began = [each.detach().clone() for each in one.model.parameters()]
    before: dict[tuple[int, int], Tensor] = {}
    for group in (one, other):
        group.optimizer.register_step_post_hook(
            lambda *_, group=group: before.setdefault(
                (group.at, len(group.done)), group.model.weight.detach().clone()
            )
        )
    assert Stage(one, other).ends() == [2, 2]
    anchor, momentum = began[0], torch.zeros_like(began[0])
    for step in range(2):
        change = anchor - (before[0, step] + before[1, step]) / 2
        momentum = 0.9 * momentum + change
        anchor = anchor - 0.7 * (change + 0.9 * momentum)
        assert torch.allclose(one.at_outer[step + 1][0], anchor, atol=1e-6)


def test_a_group_that_comes_back_between_outer_steps_is_equal_after_the_next() -> None:
    one, back, stage = one_that_trains_and_one_at_the_door(steps=12, outer=OuterStep(every=4))
    show_both(one, back)
    assert stage.ends() == [12, 12]
    assert alike(12, one, back)
    assert equal(one, back) is False, "what the inner optimizers keep is each group's own"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"every": 0}, "every"),
        ({"every": 1, "learning_rate": 0.0}, "learning_rate"),
        ({"every": 1, "momentum": 1.0}, "momentum"),
    ],
)
def test_an_outer_step_that_cannot_be_is_refused(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        OuterStep(**fields)


def test_fingerprints_between_outer_steps_are_refused_because_groups_differ_there() -> None:
    alone = Group(0, msgspec.structs.replace(assignment(round=1, world_size=1), fingerprint_every=10))
    with pytest.raises(InvalidInput, match="fingerprintEverySteps"):
        Replicas(cast(Run, alone), model=alone.model, optimizer=alone.optimizer, outer=OuterStep(every=4))


def test_between_outer_steps_a_group_is_in_the_newest_round_at_once() -> None:
    one, other = Group(0, part(1, 0, 2), steps=20), Group(1, part(1, 1, 2), steps=20)
    one.outer = other.outer = OuterStep(every=10)
    other.dies_at = 7
    stage = Stage(one, other)
    stage.wait(lambda: (1, 1) in Faked.net.gone)
    one.stay.go_on(part(2, 0, 1, broke_in=2))
    assert stage.ends()[0] == 20
    assert one.stay.assignment.round == 2
    assert one.done == list(range(1, 21))
