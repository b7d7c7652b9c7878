"""Lists and watches, and what goes wrong with them."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec
import pytest
from fake_api import ScriptedServer

from holdfast.operator.kube.cache import Cache
from holdfast.operator.kube.objects import PODS, Pod
from holdfast.operator.kube.reflector import BLIND_S, QUIET_WATCH_S, SILENCE_S, Reflector
from holdfast.wire.kube.client import Request, TooLong
from holdfast.wire.kube.reply import Expired

BOOKMARK = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "15"}}}
BROKEN = {"type": "ERROR", "object": {"code": 500, "message": "broken"}}


def pod(name: str, version: str, **status: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "ns", "uid": name, "resourceVersion": version}
    return {"metadata": metadata, "spec": {}, "status": status}


def page(version: str, *items: Any, more: str = "") -> dict[str, Any]:
    return {"metadata": {"resourceVersion": version, "continue": more}, "items": list(items)}


class Mirror:
    """A reflector at work until the test is over."""

    def __init__(self, server: ScriptedServer) -> None:
        self.restarts = 0
        self.cache: Cache[Pod] = Cache(lambda old, new: None)
        reflector = Reflector(server, PODS, "ns", self.cache, self._restarted)  # type: ignore[arg-type]
        self._task = asyncio.create_task(reflector.run())

    def _restarted(self) -> None:
        self.restarts += 1

    @property
    def names(self) -> list[str]:
        return sorted(name for _, name in self.cache.objects)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(1.5):
            while not holds():  # noqa: ASYNC110 - what is waited for is a line read by another task
                await asyncio.sleep(0.005)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def test_pages_are_put_together_and_the_watch_goes_on_from_there() -> None:
    server = ScriptedServer(
        lists=[page("7", pod("a", "1"), more="next"), page("7", pod("b", "2"))],
        watches=[[{"type": "ADDED", "object": pod("c", "9")}]],
    )
    mirror = Mirror(server)
    await mirror.until(lambda: mirror.names == ["a", "b", "c"])
    assert server.asked[1].query["continue"] == "next"
    assert server.asked[2].query["resourceVersion"] == "7"
    await mirror.close()


async def test_of_objects_that_make_a_page_too_long_fewer_are_asked_for() -> None:
    too_long = TooLong("the answer exceeds all measure")
    lists = [page("7", pod("a", "1"), more="next"), too_long, too_long, page("7", pod("b", "2"))]
    mirror = Mirror(server := ScriptedServer(lists=lists, watches=[]))
    await mirror.until(lambda: mirror.names == ["a", "b"])
    asked = [(each.query["limit"], each.query.get("continue")) for each in server.asked[:4]]
    assert asked == [("500", None), ("500", "next"), ("62", "next"), ("7", "next")]
    assert mirror.restarts == 0
    await mirror.close()


async def test_a_version_that_is_too_old_is_answered_with_a_new_list() -> None:
    server = ScriptedServer(
        lists=[page("7", pod("a", "1")), page("20", pod("b", "19"))],
        watches=[[{"type": "ERROR", "object": {"code": 410, "reason": "Expired"}}]],
    )
    mirror = Mirror(server)
    await mirror.until(lambda: mirror.names == ["b"])
    assert mirror.restarts == 1
    await mirror.close()


async def test_a_watch_that_is_refused_as_too_old_is_answered_with_a_new_list() -> None:
    server = ScriptedServer(
        lists=[page("7", pod("a", "1")), page("20", pod("b", "19"))],
        watches=[Expired(410, "Gone", "too old")],
    )
    mirror = Mirror(server)
    await mirror.until(lambda: mirror.names == ["b"])
    await mirror.close()


async def test_a_broken_watch_goes_on_from_the_last_bookmark() -> None:
    server = ScriptedServer(lists=[page("7", pod("a", "1"))], watches=[[BOOKMARK, BROKEN]])
    mirror = Mirror(server)
    await mirror.until(lambda: len(server.asked) == 3)
    assert server.asked[2].query["resourceVersion"] == "15"
    await mirror.close()


async def test_a_watch_that_keeps_breaking_is_listed_again_all_the_same_when_it_is_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.operator.kube.reflector.RELIST_S", 0.0)
    server = ScriptedServer(lists=[page("7", pod("a", "1")), page("20", pod("b", "19"))], watches=[[BROKEN]])
    mirror = Mirror(server)
    await mirror.until(lambda: mirror.names == ["b"])
    assert mirror.restarts == 1
    await mirror.close()


async def test_each_outage_is_told_of_once_though_all_are_told_in_the_same_words(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("holdfast.operator.kube.reflector.RETRY_FIRST_S", 0.001)
    server = ScriptedServer(lists=[page("7")], watches=[[BROKEN], [BROKEN], [BOOKMARK, BROKEN], [BROKEN]])
    mirror = Mirror(server)
    await mirror.until(lambda: mirror.restarts == 4)
    assert [each.levelname for each in caplog.records] == ["WARNING", "WARNING"]
    await mirror.close()


async def test_an_object_that_cannot_be_read_hides_no_other() -> None:
    odd = pod("odd", "2", conditions="not a list")
    server = ScriptedServer(
        lists=[page("7", pod("a", "1"), odd)],
        watches=[[{"type": "MODIFIED", "object": odd}, {"type": "ADDED", "object": pod("b", "9")}]],
    )
    mirror = Mirror(server)
    await mirror.until(lambda: mirror.names == ["a", "b"])
    assert mirror.restarts == 0
    await mirror.close()


async def test_what_the_api_server_says_as_null_is_read() -> None:
    condition = {"type": "Ready", "status": "True", "lastTransitionTime": None}
    server = ScriptedServer(lists=[page("7", pod("a", "1", conditions=[condition]))], watches=[])
    mirror = Mirror(server)
    await mirror.until(lambda: mirror.names == ["a"])
    await mirror.close()


class TickedServer(ScriptedServer):
    """Each watch is taken, and ended by the server when its script is over."""

    async def lines(self, request: Request, silence_s: float) -> AsyncGenerator[bytes, None]:
        self.asked.append(request)
        if not self.watches:
            await asyncio.Event().wait()
        script = self.watches.pop(0)
        assert isinstance(script, list)
        yield b""
        for event in script:
            yield msgspec.json.encode(event)


async def test_the_watches_of_a_kind_that_is_silent_are_short_and_tell_how_far_the_server_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.operator.kube.reflector.LEAST_S", 0.0)
    added = {"type": "ADDED", "object": pod("a", "9")}
    server = TickedServer(lists=[page("7")], watches=[[], [BOOKMARK], [added], []])
    mirror = Mirror(server)
    await mirror.until(lambda: len(server.asked) == 6)
    watches = [each.query for each in server.asked if each.verb == "WATCH"]
    assert [int(each["timeoutSeconds"]) <= QUIET_WATCH_S for each in watches] == [False, True, True, False, True]
    assert [each["resourceVersion"] for each in watches] == ["7", "7", "15", "9", "9"]
    assert mirror.restarts == 0
    await mirror.close()


async def test_what_the_server_says_is_heard_and_its_silence_grows() -> None:
    server = TickedServer(lists=[page("7")], watches=[])
    cache: Cache[Pod] = Cache(lambda old, new: None)
    reflector = Reflector(server, PODS, "ns", cache, lambda: None)  # type: ignore[arg-type]
    working = asyncio.create_task(reflector.run())
    await reflector.synced.wait()
    first = reflector.silent_s()
    assert first < BLIND_S
    await asyncio.sleep(0)
    assert reflector.silent_s() >= first
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)


def test_a_silent_watch_is_tried_again_before_the_operator_counts_as_blind() -> None:
    assert QUIET_WATCH_S < SILENCE_S < BLIND_S <= 10.0
