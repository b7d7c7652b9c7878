"""What stays in storage, and whether the watchdog knows: real saves and deletions against the real brain."""

import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
import torch

from holdfast.api.checkpoint import Standing, StoredCheckpoint
from holdfast.api.event import (
    CheckpointRecorded,
    ClockTicked,
    Event,
    InterventionRequested,
    JobSubmitted,
    MemberEntered,
    MemberJoined,
    RestoreReported,
    RoundProgressed,
    StorageListed,
    WatchdogStarted,
)
from holdfast.api.intervention import InterventionAction, InterventionOutcome, InterventionRequest
from holdfast.api.policy import Policy
from holdfast.api.round import Idle, Restore, Round, Tier
from holdfast.checkpoint import Checkpointer, Standalone
from holdfast.checkpoint.capture.image import Snapshot
from holdfast.checkpoint.capture.savegroup import SaveGroup
from holdfast.checkpoint.commit.discovery import discover
from holdfast.checkpoint.commit.pruning import prune
from holdfast.checkpoint.commit.retention import Retention, Writer, descent
from holdfast.checkpoint.restore.opening import Opening, open_together
from holdfast.checkpoint.save.persister import Persister
from holdfast.checkpoint.save.saves import StorageReport
from holdfast.checkpoint.storage.local import LocalStorage
from holdfast.watchdog.brain import advance, initial, next_wakeup
from holdfast.watchdog.brain.rewinds import known_checkpoints
from holdfast.watchdog.brain.state import JobState
from holdfast.watchdog.brain.step import Answered

JOB = "team/run"


class Rank(Standalone):
    """Rank 0 of one round: it saves a state of eight bytes, and deletes as every round does."""

    def __init__(self, storage: LocalStorage, keep: int, round: int, restore: Restore) -> None:
        super().__init__(round=round, restore=restore)
        self.storage, self.keep = storage, keep
        self.unhealthy_from: int | None = None
        self.told: list[StorageListed] = []
        self.restored_step: int | None = None

    def stored(
        self, checkpoints: Sequence[StoredCheckpoint], /, *, count: int, uri: str, round: int, saved: int | None
    ) -> None:
        self.told.append(StorageListed(round, uri, count, tuple(checkpoints)))

    def begin(self, damaged: int = 0) -> Opening:
        """Restore the first candidate but for so many that prove damaged."""
        group = SaveGroup(self.assignment)
        opening = open_together(self.storage, group, round=self.assignment.round, restore=self.assignment.restore)
        passed, left = opening.candidates[:damaged], opening.candidates[damaged:]
        self.damaged = passed if left else ()
        self.restored_step = int(left[0].split("-")[1]) if left else None
        report = StorageReport(self, opening, uri=self.storage.uri, damaged=self.damaged)
        report.restored(opening.line, self.restored_step)
        self.number = opening.number
        self.persister = Persister(
            self.storage,
            group,
            Writer(opening.number, self.restored_step, opening.token),
            retention=lambda: Retention(self.keep, unhealthy_from=self.standing().unhealthy_from),
            reached=lambda point: None,
            stored=report.tidied,
        )
        return opening

    def standing(self) -> Standing:
        return Standing(None, self.unhealthy_from)

    def save(self, step: int, *, healthy: bool | None) -> str:
        state = memoryview(step.to_bytes(8, "little"))
        return self.persister.save(Snapshot(step, step, "__0_0.distcp", state, {}, {}, healthy))

    def there(self) -> list[int]:
        """The steps that can be gone back to, oldest first, by what the directory holds now."""
        line = descent(discover(self.storage)[0], Writer(self.number, self.restored_step))
        return [each.step for each in line if each.name not in self.damaged][::-1]


@pytest.fixture(autouse=True)
def _no_power_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of files need not be durable here; when they are is tested elsewhere."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def on_disk(storage: LocalStorage) -> list[int]:
    return sorted(each.step for each in discover(storage)[0])


class Finite(Standalone):
    """A run in which every loss that was told is finite, as a script that publishes no gradient norm sees it."""

    def is_finite(self) -> bool:
        return True


