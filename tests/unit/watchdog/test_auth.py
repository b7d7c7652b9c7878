"""Tokens and roles from a file only its owner can read."""

from pathlib import Path

import pytest

from holdfast.api.errors import HoldfastError, InvalidInput, Unavailable
from holdfast.watchdog.access.auth import ALL_ROLES, Caller, Role, TokenFile

TOKEN = "a-token-of-some-length"


async def roles(held: TokenFile, token: str) -> frozenset[Role] | None:
    caller = await held.caller(token)
    return caller.roles if caller else None


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


async def test_a_token_alone_has_all_roles(tmp_path: Path) -> None:
    held = TokenFile.read(written(tmp_path / "token", f"{TOKEN}\n"))
    assert await roles(held, TOKEN) == ALL_ROLES


async def test_roles_behind_a_token_limit_it(tmp_path: Path) -> None:
    held = TokenFile.read(written(tmp_path / "token", f"{TOKEN}\n\nanother-long-token-here view, ingest\n"))
    assert await roles(held, "another-long-token-here") == {Role.VIEW, Role.INGEST}
    assert await roles(held, TOKEN) == ALL_ROLES


@pytest.mark.parametrize("given", ["", "wrong", TOKEN[:-1], TOKEN + " ", "\udcff", "ü" * 30])
async def test_any_other_token_has_none(tmp_path: Path, given: str) -> None:
    assert await TokenFile.read(written(tmp_path / "token", TOKEN)).caller(given) is None


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


async def test_a_token_is_made_once_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "token"
    made = TokenFile.read_or_create(path)
    token = path.read_text().strip()
    assert path.stat().st_mode & 0o777 == 0o600
    assert await roles(made, token) == ALL_ROLES
    TokenFile.read_or_create(path)
    assert path.read_text().strip() == token


def test_a_token_cannot_be_made_in_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="cannot be made"):
        TokenFile.read_or_create(tmp_path / "nowhere" / "token")


@pytest.mark.parametrize(
    ("namespace", "job", "may"),
    [
        (None, "research/gpt", True),
        ("research", "research/gpt", True),
        ("research", "research-two/gpt", False),
        ("research", "other/research", False),
        ("research", "research", True),
        ("", "research/gpt", False),
    ],
)
def test_a_caller_bound_to_a_namespace_speaks_for_its_jobs_only(
    namespace: str | None, job: str, may: bool
) -> None:
    assert Caller("somebody", frozenset({Role.INGEST}), namespace).may_ingest_for(job) is may
