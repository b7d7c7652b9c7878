"""What a pod leaves in its own volume, as the agents pass it on: it counts for the ranks of that member alone.

Each attack forges all ranks that the node has, one by its own agent, so that a watchdog which believed it would
see it: the job's step is that of its slowest rank.
"""

import msgspec
from neighbours import HANG_S, NODES, SECRET_LOSS, SECRET_STEP, Scene

from holdfast.api.telemetry import (
    DeviceAnswered,
    NonFinite,
    ParametersChanged,
    ParametersFingerprinted,
    ProcessState,
)

BYSTANDERS = {"node-1": "bystander", "node-2": "bystander-2"}
MEMBERS = {"node-1": "gpt-0", "node-2": "gpt-1"}
OTHERS = {"node-1": "gpt-1", "node-2": "gpt-0"}
STRANGERS = {"node-1": "evil-0", "node-2": "evil-1"}
RANKS = {"node-1": (0, 1), "node-2": (2, 3)}


async def passed_on(there: Scene, who: dict[str, str], **fields: object) -> None:
    """Each node's agent says what is so, and after it what that pod said of all ranks of the node, as of a process
    of its own.

    Twice, and time passes between: most of what is told is judged by what was before.
    """
    for more in (1, 2):
        there.clock.ahead_s += 2.0
        for node in NODES:
            said = {"step": SECRET_STEP + more, "pid": 4242} | fields
            ranks = [msgspec.structs.replace(there.sample(r, SECRET_STEP, who[node]), **said) for r in RANKS[node]]
            honest = [there.sample(r, SECRET_STEP, MEMBERS[node]) for r in RANKS[node]]
            await there.tell(node, there.report(node, *honest, *ranks))
    for host in there.watchdog.hosts():
        host._wake()


async def a_pod_beside_the_job_leaves_records_of_its_ranks(there: Scene) -> None:
    await passed_on(there, BYSTANDERS)


async def a_member_leaves_records_of_anothers_ranks(there: Scene) -> None:
    await passed_on(there, OTHERS)


async def a_pod_of_another_namespace_leaves_records_of_its_ranks(there: Scene) -> None:
    await passed_on(there, STRANGERS)


async def a_pod_says_that_the_ranks_are_back_at_the_start(there: Scene) -> None:
    await passed_on(there, BYSTANDERS, step=0)


async def a_pod_says_that_the_ranks_hang(there: Scene) -> None:
    await passed_on(there, BYSTANDERS, progress_age_s=20 * HANG_S, pulse_age_s=20 * HANG_S, step=SECRET_STEP)


async def a_pod_says_that_the_processes_are_stopped(there: Scene) -> None:
    await passed_on(there, BYSTANDERS, process=ProcessState.STOPPED, progress_age_s=20 * HANG_S, step=SECRET_STEP)


async def a_pod_says_that_the_ranks_are_not_a_number(there: Scene) -> None:
    bad = NonFinite(SECRET_STEP, 0.0, SECRET_STEP, 1, loss="nan")
    await passed_on(there, BYSTANDERS, loss=float("nan"), nonfinite=bad, step=SECRET_STEP)


async def a_pod_says_another_loss(there: Scene) -> None:
    await passed_on(there, BYSTANDERS, loss=SECRET_LOSS * 1000, step=SECRET_STEP)


async def a_pod_speaks_of_a_round_that_is_over(there: Scene) -> None:
    await passed_on(there, BYSTANDERS, round=0)


async def a_pod_speaks_of_a_round_to_come(there: Scene) -> None:
    await passed_on(there, BYSTANDERS, round=99)


async def a_pod_speaks_of_ranks_that_there_are_none_of(there: Scene) -> None:
    await passed_on(there, BYSTANDERS, rank=10_000)


async def stated(there: Scene, who: dict[str, str], kind: str) -> None:
    """The statements of all ranks of the nodes, of which one differs; what was computed is voted on."""
    newest = there.host(there.victim).job.state.round
    assert newest is not None
    for node in NODES:
        for rank in RANKS[node]:
            value, number = (666 if rank == 0 else 1), newest.number
            event = {
                "fingerprint": ParametersFingerprinted(number, rank, 1, 50, value, 0.0, who[node]),
                "device": DeviceAnswered(number, rank, 1, 50, value, 0, 0.0, who[node]),
                "changed": ParametersChanged(number, rank, 50, 0.0, member=who[node]),
            }[kind]
            await there.tell(node, there.report(node, events=(event,)))
    await there.later(5.0)


async def a_pod_forges_fingerprints(there: Scene) -> None:
    await stated(there, BYSTANDERS, "fingerprint")


async def a_pod_forges_answers_of_devices(there: Scene) -> None:
    await stated(there, BYSTANDERS, "device")


async def a_pod_says_that_parameters_changed(there: Scene) -> None:
    await stated(there, BYSTANDERS, "changed")


ATTACKS = (
    a_pod_beside_the_job_leaves_records_of_its_ranks,
    a_member_leaves_records_of_anothers_ranks,
    a_pod_of_another_namespace_leaves_records_of_its_ranks,
    a_pod_says_that_the_ranks_are_back_at_the_start,
    a_pod_says_that_the_ranks_hang,
    a_pod_says_that_the_processes_are_stopped,
    a_pod_says_that_the_ranks_are_not_a_number,
    a_pod_says_another_loss,
    a_pod_speaks_of_a_round_that_is_over,
    a_pod_speaks_of_a_round_to_come,
    a_pod_speaks_of_ranks_that_there_are_none_of,
    a_pod_forges_fingerprints,
    a_pod_forges_answers_of_devices,
    a_pod_says_that_parameters_changed,
)


# The members themselves say the same, each of its own ranks.


async def the_members_are_one_step_on(there: Scene) -> None:
    await passed_on(there, MEMBERS)
    assert there.standing().step == SECRET_STEP + 2


async def the_members_hang(there: Scene) -> None:
    await passed_on(there, MEMBERS, progress_age_s=20 * HANG_S, pulse_age_s=20 * HANG_S, step=SECRET_STEP)
    assert there.found("Hang")


async def the_members_are_not_a_number(there: Scene) -> None:
    bad = NonFinite(SECRET_STEP, 0.0, SECRET_STEP, 1, loss="nan")
    await passed_on(there, MEMBERS, loss=float("nan"), nonfinite=bad, step=SECRET_STEP)
    assert there.found("NonFinite")


async def the_members_say_another_loss(there: Scene) -> None:
    await passed_on(there, MEMBERS, loss=SECRET_LOSS * 1000, step=SECRET_STEP)


async def the_members_parameters_changed(there: Scene) -> None:
    await stated(there, MEMBERS, "changed")
    assert there.found("Corruption")


CONTROLS = (
    the_members_are_one_step_on,
    the_members_hang,
    the_members_are_not_a_number,
    the_members_say_another_loss,
    the_members_parameters_changed,
)
