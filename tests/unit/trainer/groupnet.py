"""Replica groups, each one rank and a thread, against a network that fails where it is told to."""

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, cast

import msgspec
import torch
from patience import patient
from torch import Tensor, nn
from trainer_builders import assignment

from holdfast.api.control import Assignment
from holdfast.api.rankrecord import Phase
from holdfast.api.round import Endpoint, GroupSeat
from holdfast.trainer import OuterStep, Replicas, Run
from holdfast.trainer.group import NotFormed, RoundGroup
from holdfast.trainer.stay import Stay

HOST = Endpoint("127.0.0.1", 29500)
LIMIT_S = patient(20.0)
LOOKS_S = 0.1  # how often a wait looks whether a group has failed


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
        self.end_sum(self.begin_sum(values))

    def begin_sum(self, values: Tensor) -> tuple[int, Tensor]:
        self._check()
        return self._said(values), values

    def end_sum(self, begun: tuple[int, Tensor]) -> None:
        turn, values = begun
        values.copy_(sum(self._heard(turn), start=torch.zeros_like(values)))

    def gather(self, values: Tensor) -> list[Tensor]:
        return self._heard(self._said(values))

    def _said(self, values: Tensor) -> int:
        turn, net = self._turn, self.net
        self._turn += 1
        with net.changed:
            net.said.setdefault((self.round, turn), {})[self.index] = values.clone()
            net.changed.notify_all()
        return turn

    def _heard(self, turn: int) -> list[Tensor]:
        net, told = self.net, self.net.said[self.round, turn]
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
        self.dies_in_backward_of = -1
        torch.manual_seed(at)
        self.model: nn.Module = nn.Linear(3, 1)
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.outer: OuterStep | None = None
        self.overlaps = False
        self.at_outer: dict[int, list[Tensor]] = {}

    @property
    def assignment(self) -> Assignment:
        return self.stay.assignment

    def take_up(self, part: Assignment) -> None:
        self.stay.taken_up(part)

    def say(self, message: object) -> None:
        self.said.append(message)

    def phase(self, phase: Phase) -> None:
        pass

    def replicas(self) -> Replicas:
        return Replicas(cast(Run, self), model=self.model, optimizer=self.optimizer, outer=self.outer)

    def train(self) -> int:
        with self.replicas() as mine:
            while mine.step < self.steps:
                if mine.step + 1 == self.dies_at:
                    Faked.net.gone.add((self.stay.assignment.round, mine.index))
                    raise KeyboardInterrupt
                if mine.step + 1 == self.holds_at:
                    assert self.gate.wait(LIMIT_S)
                self.before(mine.step + 1)
                self.optimizer.zero_grad()
                self.passes += 1
                with mine.overlapped() if self.overlaps else contextlib.nullcontext():
                    self.backward(mine)
                if mine.average():
                    self.optimizer.step()
                    mine.stepped()
                    self.done.append(mine.step)
                    self.at_outer[mine.step] = [each.detach().clone() for each in self.model.parameters()]
                    self.completed(mine.step)
        return mine.step

    def before(self, step: int) -> None:
        """For what a script does at a step."""

    def completed(self, step: int) -> None:
        """For what a script does after a step."""

    def backward(self, mine: Replicas) -> None:
        dice = torch.Generator().manual_seed(10 * mine.step + mine.index)
        loss = self.model(torch.randn(4, 3, generator=dice)).square().mean()
        if mine.step + 1 == self.dies_in_backward_of:
            first = next(iter(self.model.parameters()))
            first.register_hook(lambda _: Faked.net.gone.add((self.stay.assignment.round, mine.index)))
        loss.backward()
        if mine.step + 1 == self.dies_in_backward_of:
            raise KeyboardInterrupt

    @property
    def held(self) -> list[Tensor]:
        kept = [self.optimizer.state[each] for each in self.model.parameters()]
        return [*self.model.parameters(), *(each[name] for each in kept for name in sorted(each))]

    def has_done(self, step: int) -> Callable[[], bool]:
        return lambda: step in self.done


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
        for _ in range(int(LIMIT_S / LOOKS_S)):
            if reached.wait(LOOKS_S):
                return
            failed = [each.exception() for each in self.running if each.done()]
            assert not any(isinstance(each, Exception) for each in failed), failed
        raise AssertionError("what was waited for did not come")

    def ends(self) -> list[int | BaseException]:
        self.pool.shutdown(wait=False)
        return [each.exception(LIMIT_S) or each.result() for each in self.running]


def equal(*groups: Group) -> bool:
    return all(
        torch.equal(one, other)
        for each in groups[1:]
        for one, other in zip(groups[0].held, each.held, strict=True)
    )
