"""Every door of the watchdog, tried by everybody who has no right to what is behind it.

Among them one who may read: in a namespace of its own, as `view` there lets everybody.
"""

from collections.abc import Awaitable, Callable

import msgspec
from neighbours import SECRET_LOSS, SECRET_STEP, Scene

from holdfast.api.policy import Policy
from holdfast.watchdog.server.app import ROUTES, Route

STRANGERS = (
    "pod evil-0",
    "account of the intruder",
    "viewer of the intruder",
    "pod bystander",
    "account of the victim",
    "nobody",
)
# They open for every pod of any namespace: what may be said there is tried in the other families.
FOR_PODS = ("/v1/member", "/v1/agent")
WHOAMI = "/v1/whoami"
"""It tells of the caller; what it says of others' jobs is tried below."""
SECRETS = (str(SECRET_STEP), str(SECRET_LOSS), "gpt-0")


async def request(there: Scene, route: Route, who: str, job: str) -> tuple[int, str]:
    namespace, name = job.split("/")
    body = msgspec.json.encode(Policy(job=job, nodes_min=1, nodes_max=1)) if route.method == "POST" else None
    url = there.url + route.path.format(namespace=namespace, name=name, id="inc-0001")
    async with there.http.request(route.method, url, data=body, headers=there.headers(who)) as answer:
        return answer.status, await answer.text(errors="replace")  # some doors answer in msgpack


def stays_shut(route: Route) -> Callable[[Scene], Awaitable[None]]:
    async def attack(there: Scene) -> None:
        for who in STRANGERS:
            if route.path in FOR_PODS and who != "nobody":
                continue
            status, says = await request(there, route, who, there.victim)
            if route.path == WHOAMI and who != "nobody":
                assert status == 200
                assert there.victim.partition("/")[0] not in msgspec.json.decode(says)["namespaces"]
            elif (route.method, route.path) == ("GET", "/v1/jobs") and who != "nobody":
                assert (status, says) == (200, "[]"), f"{who} is told of a job that is not its own"
            else:
                assert status == (401 if who == "nobody" else 403), f"{route.method} {route.path} by {who}"
            assert not any(each in says for each in SECRETS)

    attack.__name__ = f"{route.method} {route.path}"
    return attack


async def a_path_leads_to_another_namespace(there: Scene) -> None:
    for who in ("pod evil-0", "viewer of the intruder"):
        for between in ("/../../", "%2f..%2f..%2f"):
            path = f"{there.url}/v1/jobs/{there.intruder}{between}{there.victim}/status"
            async with there.http.get(path, headers=there.headers(who)) as answer:
                assert answer.status in (403, 404)
                assert str(SECRET_STEP) not in await answer.text()


async def a_viewer_of_one_namespace_lists_its_own_jobs_alone(there: Scene) -> None:
    await there.operate(there.intruder, {})
    [jobs] = [each for each in ROUTES if (each.method, each.path) == ("GET", "/v1/jobs")]
    _, says = await request(there, jobs, "viewer of the intruder", there.intruder)
    assert there.intruder in says
    assert there.victim not in says


async def somebody_asks_what_is_allowed_of_the_victims_job(there: Scene) -> None:
    for who in STRANGERS[:-1]:
        url = f"{there.url}{WHOAMI}?job={there.victim}"
        async with there.http.get(url, headers=there.headers(who)) as answer:
            assert msgspec.json.decode(await answer.read())["may"] == [], who


async def a_token_is_used_as_somebody_elses(there: Scene) -> None:
    """Headers by which a proxy says for whom it asks: nobody asks the watchdog for somebody else."""
    posing = {
        "X-Remote-User": f"system:serviceaccount:{there.tokens.victim}:viewer",
        "X-Forwarded-User": "operator",
        "Impersonate-User": f"system:serviceaccount:{there.tokens.victim}:viewer",
        "Impersonate-Group": "system:masters",
    }
    url = f"{there.url}/v1/jobs/{there.victim}/status"
    async with there.http.get(url, headers=there.headers("viewer of the intruder") | posing) as answer:
        assert answer.status == 403


async def a_token_for_another_audience_is_shown(there: Scene) -> None:
    """One that the API server itself takes: whoever stole it from a log may not come here with it."""
    server = there.tokens.server
    there.tokens.of["stolen"] = server.service_account_token(there.tokens.victim, "viewer")
    url = f"{there.url}/v1/jobs/{there.victim}/status"
    async with there.http.get(url, headers=there.headers("stolen")) as answer:
        assert answer.status == 401


async def a_token_is_changed(there: Scene) -> None:
    """The signature of one, the claims of another."""
    mine, other = (there.tokens.of[f"viewer of the {whose}"].split(".") for whose in ("intruder", "victim"))
    there.tokens.of["forged"] = ".".join((mine[0], other[1], mine[2]))
    url = f"{there.url}/v1/jobs/{there.victim}/status"
    async with there.http.get(url, headers=there.headers("forged")) as answer:
        assert answer.status == 401


ATTACKS = (
    *(stays_shut(route) for route in ROUTES if route.needs is not None),
    a_path_leads_to_another_namespace,
    a_viewer_of_one_namespace_lists_its_own_jobs_alone,
    somebody_asks_what_is_allowed_of_the_victims_job,
    a_token_is_used_as_somebody_elses,
    a_token_for_another_audience_is_shown,
    a_token_is_changed,
)


async def its_own_viewer_reads_the_job(there: Scene) -> None:
    """The same doors open for whoever may read, and the secret is behind them: it could have been told."""
    for route in ROUTES:
        if route.method == "GET" and route.path.startswith("/v1/jobs") and "{id}" not in route.path:
            status, _ = await request(there, route, "viewer of the victim", there.victim)
            asks_for_more = route.path.endswith(("/forecast", "/logs"))
            is_nothing_yet = route.path.endswith("/profile")  # nobody has asked for one
            assert status == (400 if asks_for_more else 404 if is_nothing_yet else 200), route.path
    [door] = [each for each in ROUTES if each.path.endswith("/status")]
    assert str(SECRET_STEP) in (await request(there, door, "viewer of the victim", there.victim))[1]


READS = (its_own_viewer_reads_the_job,)
