"""Which roles users and groups of a cluster have."""

from pathlib import Path

import pytest

from holdfast.api.errors import InvalidInput, Unavailable
from holdfast.watchdog.access.auth import Caller, Grants, GrantsFile, Role

INGEST, VIEW, OPERATE = Role.INGEST, Role.VIEW, Role.OPERATE
AGENT = "system:serviceaccount:holdfast-system:holdfast-agent"
POD = "system:serviceaccount:research:default"

GRANTS = Grants(
    users={AGENT: frozenset({INGEST}), "jane": frozenset({VIEW})},
    groups={"on-call": frozenset({VIEW, OPERATE}), "system:serviceaccounts:tools": frozenset({VIEW})},
)


@pytest.mark.parametrize(
    ("user", "groups", "roles", "namespace"),
    [
        (AGENT, (), {INGEST}, None),
        (POD, (), {INGEST}, "research"),
        ("jane", (), {VIEW}, None),
        ("jane", ("on-call", "others"), {VIEW, OPERATE}, None),
        ("joe", (), set(), None),
        ("system:serviceaccount:tools:reader", ("system:serviceaccounts:tools",), {VIEW, INGEST}, "tools"),
        ("system:serviceaccount::nobody", (), set(), None),
        ("system:serviceaccount:research", (), set(), None),
        ("system:serviceaccountant:research:x", (), set(), None),
    ],
    ids=[
        "agent",
        "pod",
        "user",
        "in-a-group",
        "stranger",
        "pod-in-a-group",
        "no-namespace",
        "no-name",
        "near-miss",
    ],
)
def test_what_a_user_is_to_us(user: str, groups: tuple[str, ...], roles: set[Role], namespace: str | None) -> None:
    assert GRANTS.caller(user, groups) == Caller(user, frozenset(roles), namespace)


def test_without_a_file_pods_have_what_every_pod_has() -> None:
    assert GrantsFile(None).newest().caller(POD, ()) == Caller(POD, frozenset({INGEST}), "research")


class TestFile:
    def test_names_users_and_groups(self, tmp_path: Path) -> None:
        path = tmp_path / "grants.yaml"
        path.write_text(f'users:\n  "{AGENT}": [ingest]\ngroups:\n  on-call: [view, operate]\n')
        grants = GrantsFile(path).newest()
        assert grants.caller(AGENT, ()).roles == {INGEST}
        assert grants.caller("joe", ("on-call",)).roles == {VIEW, OPERATE}

    def test_may_be_empty(self, tmp_path: Path) -> None:
        path = tmp_path / "grants.yaml"
        path.write_text("")
        assert GrantsFile(path).newest() == Grants()

    @pytest.mark.parametrize(
        "text", ["users: [jane]", "users: {jane: [admin]}", "people: {}", "users: {jane: view}", "}{", "7"]
    )
    def test_that_is_none_is_refused_with_what_it_should_hold(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "grants.yaml"
        path.write_text(text)
        with pytest.raises(InvalidInput, match=r"--grants.*ingest, view, operate"):
            GrantsFile(path)

    def test_that_is_missing_is_unavailable(self, tmp_path: Path) -> None:
        with pytest.raises(Unavailable, match="nowhere"):
            GrantsFile(tmp_path / "nowhere")

    def test_is_read_again_when_it_was_replaced(self, tmp_path: Path) -> None:
        path = tmp_path / "grants.yaml"
        path.write_text("users: {jane: [view]}")
        file = GrantsFile(path)
        fresh = tmp_path / "fresh"
        fresh.write_text("users: {jane: [operate]}")
        fresh.replace(path)
        assert file.newest().caller("jane", ()).roles == {OPERATE}

    @pytest.mark.parametrize(
        "text",
        ["}{", "users: 2001-99-99", "[" * 2000, None],
        ids=["unreadable", "a date that is none", "deep", "gone"],
    )
    def test_that_breaks_later_changes_nothing(
        self, tmp_path: Path, text: str | None, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = tmp_path / "grants.yaml"
        path.write_text("users: {jane: [view]}")
        file = GrantsFile(path)
        path.unlink()
        if text is not None:
            path.write_text(text)
        assert file.newest().caller("jane", ()).roles == {VIEW}
        assert "grants stay as they were" in caplog.text
