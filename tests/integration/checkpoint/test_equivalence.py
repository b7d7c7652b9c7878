"""Whether a restored model still computes what it did: asked of real ranks, and of wrongs that no hash can see."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from checkpoint_ranks import Course, run_ranks
from checkpoint_solo import Witness
from torch import nn

from holdfast.api.errors import InvalidInput
from holdfast.checkpoint import Checkpointer
from holdfast.checkpoint.capture import equivalence
from holdfast.checkpoint.errors import NotEquivalent

pytestmark = pytest.mark.long

LossOf = Callable[[nn.Module, torch.Tensor], torch.Tensor]


def square(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(batch).square().mean()
    return loss


def train(directory: Path, until: int, *, loss_of: LossOf | None = square) -> tuple[Checkpointer, list[str]]:
    """A model with dropout and running means, so that a forward pass that counts would show."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    checkpointer = Checkpointer(
        Witness(),
        model=model,
        optimizer=(optimizer := torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)),
        uri=str(directory),
        every_steps=2,
        equivalence=None if loss_of is None else lambda batch: loss_of(model, batch),
    )
    losses = []
    batches = [torch.randn(3, 4, generator=torch.Generator().manual_seed(each)) for each in range(20)]
    for _, batch in checkpointer.steps(batches, until=until):
        loss = square(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item().hex())
    return checkpointer, losses


def test_the_check_changes_nothing_about_the_training(tmp_path: Path) -> None:
    _, without = train(tmp_path / "without", 9, loss_of=None)
    _, before = train(tmp_path / "with", 5)
    _, after = train(tmp_path / "with", 9)
    assert [*before, *after] == without


def test_code_that_computes_something_else_is_refused_with_step_rank_and_both_losses(tmp_path: Path) -> None:
    train(tmp_path, 4)
    with pytest.raises(NotEquivalent, match=r"rank 0 .* step 4 .*: \d\S+ instead of \d\S+"):
        train(tmp_path, 6, loss_of=lambda model, batch: square(model, batch) * (1 + 2e-6))


def test_a_checkpoint_without_a_loss_is_taken_as_it_is(tmp_path: Path) -> None:
    train(tmp_path, 4, loss_of=None)
    assert len(train(tmp_path, 6)[1]) == 2


def test_a_loss_that_nobody_asks_for_is_left_alone(tmp_path: Path) -> None:
    train(tmp_path, 4)
    assert len(train(tmp_path, 6, loss_of=None)[1]) == 2


def test_a_batch_that_is_too_large_is_not_stored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(equivalence, "BATCH_BYTES_MAX", 3 * 4 * 4 - 1)
    train(tmp_path, 2)
    assert "batch too large to be kept with its loss" in caplog.text
    assert len(train(tmp_path, 4, loss_of=lambda model, batch: square(model, batch) * 2)[1]) == 2


def test_a_batch_that_cannot_be_stored_is_refused_by_name(tmp_path: Path) -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    checkpointer = Checkpointer(
        Witness(),
        model=model,
        optimizer=optimizer,
        uri=str(tmp_path),
        every_steps=1,
        equivalence=lambda batch: 0.0,
    )
    with pytest.raises(InvalidInput, match=r"equivalence\.batch"):
        list(checkpointer.steps([object()]))


@pytest.mark.parametrize("layout", ["fsdp", "ddp"])
def test_ranks_check_together_and_in_another_world_within_what_torch_takes_for_equal(
    layout: str, tmp_path: Path
) -> None:
    course = Course(tmp_path, until=4, layout=layout, equivalence=1.0)
    undisturbed = run_ranks(Course(tmp_path / "undisturbed", until=8, layout=layout), 2)
    run_ranks(course, 2)
    same = run_ranks(replace(course, until=8), 2)
    assert same[0].digest == undisturbed[0].digest
    assert len(run_ranks(replace(course, until=10), 1)) == 1


def test_in_another_world_a_real_difference_is_still_seen(tmp_path: Path) -> None:
    run_ranks(Course(tmp_path, until=4, equivalence=1.0), 2)
    (refused,) = run_ranks(Course(tmp_path, until=6, equivalence=1.001), 1)
    assert "rank 0 computes another loss of the batch of step 4" in refused.refusal
