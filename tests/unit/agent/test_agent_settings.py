"""The agent's command line."""

from pathlib import Path

import pytest

from holdfast.agent.settings import Address, Lifetime, parse_settings
from holdfast.api.errors import InvalidInput


@pytest.fixture
def given(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "token").write_text("secret")
    return {
        "--node": "node-1",
        "--job": "research/gpt",
        "--run-dir": str(tmp_path),
        "--watchdog": "127.0.0.1:7070",
        "--token-file": str(tmp_path / "token"),
    }


def arguments(given: dict[str, str]) -> list[str]:
    return [word for pair in given.items() for word in pair]


def test_what_is_not_given_has_a_safe_default(given: dict[str, str]) -> None:
    settings = parse_settings(arguments(given))
    assert settings.listen == Address(host="127.0.0.1", port=0)
    assert (settings.interval_s, settings.simulated_gpus, settings.lifetime) == (1.0, 0, Lifetime.OWN)


def test_every_flag_is_taken(given: dict[str, str]) -> None:
    given |= {"--listen": "0.0.0.0:9400", "--simulated-gpus": "8", "--interval": "500ms"}
    settings = parse_settings([*arguments(given), "--die-with-parent"])
    assert settings.listen == Address(host="0.0.0.0", port=9400)
    assert (settings.interval_s, settings.simulated_gpus, settings.lifetime) == (0.5, 8, Lifetime.PARENT)
    assert str(settings.watchdog) == "127.0.0.1:7070"


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--job", "gpt"),
        ("--watchdog", "somewhere"),
        ("--watchdog", ":80"),
        ("--listen", "127.0.0.1:99999"),
        ("--token-file", "/nowhere"),
        ("--simulated-gpus", "-1"),
        ("--interval", "1"),
        ("--interval", "0s"),
        ("--interval", "2h"),
    ],
)
def test_a_wrong_value_is_refused_by_name(given: dict[str, str], flag: str, value: str) -> None:
    with pytest.raises(InvalidInput, match=flag):
        parse_settings(arguments(given | {flag: value}))
