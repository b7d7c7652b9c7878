import os
import random
import shutil
import time
from pathlib import Path

import pytest
from patience import patient
from restore_ranks import (
    Answer,
    Harm,
    Task,
    restore,
    restore_harmed,
    restore_uncollected,
    restore_watched,
    run_ranks,
    save,
)

from holdfast.checkpoint.format.manifest import BLOCK_BYTES

APART = (0, 0, 1, 1)  # Two hosts of two ranks.
PLACES = 2  # In each file of tensors, for each kind of harm; one rank alone tries a thousand in all files.
HOLE_BYTES = 4096


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Saved by two ranks, sharded by rows; and the digest of the whole state."""
    directory = tmp_path_factory.mktemp("pristine")
    first, second = run_ranks(save, Task(directory, "rows"), 2)
    assert first.digest == second.digest
    return directory, first.digest


@pytest.fixture
def directory(pristine: tuple[Path, str], tmp_path: Path) -> Path:
    shutil.copytree(pristine[0], tmp_path / "copy")
    return tmp_path / "copy"


def damage(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def totals(answers: list[Answer]) -> tuple[int, int, int]:
    """Bytes needed, read and received by all ranks together."""
    tallies = [each.tally for each in answers if each.tally is not None]
    assert len(tallies) == len(answers)
    return sum(t.needed for t in tallies), sum(t.read for t in tallies), sum(t.received for t in tallies)


@pytest.mark.parametrize(
    ("layout", "world_size"), [("rows", 2), ("rows", 3), ("columns", 4), ("replicas", 2), ("rows", 1)]
)
def test_any_layout_comes_back_bit_by_bit_and_every_byte_is_read_once(
    layout: str, world_size: int, pristine: tuple[Path, str]
) -> None:
    directory, whole = pristine
    answers = list(run_ranks(restore, Task(directory, layout), world_size))
    assert {(each.step, each.digest) for each in answers} == {(2, whole)}
    needed, read, received = totals(answers)
    stored = sum(path.stat().st_size for path in (directory / "step-00000002").iterdir() if path.suffix != ".json")
    assert read == stored
    assert received == 0
    copies = world_size if layout == "replicas" else 1
    assert read <= 1.05 * needed / copies


@pytest.mark.parametrize("layout", ["replicas", "columns"])
def test_between_hosts_blocks_are_sent_instead_of_being_read_again(
    layout: str, pristine: tuple[Path, str]
) -> None:
    directory, whole = pristine
    answers = list(run_ranks(restore, Task(directory, layout, hosts=APART), 4))
    assert {(each.step, each.digest) for each in answers} == {(2, whole)}
    needed, read, received = totals(answers)
    assert read <= 1.05 * needed / (4 if layout == "replicas" else 1)
    assert received > 0.9 * read, "one of two hosts has read each block, the other has received it"


@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_a_damaged_block_is_had_from_elsewhere_on_whatever_rank_reads_it(
    layout: str, directory: Path, pristine: tuple[Path, str]
) -> None:
    file = directory / "step-00000002" / "__1_0.distcp"
    damage(file, 100)
    damage(file, file.stat().st_size - 100)
    before = file.read_bytes()
    answers = list(run_ranks(restore, Task(directory, layout, pristine[0], APART[1:3]), 2))
    assert {(each.step, each.digest) for each in answers} == {(2, pristine[1])}
    (healed,) = {each.healed for each in answers}
    assert len(healed) == 2
    assert healed[0].startswith("step-00000002/__1_0.distcp at ")
    assert file.read_bytes() == before, "a committed file is never written to"


@pytest.mark.parametrize("hosts", [(), (0, 1)])
def test_damage_that_one_rank_sees_takes_all_ranks_to_the_checkpoint_before(
    hosts: tuple[int, ...], directory: Path
) -> None:
    file = directory / "step-00000002" / "__1_0.distcp"
    damage(file, file.stat().st_size // 2)
    answers = list(run_ranks(restore, Task(directory, "columns", hosts=hosts), 2))
    assert [each.step for each in answers] == [1, 1]
    assert answers[0].digest == answers[1].digest
    for each in answers:
        ((skipped),) = each.skipped
        assert "differs from what was written" in skipped


def harms(path: Path, source: random.Random) -> list[Harm]:
    """Bits that flip, pages of zeros and lost ends, at random places of the file."""
    content, file = path.read_bytes(), f"{path.parent.name}/{path.name}"
    found = []
    for _ in range(PLACES):
        flipped = source.randrange(len(content))
        found.append(Harm(file, flipped, bytes([content[flipped] ^ 1 << source.randrange(8)])))
        holed = source.randrange(len(content) - 1)
        while not any(lost := content[holed : holed + HOLE_BYTES]):
            holed = source.randrange(len(content) - 1)
        found.append(Harm(file, holed, bytes(len(lost))))
        found.append(Harm(file, source.randrange(len(content)), None))
    return found


def test_no_damage_at_any_place_of_several_blocks_is_loaded_by_any_rank(directory: Path) -> None:
    layout, source = "columns", random.Random(1)  # Of every file each rank needs something.
    tensors = sorted((directory / "step-00000002").glob("*.distcp"))
    assert len(tensors) == 2
    assert all(path.stat().st_size > 2 * BLOCK_BYTES for path in tensors)
    given = [harm for path in tensors for harm in harms(path, source)]
    shutil.copytree(directory / "step-00000001", directory / "alone" / "step-00000001")
    (before, _) = run_ranks(restore, Task(directory / "alone", layout), 2)
    answers = run_ranks(restore_harmed, Task(directory, layout, harms=tuple(given)), 2)
    assert [len(each.trials) for each in answers] == [len(given)] * 2
    for number, harm in enumerate(given):
        for each in (answer.trials[number] for answer in answers):
            place = f"{harm.file} at {harm.offset}"
            assert (each.step, each.digest, each.refusal) == (1, before.digest, ""), place
            assert each.skipped[0].startswith("step-00000002: "), place
            if harm.content is not None and len(harm.content) == 1:
                assert f"in the block at {harm.offset // BLOCK_BYTES * BLOCK_BYTES}" in each.skipped[0], place
    assert {each.step for each in run_ranks(restore, Task(directory, layout), 2)} == {2}


@pytest.mark.parametrize("layout", ["rows", "replicas"])
def test_no_rank_unpacks_what_another_could_not_read(layout: str, directory: Path) -> None:
    damage(directory / "step-00000002" / "__1_0.distcp", 5 << 20)
    answers = list(run_ranks(restore_watched, Task(directory, layout), 2))
    assert [(each.step, each.unpacked) for each in answers] == [(1, ("step-00000001",))] * 2


def test_ranks_that_have_read_damage_and_nothing_intact_all_refuse_to_go_on(directory: Path) -> None:
    for file in directory.glob("step-*/__0_0.distcp"):
        damage(file, 5 << 20)
    answers = list(run_ranks(restore, Task(directory, "rows"), 2))
    (refusal,) = {each.refusal for each in answers}
    assert refusal.startswith("NothingToRestore: nothing that can be restored is intact: step-00000002: rank 0")


def shared_memory() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith(".holdfast-restore-")}


def test_no_memory_stays_behind(pristine: tuple[Path, str]) -> None:
    before = shared_memory()  # Of ranks that were killed before they had opened it, perhaps.
    run_ranks(restore, Task(pristine[0], "replicas"), 2)
    deadline = time.monotonic() + patient(30)
    while shared_memory() - before:
        assert time.monotonic() < deadline  # Until then it may be that of a restore elsewhere.
        time.sleep(0.05)


@pytest.mark.parametrize("is_damaged", [False, True])
def test_what_the_ranks_shared_is_given_back_before_anything_else_is_tried(
    is_damaged: bool, directory: Path
) -> None:
    if is_damaged:
        damage(directory / "step-00000002" / "__1_0.distcp", 5 << 20)
    answers = list(run_ranks(restore_uncollected, Task(directory, "replicas"), 2))
    assert [each.step for each in answers] == [1, 1] if is_damaged else [2, 2]
    assert [each.is_memory_kept for each in answers] == [False, False]
