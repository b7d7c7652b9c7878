"""A run that is cut in a later epoch, or right at the end of one, trains what an undisturbed run trains: the same
steps, samples and losses, whatever the loader, and with work between the epochs.
"""

import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from patience import patient
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    TensorDataset,
)
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from holdfast.checkpoint import Checkpointer, Standalone

# What torchdata asks of torch.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")

EPOCHS, BATCHES = 4, 5
SAMPLES = tuple(range(20))

OTHER = "the loader's order is not that of before"

Seen = list[tuple[int, list[int], str]]
"""Steps with their samples and losses."""


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return len(SAMPLES)

    def __getitem__(self, place: int) -> int:
        return SAMPLES[place]


class Drawn(IterableDataset[int]):
    """Its order comes from Python's random numbers, as of files that are shuffled."""

    def __iter__(self) -> Iterator[int]:
        numbers = list(SAMPLES)
        random.shuffle(numbers)
        return iter(numbers)


class Numbered(IterableDataset[int]):
    """Its order comes from the epoch that it is told."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        numbers = list(SAMPLES)
        random.Random(self.epoch).shuffle(numbers)
        return iter(numbers)


class Counting(RandomSampler):
    """Counts its passes by itself, as Accelerate's does."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        yield from random.Random(self.epoch).sample(SAMPLES, len(SAMPLES))
        self.set_epoch(self.epoch + 1)


class Sized:
    """A loader of one's own that knows its place, and begins anew when it is through."""

    def __init__(self) -> None:
        self.place, self.passes = 0, 0

    def __iter__(self) -> Iterator[Tensor]:
        while self.place < BATCHES:
            self.place += 1
            yield torch.tensor([self.passes, self.place])
        self.place, self.passes = 0, self.passes + 1

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place, "passes": self.passes}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place, self.passes = state["place"], state["passes"]


class OwnChance(Sampler[int]):
    """Keeps what it draws from."""

    def __init__(self) -> None:
        self.chance = random.Random(4)

    def __len__(self) -> int:
        return len(SAMPLES)

    def __iter__(self) -> Iterator[int]:
        return iter(self.chance.sample(SAMPLES, len(SAMPLES)))


class OwnBatches(Sampler[list[int]]):
    """Batches of an order that NumPy draws."""

    def __init__(self, chance: "numpy.random.Generator | numpy.random.RandomState") -> None:
        self.chance = chance

    def __len__(self) -> int:
        return BATCHES

    def __iter__(self) -> Iterator[list[int]]:
        order = self.chance.permutation(len(SAMPLES))
        return iter(order.reshape(BATCHES, -1).tolist())


class OwnDrawn(IterableDataset[int]):
    def __init__(self) -> None:
        self.chance = random.Random(2)

    def __iter__(self) -> Iterator[int]:
        return iter(self.chance.sample(SAMPLES, len(SAMPLES)))


class InPlace(Sampler[int]):
    """Shuffles what it shuffled before."""

    def __init__(self) -> None:
        self.order, self.chance = list(SAMPLES), torch.Generator().manual_seed(1)

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[int]:
        self.order = [self.order[place] for place in torch.randperm(len(self.order), generator=self.chance)]
        yield from self.order


