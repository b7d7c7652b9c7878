import json
from pathlib import Path

import pytest
from fakewatchdog import TOKEN, FakeWatchdog, fake_watchdog
from wireobjects import a_rank, a_status

from holdfast.api.intervention import InterventionOutcome, InterventionState
from holdfast.cli.main import answer
from holdfast.cli.statedirectory import StateDirectory


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token-file"
    file.write_text(f"{TOKEN} view,operate\n")
    return file


def at(tmp_path: Path) -> str:
    listening = StateDirectory(tmp_path).listening_at()
    assert listening is not None
    return f"{listening.host}:{listening.port}"


def serving(fake: FakeWatchdog) -> None:
    fake.answers["GET ranks"] = (200, [a_rank(0)])
    fake.answers["GET status"] = (200, a_status())
    fake.answers["GET /v1/jobs"] = (200, [a_status()])


def test_a_watchdog_is_read_by_its_address(
    tmp_path: Path, token_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_watchdog(tmp_path) as fake:
        serving(fake)
        flags = ["--watchdog", at(tmp_path), "--token-file", str(token_file)]
        assert answer(["status", *flags, "-o", "json"]) == 0
        assert json.loads(capsys.readouterr().out)["job"] == "research/gpt"
        assert answer(["ranks", *flags]) == 0
        assert answer(["ranks", "research/gpt", *flags]) == 0
        assert answer(["ranks", "gpt", *flags]) == 2  # of the namespace default


def test_an_intervention_that_is_open_is_asked_for_again_with_its_id(tmp_path: Path, token_file: Path) -> None:
    with fake_watchdog(tmp_path) as fake:
        serving(fake)
        fake.answers["POST interventions"] = (202, InterventionOutcome("i", InterventionState.PENDING, "taken"))
        flags = ["--watchdog", at(tmp_path), "--token-file", str(token_file)]
        assert answer(["checkpoint", *flags, "--timeout", "0.5"]) == 3
        asked = [json.loads(body)["id"] for body in fake.asked]
        assert len(asked) > 1
        assert len(set(asked)) == 1
        assert answer(["checkpoint", *flags, "--no-wait"]) == 0
        assert answer(["checkpoint", *flags, "--dry-run=server"]) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot be read"), ("", "is empty")],
)
def test_a_token_file_that_cannot_be_used_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, message: str
) -> None:
    file = tmp_path / "t"
    if content is not None:
        file.write_text(content)
    assert answer(["status", "--watchdog", "127.0.0.1:1", "--token-file", str(file)]) != 0
    assert message in capsys.readouterr().err


def test_a_token_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["status", "--watchdog", "127.0.0.1:1"]) == 2
    assert "--token-file: None is not accepted; give the file with the token" in capsys.readouterr().err


def test_what_is_no_address_is_refused_by_name(token_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["status", "--watchdog", "localhost", "--token-file", str(token_file)]) == 2
    assert "--watchdog: 'localhost' is not accepted; write HOST:PORT" in capsys.readouterr().err
