"""What the program is told, and the places where a test makes it die."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.api.errors import InvalidInput, Unavailable
from holdfast.operator.act import faultpoint
from holdfast.operator.decide.observed import Cordoning, Mode
from holdfast.operator.operation import Settings
from holdfast.wire.kube.reply import Absent, Conflicting, Declined, Expired, refusal


def settings(**fields: Any) -> Settings:
    known: dict[str, Any] = {
        "watchdog": "holdfast-watchdog.holdfast:7077",
        "watchdog_token_file": Path("token"),
        "launcher_image": "launcher:1",
        "audience": "holdfast",
        "namespaces": (),
        "mode": Mode.ACT,
        "cordoning": Cordoning.OWN,
        "maintenance_taints": (),
        "lease_namespace": "holdfast",
        "lease_name": "operator",
        "identity": "one",
        "lease_s": 15.0,
        "listen": "[::1]:8080",
        "metrics_token_file": None,
        "kubeconfig": "",
        "resync_s": 300.0,
    }
    return Settings(**(known | fields))


def test_addresses_are_taken_apart() -> None:
    assert settings().listen_at == ("::1", 8080)
    assert settings(listen="0.0.0.0:0").listen_at == ("0.0.0.0", 0)


@pytest.mark.parametrize(
    ("field", "value", "names"),
    [
        ("watchdog", "nowhere", "--watchdog"),
        ("watchdog", "host:0", "--watchdog"),
        ("watchdog", "host:70000", "--watchdog"),
        ("listen", ":8080", "--listen"),
        ("lease_s", 0.5, "--lease-seconds"),
        ("resync_s", 0.0, "--resync"),
        ("launcher_image", " ", "--launcher-image"),
        ("identity", "", "--identity"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_the_name_of_its_flag(field: str, value: Any, names: str) -> None:
    with pytest.raises(InvalidInput, match=names):
        settings(**{field: value})


@pytest.mark.parametrize("text", ["nowhere:1", "after-status:0", "after-status:x", ":1"])
def test_a_fault_that_is_not_known_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=faultpoint.VARIABLE):
        faultpoint.arm(text)


def test_without_a_fault_every_point_is_passed() -> None:
    faultpoint.arm("")
    for point in faultpoint.POINTS:
        faultpoint.reach(point)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (404, Absent),
        (409, Conflicting),
        (410, Expired),
        (403, Declined),
        (422, Declined),
        (429, Unavailable),
        (503, Unavailable),
    ],
)
def test_an_answer_becomes_an_error_of_its_kind(code: int, kind: type[Exception]) -> None:
    error = refusal(code, b'{"reason": "Because", "message": "the words"}')
    assert type(error) is kind
    assert "the words" in str(error)


def test_an_answer_that_is_not_from_kubernetes_is_told_as_it_came() -> None:
    assert "upstream" in str(refusal(502, b"<html>upstream"))
