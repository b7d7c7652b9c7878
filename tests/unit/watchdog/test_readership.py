"""Who may read what, and how long an answer of Kubernetes is good for."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import test_utils, web

from holdfast.api.errors import Unavailable
from holdfast.watchdog.access.auth import Caller, Identity, Role
from holdfast.watchdog.access.readership import (
    GET_JOB,
    GET_LOG,
    LIST_JOBS,
    Decision,
    Read,
    Readership,
    Right,
    decide,
)
from holdfast.watchdog.access.reviews import AccessReviewer
from holdfast.watchdog.access.verdicts import ACCEPTED_S, LAST_RESORT_S, REFUSED_S
from holdfast.watchdog.settings import KubernetesAuth

JANE_IS = Identity("u-1", ("ml", "system:authenticated"), (("scopes", ("a", "b")),))
JANE = Caller("jane", frozenset(), identity=JANE_IS)
GRANTED = Caller("prometheus", frozenset({Role.VIEW}), identity=Identity())
EMBEDDED = Caller("the token", frozenset({Role.INGEST}))
LAUNCHER = Caller("system:serviceaccount:a:default", frozenset({Role.INGEST}), "a", identity=Identity())
OPERATES = Caller("op", frozenset({Role.OPERATE, Role.INGEST}), identity=Identity())


@pytest.mark.parametrize(
    ("caller", "right", "decision"),
    [
        (GRANTED, GET_JOB, Decision.ALLOWED),
        (GRANTED, GET_LOG, Decision.ALLOWED),
        (GRANTED, None, Decision.ALLOWED),
        (JANE, GET_JOB, Decision.ASK),
        (JANE, GET_LOG, Decision.ASK),
        (JANE, LIST_JOBS, Decision.ASK),
        (JANE, None, Decision.REFUSED),
        (LAUNCHER, GET_JOB, Decision.ASK),
        (OPERATES, GET_JOB, Decision.ASK),
        (EMBEDDED, GET_JOB, Decision.REFUSED),
        (EMBEDDED, LIST_JOBS, Decision.REFUSED),
    ],
)
def test_the_role_reads_everything_and_kubernetes_decides_of_the_others(
    caller: Caller, right: Right | None, decision: Decision
) -> None:
    assert decide(caller, right) is decision


def test_a_right_is_named_as_kubernetes_names_it() -> None:
    assert [str(each) for each in (GET_JOB, LIST_JOBS, GET_LOG)] == [
        "get trainingjobs.holdfast.dev",
        "list trainingjobs.holdfast.dev",
        "get trainingjobs/log.holdfast.dev",
    ]


class Table:
    """Fills `Rights` from a table."""

    def __init__(self, *allowed: Read) -> None:
        self.allowed = allowed
        self.asked: list[Read] = []

    async def allow(self, caller: Caller, read: Read) -> bool:
        self.asked.append(read)
        return read in self.allowed

    async def close(self) -> None:
        return


async def test_kubernetes_is_asked_for_nobody_who_needs_it_not() -> None:
    table = Table()
    readership = Readership(table)
    assert await readership.may(GRANTED, Read(GET_JOB, "a", "gpt"))
    assert not await readership.may(EMBEDDED, Read(GET_JOB, "a", "gpt"))
    assert await readership.listed(GRANTED, ["b", "a", "b"]) == {"a", "b"}
    assert table.asked == []


async def test_a_list_has_the_namespaces_that_may_be_listed() -> None:
    table = Table(Read(LIST_JOBS, "a"), Read(GET_JOB, "b"), Read(GET_JOB, "b", "gpt"))
    assert await Readership(table).listed(JANE, ["a", "b", "a"]) == {"a"}
    assert await Readership(Table(Read(LIST_JOBS, ""))).listed(JANE, ["a", "b"]) == {"a", "b"}
    assert await Readership().listed(JANE, ["a"]) == frozenset()


class PlayedApiServer:
    """Allows what is in `allows`: verb, resource, namespace and name of a review."""

    def __init__(self) -> None:
        self.allows: set[tuple[str, str, str, str]] = set()
        self.asked: list[dict[str, object]] = []
        self.status = 201

    async def answer(self, request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer our-own"
        review = await request.json()
        assert (review["apiVersion"], review["kind"]) == ("authorization.k8s.io/v1", "SubjectAccessReview")
        self.asked.append(review["spec"])
        of = review["spec"]["resourceAttributes"]
        resource = "/".join(filter(None, (of["resource"], of["subresource"])))
        allowed = (of["verb"], resource, of["namespace"], of["name"]) in self.allows
        return web.json_response({"status": {"allowed": allowed}}, status=self.status)


class Reviewed:
    """A reviewer, its clock and the API server that it asks."""

    def __init__(self, server: PlayedApiServer, reviewer: AccessReviewer, clock: list[float]) -> None:
        self.server = server
        self.reviewer = reviewer
        self.clock = clock

    async def allow(self, caller: Caller = JANE, read: Read | None = None) -> bool:
        return await self.reviewer.allow(caller, read or Read(GET_JOB, "a", "gpt"))


@pytest.fixture
async def reviewed(tmp_path: Path) -> AsyncIterator[Reviewed]:
    server, clock = PlayedApiServer(), [1000.0]
    app = web.Application()
    app.router.add_post("/apis/authorization.k8s.io/v1/subjectaccessreviews", server.answer)
    (tmp_path / "token").write_text("our-own\n")
    async with test_utils.TestServer(app) as served:
        settings = KubernetesAuth(str(served.make_url("")).rstrip("/"), tmp_path, "holdfast", None)
        reviewer = AccessReviewer(settings, now=lambda: clock[0])
        yield Reviewed(server, reviewer, clock)
        await reviewer.close()


GET_GPT = ("get", "trainingjobs", "a", "gpt")


async def test_everything_that_is_known_of_the_caller_is_asked_about(reviewed: Reviewed) -> None:
    reviewed.server.allows.add(("get", "trainingjobs/log", "a", "gpt"))
    assert await reviewed.allow(read=Read(GET_LOG, "a", "gpt"))
    assert reviewed.server.asked == [
        {
            "user": "jane",
            "uid": "u-1",
            "groups": ["ml", "system:authenticated"],
            "extra": {"scopes": ["a", "b"]},
            "resourceAttributes": {
                "verb": "get",
                "group": "holdfast.dev",
                "resource": "trainingjobs",
                "subresource": "log",
                "namespace": "a",
                "name": "gpt",
            },
        }
    ]


async def test_an_answer_is_remembered_for_its_caller_and_its_read_alone(reviewed: Reviewed) -> None:
    reviewed.server.allows.add(GET_GPT)
    others = (
        (Caller("jane", frozenset(), identity=Identity("u-2")), Read(GET_JOB, "a", "gpt")),
        (Caller("john", frozenset(), identity=JANE_IS), Read(GET_JOB, "a", "gpt")),
        (JANE, Read(GET_LOG, "a", "gpt")),
        (JANE, Read(LIST_JOBS, "a")),
        (JANE, Read(GET_JOB, "b", "gpt")),
        (JANE, Read(GET_JOB, "a", "llama")),
    )
    assert await reviewed.allow()
    assert await reviewed.allow()
    assert len(reviewed.server.asked) == 1
    assert [await reviewed.allow(*each) for each in others] == [True, True, False, False, False, False]
    assert len(reviewed.server.asked) == 1 + len(others)


async def test_a_right_that_was_taken_back_ends_within_a_minute(reviewed: Reviewed) -> None:
    reviewed.server.allows.add(GET_GPT)
    assert await reviewed.allow()
    reviewed.server.allows.clear()
    reviewed.clock[0] += ACCEPTED_S - 1.0
    assert await reviewed.allow()
    reviewed.clock[0] += 1.0
    assert not await reviewed.allow()


async def test_a_right_that_was_given_counts_within_seconds(reviewed: Reviewed) -> None:
    assert not await reviewed.allow()
    reviewed.server.allows.add(GET_GPT)
    reviewed.clock[0] += REFUSED_S - 1.0
    assert not await reviewed.allow()
    reviewed.clock[0] += 1.0
    assert await reviewed.allow()


async def test_while_the_api_server_is_away_who_might_read_goes_on_for_ten_minutes(reviewed: Reviewed) -> None:
    reviewed.server.allows.add(GET_GPT)
    assert await reviewed.allow()
    reviewed.server.status = 500
    reviewed.clock[0] += LAST_RESORT_S - 1.0
    assert await reviewed.allow()
    with pytest.raises(Unavailable, match="answers 500 to a SubjectAccessReview"):
        await reviewed.allow(read=Read(GET_JOB, "b", "gpt"))
    reviewed.clock[0] += 1.0
    with pytest.raises(Unavailable):
        await reviewed.allow()


async def test_a_watchdog_that_may_not_ask_says_what_it_lacks(reviewed: Reviewed) -> None:
    reviewed.server.status = 403
    with pytest.raises(Unavailable, match="may not create subjectaccessreviews"):
        await reviewed.allow()
