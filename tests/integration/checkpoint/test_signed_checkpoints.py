"""Where a key is given, only what is signed with it is a checkpoint."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_solo import Solo
from forgery import NAME, Folder

from holdfast.api.errors import Damaged, InvalidInput
from holdfast.checkpoint import NothingToRestore
from holdfast.checkpoint.catalogue import Place, catalogue
from holdfast.checkpoint.commit.verification import verify
from holdfast.checkpoint.convert.conversion import open_source
from holdfast.checkpoint.convert.folder import write_holdfast
from holdfast.checkpoint.format.manifest import KEY_FILE_VARIABLE
from holdfast.checkpoint.storage.address import storage_at

OLD, NEW, OTHER = "0" * 16 + "an old key" + "1" * 16, "2" * 40, "3" * 64


@pytest.fixture
def give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def give(*keys: str) -> None:
        (tmp_path / "keys").write_text("".join(f"{key}\n" for key in keys))
        if keys:
            monkeypatch.setenv(KEY_FILE_VARIABLE, str(tmp_path / "keys"))
        else:
            monkeypatch.delenv(KEY_FILE_VARIABLE, raising=False)

    return give


def train(directory: Path, until: int) -> Solo:
    return Solo(directory, every_steps=None).train(until=until)


def restored(directory: Path) -> tuple[int | None, tuple[str, ...]]:
    ((step, skipped),) = train(directory, 0).run.restores
    return step, skipped


def test_a_signed_one_is_read_with_its_key_and_without_any(give: Any, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    give(OLD)
    weights = train(directory, 4).weights
    solo = train(directory, 0)
    assert (solo.run.restores, solo.weights) == ([(4, ())], weights)
    assert verify(storage_at(str(directory)), NAME).is_intact
    body = json.loads((directory / NAME / "manifest.json").read_bytes())["body"]
    assert {len(each) for record in body["files"].values() for each in record["blocks"]} == {64}
    torch.distributed.checkpoint.FileSystemReader(directory / NAME).read_metadata()
    give()
    assert restored(directory) == (4, ())


def test_keys_change_one_after_the_other(give: Any, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    give(OLD)
    train(directory, 4)
    give(NEW, OLD)
    train(directory, 6)
    give(NEW)
    step, skipped = restored(directory)
    assert step == 6
    assert skipped == (f"{NAME}: the manifest is not signed with any of the keys that {KEY_FILE_VARIABLE} names",)


def test_nobody_without_the_key_makes_a_checkpoint_that_is_read(give: Any, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    for other in ((), (OTHER,)):
        give(*other)
        train(directory, 4)
        give(NEW)
        with pytest.raises(NothingToRestore, match="the manifest is not signed"):
            restored(directory)
        storage = storage_at(str(directory))
        (entry,) = catalogue(storage).entries
        assert entry.place is Place.UNREADABLE
        assert "signed" in (entry.reason or "")
        assert not verify(storage, NAME).is_intact
        with pytest.raises((Damaged, InvalidInput)):
            open_source(str(directory))
        for file in (directory / NAME).iterdir():
            file.unlink()
        (directory / NAME).rmdir()


@pytest.mark.parametrize("seed", range(20))
def test_one_changed_value_that_is_sealed_again_is_refused(seed: int, give: Any, tmp_path: Path) -> None:
    """Also with the signature that was there, and whatever hash the forger writes."""
    source, directory = random.Random(seed), tmp_path / "run"
    give(NEW)
    train(directory, 4)
    path = directory / NAME / "manifest.json"
    signature = json.loads(path.read_bytes())["signature"]
    folder = Folder.of(directory / NAME)
    file = source.choice(("__0_0.distcp", "index.json", ".metadata"))
    content = bytearray((folder.path / file).read_bytes())
    content[source.randrange(len(content))] ^= 1
    if seed % 4:
        folder.write(file, bytes(content))
    else:
        folder.body["batches"] += 1
    folder.seal()
    document = json.loads(path.read_bytes())
    if seed % 2:
        # The member is added to the text: the body's bytes, which the seal is of, stay as they are.
        path.write_text(f'{{"signature":"{signature}",{path.read_text()[1:]}')
        assert json.loads(path.read_bytes())["body"] == document["body"]
    with pytest.raises(NothingToRestore, match="the manifest is not signed"):
        restored(directory)


def test_what_is_converted_is_signed_as_well(give: Any, tmp_path: Path) -> None:
    train(tmp_path / "run", 4)
    source = open_source(str(tmp_path / "run"))
    give(NEW)
    write_holdfast(source, tmp_path / "copy")
    assert restored(tmp_path / "copy") == (4, ())


@pytest.mark.parametrize("content", ["", "\n\n", "short", f"{NEW}\nshort\n", "k" * 70_000])
def test_keys_that_cannot_be_used_are_refused(content: str, give: Any, tmp_path: Path) -> None:
    give(NEW)
    (tmp_path / "keys").write_text(content)
    with pytest.raises(InvalidInput, match=f"{KEY_FILE_VARIABLE}: .*32 characters or more in each line"):
        train(tmp_path / "run", 1)
    (tmp_path / "keys").unlink()
    with pytest.raises(InvalidInput, match="No such file"):
        train(tmp_path / "run", 1)
