"""A file system that cannot rename a folder, as a mounted bucket: no checkpoint would ever become one there."""

import errno
import os
import shutil
from pathlib import Path

import pytest
import torch
from checkpoint_solo import Witness

from holdfast.api.errors import InvalidInput, Unavailable
from holdfast.checkpoint import Checkpointer

OPTIMIZERS = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad}


def refuse(patch: pytest.MonkeyPatch, number: int) -> None:
    """Every rename of a folder fails so."""
    rename = os.rename

    def refused(source: Path, target: Path) -> None:
        if Path(source).is_dir():
            raise OSError(number, os.strerror(number))
        rename(source, target)

    patch.setattr(os, "rename", refused)


def checkpointer(folder: Path, optimizer: str) -> Checkpointer:
    model = torch.nn.Linear(2, 2)
    return Checkpointer(
        Witness(), model=model, optimizer=OPTIMIZERS[optimizer](model.parameters(), lr=0.1), uri=str(folder)
    )


@pytest.mark.parametrize(
    ("number", "optimizer"), [(errno.ENOSYS, "adamw"), (errno.EXDEV, "sgd"), (errno.EPERM, "adagrad")]
)
@pytest.mark.parametrize("counts_itself", [False, True])
def test_it_is_refused_before_the_first_step_with_the_call_and_the_way_out(
    number: int, optimizer: str, counts_itself: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, number)
    loop = checkpointer(tmp_path / "saved", optimizer)
    with pytest.raises(InvalidInput, match=rf"rename\(\) of a folder fails with {errno.errorcode[number]}.*s3://"):
        loop.resume(until=3) if counts_itself else next(loop.steps("abc"))
    assert sorted(each.name for each in (tmp_path / "saved").iterdir()) == ["fence.lock"]


def test_one_that_cannot_now_is_not_called_unfit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        refuse(patch, errno.EIO)
        with pytest.raises(Unavailable, match="Input/output error"):
            checkpointer(tmp_path, "sgd").resume()
    assert checkpointer(tmp_path, "sgd").resume() == 0


def test_what_a_death_in_the_middle_of_the_look_left_is_cleared_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Death(BaseException):
        pass

    def die(*of: object) -> None:
        raise Death

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", die)
        patch.setattr(shutil, "rmtree", die)  # Who is dead tidies nothing.
        with pytest.raises(Death):
            checkpointer(tmp_path, "sgd").resume()
    assert list(tmp_path.glob("step-*"))
    loop = checkpointer(tmp_path, "sgd")
    for _ in loop.steps("abc", until=1):
        pass
    loop.close()
    assert [each.name for each in tmp_path.glob("step-*")] == ["step-00000001"]
