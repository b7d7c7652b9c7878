from pathlib import Path

import pytest

from holdfast.checkpoint.memory.sharedbuffer import allowance_bytes

GIB = 1 << 30
SPARED = 256 << 20
V2 = ("memory.max", "memory.current", "")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")


def write_group(folder: Path, names: tuple[str, str, str], limit: int | str, used: int, cache: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"shmem 77\n{names[2]}inactive_file {cache}\n{names[2]}active_file 5\n")


def allowance(tmp_path: Path, own: str) -> int | None:
    (tmp_path / "own").write_text(own)
    return allowance_bytes(tmp_path / "groups", tmp_path / "own")


@pytest.mark.parametrize(
    ("own", "top", "names"),
    [("0::/\n", "groups", V2), ("4:cpu:/\n3:hugetlb,memory:/kubepods/pod7\n", "groups/memory", V1)],
    ids=["version 2", "version 1"],
)
def test_a_container_has_its_limit_less_what_it_uses_and_cannot_give_back(
    tmp_path: Path, own: str, top: str, names: tuple[str, str, str]
) -> None:
    write_group(tmp_path / top, names, limit=8 * GIB, used=5 * GIB, cache=GIB)
    assert allowance(tmp_path, own) == 4 * GIB + 5 - SPARED


def test_the_tightest_limit_of_the_groups_above_counts(tmp_path: Path) -> None:
    write_group(tmp_path / "groups/slice/job", V2, limit=100 * GIB, used=GIB)
    write_group(tmp_path / "groups/slice", V2, limit=4 * GIB, used=3 * GIB)
    assert allowance(tmp_path, "0::/slice/job\n") == GIB + 5 - SPARED


def test_a_group_without_a_limit_bounds_nothing(tmp_path: Path) -> None:
    write_group(tmp_path / "groups", V2, limit="max", used=GIB)
    assert allowance(tmp_path, "0::/\n") is None


def test_what_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    assert allowance(tmp_path, "0::/\n") is None
    assert allowance_bytes(tmp_path, tmp_path / "nowhere") is None
