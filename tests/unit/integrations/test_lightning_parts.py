"""The parts of the callback for Lightning that need no Trainer."""

import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.api.errors import InvalidInput
from holdfast.api.rankrecord import UNKNOWN_INT
from holdfast.trainer import SpikeGuard, joined

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Lightning's, of what it imports
    from lightning.fabric.plugins.io import TorchCheckpointIO

    from holdfast.integrations.lightning.atomicio import AtomicCheckpointIO
    from holdfast.integrations.lightning.batch import accumulation_for
    from holdfast.integrations.lightning.callback import HoldfastCallback, _Fit, crosses, loss_in, tokens_in
    from holdfast.integrations.lightning.place import Place, batches_in


def test_in_a_world_of_another_size_as_many_batches_are_passed_over_as_make_the_number_over_all_ranks() -> None:
    assert batches_in(6, saved_world=4, world=4) == 6
    assert batches_in(6, saved_world=4, world=2) == 12
    assert batches_in(6, saved_world=4, world=8) == 3
    assert batches_in(5, saved_world=3, world=2) == 7


def test_a_global_batch_is_kept_by_adding_up_and_refused_where_the_loader_s_batches_do_not_make_it() -> None:
    assert accumulation_for(64, world_size=8, micro_batch=8) == 1
    assert accumulation_for(64, world_size=2, micro_batch=8) == 4
    with pytest.raises(
        InvalidInput, match=r"4 samples fall to each of 16 ranks.*let the loader have batches of 4"
    ):
        accumulation_for(64, world_size=16, micro_batch=8)
    with pytest.raises(InvalidInput, match="does not split evenly over 7 ranks"):
        accumulation_for(64, world_size=7, micro_batch=8)


def test_a_cadence_is_due_when_it_is_passed_also_by_more_than_a_step() -> None:
    assert crosses(5, before=4, step=5)
    assert crosses(5, before=4, step=6)  # two optimizers step twice in a batch
    assert not crosses(5, before=5, step=6)
    assert not crosses(None, before=4, step=5)


@pytest.mark.parametrize("name", ["every_steps", "keep", "global_batch"])
def test_what_is_not_positive_is_named(name: str) -> None:
    with pytest.raises(InvalidInput, match=name):
        HoldfastCallback(**{name: 0})


def test_a_loss_is_found_in_what_a_training_step_returns() -> None:
    loss = torch.tensor(2.0, requires_grad=True)
    for outputs in (loss, {"loss": loss, "more": 1}):
        found = loss_in(outputs)
        assert found is not None
        assert (float(found), found.requires_grad) == (2.0, False)
    assert loss_in(None) is None
    assert loss_in({}) is None
    assert loss_in(torch.ones(3)) is None


def test_tokens_are_those_of_the_input_ids() -> None:
    assert tokens_in({"input_ids": torch.ones(2, 8)}) == 16
    assert tokens_in([torch.ones(2, 8)]) == UNKNOWN_INT


class Failing(TorchCheckpointIO):
    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        Path(path).write_text("half")
        raise OSError("the disk is full")


def test_a_file_is_replaced_as_a_whole_or_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO(TorchCheckpointIO()).save_checkpoint({"step": 1}, path)
    assert torch.load(path) == {"step": 1}
    with pytest.raises(OSError, match="the disk is full"):
        AtomicCheckpointIO(Failing()).save_checkpoint({"step": 2}, path)
    assert torch.load(path) == {"step": 1}
    assert [each.name for each in tmp_path.iterdir()] == ["last.ckpt"]


def test_a_step_of_several_optimizers_has_one_norm_and_a_scaler_leaves_out_what_is_not_finite() -> None:
    fit = _Fit(joined(), SpikeGuard(), Place(0, 1))
    for norm in (3.0, None, 4.0):
        fit.add_norm(None if norm is None else torch.tensor(norm), is_scaled=False)
    assert fit.grad_norm is not None
    assert float(fit.grad_norm) == 5.0
    fit.add_norm(torch.tensor(math.inf), is_scaled=True)
    assert float(fit.grad_norm) == 5.0
    fit.add_norm(torch.tensor(math.inf), is_scaled=False)
    assert math.isinf(float(fit.grad_norm))
