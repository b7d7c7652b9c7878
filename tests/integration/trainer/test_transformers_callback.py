"""Transformers' Trainer with the callback, in a round that goes on: where it begins, and what it leaves alone."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from holdfast.api.checkpoint import Standing
from holdfast.api.errors import Fenced, InvalidInput
from holdfast.api.round import Restore, Tier
from holdfast.integrations.life import take_over
from holdfast.integrations.marks import listing

pytestmark = pytest.mark.long

LAST, EVERY = 10, 5
JOINED = "holdfast.integrations.transformers.joined"


class Told:
    """Of a Run in a round that goes on, what is used here."""

    def __init__(self, owner: str = "this-life") -> None:
        restore = Restore(tier=Tier.CHECKPOINT, owner=owner)
        self.assignment = SimpleNamespace(
            restore=restore, rank=0, world_size=1, round=2, spikes=None, save_every=None, keep=None
        )
        self.steps: list[int] = []
        self.began_after: list[int | None] = []

    def step(self, step: int, **said: Any) -> None:
        self.steps.append(step)

    def restored(self, step: int | None) -> None:
        self.began_after.append(step)

    def save_due(self, step: int) -> None:
        return None

    def is_finite(self) -> bool:
        return True

    def parameters_finite(self) -> bool:
        return True

    def standing(self) -> Standing:
        return Standing()

    def phase(self, *said: Any, **named: Any) -> None:
        """Heard elsewhere."""

    watch = committed = stored = phase


class Numbers(Dataset[dict[str, Tensor]]):
    """Sixteen steps of them: `LAST` ends in the middle of an epoch."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        return {"number": torch.tensor([place / 64.0]), "labels": torch.tensor([0.5])}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, number: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": nn.functional.mse_loss(self.layer(number), labels)}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    told = Told()
    monkeypatch.setattr(JOINED, lambda: told)
    return told


def trained(folder: Path, resume: Any = None, last: int = LAST, **more: Any) -> list[int]:
    """The steps that a script makes which is begun now."""
    # Seconds of a processor, which only the process that runs these tests is to spend, and not each that collects.
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from holdfast.integrations.transformers import HoldfastCallback

    class Steps(TrainerCallback):
        def __init__(self) -> None:
            self.made: list[int] = []

        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            self.made.append(state.global_step)

    args = TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        max_steps=last,
        save_steps=EVERY,
        per_device_train_batch_size=4,
        lr_scheduler_type="constant",
        report_to=[],
        disable_tqdm=True,
        **more,
    )
    steps = Steps()
    callbacks = [steps, HoldfastCallback()]
    Trainer(model=Model(), args=args, train_dataset=Numbers(), callbacks=callbacks).train(resume)
    return steps.made


def test_a_script_that_failed_after_its_last_step_makes_no_other(tmp_path: Path, told: Told) -> None:
    assert trained(tmp_path) == list(range(1, LAST + 1))
    assert trained(tmp_path) == []
    assert told.began_after == [None, LAST]
    assert trained(tmp_path, last=LAST + 2) == [LAST + 1, LAST + 2]


def test_a_path_to_begin_with_counts_as_its_text_does(tmp_path: Path, told: Told) -> None:
    trained(tmp_path / "before")
    begins = tmp_path / "before" / f"checkpoint-{EVERY}"
    assert trained(tmp_path / "now", begins) == list(range(EVERY + 1, LAST + 1))
    assert trained(tmp_path / "now", begins) == [], "this life of the job has saved another since"


def test_a_copy_of_a_checkpoint_and_one_cut_short_are_not_gone_on_from(tmp_path: Path, told: Told) -> None:
    trained(tmp_path)
    (tmp_path / f"checkpoint-{LAST}").rename(tmp_path / "checkpoint-99")
    (tmp_path / f"checkpoint-{EVERY}").rename(tmp_path / f"checkpoint-{EVERY}.kept")
    half = tmp_path / "checkpoint-70"
    half.mkdir()
    (half / "holdfast.json").write_text('{"step": 70, "wor')
    assert listing(tmp_path, "checkpoint-").complete == ()
    assert trained(tmp_path) == list(range(1, LAST + 1))


def test_a_job_whose_directory_another_took_over_says_so_and_writes_no_more(
    tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert trained(tmp_path, last=EVERY) == [1, 2, 3, 4, 5]
    monkeypatch.setattr(JOINED, lambda: Told("another-life"))
    assert trained(tmp_path) == [6, 7, 8, 9, 10], "a later life goes on from what an earlier one left"
    monkeypatch.setattr(JOINED, lambda: told)
    before = {each: each.stat().st_mtime_ns for each in tmp_path.rglob("checkpoint-*/*")}
    with pytest.raises(Fenced, match=r"taken over by another job.*give each its own directory"):
        trained(tmp_path, last=2 * LAST)
    assert {each: each.stat().st_mtime_ns for each in tmp_path.rglob("checkpoint-*/*")} == before


def test_a_job_is_told_at_its_next_save_that_another_took_over(
    tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken_over(step: int) -> None:
        if step == EVERY + 1:
            take_over(tmp_path, owner="another-life", has_saved=False)

    monkeypatch.setattr(told, "save_due", taken_over)
    with pytest.raises(Fenced, match="taken over by another job"):
        trained(tmp_path)
    assert [each.step for each in listing(tmp_path, "checkpoint-").complete] == [EVERY]


def test_checkpoints_from_which_nothing_can_be_gone_on_with_are_refused(tmp_path: Path, told: Told) -> None:
    with pytest.raises(InvalidInput, match="save_only_model"):
        trained(tmp_path, save_only_model=True)
