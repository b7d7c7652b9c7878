"""NaN on request: what a rank's model computes is spoilt for as many steps as were asked for."""

from pathlib import Path

import torch

from holdfast.api.bitflip import NanOutput, nan_file, request_nan
from holdfast.trainer.drill import NanOutputs


class Model(torch.nn.Module):
    def forward(self, given: torch.Tensor) -> dict[str, object]:
        return {"loss": given.sum(), "count": (torch.tensor(3), "words")}


def test_outputs_are_nan_for_the_steps_that_were_asked_for_and_not_before(tmp_path: Path) -> None:
    model = Model()
    outputs = NanOutputs(tmp_path, 1, model)
    request_nan(tmp_path, NanOutput(rank=1, step=5, steps=2))
    spoilt = []
    for step in range(3, 9):
        outputs.completed(step - 1)
        loss = model(torch.ones(2))["loss"]
        spoilt += [step] if loss.isnan() else []
    assert spoilt == [5, 6]
    assert not nan_file(tmp_path, 1).exists()


def test_only_numbers_of_training_are_spoilt_and_an_unreadable_request_is_removed(tmp_path: Path) -> None:
    model = Model()
    outputs = NanOutputs(tmp_path, 0, model)
    request_nan(tmp_path, NanOutput(rank=0, step=1))
    outputs.completed(1)
    given = model(torch.ones(2))
    assert given["loss"].isnan()
    assert (int(given["count"][0]), given["count"][1]) == (3, "words")
    assert not model.eval()(torch.ones(2))["loss"].isnan()
    nan_file(tmp_path, 0).write_text("nonsense")
    outputs.completed(2)
    assert not nan_file(tmp_path, 0).exists()
