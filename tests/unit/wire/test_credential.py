"""Tokens, and what follows when they are refused."""

from pathlib import Path

import pytest

from holdfast.api.errors import Unavailable
from holdfast.wire.access import Credential, Refusals, read_token


def test_a_launcher_that_was_never_welcome_gives_up_at_once() -> None:
    assert Refusals(60.0).is_final("bad", "bad", 0.0)


def test_a_token_that_has_changed_since_is_tried() -> None:
    assert not Refusals(60.0).is_final("old", "new", 0.0)


def test_a_launcher_that_was_welcome_goes_on_for_a_while() -> None:
    refusals = Refusals(patience_s=60.0)
    refusals.welcomed()
    assert not refusals.is_final("t", "t", 100.0)
    assert not refusals.is_final("t", "t", 159.0)
    assert refusals.is_final("t", "t", 160.0)


def test_the_while_begins_anew_after_a_welcome() -> None:
    refusals = Refusals(patience_s=60.0)
    refusals.welcomed()
    refusals.is_final("t", "t", 100.0)
    refusals.welcomed()
    assert not refusals.is_final("t", "t", 1000.0)


def test_a_token_is_the_first_word_of_its_file_and_read_anew(tmp_path: Path) -> None:
    credential = Credential(file=tmp_path / "token")
    (tmp_path / "token").write_text("  first view,operate\nof whom: Jürgen\n")
    assert credential.read() == "first"
    (tmp_path / "token").write_text("second")
    assert credential.read() == "second"


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "cannot be read"), (b" \n", "is empty"), (b"\xff\xfe", "cannot be read")]
)
def test_a_file_without_a_token_is_named(tmp_path: Path, content: bytes | None, reason: str) -> None:
    if content is not None:
        (tmp_path / "token").write_bytes(content)
    with pytest.raises(Unavailable, match=f"the token file {tmp_path / 'token'} {reason}"):
        read_token(tmp_path / "token")


def test_who_has_no_patience_to_lose_goes_on_for_ever() -> None:
    assert not Refusals(None).is_final("bad", "bad", 0.0)
