"""Whoever is no member of the victim's job becomes none, whatever it says of itself."""

from aiohttp import WSCloseCode
from neighbours import Scene
from peers import LauncherPeer, join

from holdfast.watchdog.server.watchdog import BROUGHT_MAX


async def refused(there: Scene, who: str, job: str, member: str, node: str) -> str:
    """Why this join is refused."""
    says = await there.refusal(await there.launcher(job, member, node, who))
    assert says, "it was let in"
    return says


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


async def a_pod_joins_its_own_job_from_the_victims_node(there: Scene) -> None:
    await there.operate(there.intruder, {"evil-0": "node-1"})
    says = await refused(there, "pod evil-0", there.intruder, "evil-0", "node-2")
    assert "runs on node-1" in says


async def a_pod_joins_its_own_job_as_a_pod_that_is_none(there: Scene) -> None:
    await there.operate(there.intruder, {"evil-0": "node-1"})
    assert "the token is of pod" in await refused(there, "pod evil-0", there.intruder, "made-up", "node-2")


async def a_pod_beside_a_job_brings_one_of_its_name_before(there: Scene) -> None:
    """Whoever was there before the TrainingJob was submitted is asked like everybody."""
    job = f"{there.tokens.victim}/next"
    before = await there.launcher(job, "bystander", "node-2", nodes=(1, 1))
    await before.round_after(0)
    await there.operate(job, {"next-0": "node-1"})
    assert (await before.ended())[0] == WSCloseCode.TRY_AGAIN_LATER
    assert "told nothing of pod bystander" in await refused(there, "pod bystander", job, "bystander", "node-2")


async def jobs_are_invented(there: Scene) -> None:
    namespace = there.tokens.intruder
    said = [await outcome(there, f"{namespace}/job-{number}") for number in range(BROUGHT_MAX + 3)]
    assert said[:BROUGHT_MAX] == [""] * BROUGHT_MAX
    assert all(f"namespace {namespace} has {BROUGHT_MAX} such jobs" in each for each in said[BROUGHT_MAX:])


async def outcome(there: Scene, job: str) -> str:
    peer = LauncherPeer(await there.connect("/v1/member", "pod evil-0"), "m")
    await peer.say(join("m", job=job, node="node-2", nodes=(1, 1)))
    return await there.refusal(peer)


async def it_forgets_nobody(there: Scene) -> None:
    """Names that lead out of the namespace."""
    for job in ("../" + there.victim, there.tokens.intruder + "/../" + there.victim, there.victim + "\0", "", "/"):
        peer = LauncherPeer(await there.connect("/v1/member", "pod evil-0"), "m")
        await peer.say(join("m", job=job, node="node-2", nodes=(1, 1)))
        assert await there.refusal(peer)


async def a_pod_joins_with_the_boot_of_a_member_that_is_there(there: Scene) -> None:
    """Who joined before is not asked again; that is told by its pod, not by what it says of its boot."""
    peer = await there.launcher(there.victim, "gpt-0", "node-1", "pod bystander", boot="boot-1")
    assert "the token is of pod bystander" in await there.refusal(peer)


async def a_viewer_joins(there: Scene) -> None:
    says = await refused(there, "viewer of the victim", there.victim, "gpt-0", "node-1")
    assert "names no pod" in says


async def a_member_joins_from_a_node_before_the_operator_came(there: Scene) -> None:
    """A node that nobody tells of: it is asked to try again, and is no member meanwhile."""
    job = f"{there.tokens.victim}/early"
    await there.operate(job, {})
    says = await refused(there, "pod bystander", job, "bystander", "node-1")
    assert "told nothing of pod bystander yet" in says
    assert there.host(job).job.state.member("bystander") is None


async def a_deleted_job_is_brought_back(there: Scene) -> None:
    job = f"{there.tokens.victim}/deleted"
    await there.operate(job, {"bystander": "node-1"})
    async with there.http.delete(f"{there.url}/v1/jobs/{job}", headers=there.headers("operator")) as answer:
        assert answer.status == 204
    peer = LauncherPeer(await there.connect("/v1/member", "pod bystander"), "m")
    await peer.say(join("m", job=job, node="node-1", nodes=(1, 1)))
    assert "was deleted; submit it" in await there.refusal(peer)


ATTACKS = (
    a_pod_joins_another_namespaces_job,
    a_pod_joins_another_namespaces_job_as_its_member,
    an_account_without_a_pod_joins_its_namespaces_job,
    a_pod_beside_the_job_joins_as_a_member,
    a_pod_beside_the_job_joins_as_itself,
    a_member_joins_as_the_other_member,
    a_member_joins_from_a_node_that_it_is_not_on,
    a_pod_joins_its_own_job_from_the_victims_node,
    a_pod_joins_its_own_job_as_a_pod_that_is_none,
    a_pod_beside_a_job_brings_one_of_its_name_before,
    jobs_are_invented,
    it_forgets_nobody,
    a_pod_joins_with_the_boot_of_a_member_that_is_there,
    a_viewer_joins,
    a_member_joins_from_a_node_before_the_operator_came,
    a_deleted_job_is_brought_back,
)


async def a_member_joins_anew_as_itself(there: Scene) -> None:
    peer = await there.launcher(there.victim, "gpt-0", "node-1", boot="boot-2")
    assert await there.refusal(peer) == ""


CONTROLS = (a_member_joins_anew_as_itself,)