def test_parameters_that_a_gradient_has_spoilt_are_not_healthy_though_no_loss_tells_of_it_yet(
    tmp_path: Path,
) -> None:
    """The loss of the step is finite, its gradient is not, and the step is saved: only the next loss is NaN."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    uri = tmp_path.as_uri()
    checkpointer = Checkpointer(Finite(), model=model, optimizer=optimizer, uri=uri, every_steps=1, keep=1)
    for step, _ in checkpointer.steps(range(6)):
        for each in model.parameters():
            each.grad = torch.full_like(each, torch.nan if step == 4 else 0.1)
        optimizer.step()
    checkpointer.close()
    found, _ = discover(LocalStorage(tmp_path))
    assert {each.step: each.healthy for each in found} == {3: True, 6: False}


@pytest.mark.parametrize(("keep", "knows"), [(1, True), (1, False), (3, True)])
def test_after_ten_thousand_steps_of_nan_the_newest_healthy_checkpoint_is_there_and_is_restored(
    tmp_path: Path, keep: int, knows: bool
) -> None:
    storage = LocalStorage(tmp_path / "checkpoints")
    rank = Rank(storage, keep, 1, Restore(Tier.CHECKPOINT, owner="life"))
    rank.begin()
    most = 0
    for step in range(100, 10_201, 100 if keep == 3 else 10):
        rank.unhealthy_from = 201 if knows and step > 200 else None
        rank.save(step, healthy=step <= 200)
        rank.persister.tidy()
        most = max(most, len(on_disk(storage)))
    assert (on_disk(storage)[0], on_disk(storage)[-1], most) == (200, 10_200, keep + 1)
    rerun = Rank(storage, keep, 0, Restore(Tier.CHECKPOINT))
    opening = rerun.begin()
    assert (rerun.restored_step, len(opening.last_resort)) == (200, keep)
    again = Rank(storage, keep, 2, Restore(Tier.CHECKPOINT, step=9000, owner="second", unhealthy_from=201))
    assert (again.begin().last_resort, again.restored_step) == ((), 200)


class Brain:
    """The watchdog's brain and the journal of what it was told."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.state = initial(JOB)
        self.journal: list[tuple[Event, float]] = []
        self.outcomes: list[InterventionOutcome] = []

    def tell(self, *events: Event) -> None:
        for event in events:
            self.journal.append((event, self.now))
            step = advance(self.state, event, self.now)
            self.state = step.state
            self.outcomes += [each.outcome for each in step.effects if isinstance(each, Answered)]

    def begin(self, uid: str) -> None:
        self.tell(JobSubmitted(Policy(JOB, 1, 1, checkpoint_uri="/ckpt", uid=uid)))
        self.join()

    def join(self) -> None:
        self.tell(MemberJoined("m", "n", "boot", "10.0.0.1", 1, (7000, 7001), warm=True))

    def round(self) -> Round:
        """The round that is shown, after as much time as it takes."""
        for _ in range(20):
            if isinstance(self.state.desired, Round):
                return self.state.desired
            self.now = max(self.now + 1, next_wakeup(self.state) or 0.0)
            self.tell(ClockTicked())
        raise AssertionError(self.state.reason)

    def replayed(self) -> JobState:
        state = initial(JOB)
        for event, at in self.journal:
            state = advance(state, event, at).state
        return state


