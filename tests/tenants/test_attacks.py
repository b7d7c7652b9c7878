"""What a pod and an account of another namespace, or a pod beside the job, can do to a job: nothing.

Each attack is tried through the watchdog's own doors, with tokens that a real API server made and reviews. Then
the victim's state and journal are what they were, and nothing that was answered tells of it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import aiohttp
import msgspec
import pytest
from aiohttp import WSMsgType
from apiserver import ApiServer
from neighbours import SECRET_LOSS, SECRET_STEP, Scene, Tokens, scene, tokens_of
from patience import patient
from peers import LauncherPeer, join

from holdfast.agent.launch.place import Bound, bound_to
from holdfast.api.condition import Condition, ConditionKind, ConditionState
from holdfast.api.intervention import InterventionAction, InterventionRequest
from holdfast.api.membership import CheckpointCommitted, Departing, Restored, Tested, WorkerExited
from holdfast.api.plan import PodObserved, PodState
from holdfast.api.policy import EvictionBudget, Policy, ThermalPolicy, XidAction
from holdfast.api.selftest import CheckResult, TestLevel, Verdict
from holdfast.api.telemetry import (
    AgentHello,
    DeviceAnswered,
    NodeReport,
    ParametersChanged,
    ParametersFingerprinted,
    XidRaised,
)
from holdfast.watchdog.server import identity
from holdfast.watchdog.server.app import ROUTES
from holdfast.watchdog.server.watchdog import BROUGHT_MAX

STRANGERS = ("pod evil-0", "account of the intruder", "pod bystander", "account of the victim", "nobody")


@pytest.fixture(scope="module")
def tokens(apiserver: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    return tokens_of(apiserver, tmp_path_factory.mktemp("tenants"))


@pytest.fixture
async def there(tokens: Tokens, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    """The scene; after the attack the victim is as it was."""
    monkeypatch.setattr(identity, "SEEN_WITHIN_S", 0.2)
    async with scene(tokens) as made:
        before = made.standing()
        yield made
        await made.settled()
        assert made.standing() == before


def opened() -> Iterator[tuple[str, str]]:
    """Every path that asks for a role, or for a right to read."""
    for route in ROUTES:
        if route.needs is not None:
            yield route.method, route.path


@pytest.mark.parametrize("who", STRANGERS)
async def test_no_door_opens_for_a_stranger(there: Scene, who: str) -> None:
    namespace, name = there.victim.split("/")
    body = msgspec.json.encode(Policy(job=there.victim, nodes_min=1, nodes_max=1))
    for method, path in opened():
        if path in ("/v1/member", "/v1/agent") and who != "nobody":
            continue  # they open for every pod of any namespace: what may be said there is tried below
        url = there.url + path.format(namespace=namespace, name=name, id="inc-0001")
        sent = body if method == "POST" else None
        async with there.http.request(method, url, data=sent, headers=there.headers(who)) as answer:
            says = await answer.text()
            if (method, path) == ("GET", "/v1/jobs") and who != "nobody":
                assert (answer.status, says) == (200, "[]"), "nobody's job is listed"
            else:
                assert answer.status == (401 if who == "nobody" else 403), f"{method} {path}"
        assert str(SECRET_STEP) not in says
        assert str(SECRET_LOSS) not in says


async def test_a_launcher_that_is_told_nothing_is_the_pod_that_its_token_names(tokens: Tokens) -> None:
    for pod in ("gpt-0", "evil-1"):
        assert bound_to(tokens.of[f"pod {pod}"]).pod.name == pod
    assert bound_to(tokens.of["agent"]) == Bound()


async def refused(there: Scene, who: str, job: str, member: str, node: str) -> str:
    """Why this join is refused."""
    says = await there.refusal(await there.launcher(job, member, node, who))
    assert says, "it was let in"
    return says


Attack = Callable[[Scene], Awaitable[None]]


async def a_pod_joins_another_namespaces_job(there: Scene) -> None:
    assert "only, not" in await refused(there, "pod evil-0", there.victim, "evil-0", "node-1")


async def a_pod_joins_another_namespaces_job_as_its_member(there: Scene) -> None:
    assert "only, not" in await refused(there, "pod evil-0", there.victim, "gpt-0", "node-1")


async def an_account_without_a_pod_joins_its_namespaces_job(there: Scene) -> None:
    says = await refused(there, "account of the victim", there.victim, "gpt-0", "node-1")
    assert "names no pod" in says


async def a_pod_beside_the_job_joins_as_a_member(there: Scene) -> None:
    says = await refused(there, "pod bystander", there.victim, "gpt-1", "node-1")
    assert "the token is of pod bystander" in says


async def a_pod_beside_the_job_joins_as_itself(there: Scene) -> None:
    says = await refused(there, "pod bystander", there.victim, "bystander", "node-1")
    assert "told nothing of pod bystander" in says


async def a_member_joins_as_the_other_member(there: Scene) -> None:
    says = await refused(there, "pod gpt-0", there.victim, "gpt-1", "node-2")
    assert "the token is of pod gpt-0" in says


async def a_member_joins_from_a_node_that_it_is_not_on(there: Scene) -> None:
    says = await refused(there, "pod gpt-0", there.victim, "gpt-0", "node-2")
    assert "runs on node-1" in says


async def evil(there: Scene, **fields: object) -> LauncherPeer:
    """The intruder's own job runs: its two pods are members of it, on the victim's nodes."""
    await there.operate(there.intruder, {"evil-0": "node-1", "evil-1": "node-2"}, **fields)
    first = await there.launcher(there.intruder, "evil-0", "node-1")
    second = await there.launcher(there.intruder, "evil-1", "node-2")
    await first.enter()
    await second.enter()
    return first


async def a_pod_joins_its_own_job_from_the_victims_node(there: Scene) -> None:
    await there.operate(there.intruder, {"evil-0": "node-1"})
    says = await refused(there, "pod evil-0", there.intruder, "evil-0", "node-2")
    assert "runs on node-1" in says


async def a_pod_joins_its_own_job_as_a_pod_that_is_none(there: Scene) -> None:
    await there.operate(there.intruder, {"evil-0": "node-1"})
    assert "the token is of pod" in await refused(there, "pod evil-0", there.intruder, "made-up", "node-2")


async def slandered(there: Scene) -> None:
    """Whatever the intruder's job made of it, the nodes stay in service and the victim keeps them."""
    await there.settled()
    plan = there.host(there.intruder).job.state.plan
    assert plan is None or plan.cordon == ()
    assert there.watchdog.fleet.quarantined == ()


