"""Whether the agent reaches the watchdog, as the kubelet's probe sees it."""

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from holdfast.agent.jobstream import Connection
from holdfast.agent.readiness import BAD_FOR_S, GOOD_FOR_S, Readiness, asking
from holdfast.wire.access import Access, Address, Credential, Trust

AWAY = "the watchdog does not answer"


THERE = Connection("ns/b", connected=True, reports=1, dropped=0)
GONE = Connection("secret/a", connected=False, reports=1, dropped=0)


class Node:
    """An agent's surroundings: its jobs' connections, and what the watchdog says when it is asked."""

    def __init__(self, *connections: Connection, says: str = "") -> None:
        self.connections = connections
        self.says = says
        self.now = 100.0
        self.asked = 0
        self.readiness = Readiness(lambda: self.connections, self._ask, lambda: self.now)

    async def _ask(self) -> str:
        self.asked += 1
        return self.says

    async def probe(self) -> tuple[int, dict[str, str]]:
        application = web.Application()
        application.router.add_get("/readyz", self.readiness.answer)
        async with TestClient(TestServer(application)) as client:
            answer = await client.get("/readyz")
            return answer.status, await answer.json()


async def test_with_every_connection_there_it_is_ready_and_asks_nobody() -> None:
    node = Node(THERE, THERE, says=AWAY)
    assert await node.probe() == (200, {"status": "ok"})
    assert node.asked == 0


async def test_a_connection_that_is_away_is_counted_and_no_job_is_named() -> None:
    node = Node(GONE, THERE)
    assert await node.probe() == (503, {"error": "1 of 2 connections to the watchdog are away"})


async def test_without_a_job_the_watchdog_is_asked() -> None:
    assert await Node().probe() == (200, {"status": "ok"})
    assert await Node(says=AWAY).probe() == (503, {"error": AWAY})


async def test_a_good_answer_stands_for_a_minute_and_a_bad_one_for_seconds() -> None:
    node = Node()
    assert await node.readiness.trouble() == ""
    node.says, node.now = AWAY, node.now + GOOD_FOR_S - 1
    assert (await node.readiness.trouble(), node.asked) == ("", 1)
    node.now += 1
    assert (await node.readiness.trouble(), node.asked) == (AWAY, 2)
    node.says = ""
    assert (await node.readiness.trouble(), node.asked) == (AWAY, 2)
    node.now += BAD_FOR_S
    assert (await node.readiness.trouble(), node.asked) == ("", 3)


def at(port: int, trust: Trust | None = None) -> Access:
    """How a watchdog on this machine is reached."""
    return Access(Address("127.0.0.1", port), Credential("a test's"), trust or Trust())


async def livez(status: int) -> str:
    """What asking a watchdog comes to that answers so."""
    application = web.Application()

    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status)

    application.router.add_get("/livez", answer)
    async with TestServer(application) as server:
        assert server.port is not None
        return await asking(at(server.port))()


async def test_any_watchdog_that_answers_is_reached() -> None:
    assert await livez(200) == ""
    assert await livez(502) == "the watchdog answers with HTTP status 502"


async def test_nobody_there_is_told_as_the_reason() -> None:
    async with TestServer(web.Application()) as server:
        port = server.port
    assert port is not None
    assert (await asking(at(port))()).startswith("the watchdog does not answer: ")


async def test_an_authority_that_cannot_be_read_is_told_as_the_reason() -> None:
    says = await asking(at(1, Trust("/nowhere/ca.crt")))()
    assert says.startswith("the watchdog does not answer: the certificate authority /nowhere/ca.crt")