class Knowing(InPlace):
    """Says where it is, as torchdata asks for it."""

    place = 0

    def __iter__(self) -> Iterator[int]:
        if self.place == 0:
            self.order = [self.order[place] for place in torch.randperm(len(self.order), generator=self.chance)]
        while self.place < len(self.order):
            self.place += 1
            yield self.order[self.place - 1]
        self.place = 0

    def state_dict(self) -> dict[str, Any]:
        return {"order": self.order, "place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.order, self.place = list(state["order"]), state["place"]


class Augmented(Numbers):
    """Another sample each time, drawn in whatever process reads it."""

    def __getitem__(self, place: int) -> int:
        return 100 * place + int(torch.randint(100, ()))


def distributed() -> "DistributedSampler[int]":
    return DistributedSampler(Numbers(), num_replicas=1, rank=0, seed=3)


LOADERS: dict[str, Callable[[], Iterable[Tensor]]] = {
    "plain, shuffled": lambda: DataLoader(Numbers(), 4, shuffle=True),
    "plain, a generator of its own": lambda: DataLoader(
        Numbers(), 4, shuffle=True, generator=torch.Generator().manual_seed(7)
    ),
    "plain, told of epochs": lambda: DataLoader(Numbers(), 4, sampler=distributed()),
    "plain, a sampler that counts": lambda: DataLoader(Numbers(), 4, sampler=Counting(Numbers())),
    "iterable, drawn": lambda: DataLoader(Drawn(), 4),
    "iterable, told of epochs": lambda: DataLoader(Numbered(), 4),
    "stateful, shuffled": lambda: StatefulDataLoader(Numbers(), 4, shuffle=True),
    "stateful, told of epochs": lambda: StatefulDataLoader(Numbers(), 4, sampler=distributed()),
    "stateful, iterable": lambda: StatefulDataLoader(Numbered(), 4),
    "of one's own": Sized,
    "a sampler's own generator": lambda: DataLoader(Numbers(), 4, sampler=OwnChance()),
    "a batch sampler's own of NumPy": lambda: DataLoader(
        Numbers(), batch_sampler=OwnBatches(numpy.random.default_rng(3))
    ),
    "a batch sampler's own of NumPy's old kind": lambda: DataLoader(
        Numbers(), batch_sampler=OwnBatches(numpy.random.RandomState(3))
    ),
    "iterable, its own generator": lambda: DataLoader(OwnDrawn(), 4),
    "a sampler that knows its state": lambda: DataLoader(Numbers(), 4, sampler=Knowing()),
    "torchdata's sampler": lambda: DataLoader(
        Numbers(), 4, sampler=StatefulDistributedSampler(Numbers(), num_replicas=1, rank=0, seed=3)
    ),
    "single samples": lambda: DataLoader(
        TensorDataset(torch.arange(BATCHES)), None, sampler=RandomSampler(range(BATCHES))
    ),
}


def told(loader: object, epoch: int) -> None:
    for each in (getattr(loader, "sampler", None), getattr(loader, "dataset", None)):
        if isinstance(each, DistributedSampler | Numbered):
            each.set_epoch(epoch)


def train(
    directory: Path,
    make: Callable[[], Iterable[Tensor]],
    *,
    begins_at_epoch: bool = False,
    makes_anew: bool = False,
    every_steps: int = 1000,
    stop: int | None = None,
) -> Seen:
    """As a script that begins as always; `stop` is the step that is not completed."""
    torch.manual_seed(0)
    random.seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    average = torch.optim.swa_utils.AveragedModel(model)
    checkpointer = Checkpointer(
        Standalone(str(directory)),
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        extra={"average": average},
        every_steps=every_steps,
    )
    loader, seen = make(), []
    for epoch in range(checkpointer.epoch if begins_at_epoch else 0, EPOCHS):
        loader = make() if makes_anew else loader
        told(loader, epoch)
        for step, batch in checkpointer.steps(loader):
            batch = batch[0] if isinstance(batch, list) else batch
            loss = (model(batch.float().mean().expand(4)) + average(torch.ones(4))).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append((step, batch.tolist(), loss.item().hex()))
            if step == stop:
                checkpointer.close()  # else what it saves now would be in other tests' way
                return seen[:-1]
        scheduler.step()  # what tutorials do between epochs
        average.update_parameters(model)
        torch.rand(3)
    checkpointer.close()
    return seen


@pytest.mark.parametrize("begins_at_epoch", [False, True], ids=["all epochs", "from checkpointer.epoch"])
@pytest.mark.parametrize("name", LOADERS)
def test_a_run_that_is_cut_trains_what_an_undisturbed_run_trains(
    name: str, begins_at_epoch: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make = LOADERS[name]
    whole = train(tmp_path / "whole", make)
    assert [step for step, _, _ in whole] == list(range(1, EPOCHS * BATCHES + 1))
    # In the third epoch; at the end of the second, saved by its last step; the same, saved because it has ended.
    for stop, every in ((14, 1), (11, 5), (11, 1000)):
        directory = tmp_path / f"cut at {stop}, saved every {every}"
        first = train(directory, make, every_steps=every, stop=stop)
        rest = train(directory, make, every_steps=every, begins_at_epoch=begins_at_epoch)
        assert first + rest == whole, f"cut at {stop}, saved every {every}"
    assert OTHER not in caplog.text


def test_a_sampler_that_cannot_draw_the_same_again_is_told_before_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def make() -> Iterable[Tensor]:
        return DataLoader(Numbers(), 4, sampler=InPlace())

    whole = train(tmp_path / "whole", make)
    first = train(tmp_path / "cut", make, every_steps=1, stop=14)
    assert OTHER not in caplog.text
    assert first + train(tmp_path / "cut", make) != whole
    assert f"{OTHER}" in caplog.text
    assert "epoch=2 batches=3 sampler=InPlace" in caplog.text


@pytest.mark.timeout(patient(120.0))
@pytest.mark.parametrize("workers", [0, 2])
def test_samples_that_are_made_at_random_are_not_called_others(
    workers: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def make() -> Iterable[Tensor]:
        return DataLoader(Augmented(), 4, shuffle=True, num_workers=workers)

    train(tmp_path, make, every_steps=1, stop=14)
    train(tmp_path, make)
    assert OTHER not in caplog.text


def test_a_loader_that_is_looked_at_keeps_its_samplers(tmp_path: Path) -> None:
    loader = DataLoader(Numbers(), 4, sampler=OwnChance())
    batches, sampler = loader.batch_sampler, loader.sampler
    train(tmp_path, lambda: loader)
    assert (loader.batch_sampler, loader.sampler) == (batches, sampler)


def test_a_loader_that_is_made_anew_for_each_epoch_goes_on_in_the_same_order(tmp_path: Path) -> None:
    make = LOADERS["stateful, shuffled"]
    whole = train(tmp_path / "whole", make, makes_anew=True)
    for stop, every in ((14, 1), (11, 1000)):
        directory = tmp_path / str(stop)
        first = train(directory, make, makes_anew=True, every_steps=every, stop=stop)
        assert first + train(directory, make, makes_anew=True) == whole


def test_loader_workers_go_on_where_they_were(tmp_path: Path) -> None:
    def make() -> Iterable[Tensor]:
        return StatefulDataLoader(Numbers(), 4, sampler=distributed(), num_workers=2)

    whole = train(tmp_path / "whole", make)
    first = train(tmp_path / "cut", make, every_steps=1, stop=14)
    assert first + train(tmp_path / "cut", make) == whole


def shrink(model: torch.nn.Module, _: torch.optim.Optimizer) -> None:
    with torch.no_grad():
        for each in model.parameters():
            each.mul_(0.9)


def copy_in(model: torch.nn.Module, _: torch.optim.Optimizer) -> None:
    for each in model.parameters():
        each.data = each.data.sign()


def count_again(model: torch.nn.Module, _: torch.optim.Optimizer) -> None:
    model(torch.ones(8, 4))  # in training mode


def forget_moments(_: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for state in optimizer.state.values():
        state["exp_avg"].zero_()


@pytest.mark.parametrize("between", [shrink, copy_in, count_again, forget_moments])
def test_what_a_script_changes_of_the_model_behind_an_epoch_is_not_changed_twice(
    between: Callable[[torch.nn.Module, torch.optim.Optimizer], None], tmp_path: Path
) -> None:
    def train(directory: Path, stop: int | None = None) -> list[str]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        checkpointer = Checkpointer(Standalone(str(directory)), model=model, optimizer=optimizer, every_steps=1)
        data = torch.randn(4, 8, 4)
        for _ in range(3):
            for step, batch in checkpointer.steps(data):
                optimizer.zero_grad()
                model(batch).square().sum().backward()
                optimizer.step()
                if step == stop:
                    break
            if stop is not None and step == stop:
                break
            between(model, optimizer)
        checkpointer.close()
        moments = [state["exp_avg"] for state in optimizer.state.values()]
        return [str(each.tolist()) for each in (*model.state_dict().values(), *moments)]

    whole = train(tmp_path / "whole")
    train(tmp_path / "cut", stop=10)
    assert train(tmp_path / "cut") == whole


def test_epochs_that_are_left_by_break_are_saved_as_their_steps_come(tmp_path: Path) -> None:
    def train(directory: Path, epochs: int, stop: int | None = None) -> Seen:
        torch.manual_seed(0)
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        checkpointer = Checkpointer(
            Standalone(str(directory)), model=model, optimizer=optimizer, scheduler=scheduler, every_steps=3
        )
        loader, seen = DataLoader(Numbers(), 4, shuffle=True), Seen()
        for _ in range(epochs):
            for place, (step, batch) in enumerate(checkpointer.steps(loader), 1):
                loss = model(batch.float().mean().view(1)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                seen.append((step, batch.tolist(), loss.item().hex()))
                if step == stop:
                    checkpointer.close()
                    return seen
                if place == 3:
                    break
            scheduler.step()
        checkpointer.close()
        return seen

    whole = train(tmp_path / "whole", 4)
    train(tmp_path / "cut", 4, stop=8)
    assert train(tmp_path / "cut", 4) == whole[6:], "what was due at the sixth step, the last of an epoch"


def test_a_last_epoch_that_is_left_by_break_says_that_its_last_step_is_not_saved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    checkpointer = Checkpointer(Standalone(str(tmp_path)), model=model, optimizer=optimizer)
    for _ in checkpointer.steps(range(3)):
        break
    checkpointer.close()
    assert "the loop was left at a step, which is not saved step=1" in caplog.text


WITH_WORKERS: dict[str, Callable[[], Iterable[Tensor]]] = {
    "one, kept": lambda: DataLoader(Numbers(), 4, shuffle=True, num_workers=1, persistent_workers=True),
    "two, kept, a generator of its own": lambda: DataLoader(
        Numbers(),
        4,
        shuffle=True,
        num_workers=2,
        persistent_workers=True,
        generator=torch.Generator().manual_seed(7),
    ),
    "two, new in each epoch": lambda: DataLoader(Numbers(), 4, shuffle=True, num_workers=2),
    "stateful, one, kept": lambda: StatefulDataLoader(
        Numbers(), 4, shuffle=True, num_workers=1, persistent_workers=True
    ),
}


@pytest.mark.timeout(patient(120.0))
@pytest.mark.parametrize("name", WITH_WORKERS)
def test_a_loader_goes_on_in_the_order_of_an_epoch_whether_its_workers_outlive_one_or_not(
    name: str, tmp_path: Path
) -> None:
    make = WITH_WORKERS[name]
    whole = train(tmp_path / "whole", make)
    for stop, every in ((3, 1), (14, 1), (11, 1000)):  # in the first epoch, in the third, at the end of the second
        directory = tmp_path / str(stop)
        first = train(directory, make, every_steps=every, stop=stop)
        assert first + train(directory, make, every_steps=every) == whole, f"cut at {stop}"


def test_a_run_that_is_cut_again_and_again_is_the_same_and_tells_the_epoch(tmp_path: Path) -> None:
    make = LOADERS["stateful, told of epochs"]
    whole = train(tmp_path / "whole", make)
    seen: Seen = []
    for stop in (4, 7, 12, 16, 19):
        seen += train(tmp_path / "cut", make, every_steps=1, stop=stop)
    assert seen + train(tmp_path / "cut", make) == whole


def test_more_steps_than_before_go_on_in_the_pass_that_was_under_way(tmp_path: Path) -> None:
    def passes(until: int) -> list[int]:
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters())
        checkpointer = Checkpointer(Standalone(str(tmp_path)), model=model, optimizer=optimizer)
        seen = [number for _ in range(3) for _, number in checkpointer.steps(range(5), until=until)]
        checkpointer.close()
        return seen

    assert passes(8) == [0, 1, 2, 3, 4, 0, 1, 2]
    assert passes(8) == []
    assert passes(12) == [3, 4, 0, 1]


# From a slice for each epoch nobody can pass over what earlier slices gave, so a script asks for all epochs then.
@pytest.mark.parametrize(
    ("is_cut_up", "begins_at_epoch"),
    [(True, False), (False, False), (False, True)],
    ids=["a slice for each epoch", "the stream itself", "the stream, from checkpointer.epoch"],
)
def test_a_stream_that_all_epochs_share_goes_on_where_it_was(
    is_cut_up: bool, begins_at_epoch: bool, tmp_path: Path
) -> None:
    def train(until: int) -> list[tuple[int, int]]:
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters())
        checkpointer = Checkpointer(Standalone(str(tmp_path)), model=model, optimizer=optimizer)
        stream, seen = iter(range(100)), []
        for epoch in range(checkpointer.epoch if begins_at_epoch else 0, 3):
            data = itertools.islice(stream, 4) if is_cut_up else stream
            limit = min(until, 4 * (epoch + 1))
            seen += list(checkpointer.steps(data, until=limit))
        checkpointer.close()
        return seen

    assert train(7) == [(step, step - 1) for step in range(1, 8)]
    assert train(12) == [(step, step - 1) for step in range(8, 13)]


def test_one_pass_over_data_that_have_become_more_goes_on_with_what_is_new(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def one_pass(length: int) -> list[int]:
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters())
        checkpointer = Checkpointer(Standalone(str(tmp_path)), model=model, optimizer=optimizer)
        seen = [number for _, number in checkpointer.steps(range(length))]
        checkpointer.close()
        return seen

    caplog.set_level("INFO")
    assert one_pass(3) == [0, 1, 2]
    assert one_pass(3) == []
    assert "no batch is left" in caplog.text
    assert one_pass(5) == [3, 4]


def test_a_loop_of_fewer_epochs_than_were_trained_says_that_nothing_was(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def passes(count: int) -> list[int]:
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters())
        checkpointer = Checkpointer(Standalone(str(tmp_path)), model=model, optimizer=optimizer)
        seen = [number for _ in range(count) for _, number in checkpointer.steps(range(3))]
        checkpointer.close()
        return seen

    assert len(passes(3)) == 9
    assert "nothing was trained" not in caplog.text
    assert passes(1) == []
    assert "nothing was trained" in caplog.text


def test_a_loop_that_counts_by_itself_is_told_its_epoch_and_position(tmp_path: Path) -> None:
    def train(until: int) -> list[tuple[int, int]]:
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters())
        checkpointer = Checkpointer(Standalone(str(tmp_path)), model=model, optimizer=optimizer, every_steps=1)
        step, taken = checkpointer.resume(until=until), []
        first, position = checkpointer.epoch, checkpointer.position
        for epoch in range(first, 3):
            for number in islice(range(5), position if epoch == first else 0, None):
                if step == until:
                    checkpointer.finish()
                    checkpointer.close()
                    return taken
                taken.append((epoch, number))
                step += 1
                checkpointer.completed(step, epoch=epoch)
        checkpointer.close()
        return taken

    assert train(7) + train(10) + train(15) == [(epoch, number) for epoch in range(3) for number in range(5)]
