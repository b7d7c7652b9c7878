"""The whole table of invalid specs, applied to a real API server that knows the definitions."""

import asyncio
from typing import Any

import pytest
from apiserver import Refused
from invalid_specs import INVALID_SPECS, Invalid, Stop, stopped_by
from operator_rig import Cluster, OperatorProcess, eventually

VALID = Invalid("nothing is wrong", "{}", "")
UNPROCESSABLE = 422


def stopping_at(stop: Stop) -> list[Invalid]:
    return [each for each in INVALID_SPECS if stopped_by(each) is stop]


def named(given: Invalid) -> str:
    return given.name


def document(given: Invalid, namespace: str, name: str) -> dict[str, Any]:
    """The job in that namespace, under that name unless its own is what is wrong."""
    whole = given.document()
    whole["metadata"]["namespace"] = namespace
    if given.metadata == VALID.metadata:
        whole["metadata"]["name"] = name
    return whole


@pytest.mark.parametrize("given", stopping_at(Stop.SCHEMA), ids=named)
async def test_what_the_schema_knows_the_api_server_refuses_and_names_the_field(
    cluster: Cluster, given: Invalid
) -> None:
    with pytest.raises(Refused) as refused:
        await cluster.api.call("POST", cluster.path(), document(given, cluster.namespace, "gpt"))
    assert refused.value.code == UNPROCESSABLE
    # The API server names a list, not which of its entries.
    listed = given.field.partition("[")[0]
    assert listed in [cause["field"] for cause in refused.value.body["details"]["causes"]]


@pytest.mark.parametrize("given", stopping_at(Stop.PRUNED), ids=named)
async def test_a_field_nobody_knows_is_gone_from_the_job_that_is_kept(cluster: Cluster, given: Invalid) -> None:
    applied = document(given, cluster.namespace, "gpt")
    unknown = given.field.removeprefix("spec.")
    assert unknown in applied["spec"]
    await cluster.api.call("POST", cluster.path(), applied)
    kept = await cluster.job()
    assert kept is not None
    assert unknown not in kept["spec"]
    assert set(applied["spec"]) - set(kept["spec"]) == {unknown}


async def test_what_passes_the_schema_the_operator_refuses_once_in_words_and_without_a_pod(
    cluster: Cluster, operator: OperatorProcess
) -> None:
    operator.start()
    # One that is right and runs before they come: what is wrong is harmless to others, not only refused.
    await cluster.api.call("POST", cluster.path(), document(VALID, cluster.namespace, "right"))
    await eventually("the pods of the valid one", lambda: _pods_are(cluster, "right-0", "right-1"))
    before = await as_it_is(cluster, "right")
    wrong = stopping_at(Stop.OPERATOR)
    jobs = [document(each, cluster.namespace, f"row-{place}") for place, each in enumerate(wrong)]
    rows = {job["metadata"]["name"]: each for job, each in zip(jobs, wrong, strict=True)}
    await asyncio.gather(*(cluster.api.call("POST", cluster.path(), each) for each in jobs))
    untold: list[str] = []

    async def all_told() -> bool:
        conditions, events = await refusals(cluster), await warnings(cluster)
        untold[:] = [
            each.name
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
        if (each["type"], each["status"], each["reason"]) == ("InvalidSpec", "True", "SpecRefused")
    }


async def warnings(cluster: Cluster) -> dict[str, list[dict[str, Any]]]:
    """The events InvalidSpec, by the name of their job."""
    told: dict[str, list[dict[str, Any]]] = {}
    for each in await cluster.listed("events"):
        if (each["reason"], each["type"]) == ("InvalidSpec", "Warning"):
            told.setdefault(each["involvedObject"]["name"], []).append(each)
    return told


def _says(events: list[dict[str, Any]], given: Invalid) -> bool:
    return any(given.says in each["message"] for each in events)


async def _pods_are(cluster: Cluster, *names: str) -> bool:
    return set(await cluster.pods()) == set(names)
