"""How long an answer about a token is good for."""

import base64
import json

import pytest

from holdfast.watchdog.access.auth import Caller, Role
from holdfast.watchdog.access.reviews import expiry
from holdfast.watchdog.access.verdicts import ACCEPTED_S, LAST_RESORT_S, REFUSED_S, Verdict, Verdicts

CALLER = Caller("somebody", frozenset({Role.VIEW}))
FRESH, LAST_RESORT = ACCEPTED_S, LAST_RESORT_S


def accepted(at: float, expires_at: float = float("inf")) -> Verdict:
    return Verdict(CALLER, at, expires_at)


@pytest.mark.parametrize(
    ("verdict", "trust", "good_until"),
    [
        (accepted(100.0), FRESH, 100.0 + ACCEPTED_S),
        (accepted(100.0), LAST_RESORT, 100.0 + LAST_RESORT_S),
        (accepted(100.0, expires_at=130.0), FRESH, 130.0),
        (accepted(100.0, expires_at=130.0), LAST_RESORT, 130.0),
        (Verdict(None, 100.0), FRESH, 100.0 + REFUSED_S),
        (Verdict(None, 100.0), LAST_RESORT, 100.0 + REFUSED_S),
    ],
)
def test_a_verdict_is_good_for_its_time_and_no_longer(verdict: Verdict, trust: float, good_until: float) -> None:
    verdicts = Verdicts()
    verdicts.put("token", verdict)
    assert verdicts.get("token", good_until - 0.1, trust) == verdict
    assert verdicts.get("token", good_until, trust) is None


def test_of_another_token_nothing_is_known() -> None:
    verdicts = Verdicts()
    verdicts.put("token", accepted(1.0))
    assert verdicts.get("token ", 1.0, FRESH) is None


def test_the_newest_verdict_stands() -> None:
    verdicts = Verdicts()
    verdicts.put("token", accepted(1.0))
    verdicts.put("token", Verdict(None, 2.0))
    refused = verdicts.get("token", 3.0, LAST_RESORT)
    assert refused is not None
    assert refused.caller is None
    verdicts.put("token", accepted(4.0))
    assert verdicts.get("token", 5.0, FRESH) == accepted(4.0)


def test_a_flood_of_made_up_tokens_pushes_nobody_out() -> None:
    verdicts = Verdicts(refused_max=3)
    verdicts.put("good", accepted(1.0))
    for number in range(10):
        verdicts.put(f"bad-{number}", Verdict(None, 1.0))
    assert verdicts.get("good", 2.0, FRESH) == accepted(1.0)
    assert [n for n in range(10) if verdicts.get(f"bad-{n}", 2.0, FRESH)] == [7, 8, 9]


def test_the_oldest_goes_when_there_are_too_many() -> None:
    verdicts = Verdicts(accepted_max=2)
    for name in ("a", "b", "a", "c"):
        verdicts.put(name, accepted(1.0))
    assert [name for name in "abc" if verdicts.get(name, 2.0, FRESH)] == ["a", "c"]


def jwt(payload: object) -> str:
    body = base64.urlsafe_b64encode(json.dumps(payload).encode()).rstrip(b"=").decode()
    return f"header.{body}.signature"


@pytest.mark.parametrize(
    ("token", "ends"),
    [
        (jwt({"exp": 1234}), 1234.0),
        (jwt({"exp": 1234.5, "aud": ["holdfast"]}), 1234.5),
        (jwt({}), float("inf")),
        (jwt({"exp": "soon"}), float("inf")),
        (jwt({"exp": 10**400}), float("inf")),
        (jwt([1]), float("inf")),
        ("a.b.c", float("inf")),
        ("a.*.c", float("inf")),
        ("no-parts", float("inf")),
        ("\udcff.\udcff.\udcff", float("inf")),
        ("", float("inf")),
    ],
)
def test_when_a_token_says_that_it_ends(token: str, ends: float) -> None:
    assert expiry(token) == ends
