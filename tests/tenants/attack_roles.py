"""Roles that were not granted, and what those who have one say of another tenant's job."""

import aiohttp
import msgspec
import pytest
from attack_bytes import closed
from attack_slander import evil, slandered
from neighbours import Scene

from holdfast.api.intervention import (
    InterventionAction,
    InterventionOutcome,
    InterventionRequest,
    InterventionState,
)
from holdfast.api.membership import Tested
from holdfast.api.plan import NodeObserved, NodeState, OperatorHello, PodObserved, PodState
from holdfast.api.selftest import CheckResult, TestLevel, Verdict
from holdfast.api.telemetry import AgentHello, GpuDisappeared, NodeReport, XidRaised


async def a_pod_speaks_as_an_agent(there: Scene) -> None:
    xid = XidRaised("GPU-1", 79, 0.0)
    for who in ("pod evil-0", "pod bystander", "account of the victim", "pod gpt-0"):
        hello = AgentHello("node-2", "b9", there.victim)
        await closed(there, "/v1/agent", who, hello, NodeReport("node-2", "b9", 1, events=(xid,)))


async def a_pod_speaks_as_an_agent_of_its_own_job(there: Scene) -> None:
    xid = XidRaised("GPU-1", 79, 0.0)
    hello = AgentHello("node-2", "b9", there.intruder)
    await closed(there, "/v1/agent", "pod evil-0", hello, NodeReport("node-2", "b9", 1, events=(xid,)))
    assert there.watchdog.fleet.quarantined == ()


async def a_pod_speaks_as_the_operator(there: Scene) -> None:
    for who in ("pod evil-0", "pod gpt-0", "account of the intruder"):
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await there.connect("/v1/operator", who)


async def an_agent_speaks_as_the_operator(there: Scene) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError):
        await there.connect("/v1/operator", "agent")


async def the_operators_role_is_tried_with_every_verb(there: Scene) -> None:
    """What only the operator may do, by whoever may read and by the agent."""
    for who in ("viewer of the victim", "agent", "pod gpt-0"):
        for method, path in (
            ("DELETE", f"/v1/jobs/{there.victim}"),
            ("POST", f"/v1/jobs/{there.victim}/interventions"),
            ("POST", "/v1/jobs"),
        ):
            async with there.http.request(method, f"{there.url}{path}", headers=there.headers(who)) as answer:
                assert answer.status == 403


async def the_intruders_pods_have_the_names_of_the_victims(there: Scene) -> None:
    """What the operator sees of one job's pods is about no other job's."""
    line = await there.operate(there.intruder, {"gpt-0": "node-2"})
    await line.send_bytes(msgspec.msgpack.encode(PodObserved("gpt-0", "node-2", PodState.GONE, "deleted")))
    pods = there.host(there.intruder).pods
    await there.until(lambda: "gpt-0" not in pods._nodes)


async def a_job_of_the_victims_name_is_submitted_and_deleted_elsewhere(there: Scene) -> None:
    job = f"{there.tokens.intruder}/gpt"
    await there.operate(job, {"evil-0": "node-1"})
    async with there.http.delete(f"{there.url}/v1/jobs/{job}", headers=there.headers("operator")) as answer:
        assert answer.status == 204
    assert there.watchdog.known(job) is None


async def asked(there: Scene, action: InterventionAction, **fields: object) -> InterventionOutcome:
    """An Intervention of the intruder's own namespace, as the operator passes it on."""
    request = InterventionRequest(f"i {action}", there.intruder, action, "because", **fields)  # type: ignore[arg-type]
    path = f"{there.url}/v1/jobs/{there.intruder}/interventions"
    body = msgspec.json.encode(request)
    async with there.http.post(path, data=body, headers=there.headers("operator")) as answer:
        assert answer.status in (200, 202)
        return msgspec.json.decode(await answer.read(), type=InterventionOutcome)


async def a_node_is_evicted_by_the_intruders_own_intervention(there: Scene) -> None:
    await evil(there)
    outcome = await asked(there, InterventionAction.EVICT, node="node-2")
    assert outcome.state is InterventionState.DONE
    assert "node-2" in there.host(there.intruder).job.state.avoided_nodes
    await slandered(there)


