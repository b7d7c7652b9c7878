"""Whoever can seal a checkpoint again can change all of it: every reader refuses, at once and in words."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from checkpoint_solo import Solo
from forgery import FORGERIES, NAME, Folder, forge, split

from holdfast.api.errors import Damaged, HoldfastError, InvalidInput
from holdfast.checkpoint import NothingToRestore, Unfit
from holdfast.checkpoint.catalogue import Place, catalogue, choose
from holdfast.checkpoint.commit.verification import verify
from holdfast.checkpoint.convert.comparison import compare
from holdfast.checkpoint.convert.content import Source
from holdfast.checkpoint.convert.conversion import open_source
from holdfast.checkpoint.convert.folder import write_holdfast
from holdfast.checkpoint.storage.address import storage_at

SEEDS = 6  # Of each kind: more than 200 in all.


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("honest")
    Solo(directory, every_steps=None).train(until=4)
    split(Folder.of(directory / NAME))
    return directory


def resume(directory: Path) -> Solo:
    return Solo(directory, every_steps=None).train(until=0)


def refusal(read: Callable[[], object]) -> HoldfastError | None:
    try:
        read()
    except HoldfastError as error:
        return error
    return None


def convert(directory: Path, target: Path) -> None:
    write_holdfast(open_source(str(directory)), target)


def differ(source: Source, directory: Path) -> None:
    compare(source, open_source(str(directory)))


def test_the_honest_one_is_read(honest: Path, tmp_path: Path) -> None:
    assert resume(honest).run.restores == [(4, ())]
    storage = storage_at(str(honest))
    assert verify(storage, NAME).is_intact
    assert choose(catalogue(storage).entries).place is Place.NEWEST
    source = open_source(str(honest))
    write_holdfast(source, tmp_path / "copy")
    assert not compare(source, open_source(str(tmp_path / "copy"))).differences


@pytest.mark.parametrize("kind", FORGERIES)
def test_no_reader_takes_a_forgery_for_a_checkpoint(kind: str, honest: Path, tmp_path: Path) -> None:
    untouched = open_source(str(honest))
    for seed in range(SEEDS):
        directory, copy = tmp_path / f"forged-{seed}", tmp_path / f"copy-{seed}"
        forge(honest, directory, kind, seed)
        said = refusal(partial(resume, directory))
        assert isinstance(said, NothingToRestore | Unfit), (seed, said)
        storage = storage_at(str(directory))
        (entry,) = catalogue(storage).entries
        looked = verify(storage, NAME)
        assert entry.place is not Place.UNREADABLE or not looked.is_intact
        said = refusal(partial(convert, directory, copy))
        # What is whole, and not what the model asks for, is converted as what it is.
        assert isinstance(said, Damaged | Unfit | InvalidInput) or looked.is_intact, (seed, said)
        assert copy.exists() == (said is None)
        said = refusal(partial(differ, untouched, directory))
        assert isinstance(said, Damaged | Unfit | InvalidInput) or looked.is_intact, (seed, said)
