"""Whose a token is: the watchdog says it, and is believed for a short time."""

import asyncio
from typing import cast

import msgspec
import pytest

from holdfast.api.errors import Unavailable
from holdfast.api.feed import Whoami
from holdfast.console.serving.authority import (
    AWAY_KEPT_S,
    KEPT_S,
    REFUSED_KEPT_S,
    VERDICTS_MAX,
    Authority,
    Refused,
)
from holdfast.wire.http import WatchdogHttp


class Answers:
    """A watchdog that knows one token; `asked` are the paths that it was asked, with the token."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.is_away = False
        self.may: tuple[str, ...] = ("view",)

    async def answered(
        self, method: str, path: str, body: bytes | None = None, token: str | None = None
    ) -> tuple[int, bytes]:
        self.asked.append((path, token or ""))
        await asyncio.sleep(0)
        if self.is_away:
            raise Unavailable("the watchdog does not answer")
        if token != "alice":
            return 401, b'{"error":"no"}'
        return 200, msgspec.json.encode(Whoami("alice", self.may, ("a",)))


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def authority(answers: Answers, clock: Clock) -> Authority:
    return Authority(cast(WatchdogHttp, answers), clock)


async def test_a_token_is_asked_about_once_for_a_while_however_many_show_it(
    authority: Authority, answers: Answers, clock: Clock
) -> None:
    found = await asyncio.gather(*(authority.whoami("alice", "a/b") for _ in range(50)))
    assert {each.name for each in found} == {"alice"}
    assert answers.asked == [("/v1/whoami?job=a%2Fb", "alice")]
    await authority.whoami("alice", "a/c")
    assert len(answers.asked) == 2, "another job is another question"
    clock.now += KEPT_S
    answers.may = ()
    with pytest.raises(Refused, match="may not read job a/b") as refused:
        await authority.reader("alice", "a/b")
    assert refused.value.status == 403


async def test_nobodys_token_is_refused_and_none_is_asked_about(
    authority: Authority, answers: Answers, clock: Clock
) -> None:
    with pytest.raises(Refused, match="needs a token"):
        await authority.whoami("")
    assert answers.asked == []
    for _ in range(3):
        with pytest.raises(Refused) as refused:
            await authority.whoami("mallory")
        assert refused.value.status == 401
    assert len(answers.asked) == 1
    clock.now += REFUSED_KEPT_S
    with pytest.raises(Refused):
        await authority.whoami("mallory")
    assert len(answers.asked) == 2


async def test_while_the_watchdog_is_away_its_last_word_stands_for_a_time(
    authority: Authority, answers: Answers, clock: Clock
) -> None:
    await authority.reader("alice", "a/b")
    answers.is_away = True
    clock.now += AWAY_KEPT_S - 1.0
    assert (await authority.reader("alice", "a/b")).name == "alice"
    with pytest.raises(Unavailable):
        await authority.reader("bob", "a/b")
    clock.now += 1.0
    with pytest.raises(Unavailable):
        await authority.reader("alice", "a/b")


async def test_verdicts_are_bounded_and_hold_no_token_and_a_flood_makes_nobody_unknown(
    authority: Authority, answers: Answers
) -> None:
    await authority.whoami("alice")
    for number in range(VERDICTS_MAX + 10):
        with pytest.raises(Refused):
            await authority.whoami(f"made-up-{number}")
    kept = authority._refusals
    assert len(kept) == VERDICTS_MAX
    answers.is_away = True
    assert (await authority.whoami("alice")).name == "alice"
    assert not [key for key in kept if b"made-up" in key]