async def a_node_is_pardoned_by_the_intruders_own_intervention(there: Scene) -> None:
    """Sensors found it broken, so that every job keeps away from it: one tenant cannot give it back to all."""
    await evil(there)
    await asked(there, InterventionAction.EVICT, node="node-2")
    await the_gpu_is_lost(there)
    outcome = await asked(there, InterventionAction.RETURN, node="node-2")
    assert outcome.state is InterventionState.DONE


async def the_gpu_is_lost(there: Scene) -> None:
    """The victim's job hears it from its agent, and all jobs are told; that is how things stand."""
    job = f"{there.tokens.victim}/sensed"
    await there.operate(job, {"bystander-2": "node-2"}, nodes_max=1)
    await (await there.launcher(job, "bystander-2", "node-2")).enter()
    agent = await there.agent(job, "node-2")
    await agent.say(there.report("node-2", events=(GpuDisappeared("GPU-1", 0.0),)))
    await there.until(lambda: there.watchdog.fleet.quarantined == ("node-2",))
    await there.settled()
    there.before = there.standing()


async def an_intervention_names_another_job(there: Scene) -> None:
    await evil(there)
    request = InterventionRequest("i1", there.victim, InterventionAction.PAUSE, "because")
    path = f"{there.url}/v1/jobs/{there.intruder}/interventions"
    body = msgspec.json.encode(request)
    async with there.http.post(path, data=body, headers=there.headers("operator")) as answer:
        assert answer.status == 400


async def the_intruders_job_is_paused_restarted_and_resized(there: Scene) -> None:
    await evil(there)
    for action, fields in (
        (InterventionAction.RESIZE, {"nodes": 1}),
        (InterventionAction.RESTART, {}),
        (InterventionAction.PAUSE, {}),
    ):
        assert (await asked(there, action, **fields)).state is not InterventionState.REFUSED


async def a_repair_of_the_node_is_claimed(there: Scene) -> None:
    """Sensors found it broken. The intruder's own job has left it too, on its own word, and its incidents have the
    same names: that somebody repaired the node is believed of no job that did not have it taken out of service.
    """
    made = await evil(there)
    await the_gpu_is_lost(there)
    broken = CheckResult("memory", "cpu", Verdict.FAILED, "it is broken", 1.0)
    await made.first.say(Tested(1, TestLevel.LIGHT, Verdict.FAILED, 1.0, (broken,), "it is broken"))
    line = await there.connect("/v1/operator", "operator")
    await line.send_bytes(msgspec.msgpack.encode(OperatorHello(there.intruder)))
    for incident in ("incident-1", "incident-2", ""):
        seen = NodeObserved("node-2", NodeState.READY, remediated=incident)
        await line.send_bytes(msgspec.msgpack.encode(seen))
    await there.settled()
    assert there.watchdog.fleet.quarantined == ("node-2",)
    for who in ("pod evil-0", "account of the intruder"):
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await there.connect("/v1/operator", who)


ATTACKS = (
    a_repair_of_the_node_is_claimed,
    a_pod_speaks_as_an_agent,
    a_pod_speaks_as_an_agent_of_its_own_job,
    a_pod_speaks_as_the_operator,
    an_agent_speaks_as_the_operator,
    the_operators_role_is_tried_with_every_verb,
    the_intruders_pods_have_the_names_of_the_victims,
    a_job_of_the_victims_name_is_submitted_and_deleted_elsewhere,
    a_node_is_evicted_by_the_intruders_own_intervention,
    a_node_is_pardoned_by_the_intruders_own_intervention,
    an_intervention_names_another_job,
    the_intruders_job_is_paused_restarted_and_resized,
)


async def the_operator_tells_that_a_pod_of_the_victim_is_gone(there: Scene) -> None:
    gone = PodObserved("gpt-0", "node-1", PodState.GONE, "deleted")
    await there.lines[0].send_bytes(msgspec.msgpack.encode(gone))
    await there.until(lambda: there.standing() != there.before)


async def a_node_is_evicted_by_the_victims_intervention(there: Scene) -> None:
    request = InterventionRequest("i1", there.victim, InterventionAction.EVICT, "because", node="node-2")
    path = f"{there.url}/v1/jobs/{there.victim}/interventions"
    body = msgspec.json.encode(request)
    async with there.http.post(path, data=body, headers=there.headers("operator")) as answer:
        assert answer.status in (200, 202)


CONTROLS = (the_operator_tells_that_a_pod_of_the_victim_is_gone, a_node_is_evicted_by_the_victims_intervention)