class Life:
    """One job's life on one directory, at random."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random = random.Random(seed)
        self.storage = LocalStorage(folder)
        self.keep = self.random.randint(1, 4)
        self.brain = Brain()
        self.lives = self.requests = 0
        self.step = 0
        self.is_poisoned = False
        self.live()

    def live(self) -> None:
        """The job is submitted anew: another life on the same directory."""
        self.lives += 1
        self.brain.begin(f"uid-{self.lives}")
        self.enter()

    def enter(self) -> None:
        """Rank 0 of the round that is shown restores, and the round makes its first step."""
        if self.brain.state.member("m") is None:
            self.brain.join()
        shown = self.brain.round()
        self.rank = Rank(self.storage, self.keep, shown.number, shown.restore)
        opening = self.rank.begin(damaged=self.random.choice((0, 0, 0, 0, 1)))
        self.brain.tell(MemberEntered("m", shown.number, reentrant=True))
        self.pass_on()
        restored = self.rank.restored_step
        skipped = (*opening.unreadable, *self.rank.damaged)
        self.brain.tell(RestoreReported(shown.number, restored, skipped))
        self.step = (restored or 0) + 1
        self.is_poisoned = False
        self.brain.tell(RoundProgressed(shown.number, self.step))
        self.agrees()

    def pass_on(self) -> None:
        self.brain.tell(*self.rank.told)
        self.rank.told.clear()

    def agrees(self) -> None:
        listed = [each.step for each in known_checkpoints(self.brain.state)]
        assert listed == self.rank.there()
        assert self.brain.state.storage is not None
        assert self.brain.state.storage.count == len(listed)

    def save(self) -> None:
        self.step += self.random.randint(1, 9)
        self.is_poisoned = self.is_poisoned or self.random.random() < 0.05
        healthy = not self.is_poisoned if self.random.random() < 0.9 else None
        name = self.rank.save(self.step, healthy=healthy)
        number = self.rank.assignment.round
        self.brain.tell(CheckpointRecorded(number, self.step, f"{self.storage.uri}/{name}"))
        if self.random.random() < 0.9:  # Else rank 0 died in between, or the disk refused.
            self.rank.persister.tidy()
            self.pass_on()
            self.agrees()

    def restart(self) -> None:
        """Another round, from the newest there is."""
        self.brain.tell(RoundProgressed(self.rank.assignment.round, self.step))
        self.ask(InterventionAction.RESTART)
        self.enter()

    def ask(self, action: InterventionAction, **fields: int) -> str:
        self.requests += 1
        id = f"i{self.requests}"
        self.brain.tell(InterventionRequested(InterventionRequest(id, JOB, action, "asked", **fields)))  # type: ignore[arg-type]
        return id

    def rewind(self) -> None:
        limit = self.random.randint(0, self.step + 5)
        before = [each.step for each in known_checkpoints(self.brain.state)]
        id = self.ask(InterventionAction.REWIND, to_step=limit)
        refused = [each for each in self.brain.outcomes if each.id == id]
        if refused:
            assert not [step for step in before if step <= limit]
            return
        self.enter()
        (outcome,) = [each for each in self.brain.outcomes if each.id == id]
        restored = self.rank.restored_step
        says = f"restored step {restored}" if restored is not None else "began afresh"
        assert says in outcome.outcome

    def harm(self) -> None:
        """A file is cut; the next round or deletion sees it."""
        names = [each.name for each in discover(self.storage)[0]]
        if len(names) > 1:
            (Path(self.storage.uri.removeprefix("file://")) / self.random.choice(names) / "index.json").unlink()

    def prune(self) -> None:
        """By hand; the next deletion of the job tells it."""
        if discover(self.storage)[0]:
            prune(self.storage, Retention(self.random.randint(1, 3)))

    def restart_watchdog(self) -> None:
        state = self.brain.replayed()
        assert msgspec.msgpack.encode(state) == msgspec.msgpack.encode(self.brain.state)
        self.brain.state = state
        self.brain.tell(WatchdogStarted())
        self.brain.tell(
            MemberJoined(
                "m", "n", "boot", "10.0.0.1", 1, (7000, 7001), warm=True, held_round=self.rank.assignment.round
            )
        )
        if isinstance(self.brain.state.desired, Idle) or self.brain.round().number != self.rank.assignment.round:
            self.enter()


@pytest.mark.parametrize("seed", range(4))
def test_the_watchdogs_list_is_the_storages_after_a_thousand_saves_and_prunes(seed: int, tmp_path: Path) -> None:
    life = Life(seed, tmp_path / "checkpoints")
    saves = 0
    while saves < 250:
        match life.random.random():
            case chance if chance < 0.75:
                life.save()
                saves += 1
            case chance if chance < 0.82:
                life.restart()
            case chance if chance < 0.90:
                life.rewind()
            case chance if chance < 0.93:
                life.harm()
            case chance if chance < 0.96:
                life.prune()
            case chance if chance < 0.99:
                life.restart_watchdog()
            case _:
                life.live()
    life.restart()
    assert [each.step for each in known_checkpoints(life.brain.replayed())] == life.rank.there()
    shutil.rmtree(tmp_path / "checkpoints")
