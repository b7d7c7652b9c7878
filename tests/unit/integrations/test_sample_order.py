"""An epoch's order is the same again in a new process, also where the sampler has no generator of its own."""

import torch
from torch.utils.data import DataLoader, RandomSampler

from holdfast.integrations.sampleorder import SampleOrder


def loader(generator: torch.Generator | None = None) -> DataLoader[int]:
    numbers = list(range(32))
    return DataLoader(numbers, batch_size=4, sampler=RandomSampler(numbers, generator=generator))  # type: ignore[arg-type]


def epoch(of: DataLoader[int]) -> list[int]:
    return [int(number) for batch in of for number in batch]


def test_what_is_kept_draws_nothing_and_brings_the_epoch_again() -> None:
    torch.manual_seed(3)
    first = loader()
    kept = SampleOrder(first).kept()
    expected, after = epoch(first), torch.rand(1)
    torch.manual_seed(3)
    assert epoch(loader()) == expected
    assert torch.equal(torch.rand(1), after)
    for generator in (None, torch.Generator().manual_seed(9)):
        torch.manual_seed(4)
        other = loader(generator)
        order = SampleOrder(other)
        order.again(kept)
        assert epoch(other) == expected


def test_a_generator_that_was_lent_is_taken_back_after_the_epoch() -> None:
    torch.manual_seed(3)
    kept = SampleOrder(loader()).kept()
    other = loader()
    order = SampleOrder(other)
    order.again(kept)
    epoch(other)
    order.ended()
    assert other.sampler.generator is None  # type: ignore[attr-defined]
    own = torch.Generator().manual_seed(1)
    order = SampleOrder(loader(own))
    order.again(kept)
    order.ended()
    assert order._sampler is not None
    assert order._sampler.generator is own


def test_data_in_order_need_nothing_kept() -> None:
    plain = DataLoader(list(range(8)), batch_size=2)  # type: ignore[arg-type]
    order = SampleOrder(plain)
    assert order.kept() == ""
    order.again("")
    order.ended()
    assert epoch(plain) == list(range(8))
