"""The whole table of invalid specs, applied to a real API server that knows the definitions."""

import asyncio
import json
import re
from asyncio.subprocess import PIPE, STDOUT
from typing import Any

import pytest
from apiserver import Refused
from invalid_specs import INVALID_SPECS, Invalid, Stop, stopped_by
from kubernetes_binaries import kubernetes_program
from operator_rig import Cluster, OperatorProcess, condition, eventually

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


async def test_a_field_that_was_dropped_is_told_of_once_and_the_job_runs_without_it(
    cluster: Cluster, operator: OperatorProcess
) -> None:
    operator.start()
    pruned = stopping_at(Stop.PRUNED)
    rows = {f"row-{place}": each for place, each in enumerate(pruned)}
    for name, each in rows.items():
        await apply(cluster, document(each, cluster.namespace, name))
    for name, each in rows.items():
        job = await cluster.until(each.name, lambda job: condition(job, "UnknownFields") == "True", name)
        assert condition(job, "InvalidSpec") == "False"
        says = next(it["message"] for it in job["status"]["conditions"] if it["type"] == "UnknownFields")
        assert says.startswith(f"not known, and dropped by the API server: {each.field}")
        near = re.search(r"did you mean \w+\?", each.says)
        assert near is None or near[0] in says
        await eventually("its pods", lambda name=name: _pods_are_there(cluster, f"{name}-0", f"{name}-1"))
        await eventually("told of", lambda name=name: _told_of(cluster, name, [1]))
    looked = await operator.metric("holdfast_operator_reconcile_total")
    await eventually("looked again", lambda: _looked_more(operator, looked + 3 * len(rows)))
    assert await dropped(cluster) == {name: [1] for name in rows}
    # The stored spec stays the same, and so does its generation.
    await apply(cluster, document(Invalid("another", "faultPolcy: {}\nnodez: 3", ""), cluster.namespace, "row-0"))
    await eventually("told of what is new", lambda: _told_of(cluster, "row-0", [1, 1]))
    await apply(cluster, document(VALID, cluster.namespace, "row-0"))
    await cluster.until("mended", lambda job: condition(job, "UnknownFields") == "False", "row-0")


async def apply(cluster: Cluster, manifest: dict[str, Any]) -> None:
    """As somebody does whose kubectl checks nothing, with a server that is not strict."""
    program, config = kubernetes_program("kubectl"), cluster.server.admin_kubeconfig()
    command = (program, "--kubeconfig", config, "apply", "--validate=false", "-f", "-")
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=STDOUT)
    said, _ = await process.communicate(json.dumps(manifest).encode())
    assert process.returncode == 0, said.decode()


async def dropped(cluster: Cluster) -> dict[str, list[int]]:
    """How often each event UnknownFields came, by the name of its job."""
    told: dict[str, list[int]] = {}
    for each in await cluster.listed("events"):
        if (each["reason"], each["type"]) == ("UnknownFields", "Warning"):
            told.setdefault(each["involvedObject"]["name"], []).append(each.get("count", 1))
    return told


async def _told_of(cluster: Cluster, name: str, counts: list[int]) -> bool:
    return (await dropped(cluster)).get(name) == counts


async def _looked_more(operator: OperatorProcess, times: float) -> bool:
    return await operator.metric("holdfast_operator_reconcile_total") >= times


async def _pods_are_there(cluster: Cluster, *names: str) -> bool:
    return set(names) <= set(await cluster.pods())


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
