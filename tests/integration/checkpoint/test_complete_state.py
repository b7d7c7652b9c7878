"""Everything a loop consists of, interrupted at every kind of place: what follows is what would have followed."""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_solo import Witness
from torch import nn
from torch.utils.data import TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from holdfast.checkpoint import Checkpointer
from holdfast.checkpoint.save.persister import SavePoint

# The newest torchdata asks torch for something that torch has given up.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")

LAST = 12
EPOCHS = 2
SAMPLES = torch.arange(21 * 3, dtype=torch.float32).reshape(21, 3) / 60


class Interrupted(Exception):
    """The process ends here."""


@dataclass
class Averages:
    """What users keep besides the model: a running mean of the weights, a count, a list that grows."""

    mean: torch.Tensor = field(default_factory=lambda: torch.zeros(4, 3))
    seen: int = 0
    losses: list[float] = field(default_factory=list)

    def update(self, weight: torch.Tensor, loss: float) -> None:
        self.mean.lerp_(weight.detach(), 0.1)
        self.seen += 1
        self.losses.append(loss)

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "seen": self.seen, "losses": list(self.losses)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean, self.seen, self.losses = state["mean"], state["seen"], list(state["losses"])


def loader(workers: int) -> StatefulDataLoader[Any]:
    """Seven batches an epoch, in another order each, which it draws from the random state of the process."""
    return StatefulDataLoader(TensorDataset(SAMPLES), batch_size=3, shuffle=True, num_workers=workers)


def plain() -> list[list[torch.Tensor]]:
    return [[SAMPLES[start : start + 3]] for start in range(0, 21, 3)]


def drawn() -> Iterator[list[torch.Tensor]]:
    """Made from the random state of the process, as augmentation does."""
    for _ in range(7):
        yield [SAMPLES[np.random.randint(0, 20, size=3)] + random.random() + torch.rand(3, 3)]


class Drawn:
    def __iter__(self) -> Iterator[list[torch.Tensor]]:
        return drawn()


SOURCES: dict[str, Callable[[], Iterable[Any]]] = {
    "loader": lambda: loader(0),
    "loader with workers": lambda: loader(2),
    "list": plain,
    "drawn": Drawn,
}


class Loop:
    """One process's life: all objects are made anew, then it trains until `LAST` or until it is interrupted."""

    is_new_each_epoch = False

    def __init__(self, directory: Path, source: str) -> None:
        torch.manual_seed(1)
        random.seed(2)
        np.random.seed(3)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.3), nn.Linear(4, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=LAST)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=3)
        self.averages = Averages()
        self.source = SOURCES[source]
        self.data = self.source()
        self.place: tuple[str, int] = ("", 0)
        self.seen: dict[int, tuple[str, ...]] = {}
        self.step = 0
        self.saving = 0
        self.checkpointer = Checkpointer(
            Witness(),
            model=self.model,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            scaler=self.scaler,
            extra={"averages": self.averages},
            uri=str(directory),
            every_steps=2,
            reached=self._reached,
        )

    def train(self, place: str = "", step: int = 0) -> "Loop":
        self.place = place, step
        for epoch in range(EPOCHS):
            if epoch and self.is_new_each_epoch:
                self.data = self.source()
            for step, (batch,) in self.checkpointer.steps(self.data, until=LAST):
                self.step = step
                self._train_on(batch)
        self.checkpointer.close()
        return self

    def die(self, place: str, step: int) -> None:
        with pytest.raises(Interrupted):
            self.train(place, step)

    def _train_on(self, batch: torch.Tensor) -> None:
        self._pass("begun")
        noise = torch.rand(1) + random.random() + float(np.random.rand())
        loss = (self.model(batch + noise * 1e-3) - 1).square().mean()
        self.scaler.scale(loss).backward()
        self._pass("backward")
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        self.optimizer.zero_grad()
        self.averages.update(self.model[0].weight, loss.item())
        self.seen[self.step] = (
            batch.numpy().tobytes().hex(),
            loss.item().hex(),
            self.scaler.get_scale().hex(),
            float(self.scheduler.get_last_lr()[0]).hex(),
            self.averages.mean.numpy().tobytes().hex(),
            str(self.averages.losses),
        )
        self._pass("stepped")

    def _pass(self, place: str) -> None:
        wanted, step = self.place
        if (place, self.step) == self.place or (wanted in list(SavePoint) and self.step == step + 2):
            raise Interrupted

    def _reached(self, point: SavePoint) -> None:
        """A save that is in the background ends there, and the process a little later."""
        wanted, step = self.place
        if point is SavePoint.STAGED:
            self.saving = self.step  # The one before has ended.
        if point.value == wanted and self.saving == step:
            raise Interrupted


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[int, tuple[str, ...]]]:
    """What each step saw and computed where nothing happened."""
    known: dict[str, dict[int, tuple[str, ...]]] = {}

    def seen(source: str) -> dict[int, tuple[str, ...]]:
        if source not in known:
            known[source] = Loop(tmp_path_factory.mktemp("undisturbed"), source).train().seen
        return known[source]

    return seen


PLACES = [
    ("begun", 5),  # in the middle of an epoch
    ("backward", 7),  # the last step of an epoch, with gradients
    ("stepped", 8),  # a step that was to be saved, and was not
    ("begun", 8),  # the first step of the second epoch
    ("staged", 6),
    ("file-written", 6),
    ("before-rename", 8),
    ("after-rename", 8),
]


CASES = [
    (place, step, source)
    for place, step in PLACES
    for source in SOURCES
    if source != "loader with workers" or (place, step) == ("begun", 5)  # Each start of workers takes seconds.
]


@pytest.mark.parametrize(("place", "step", "source"), CASES)
def test_a_loop_that_was_interrupted_goes_on_bit_by_bit(
    place: str, step: int, source: str, tmp_path: Path, undisturbed: Callable[[str], dict[int, tuple[str, ...]]]
) -> None:
    expected = undisturbed(source)
    first = Loop(tmp_path, source)
    first.die(place, step)
    second = Loop(tmp_path, source).train()
    assert 1 < min(second.seen) <= LAST, "nothing was restored"
    assert second.seen == {each: expected[each] for each in second.seen}
    assert sorted({*first.seen, *second.seen}) == list(range(1, LAST + 1))


def test_a_loop_that_is_interrupted_again_and_again_ends_where_it_would_have(
    tmp_path: Path, undisturbed: Callable[[str], dict[int, tuple[str, ...]]]
) -> None:
    seen: dict[int, tuple[str, ...]] = {}
    for step in (3, 5, 6, 8, 9, 11):
        loop = Loop(tmp_path, "drawn")
        loop.die("stepped", step)
        seen.update(loop.seen)
    seen.update(Loop(tmp_path, "drawn").train().seen)
    assert seen == undisturbed("drawn")


def test_data_that_is_made_anew_for_each_epoch_is_where_it_was(tmp_path: Path) -> None:
    class Anew(Loop):
        is_new_each_epoch = True

    whole = Anew(tmp_path / "whole", "loader").train().seen
    Anew(tmp_path / "cut", "loader").die("begun", 11)
    second = Anew(tmp_path / "cut", "loader").train().seen
    assert second == {step: whole[step] for step in (11, 12)}
