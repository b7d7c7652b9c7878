"""Where a loop is in its data: which passes are over, what is passed over in the one that goes on, and what is
saved.
"""

import logging
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from holdfast.checkpoint.capture.cursor import Cursor, cursor_of
from holdfast.checkpoint.capture.dataplace import DataPlace
from holdfast.checkpoint.capture.loopplace import LoopPlace


class Sampler:
    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class Knowing:
    """Data that knows its place."""

    counts_globally = False

    def __init__(self) -> None:
        self.place = 0

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["place"]


def after(
    *lengths: int, world_size: int = 2, data: list[object] | None = None, ended: bool = False
) -> dict[str, Any]:
    """What is saved after passes of these lengths, of which the last is under way, or has ended as well."""
    place = DataPlace(0, world_size)
    for number, length in enumerate(lengths):
        each: object = data[number] if data else "batches"
        assert not place.is_behind(each)
        place.open(each)
        place.took(length)
        if ended or number < len(lengths) - 1:
            place.ended()
    return place.state_dict()


def restored(saved: dict[str, Any], world_size: int = 2) -> DataPlace:
    place = DataPlace(0, world_size)
    place.load_state_dict(saved)
    place.restored(batches=100, saved_world_size=2, begun={})
    return place


def test_passes_that_are_over_are_behind_and_the_one_under_way_is_gone_on_with() -> None:
    place = restored(after(5, 5, 3))
    assert place.cursor == Cursor(epoch=2, taken=6)
    assert [place.is_behind("batches") for _ in range(3)] == [True, True, False]
    assert place.open("batches") == 3
    place.took(2)
    place.ended()
    assert not place.is_behind("batches")
    assert (place.open("batches"), place.cursor) == (0, Cursor(epoch=3))


def test_a_script_that_asks_for_the_epoch_begins_there() -> None:
    place = restored(after(5, 5, 3))
    place.begins_here()
    assert not place.is_behind("batches")
    assert place.open("batches") == 3


def test_a_pass_that_has_ended_is_the_place_until_the_next_begins() -> None:
    place = restored(after(5, 5, ended=True))
    place.begins_here()
    assert place.cursor == Cursor(epoch=1, taken=10, is_over=True)
    assert not place.is_behind("batches")
    place.open("batches")
    assert place.cursor.is_over
    assert not place.is_behind("batches")
    assert (place.open("batches"), place.cursor) == (0, Cursor(epoch=2))


@pytest.mark.parametrize(
    ("world_size", "length", "goes_on"),
    [(2, 5, False), (2, 6, True), (3, 4, False), (3, 5, True), (1, 11, False), (1, 13, True)],
)
def test_a_pass_that_has_ended_goes_on_where_its_data_have_become_more(
    world_size: int, length: int, goes_on: bool
) -> None:
    place = restored(after(5, data=[range(5)], ended=True), world_size=world_size)
    assert not place.is_behind(range(length))
    assert place.open(range(length)) == 10 // world_size
    assert place.cursor.is_over == (not goes_on)


def test_a_guessed_length_and_none_say_nothing_of_more_data() -> None:
    class Guessed(IterableDataset[int]):
        def __init__(self, length: int) -> None:
            self.length = length

        def __iter__(self) -> Any:
            return iter(())

        def __len__(self) -> int:
            return self.length

    class NoLength:
        def __iter__(self) -> Any:
            return iter(())

    for make in (lambda n: DataLoader(Guessed(n)), lambda n: DataLoader([0] * n, batch_sampler=NoLength())):
        place = restored(after(5, data=[make(5)], ended=True))
        assert not place.is_behind(make(9))
        place.open(make(9))
        assert place.cursor.is_over


def test_what_a_script_tells_its_sampler_says_with_which_pass_it_begins() -> None:
    loaders: list[Any] = [DataLoader([0], sampler=Sampler(1 + number)) for number in range(3)]  # type: ignore[arg-type]
    place = restored(after(5, 5, 3, data=loaders))
    place.begins_here()  # to print it, say
    assert [place.is_behind(each) for each in loaders] == [True, True, False]


def test_a_sampler_that_counts_by_itself_says_nothing_and_is_given_its_count() -> None:
    sampler = Sampler(0)
    loader: DataLoader[int] = DataLoader([0], sampler=sampler)  # type: ignore[arg-type]
    place = DataPlace(0, 1)
    for number in range(3):
        place.is_behind(loader)
        place.open(loader)
        place.took()
        sampler.set_epoch(number + 1)
        place.ended() if number < 2 else None
    sampler.set_epoch(2)
    saved = place.state_dict()
    fresh = Sampler(0)
    again = restored(saved, world_size=1)
    again.begins_here()
    assert not again.is_behind(DataLoader([0], sampler=fresh))  # type: ignore[arg-type]
    again.open(DataLoader([0], sampler=fresh))  # type: ignore[arg-type]
    assert fresh.epoch == 2