async def a_self_test_is_answered_with_failed(there: Scene) -> None:
    peer = await evil(there)
    check = CheckResult("memory", "cpu", Verdict.FAILED, "it is broken", 1.0)
    for number in range(5):
        await peer.say(Tested(number, TestLevel.LIGHT, Verdict.FAILED, (check,), "it is broken"))
    await slandered(there)


async def workers_die_again_and_again(there: Scene) -> None:
    peer = await evil(there)
    for number in range(1, 40):
        await peer.say(
            WorkerExited(
                number, 0, age_s=0.0, exit_code=None, signal=9, error="CUDA error: uncorrectable ECC error"
            )
        )
    await slandered(there)


async def a_member_leaves_without_a_word_again_and_again(there: Scene) -> None:
    peer = await evil(there)
    for _ in range(6):
        await peer.socket.close()
        peer = await there.launcher(there.intruder, "evil-0", "node-1")
    await slandered(there)


async def a_departure_is_announced(there: Scene) -> None:
    await (await evil(there)).say(Departing("the node is on fire", 1.0))
    await slandered(there)


async def its_own_spec_leaves_each_node_for_next_to_nothing(there: Scene) -> None:
    """An error that the catalogue ignores, and a clock: the agent's honest word, made much of."""
    await evil(
        there,
        xid_actions={63: XidAction.EVICT},
        condition_actions={"ClockUnsynchronised": XidAction.EVICT},
        thermal=ThermalPolicy(margin_c=90.0, sustained_s=1.0),
        evictions=EvictionBudget(fraction=1.0),
        spares=1,
    )
    clock = Condition(ConditionKind.CLOCK_UNSYNCHRONISED, ConditionState.RAISED, 0.0, "it is not")
    agent = await there.agent(there.intruder, "node-1")
    await agent.say(there.report("node-1", events=(XidRaised("GPU-1", 63, 0.0),), conditions=(clock,)))
    await there.settled()
    found = there.host(there.intruder).job.state.incidents
    assert "xid 63" in [each.cause for each in found if each.own_rule]
    await slandered(there)


async def checkpoints_of_the_victim_are_claimed(there: Scene) -> None:
    peer = await evil(there)
    await peer.say(CheckpointCommitted(2, step=10**6, uri="file:///victim/step-1000000"))
    await peer.say(Restored(2, rank=0, step=10**6))


