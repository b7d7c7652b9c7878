"""Every attack can be seen: with the defence that stops it turned off, the test of it fails.

An attack that misses (a round that is over, an answer to a question that nobody asked, one rank of four) changes
nothing whoever believes it. So each defence is turned off by name here, and some attack has to get through.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import attack_joining as joining
import attack_reading as reading
import attack_records as records
import attack_roles as roles
import attack_slander as slander
import attack_volumes as volumes
import pytest
from neighbours import Scene, Tokens, scene

from holdfast.agent import tenants
from holdfast.agent.sensors import process, ranks
from holdfast.api.policy import CordonOn
from holdfast.watchdog.access import readership
from holdfast.watchdog.access.auth import Caller
from holdfast.watchdog.server import app, fleet, identity
from holdfast.watchdog.server import watchdog as watchdogs

Act = Callable[[Scene], Awaitable[None]]
Off = Callable[[pytest.MonkeyPatch], object]


def sets(owner: Any, name: str, to: Any) -> Off:
    return lambda patch: patch.setattr(owner, name, to)


async def nobody_asks(*_: object) -> None:
    return None


def granted_to_all(needs: object) -> app.Check:
    return nobody_asks


def pod_by_its_own_word(pods: Any, uid: str) -> Any:
    """As the agent reads a pod's volume, but for the comparison with what the kubelet says."""
    run_dir = f"{pods._directory}/{uid}/{tenants._PATH_IN_POD}"
    try:
        said = tenants.read_member(f"{run_dir}/{tenants.FILE_NAME}")
    except OSError:
        return None
    tenant = tenants.Tenant(said.job, run_dir, said.member, said.boot, said.pid_namespace, uid)
    return tenants._Pod((0, 0, 0), ("", ""), tenant)


@dataclass(frozen=True)
class Defence:
    """`off` turns it off; `seen` are attacks that get through then."""

    name: str
    off: Off
    seen: tuple[Act, ...]
    cordon_on: CordonOn = CordonOn.SENSORS


DOORS = {each.__name__: each for each in reading.ATTACKS}
OPEN_TO_READERS = [name for name in DOORS if name.startswith("GET /v1/jobs/")]


def nothing(_: pytest.MonkeyPatch) -> None:
    """Nothing of the code: the scene is another one."""


