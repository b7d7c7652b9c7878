"""Tokens and roles from a file only its owner can read."""

from pathlib import Path

import pytest

from holdfast.api.errors import HoldfastError, InvalidInput, Unavailable
from holdfast.watchdog.auth import ALL_ROLES, Role, TokenFile

TOKEN = "a-token-of-some-length"


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_token_alone_has_all_roles(tmp_path: Path) -> None:
    held = TokenFile.read(written(tmp_path / "token", f"{TOKEN}\n"))
    assert held.roles(TOKEN) == ALL_ROLES


def test_roles_behind_a_token_limit_it(tmp_path: Path) -> None:
    held = TokenFile.read(written(tmp_path / "token", f"{TOKEN}\n\nanother-long-token-here view, ingest\n"))
    assert held.roles("another-long-token-here") == {Role.VIEW, Role.INGEST}
    assert held.roles(TOKEN) == ALL_ROLES


@pytest.mark.parametrize("given", ["", "wrong", TOKEN[:-1], TOKEN + " ", "\udcff", "ü" * 30])
def test_any_other_token_has_none(tmp_path: Path, given: str) -> None:
    assert TokenFile.read(written(tmp_path / "token", TOKEN)).roles(given) is None


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o666])
def test_a_file_others_can_read_is_refused_with_the_fix(tmp_path: Path, mode: int) -> None:
    with pytest.raises(InvalidInput, match="chmod 600"):
        TokenFile.read(written(tmp_path / "token", TOKEN, mode))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "write a token"),
        ("\n \n", "write a token"),
        ("short", "16 characters"),
        (f"{TOKEN} admin", "name roles from"),
    ],
    ids=["empty", "blank", "short token", "unknown role"],
)
def test_a_file_without_a_usable_token_is_refused_and_no_token_is_told(
    tmp_path: Path, text: str, says: str
) -> None:
    with pytest.raises(InvalidInput, match=says) as caught:
        TokenFile.read(written(tmp_path / "token", text))
    assert TOKEN not in str(caught.value)
    assert "short" not in str(caught.value)


def test_a_missing_or_unreadable_file_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable):
        TokenFile.read(tmp_path / "nowhere")
    (tmp_path / "token").write_bytes(b"\xff\xfe")
    with pytest.raises(HoldfastError):
        TokenFile.read(tmp_path / "token")


def test_a_token_is_made_once_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "token"
    made = TokenFile.read_or_create(path)
    token = path.read_text().strip()
    assert path.stat().st_mode & 0o777 == 0o600
    assert made.roles(token) == ALL_ROLES
    TokenFile.read_or_create(path)
    assert path.read_text().strip() == token


def test_a_token_cannot_be_made_in_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="cannot be made"):
        TokenFile.read_or_create(tmp_path / "nowhere" / "token")
