"""Two jobs and a quota that is too small for both, with Kueue's own controller.

    make bench NAME=kueue

The API server, Kueue with its webhooks, the operator and the watchdog are the real ones; nodes, scheduler and
launchers are played. A job with a spare fills most of the quota. One of a higher priority comes: the first is
saved and put out, gets what is left as a part of what it asked for, and goes on from the step that was saved.
Nodes that are needed no more are given back, and a third job gets them. At last people suspend it, deactivate its
Workload, and delete it. The pods are counted all the time: never more than the quota. Then the tutorial's commands
are run. The first run on a machine builds Kueue, which takes minutes.
"""

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Final

from figure import Figure, measured, publish
from kube.queues import QUOTA, WITHIN_S, Count, Team, stage, told
from tutorial import left_to, read_page, run_page

SAVED_STEP: Final = 7  # what a played launcher saves
# A save takes no time here, nor does the end of a pod: what is left is the looks of Kueue and the operator.
PREEMPTED_S_MAX: Final = 30.0
TUTORIAL: Final = Path(__file__).parents[1] / "docs" / "tutorials" / "kueue.md"
HERE: Final = "bench/kueue.py::learn"
TUTORIAL_S_MAX: Final = 300.0


async def play(first: Team, urgent: Team, third: Team) -> list[Figure]:
    """Told in the docstring above."""
    count = Count((first, urgent, third))
    counting = asyncio.create_task(count.follow())
    # A queue that is not there is told in Kueue's words.
    await third.submit("research", queue="reserch", min=1, max=1)
    await third.cluster.until(
        "told", lambda job: "LocalQueue reserch doesn't exist" in told(job, "QueueAdmitted"), within_s=WITHIN_S
    )
    await third.cluster.delete()
    await third.cluster.until("gone", lambda job: job is None, within_s=WITHIN_S)
    took_s = await preempt(first, urgent)
    await give_back(urgent, third)
    await steer(first)
    counting.cancel()
    within = measured(
        "from an urgent job's submission to its training, another saved and put out first",
        ours=[took_s],
        other=[PREEMPTED_S_MAX],
        unit="s",
        target=1.0,
    )
    held = measured("pods at one time beside the quota", ours=[count.most], other=[QUOTA], unit="pods", target=1.0)
    return [within, held]


async def preempt(first: Team, urgent: Team) -> float:
    """The first fills the quota, spare included, and gives way to the urgent one; after how long that trains."""
    await first.submit("research", min=1, max=2, spares=1)
    await first.runs(2)
    await first.until_workload("its pods ready", "PodsReady", "True")
    say("the first runs", len(await first.cluster.pods()))
    began = time.monotonic()
    await urgent.submit("urgent", min=2, max=2)
    await first.until_workload("preempted", "Evicted", "True")
    say("preempted after", time.monotonic() - began)
    await urgent.runs(2)
    took_s = time.monotonic() - began
    say("the urgent one runs after", took_s)
    assert len(set(first.launchers.saves)) == 1, first.launchers.saves
    # What is left is enough for a part of the first, which goes on from what was saved.
    job = await first.runs(2)
    pods = await first.cluster.pods()
    assert len(pods) == QUOTA - 2, sorted(pods)
    assert all(pod["spec"]["nodeSelector"] == {"pool": "h100"} for pod in pods.values())
    restored = {first.launchers.seats[name].restore.step for name in pods}
    assert restored == {SAVED_STEP}, restored
    say("the first goes on with a part", sorted(pods), told(job, "QueueAdmitted"))
    return took_s


async def give_back(urgent: Team, third: Team) -> None:
    """A node that is needed no more goes to a third job; a job that is over frees what it held."""
    await third.submit("research", min=1, max=1)
    await third.until_workload("waiting", "QuotaReserved", "False")
    await urgent.cluster.patch("gpt", {"spec": {"nodes": {"min": 1, "max": 1}}})
    await third.runs(1)
    say("given back", (await urgent.workload())["status"]["reclaimablePods"])
    urgent.launchers.finishing.set()
    await urgent.cluster.until(
        "over", lambda job: told(job, "Succeeded").startswith("Succeeded"), within_s=WITHIN_S
    )
    for name in await urgent.cluster.pods():
        await urgent.kubelet.end_pod(name, 0)
    await urgent.until_workload("finished", "Finished", "True")


def say(what: str, *values: object) -> None:
    print(what, *values, flush=True)


async def steer(first: Team) -> None:
    """By hand: suspended and resumed it asks for all again; an administrator puts it out, lets it in, and deletes
    its Workload, which only costs it a save.
    """
    await first.cluster.patch("gpt", {"spec": {"suspend": True}})
    await first.until_gone()
    await first.cluster.until_pods()
    await first.cluster.patch("gpt", {"spec": {"suspend": False}})
    await first.runs(2)
    await first.cluster.until("whole", lambda job: "3 of 3 nodes" in told(job, "QueueAdmitted"), within_s=WITHIN_S)
    say("suspended and resumed, it has its spare again", sorted(await first.cluster.pods()))
    saves = len(set(first.launchers.saves))
    await first.change({"spec": {"active": False}})
    await first.until_workload("out", "QuotaReserved", "False")
    assert await first.cluster.pods() == {}
    assert len(set(first.launchers.saves)) == saves + 1
    job = await first.cluster.until("told", lambda job: "to queue it again" in told(job, "QueueAdmitted"))
    say("deactivated", told(job, "QueueAdmitted"))
    await first.change({"spec": {"active": True}})
    await first.runs(2)
    before = (await first.workload())["metadata"]["uid"]
    await first.remove_workload()
    await first.until_another(before)
    await first.runs(2)
    say("its Workload deleted, it has another one and runs", sorted(await first.cluster.pods()))


async def learn(learner: Team) -> Figure:
    """The commands of the tutorial, by kubectl. Raises TutorialFailed."""
    page = left_to(read_page(TUTORIAL), {HERE})
    environment = {"KUBECONFIG": str(learner.cluster.server.admin_kubeconfig())}
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as scratch:
        folder = Path(scratch) / "here"
        folder.mkdir()
        began = time.monotonic()
        await asyncio.to_thread(run_page, page, folder, environment, TUTORIAL_S_MAX)
        took_s = time.monotonic() - began
    assert len(set(learner.launchers.saves)) == 1, learner.launchers.saves
    await learner.runs(2)
    pods, seats = await learner.cluster.pods(), learner.launchers.seats
    restored = {seats[name].restore.step for name in pods if name in seats}
    assert restored == {SAVED_STEP}, restored
    said = "tutorial kueue: from its first command to its last"
    return measured(said, ours=[took_s], other=[TUTORIAL_S_MAX], unit="s", target=1.0)


async def main() -> list[Figure]:
    async with stage() as (first, urgent, third, learner):
        return [*await play(first, urgent, third), await learn(learner)]


if __name__ == "__main__":
    publish("kueue", asyncio.run(main()))
