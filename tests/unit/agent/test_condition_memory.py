"""What an agent had raised, kept in its run directory."""

import logging
from pathlib import Path

import pytest

from holdfast.agent.conditions.book import Held
from holdfast.agent.conditions.memory import ConditionMemory
from holdfast.api.condition import ConditionKind

LINK = Held(ConditionKind.LINK_DOWN, "port mlx5_0/1: it was up and is down", 40.0, device="mlx5_0/1")
SLOW = Held(ConditionKind.LINK_DEGRADED, "100 Gb/s", 50.0, device="mlx5_1/1", measure=400.0)


def memory(path: Path, boot: str = "boot-1") -> ConditionMemory:
    return ConditionMemory(str(path), boot=boot)


def test_what_was_kept_is_recalled_by_the_next_run(tmp_path: Path) -> None:
    memory(tmp_path / "held.json").keep((LINK, SLOW), 60.0)
    later = memory(tmp_path / "held.json")
    assert later.recall(100.0) == (LINK, SLOW)
    assert not later.rebooted
    assert [each.name for each in tmp_path.iterdir()] == ["held.json"]


def test_what_another_boot_held_is_recalled_as_of_now(tmp_path: Path) -> None:
    memory(tmp_path / "held.json").keep((LINK,), 4000.0)
    later = memory(tmp_path / "held.json", boot="boot-2")
    assert later.rebooted
    assert [(each.device, each.since) for each in later.recall(10.0)] == [("mlx5_0/1", 10.0)]


def test_a_boot_that_nobody_names_may_be_the_same_or_not(tmp_path: Path) -> None:
    memory(tmp_path / "held.json", boot="").keep((LINK,), 60.0)
    later = memory(tmp_path / "held.json", boot="")
    assert not later.rebooted
    assert later.recall(500.0)[0].since == 500.0


def test_nothing_is_written_while_the_same_holds(tmp_path: Path) -> None:
    path = tmp_path / "held.json"
    kept = memory(path)
    kept.keep((), 1.0)
    assert not path.exists()
    kept.keep((LINK,), 2.0)
    path.unlink()
    kept.keep((Held(LINK.kind, "in other words", 40.0, device=LINK.device),), 3.0)
    assert not path.exists()
    kept.keep((LINK, SLOW), 4.0)
    kept.keep((), 5.0)
    assert memory(path).recall(6.0) == ()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b'{"boot": 1}', b'{"boot": "b", "held": [{"kind": "No"}]}']
)
def test_a_damaged_file_is_unknown_and_replaced_with_what_holds(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "held.json"
    path.write_bytes(content)
    kept = memory(path)
    assert kept.recall(1.0) == ()
    assert not kept.rebooted
    kept.keep((LINK,), 2.0)
    assert memory(path).recall(50.0) == (LINK,)


def test_a_file_that_cannot_be_written_is_said_once_and_tried_again_after_a_while(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = memory(tmp_path / "absent" / "held.json")
    with caplog.at_level(logging.WARNING):
        for now in (0.0, 1.0, 61.0):
            kept.keep((LINK,), now)
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["conditions not kept"]
    (tmp_path / "absent").mkdir()
    kept.keep((LINK,), 100.0)
    assert memory(tmp_path / "absent" / "held.json").recall(100.0) == ()
    kept.keep((LINK,), 121.0)
    assert memory(tmp_path / "absent" / "held.json").recall(121.0) == (LINK,)


def test_without_a_run_directory_nothing_is_remembered() -> None:
    kept = ConditionMemory.of("nvml", None)
    kept.keep((LINK,), 1.0)
    assert kept.recall(2.0) == ()


def test_each_source_has_a_file_of_its_own_in_the_run_directory(tmp_path: Path) -> None:
    ConditionMemory.of("nvml", str(tmp_path)).keep((LINK,), 1.0)
    ConditionMemory.of("node", str(tmp_path)).keep((SLOW,), 1.0)
    assert {each.name for each in tmp_path.iterdir()} == {"conditions-nvml.json", "conditions-node.json"}