async def jobs_are_invented(there: Scene) -> None:
    namespace = there.tokens.intruder
    said = [await outcome(there, f"{namespace}/job-{number}") for number in range(BROUGHT_MAX + 3)]
    assert said[:BROUGHT_MAX] == [""] * BROUGHT_MAX
    assert all(f"namespace {namespace} has {BROUGHT_MAX} such jobs" in each for each in said[BROUGHT_MAX:])


async def outcome(there: Scene, job: str) -> str:
    peer = LauncherPeer(await there.connect("/v1/member", "pod evil-0"), "m")
    await peer.say(join("m", job=job, node="node-2", nodes=(1, 1)))
    return await there.refusal(peer)


async def an_invented_job_fails_on_the_victims_nodes(there: Scene) -> None:
    for number in range(4):
        job = f"{there.tokens.intruder}/job-{number}"
        peer = LauncherPeer(await there.connect("/v1/member", "pod evil-0"), "m")
        await peer.say(join("m", job=job, node="node-2", nodes=(1, 1)))
        shown = await peer.enter()
        for _ in range(5):
            await peer.say(WorkerExited(shown.number, 0, age_s=0.0, signal=9, error="CUDA error"))
        await peer.socket.close()
    await slandered(there)


async def it_forgets_nobody(there: Scene) -> None:
    """Names that lead out of the namespace."""
    for job in ("../" + there.victim, there.tokens.intruder + "/../" + there.victim, there.victim + "\0", "", "/"):
        peer = LauncherPeer(await there.connect("/v1/member", "pod evil-0"), "m")
        await peer.say(join("m", job=job, node="node-2", nodes=(1, 1)))
        assert await there.refusal(peer)


async def closed(there: Scene, path: str, who: str, *messages: object) -> None:
    """The connection is closed, whatever of it was read."""
    line = await there.connect(path, who)
    for message in messages:
        with_bytes = message if isinstance(message, bytes) else msgspec.msgpack.encode(message)
        await line.send_bytes(with_bytes)
    while (await line.receive(timeout=patient(15.0))).type is WSMsgType.BINARY:
        pass
    assert line.close_code is not None


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


async def passed_on(there: Scene, member: str, rank: int, **fields: object) -> None:
    """The agent of node-1 passes on what a pod of the victim's namespace left in its own volume."""
    agent = await there.agent(there.victim, "node-1")
    said = msgspec.structs.replace(there.sample(rank, SECRET_STEP + 1, member), **fields)
    newest = there.host(there.victim).job.state.round
    assert newest is not None
    forged = (
        ParametersFingerprinted(newest.number, rank, 1, 50, 1, 0.0, member),
        DeviceAnswered(newest.number, rank, 1, 50, 1, 0, 0.0, member),
        ParametersChanged(newest.number, rank, 50, 0.0, member=member),
    )
    await agent.say(there.report("node-1", said, events=forged))
    await there.settled()
    senses = there.host(there.victim).job.senses
    assert senses is not None
    assert senses.progress.step() == SECRET_STEP


async def a_pod_beside_the_job_leaves_a_record_of_its_rank(there: Scene) -> None:
    await passed_on(there, "bystander", 0)


async def a_member_leaves_a_record_of_anothers_rank(there: Scene) -> None:
    await passed_on(there, "gpt-0", 2)


async def a_pod_says_that_a_rank_hangs(there: Scene) -> None:
    await passed_on(there, "bystander", 1, progress_age_s=10_000.0, pulse_age_s=10_000.0)


async def a_pod_says_that_a_rank_is_not_a_number(there: Scene) -> None:
    await passed_on(there, "bystander", 1, loss=float("nan"))


async def a_pod_beside_a_job_brings_one_of_its_name_before(there: Scene) -> None:
    """Whoever was there before the TrainingJob was submitted is asked like everybody."""
    job = f"{there.tokens.victim}/next"
    await there.launcher(job, "bystander", "node-2", nodes=(1, 1))
    await there.operate(job, {"next-0": "node-1"})
    assert "told nothing of pod bystander" in await refused(there, "pod bystander", job, "bystander", "node-2")
    assert there.host(job).job.state.round is None


async def a_frame_is_no_message(there: Scene) -> None:
    for frame in (b"", b"\xc1", b"\xa4\xff\xff\xff\xff", b"\x91" * 5000, b"x" * (2 << 20)):
        await closed(there, "/v1/member", "pod evil-0", frame)


