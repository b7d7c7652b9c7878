"""The global batch is the one that this life of the job began with; another life begins anew."""

from pathlib import Path

from holdfast.integrations.life import LIFE_NAME, batch_of_life


def test_the_first_round_says_what_all_later_ones_have(tmp_path: Path) -> None:
    directory = tmp_path / "out"
    assert batch_of_life(directory, owner="one", said=16) == 16
    assert batch_of_life(directory, owner="one", said=8) == 16
    assert batch_of_life(directory, owner="two", said=8) == 8
    assert batch_of_life(directory, owner="one", said=4) == 4


def test_without_a_watchdog_nothing_is_written(tmp_path: Path) -> None:
    assert batch_of_life(tmp_path / "out", owner="", said=16) == 16
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_read_is_written_anew(tmp_path: Path) -> None:
    for text in ("{", "[]", '{"owner": "one"}'):
        (tmp_path / LIFE_NAME).write_text(text)
        assert batch_of_life(tmp_path, owner="one", said=16) == 16
