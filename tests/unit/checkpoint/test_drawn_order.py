"""The digest of the indices that a loader has drawn: equal for an equal order, unknown where there are none."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler

from holdfast.checkpoint.capture.drawnorder import DrawnOrder

NUMBERS: Any = list(range(12))


class Given(Sampler[Any]):
    """Draws what it is given."""

    def __init__(self, indices: list[Any]) -> None:
        self.indices = indices
        self.told = 0

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.indices)


class Named(torch.utils.data.Dataset[int]):
    def __getitem__(self, index: Any) -> int:
        return 1


def taken(data: Any, count: int, order: DrawnOrder | None = None) -> str | None:
    order = order or DrawnOrder()
    assert len(list(islice(order.through(data), count))) == count
    return order.taken


def test_an_order_has_a_digest_of_all_that_was_taken_and_of_nothing_else() -> None:
    def loader(*indices: int, size: int = 2) -> DataLoader[int]:
        return DataLoader(NUMBERS, size, sampler=Given(list(indices)))

    first = taken(loader(3, 1, 2, 0, 5, 4), 2)
    assert first
    assert first == taken(loader(3, 1, 2, 0, 4, 5), 2), "what comes behind it does not count"
    assert first != taken(loader(3, 1, 2, 0, 5, 4), 3)
    assert first != taken(loader(1, 3, 2, 0, 5, 4), 2)
    assert first != taken(loader(3, 1, 2, 4, 5, 0), 2)
    assert taken(loader(3, 1), 0) == ""


@pytest.mark.parametrize("index", ["a", ("b", 2), 1.5, None], ids=str)
def test_indices_of_text_and_numbers_have_one(index: Any) -> None:
    def digest(*indices: Any) -> str | None:
        return taken(DataLoader(Named(), 1, sampler=Given(list(indices))), 2)

    assert digest(index, 1) == digest(index, 1)
    assert digest(index, 1) != digest(1, index)
    assert digest(index, object()) is None


def test_data_without_indices_have_none() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(NUMBERS)

    for data in (NUMBERS, iter(NUMBERS), DataLoader(Stream(), 2)):
        assert taken(data, 2) is None


def test_a_loader_without_batches_draws_single_indices() -> None:
    assert taken(DataLoader(NUMBERS, None), 3) == taken(DataLoader(NUMBERS, None), 3) != ""


def test_a_loader_that_opens_its_iterator_late_is_looked_at_until_then() -> None:
    class Late(DataLoader[int]):
        def __iter__(self) -> Any:
            yield from super().__iter__()

    loader = Late(NUMBERS, 2)
    batches = loader.batch_sampler
    assert taken(loader, 2) == taken(DataLoader(NUMBERS, 2), 2)
    assert loader.batch_sampler is batches
    assert taken(Late([], 2), 0) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("inside", ["base_dataloader", "_dataloader"])
def test_a_loader_inside_of_another_is_looked_at(inside: str) -> None:
    class Around:
        """As Accelerate's and Fabric's."""

        def __init__(self) -> None:
            setattr(self, inside, DataLoader(NUMBERS, 2))

        def __iter__(self) -> Iterator[Any]:
            yield from getattr(self, inside)

    assert taken(Around(), 2) == taken(DataLoader(NUMBERS, 2), 2)


def test_what_else_goes_over_the_sampler_does_not_count() -> None:
    order, loader = DrawnOrder(), DataLoader(NUMBERS, 2)
    source = order.through(loader)
    next(source)
    list(loader)
    iterator: Any = loader
    with order.looking_at(loader):
        watched = iterator.batch_sampler
        assert (len(watched), watched.batch_size) == (6, 2)
        assert not hasattr(watched, "nobody_has_this")
    list(watched)
    next(source)
    assert order.taken is not None


def test_a_loader_that_looks_at_its_sampler_while_it_begins_finds_it_as_it_is() -> None:
    class Looking(DataLoader[int]):
        def __iter__(self) -> Any:
            sampler: Any = self.batch_sampler
            assert isinstance(sampler, Pairs)
            sampler.seen = [sampler[place] for place in range(len(sampler))]
            return super().__iter__()

    class Pairs(Given):
        def __getitem__(self, place: int) -> Any:
            return self.indices[place]

    pairs = Pairs([[0, 1], [2, 3]])
    assert taken(Looking(NUMBERS, batch_sampler=pairs), 2)
    assert vars(pairs)["seen"] == [[0, 1], [2, 3]]
