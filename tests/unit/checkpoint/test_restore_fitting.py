import io
import pickle
from pathlib import Path

import pytest
import torch
from drawer import Drawer

from holdfast.checkpoint import Unfit
from holdfast.checkpoint.capture.shard import shard_of
from holdfast.checkpoint.format.index import Index, Stored, StoredObject, StoredTensor
from holdfast.checkpoint.format.manifest import FORMAT, Manifest, record_of
from holdfast.checkpoint.restore.plan import Fitting, Unpacker
from holdfast.checkpoint.restore.stored import StoredCheckpoint


def checkpoint(entries: dict[str, Stored], content: bytes = b"") -> StoredCheckpoint:
    drawer = Drawer()
    drawer.content["step-00000001/file"] = content
    files = {"file": record_of([memoryview(content)])}
    manifest = Manifest(FORMAT, step=1, round=1, parent=None, world_size=1, batches=1, files=files)
    return StoredCheckpoint(drawer, "step-00000001", manifest, Index(entries=entries, paths={}))


def tensor(*shape: int, dtype: str = "bfloat16") -> StoredTensor:
    return StoredTensor(dtype=dtype, shape=shape, chunks=())


def ask(fitting: Fitting, name: str, wanted: torch.Tensor) -> None:
    shard = shard_of(name, wanted)
    assert shard is not None
    fitting.tensor(name, shard)


def test_everything_that_does_not_fit_is_said_at_once_with_names_and_dims() -> None:
    found = checkpoint({"model.a": tensor(1024, 512), "model.b": tensor(4), "model.old": tensor(1)})
    fitting = Fitting(found)
    ask(fitting, "model.a", torch.zeros(1024, 768, dtype=torch.bfloat16))
    ask(fitting, "model.b", torch.zeros(4, dtype=torch.float32))
    for number in range(7):
        ask(fitting, f"model.new{number}", torch.zeros(1))
    with pytest.raises(Unfit) as caught:
        fitting.finish()
    assert str(caught.value).split("; ") == [
        "model.a: the checkpoint has [1024, 512] bfloat16, the model wants [1024, 768] bfloat16 (dim 1)",
        "model.b: the checkpoint has [4] bfloat16, the model wants [4] float32 (dtype)",
        "step-00000001 does not hold 7 names: model.new0, model.new1, model.new2, model.new3, model.new4, … "
        "(may_be_missing=['model.new0', ...] if that is meant)",
        "it holds, and the model does not ask for, 1 names: model.old",
    ]


def test_what_fits_raises_nothing() -> None:
    fitting = Fitting(
        checkpoint({"model.a": tensor(2, 3), "lr": StoredObject("file", 0, 0), "model.b": tensor(1)})
    )
    ask(fitting, "model.a", torch.zeros(2, 3, dtype=torch.bfloat16))
    assert fitting.object("lr")
    fitting.finish()


class Hostile:
    """Unpickling it makes a file."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self._mark,)


def test_an_archive_that_wants_to_run_code_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    buffer = io.BytesIO()
    torch.save(Hostile(mark), buffer)
    packed = buffer.getvalue()
    found = checkpoint({"evil": StoredObject("file", 0, len(packed))}, packed)
    with pytest.raises(Unfit, match="evil in step-00000001 is not made of plain values"):
        found.read_object("evil")
    with pytest.raises(pickle.UnpicklingError):
        Unpacker().unpack(packed)
    assert not mark.exists()
    torch.load(io.BytesIO(packed), weights_only=False)
    assert mark.exists(), "it would have, had it been let"


def test_objects_that_can_change_are_never_shared() -> None:
    unpacker = Unpacker()
    for value, is_shared in ((0.5, True), ((0.9, 0.99), True), ([1], False), (([1],), False)):
        buffer = io.BytesIO()
        torch.save(value, buffer)
        first, second = unpacker.unpack(buffer.getvalue()), unpacker.unpack(buffer.getvalue())
        assert first == second == value
        assert (first is second) is is_shared