def test_in_a_world_of_another_size_the_number_over_all_ranks_stays_within_the_pass() -> None:
    place = restored(after(8, 5), world_size=4)
    place.begins_here()
    assert not place.is_behind("batches")
    assert place.open("batches") == 2, "ten over all ranks, rounded down: none is left out"


@pytest.mark.parametrize(
    ("world_size", "counts_globally", "has_own"), [(2, False, True), (4, False, False), (4, True, True)]
)
def test_data_that_knows_its_place_is_given_its_state_where_it_is_right(
    world_size: int, counts_globally: bool, has_own: bool
) -> None:
    data = Knowing()
    data.place = 7
    saved = after(5, 4, data=[data, data])
    fresh = Knowing()
    fresh.counts_globally = counts_globally
    place = restored(saved, world_size=world_size)
    assert place.is_behind(fresh)
    assert fresh.place == 0, "not of a pass that is over"
    assert not place.is_behind(fresh)
    assert place.open(fresh) == (0 if has_own else 2)
    assert fresh.place == (7 if has_own else 0)


def test_what_is_restored_and_not_yet_gone_on_with_is_saved_as_it_was() -> None:
    data = Knowing()
    data.place = 7
    saved = after(5, 4, data=[data, data])
    assert restored(saved).state_dict() == saved


def test_the_random_numbers_of_a_pass_and_of_its_loader_s_generator_are_those_that_it_began_with() -> None:
    def loader() -> "DataLoader[int]":
        numbers: Any = list(range(8))
        return DataLoader(numbers, shuffle=True, generator=torch.Generator().manual_seed(1))

    first, place = loader(), DataPlace(0, 1)
    list(first)
    place.is_behind(first)
    torch.manual_seed(3)
    place.open(first)
    expected, drawn = [int(each) for each in first], float(torch.rand(()))
    saved, begun = place.state_dict(), place.begun
    torch.manual_seed(4)
    again, fresh = loader(), DataPlace(0, 1)
    fresh.load_state_dict(saved)
    fresh.restored(batches=0, saved_world_size=1, begun=begun)
    fresh.is_behind(again)
    fresh.open(again)
    assert ([int(each) for each in again], float(torch.rand(()))) == (expected, drawn)


@pytest.mark.parametrize("saved", [None, {"data": {"place": 7}, "has_ended": False}])
def test_a_checkpoint_that_knows_of_no_passes_says_what_is_assumed(
    saved: dict[str, Any] | None, caplog: pytest.LogCaptureFixture
) -> None:
    place, data = DataPlace(0, 2), Knowing()
    if saved is not None:
        place.load_state_dict(saved)
    with caplog.at_level(logging.WARNING):
        place.restored(batches=12, saved_world_size=2, begun={})
    assert "does not say in which pass" in caplog.text
    assert place.carries
    assert not place.is_behind(data)
    assert place.open(data) == (12 if saved is None else 0)
    assert data.place == (0 if saved is None else 7)


def test_a_loop_that_counts_by_itself_has_a_cursor_of_the_same_kind() -> None:
    loop = LoopPlace()
    for step in range(1, 4):
        loop.completed(step, ranks=2, epoch=0)
    loop.completed(4, ranks=2, epoch=1)
    loop.completed(5, ranks=3)
    assert (loop.batches, loop.taken, loop.cursor) == (5, 11, Cursor(epoch=1, taken=5))
    again = LoopPlace()
    again.load_state_dict(loop.state_dict())
    assert again.cursor == loop.cursor
    again.load_state_dict({"step": 4, "batches": 4, "taken": 8})
    assert again.cursor == Cursor(0, 8), "saved before passes had numbers"


def test_a_cursor_is_saved_as_plain_values_and_unknown_where_there_is_no_epoch() -> None:
    cursor = Cursor(epoch=3, taken=7, is_over=True)
    assert cursor_of({**cursor.plain(), "more": 1}) == cursor
    assert cursor_of({"taken": 7}) is None
    assert [cursor.each(takers) for takers in (1, 2, 3, 8)] == [7, 3, 2, 0]


def test_torch_s_own_sampler_is_found_in_a_loader() -> None:
    sampler: DistributedSampler[int] = DistributedSampler([0, 1], num_replicas=1, rank=0)  # type: ignore[arg-type]
    loaders = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        loaders.append(DataLoader([0, 1], sampler=sampler))  # type: ignore[arg-type, var-annotated]
    assert after(2, data=[loaders[0]])["number"] == 2


@pytest.mark.parametrize("error", [NotImplementedError, AttributeError, ValueError])
def test_data_that_do_not_want_to_tell_their_length_have_none(error: type[Exception]) -> None:
    class Endless(list[int]):
        def __len__(self) -> int:
            raise error

    place = DataPlace(0, 1)
    data = Endless([1, 2])
    assert not place.is_behind(data)
    place.open(data)
    assert place.state_dict()["length"] is None