async def a_number_is_absurd(there: Scene) -> None:
    honest = join("evil-0", job=there.intruder, node="node-1", nodes=(1, 1))
    for wrong in (
        {"shown": 2**64 - 1},
        {"held_round": 2**63},
        {"local_size": 10**6},
        {"ports": tuple(range(1, 60_000))},
        {"nodes": (1, 10**9)},
        {"node": "n" * 300},
        {"boot": "b" * 300},
        {"member": "m" * 300},
        {"transfer_port": -1},
    ):
        await closed(there, "/v1/member", "pod evil-0", msgspec.structs.replace(honest, **wrong))


async def many_connections_say_nothing(there: Scene) -> None:
    lines = await asyncio.gather(*(there.connect("/v1/member", "pod evil-0") for _ in range(80)))
    await asyncio.gather(*(each.close() for each in lines))


async def the_intruders_pods_have_the_names_of_the_victims(there: Scene) -> None:
    """What the operator sees of one job's pods is about no other job's."""
    line = await there.operate(there.intruder, {"gpt-0": "node-2"})
    await line.send_bytes(msgspec.msgpack.encode(PodObserved("gpt-0", "node-2", PodState.GONE, "deleted")))


async def asked(there: Scene, action: InterventionAction, **fields: object) -> None:
    """An Intervention of the intruder's own namespace, as the operator passes it on."""
    await evil(there)
    request = InterventionRequest("i1", there.intruder, action, "because", **fields)  # type: ignore[arg-type]
    path = f"{there.url}/v1/jobs/{there.intruder}/interventions"
    body = msgspec.json.encode(request)
    async with there.http.post(path, data=body, headers=there.headers("operator")) as answer:
        assert answer.status in (200, 202)


async def a_node_is_evicted_by_the_intruders_own_intervention(there: Scene) -> None:
    await asked(there, InterventionAction.EVICT, node="node-2")
    await slandered(there)


async def a_node_is_pardoned_by_the_intruders_own_intervention(there: Scene) -> None:
    await asked(there, InterventionAction.RETURN, node="node-2")


async def an_intervention_names_another_job(there: Scene) -> None:
    await evil(there)
    request = InterventionRequest("i1", there.victim, InterventionAction.PAUSE, "because")
    path = f"{there.url}/v1/jobs/{there.intruder}/interventions"
    body = msgspec.json.encode(request)
    async with there.http.post(path, data=body, headers=there.headers("operator")) as answer:
        assert answer.status == 400


async def a_path_leads_to_another_namespace(there: Scene) -> None:
    for between in ("/../../", "%2f..%2f..%2f"):
        path = f"{there.intruder}{between}{there.victim}/status"
        async with there.http.get(f"{there.url}/v1/jobs/{path}", headers=there.headers("pod evil-0")) as answer:
            assert answer.status in (403, 404)
            assert str(SECRET_STEP) not in await answer.text()


ATTACKS: tuple[Attack, ...] = (
    a_pod_joins_another_namespaces_job,
    a_pod_joins_another_namespaces_job_as_its_member,
    an_account_without_a_pod_joins_its_namespaces_job,
    a_pod_beside_the_job_joins_as_a_member,
    a_pod_beside_the_job_joins_as_itself,
    a_member_joins_as_the_other_member,
    a_member_joins_from_a_node_that_it_is_not_on,
    a_pod_joins_its_own_job_from_the_victims_node,
    a_pod_joins_its_own_job_as_a_pod_that_is_none,
    a_self_test_is_answered_with_failed,
    workers_die_again_and_again,
    a_member_leaves_without_a_word_again_and_again,
    a_departure_is_announced,
    its_own_spec_leaves_each_node_for_next_to_nothing,
    checkpoints_of_the_victim_are_claimed,
    jobs_are_invented,
    an_invented_job_fails_on_the_victims_nodes,
    it_forgets_nobody,
    a_pod_speaks_as_an_agent,
    a_pod_speaks_as_an_agent_of_its_own_job,
    a_pod_speaks_as_the_operator,
    an_agent_speaks_as_the_operator,
    a_pod_beside_the_job_leaves_a_record_of_its_rank,
    a_member_leaves_a_record_of_anothers_rank,
    a_pod_says_that_a_rank_hangs,
    a_pod_says_that_a_rank_is_not_a_number,
    a_pod_beside_a_job_brings_one_of_its_name_before,
    a_frame_is_no_message,
    a_number_is_absurd,
    many_connections_say_nothing,
    the_intruders_pods_have_the_names_of_the_victims,
    a_node_is_evicted_by_the_intruders_own_intervention,
    a_node_is_pardoned_by_the_intruders_own_intervention,
    an_intervention_names_another_job,
    a_path_leads_to_another_namespace,
)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
async def test_nothing_of_the_victim_changes(there: Scene, attack: Attack) -> None:
    await attack(there)
