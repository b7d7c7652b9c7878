"""The whole table of invalid specs, applied to a real API server that knows the definitions."""

import asyncio
from typing import Any

import pytest
from apiserver import Refused
from invalid_specs import BY_DRY_RUN, INVALID_SPECS, Invalid, ToldBy
from kubernetes_binaries import kubernetes_program
from operator_rig import Cluster, OperatorProcess, eventually

VALID = Invalid("nothing is wrong", "{}", "")
BAD_REQUEST, UNPROCESSABLE = 400, 422


def told_by(*who: ToldBy) -> list[Invalid]:
    return [each for each in (*INVALID_SPECS, *BY_DRY_RUN) if each.told_by in who]


def named(given: Invalid) -> str:
    return given.name


def document(given: Invalid, namespace: str, name: str) -> dict[str, Any]:
    """The job in that namespace, under that name unless its own is what is wrong."""
    whole = given.document()
    whole["metadata"]["namespace"] = namespace
    if given.metadata == VALID.metadata:
        whole["metadata"]["name"] = name
    return whole


async def refused(cluster: Cluster, given: Invalid) -> Refused:
    """What the server says of it, asked as kubectl asks."""
    path = f"{cluster.path()}?dryRun=All&fieldValidation=Strict"
    with pytest.raises(Refused) as told:
        await cluster.api.call("POST", path, document(given, cluster.namespace, "gpt"))
    return told.value


@pytest.mark.parametrize("given", told_by(ToldBy.SCHEMA), ids=named)
async def test_what_the_schema_knows_the_api_server_refuses_and_names_the_field(
    cluster: Cluster, given: Invalid
) -> None:
    told = await refused(cluster, given)
    assert told.code == UNPROCESSABLE
    fields = [cause["field"] for cause in told.body["details"]["causes"]]
    # A key of a mapping is named with its name or without.
    assert any(
        given.field.startswith(field.rstrip("]")) or field.startswith(given.field.partition("[...]")[0])
        for field in fields
        if field
    )


@pytest.mark.parametrize("given", told_by(ToldBy.RULE), ids=named)
async def test_what_a_rule_knows_the_api_server_refuses_in_the_reader_s_words(
    cluster: Cluster, given: Invalid
) -> None:
    told = await refused(cluster, given)
    assert told.code == UNPROCESSABLE
    assert given.fix in str(told)
    if given.field != "metadata.name":  # which the server names by its object
        fields = [cause["field"] for cause in told.body["details"]["causes"]]
        assert any(given.field.startswith(field) for field in fields if field.startswith("spec."))


@pytest.mark.parametrize("given", told_by(ToldBy.STRICTNESS), ids=named)
async def test_a_field_nobody_knows_is_refused_by_name(cluster: Cluster, given: Invalid) -> None:
    told = await refused(cluster, given)
    assert told.code == BAD_REQUEST
    assert f'unknown field "{given.field}' in str(told)


async def test_kubectl_asks_for_strictness_unasked(cluster: Cluster) -> None:
    import json

    program, config = kubernetes_program("kubectl"), cluster.server.admin_kubeconfig()
    process = await asyncio.create_subprocess_exec(
        program,
        "--kubeconfig",
        config,
        "apply",
        "-f",
        "-",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    (given,) = [each for each in INVALID_SPECS if each.name == "a misspelt annotation"]
    said, _ = await process.communicate(json.dumps(document(given, cluster.namespace, "gpt")).encode())
    assert process.returncode != 0
    assert 'unknown field "spec.template.metadata.annotation"' in said.decode()


async def test_what_is_applied_the_operator_refuses_once_in_words_and_without_a_pod(
    cluster: Cluster, operator: OperatorProcess
) -> None:
    operator.start()
    # One that is right and runs before they come: what is wrong is harmless to others, not only refused.
    await cluster.api.call("POST", cluster.path(), document(VALID, cluster.namespace, "right"))
    await eventually("the pods of the valid one", lambda: _pods_are(cluster, "right-0", "right-1"))
    before = await as_it_is(cluster, "right")
    wrong = told_by(ToldBy.READER, ToldBy.DRY_RUN)
    rows = {f"row-{place}": each for place, each in enumerate(wrong)}
    jobs = [document(each, cluster.namespace, name) for name, each in rows.items()]
    await asyncio.gather(*(cluster.api.call("POST", cluster.path(), each) for each in jobs))
    untold: list[str] = []

    async def all_told() -> bool:
        conditions, events = await refusals(cluster), await warnings(cluster)
        untold[:] = [
            f"{each.name}: {conditions.get(name, 'nothing')}"
            for name, each in rows.items()
            if each.says not in conditions.get(name, "") or not _says(events.get(name, []), each)
        ]
        return not untold

    await eventually("every row refused in its words", all_told, lambda: untold)
    assert await as_it_is(cluster, "right") == before
    assert set(cluster.pods_created.values()) == {"right-0", "right-1"}
    assert set(await refusals(cluster)) == set(rows)
    told = await warnings(cluster)
    assert {name: [each.get("count", 1) for each in told[name]] for name in rows} == {name: [1] for name in rows}


async def as_it_is(cluster: Cluster, name: str) -> tuple[int, dict[str, str]]:
    """The job's generation, and which pods it has: their UIDs by name."""
    job = await cluster.job(name)
    assert job is not None
    pods = {pod: each["metadata"]["uid"] for pod, each in (await cluster.pods()).items()}
    return job["metadata"]["generation"], {pod: uid for pod, uid in pods.items() if pod.startswith(name)}


async def refusals(cluster: Cluster) -> dict[str, str]:
    """What jobs in the phase Invalid with the condition InvalidSpec=True say of themselves, by name."""
    found = await cluster.api.call("GET", cluster.path())
    return {
        job["metadata"]["name"]: each["message"]
        for job in found["items"]
        if job.get("status", {}).get("phase") == "Invalid"
        for each in job["status"].get("conditions", [])
        if (each["type"], each["status"]) == ("InvalidSpec", "True")
    }


async def warnings(cluster: Cluster) -> dict[str, list[dict[str, Any]]]:
    """The events about what is refused, by the name of their job."""
    told: dict[str, list[dict[str, Any]]] = {}
    for each in await cluster.listed("events"):
        if each["reason"] in ("InvalidSpec", "TemplateRefused") and each["type"] == "Warning":
            told.setdefault(each["involvedObject"]["name"], []).append(each)
    return told


def _says(events: list[dict[str, Any]], given: Invalid) -> bool:
    return any(given.says in each["message"] for each in events)


async def _pods_are(cluster: Cluster, *names: str) -> bool:
    return set(await cluster.pods()) == set(names)