DEFENCES = (
    Defence(
        "a pod speaks for its own ranks",
        sets(identity, "_is_own", lambda said, newest: True),
        (
            records.a_pod_beside_the_job_leaves_records_of_its_ranks,
            records.a_member_leaves_records_of_anothers_ranks,
            records.a_pod_of_another_namespace_leaves_records_of_its_ranks,
            records.a_pod_says_that_the_ranks_are_back_at_the_start,
            records.a_pod_says_that_the_ranks_hang,
            records.a_pod_says_that_the_processes_are_stopped,
            records.a_pod_says_that_the_ranks_are_not_a_number,
            records.a_pod_says_another_loss,
            records.a_pod_forges_fingerprints,
            records.a_pod_says_that_parameters_changed,
            volumes.a_pod_beside_the_job_says_that_it_is_of_the_job,
            volumes.a_pod_beside_the_job_says_that_the_ranks_hang,
            volumes.a_pod_beside_the_job_says_that_the_loss_is_not_a_number,
        ),
    ),
    Defence(
        "a volume is the pod's that the kubelet names",
        sets(tenants.KubeletPods, "_pod", pod_by_its_own_word),
        (
            volumes.a_foreign_pod_says_that_it_is_a_member,
            volumes.a_foreign_pod_of_a_members_name_says_that_it_is_of_the_job,
            volumes.a_pod_beside_the_job_says_that_it_is_a_member,
        ),
    ),
    Defence("a record is no link", sets(ranks.os, "O_NOFOLLOW", 0), (volumes.a_record_leads_to_the_victims,)),
    Defence(
        "a process is looked for in its pod",
        sets(process.PidMap, "_is_in_its_pod", lambda self, outer, tenant: True),
        (volumes.a_process_of_the_victim_is_asked_about,),
    ),
    Defence(
        "one tenant's word takes no node from others",
        nothing,
        (
            slander.a_self_test_is_answered_with_failed,
            slander.workers_die_again_and_again,
            slander.members_leave_without_a_word_again_and_again,
            slander.an_invented_job_fails_on_the_victims_nodes,
            slander.two_jobs_of_one_namespace_say_the_same,
            slander.its_own_spec_leaves_each_node_for_next_to_nothing,
            slander.it_fills_the_disk_and_the_memory_of_the_node,
            roles.a_node_is_pardoned_by_the_intruders_own_intervention,
        ),
        cordon_on=CordonOn.ANYTHING,
    ),
    Defence(
        "a launcher is the member that its pod is",
        sets(identity, "check_identity", nobody_asks),
        (
            joining.a_pod_beside_the_job_joins_as_a_member,
            joining.a_pod_beside_the_job_joins_as_itself,
            joining.a_member_joins_as_the_other_member,
            joining.a_member_joins_from_a_node_that_it_is_not_on,
            joining.a_pod_joins_its_own_job_from_the_victims_node,
            joining.a_pod_joins_its_own_job_as_a_pod_that_is_none,
            joining.a_pod_joins_with_the_boot_of_a_member_that_is_there,
            joining.an_account_without_a_pod_joins_its_namespaces_job,
            joining.a_viewer_joins,
        ),
    ),
    Defence(
        "a pod sends for jobs of its namespace",
        sets(Caller, "may_ingest_for", lambda self, job: True),
        (joining.a_pod_joins_another_namespaces_job, joining.a_pod_joins_another_namespaces_job_as_its_member),
    ),
    Defence(
        "an agent is granted its role",
        sets(identity, "check_speaks_for", lambda caller, node: None),
        (roles.a_pod_speaks_as_an_agent, roles.a_pod_speaks_as_an_agent_of_its_own_job),
    ),
    Defence("a namespace brings few jobs", sets(watchdogs, "BROUGHT_MAX", 10**6), (joining.jobs_are_invented,)),
    Defence(
        "deleted is deleted",
        sets(fleet.Deletions, "is_recent", lambda self, name, now: False),
        (joining.a_deleted_job_is_brought_back,),
    ),
    Defence(
        "what only the operator does needs its role",
        sets(app, "granted", granted_to_all),
        (
            roles.a_pod_speaks_as_the_operator,
            roles.an_agent_speaks_as_the_operator,
            roles.the_operators_role_is_tried_with_every_verb,
            DOORS["GET /metrics"],
            DOORS["GET /v1/operator"],
            DOORS["POST /v1/jobs"],
            DOORS["DELETE /v1/jobs/{namespace}/{name}"],
            DOORS["POST /v1/jobs/{namespace}/{name}/interventions"],
        ),
    ),
    Defence(
        "a job is read by whoever may get it",
        sets(app, "decide", lambda caller, right: readership.Decision.ALLOWED),
        (
            *(DOORS[name] for name in OPEN_TO_READERS),
            reading.a_token_is_used_as_somebody_elses,
        ),
    ),
    Defence(
        "a list leaves out what is not the caller's",
        sets(readership, "decide", lambda caller, right: readership.Decision.ALLOWED),
        (reading.a_viewer_of_one_namespace_lists_its_own_jobs_alone,),
    ),
)


@asynccontextmanager
async def undefended(tokens: Tokens, patch: pytest.MonkeyPatch, defence: Defence) -> AsyncIterator[Scene]:
    patch.setattr(identity, "SEEN_WITHIN_S", 0.2)
    defence.off(patch)
    async with scene(tokens, defence.cordon_on) as made:
        yield made


CASES = [
    pytest.param(defence, attack, id=f"{defence.name}-{attack.__name__}")
    for defence in DEFENCES
    for attack in defence.seen
]


@pytest.mark.parametrize(("defence", "attack"), CASES)
async def test_without_the_defence_the_attack_is_seen(
    tokens: Tokens, monkeypatch: pytest.MonkeyPatch, defence: Defence, attack: Act
) -> None:
    async with undefended(tokens, monkeypatch, defence) as there:
        with pytest.raises((AssertionError, TimeoutError, pytest.fail.Exception)):
            await tried(there, attack)


async def tried(there: Scene, attack: Act) -> None:
    await attack(there)
    await there.settled()
    there.assert_nothing_changed()
