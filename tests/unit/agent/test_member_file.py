"""A run directory belongs to the workload: whatever lies there under the member file's name raises one error."""

import os
import random
from pathlib import Path

import pytest

from holdfast.agent.memberfile import FILE_NAME, Member, read_member, write_member
from holdfast.api.errors import Damaged

MEMBER = Member("ns/job", "m0", "n0", "b0", 4026531836)


def test_a_member_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_member(tmp_path, MEMBER)
    assert read_member(str(tmp_path / FILE_NAME)) == MEMBER


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"job":"\xff\xfe"}',
        b"[" * 4000,
        b'{"job":' * 500,
        b'{"pid_namespace":' + b"9" * 4000,
        b"\x00" * 4096,
    ],
    ids=["empty", "no UTF-8", "deep lists", "deep maps", "a huge number", "zeros"],
)
def test_what_is_none_raises_damaged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(Damaged):
        read_member(str(tmp_path / FILE_NAME))


def test_a_member_file_with_damaged_bytes_is_another_one_or_raises_damaged(tmp_path: Path) -> None:
    write_member(tmp_path, MEMBER)
    path, dice = tmp_path / FILE_NAME, random.Random(11)
    whole = path.read_bytes()
    for _ in range(500):
        body = bytearray(whole)
        for _ in range(dice.randrange(1, 4)):
            body[dice.randrange(len(body))] = dice.randrange(256)
        path.write_bytes(body[: dice.randrange(len(body) + 1)])
        try:
            assert isinstance(read_member(str(path)), Member)
        except Damaged:
            continue
    assert os.listdir(tmp_path) == [FILE_NAME]


def test_names_longer_than_any_are_damaged_and_not_passed_on(tmp_path: Path) -> None:
    """What cannot be taken is said to every job of the node: no pod is to fill their reports."""
    write_member(tmp_path, Member("ns/" + "x" * 3900, "gpt-0", "n1", "b1", 1))
    with pytest.raises(Damaged) as damaged:
        read_member(str(tmp_path / FILE_NAME))
    assert len(str(damaged.value)) < 200
