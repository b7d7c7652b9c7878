"""One job's life on real nodes: nodes die and are drained, Holdfast's own parts die, people steer. It trains on.

The chart and the example are installed and applied as docs/install.md says. The tests are one story: each begins
where the one before ended.
"""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from claimed_gpus import MARK, PER_NODE, REQUEST, TEMPLATE, ClaimedGpus
from cluster import WITHIN_S, Cluster
from helmchart import HelmChart
from installation import NAMESPACE, PARTS, Installation, values
from live_job import LiveJob, Trained, apply_example, example
from losses import has_spare, kill_worker, leaders_are_lost, node_is_lost, worker_is_lost
from patience import patient
from shared_volume import SharedVolume

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def checkpoints(cluster: Cluster) -> Iterator[SharedVolume]:
    volume = SharedVolume(cluster, "default/bytes-checkpoints")
    volume.make()
    yield volume
    volume.remove()


@pytest.fixture(scope="module")
def chart(cluster: Cluster) -> Iterator[HelmChart]:
    volumes = [SharedVolume(cluster, f"holdfast/data-holdfast-redis-{number}") for number in range(3)]
    for volume in volumes:
        volume.make()
    release = HelmChart(cluster.server.admin_kubeconfig(), NAMESPACE)
    release.install(values(), ready_within_s=int(patient(240)))
    yield release
    if Installation(cluster).definitions():  # a test of the story failed
        release.uninstall()
        plurals = ("trainingjobs", "interventions", "noderemediations")
        cluster.kubectl("delete", "crd", *(f"{each}.holdfast.dev" for each in plurals))
    for volume in volumes:
        volume.remove()


@pytest.fixture(scope="module")
def installed(cluster: Cluster, chart: HelmChart) -> Installation:
    return Installation(cluster)


@pytest.fixture(scope="module")
def job(cluster: Cluster, chart: HelmChart, checkpoints: SharedVolume) -> Iterator[LiveJob]:
    """Applied by its first test and deleted by one; here only when the story ended early."""
    yield (job := LiveJob(cluster, "bytes", checkpoints.folder / "bytes.losses"))
    if Installation(cluster).definitions():
        job.kubectl("delete", "tj", job.name, "--ignore-not-found", f"--timeout={WITHIN_S:.0f}s")


# Nodes that share one machine are slow by turns, and each time that is an incident: none of those counted here.
TELLS_OF_NO_SLOW_RANK = {"faultPolicy": {"straggler": {"sustained": "100000steps"}}}


def node_to_take(job: LiveJob) -> str:
    """A node with a rank, without primary or leader: while they are away, others may be heard of too late.

    A job then goes on smaller for a moment, which it may, but not with the same last bits of each loss.
    """
    installed = Installation(job.cluster)
    redis = installed.field("pod", installed.primary(), ".spec.nodeName")
    name: str = next(rank["node"] for rank in job.ranks() if rank["node"] != redis)
    leader = installed.leader()
    if installed.field("pod", leader, ".spec.nodeName") == name:
        installed.kill(leader)
        job.wait("a leader elsewhere", lambda: installed.leader() not in ("", leader))
        job.wait(
            "a watchdog that knows everybody",
            lambda: len({rank["node"] for rank in job.ranks()}) == 2 and has_spare(job),
        )
    return name


def take_back(job: LiveJob, name: str) -> None:
    """A node that was lost in several stories within a week may be kept away from until somebody takes it back."""

    def avoided() -> list[str] | None:
        """None while the watchdog is not reached: the TrainingJob does not say."""
        nodes: list[str] | None = json.loads(job.holdfast("status", job.name, "-o", "json"))["avoided_nodes"]
        return nodes

    job.wait("what the job keeps away from", lambda: avoided() is not None)
    if name in (avoided() or ()):
        said = job.holdfast("return", name, "--job", job.name, "--reason", "it has power again")
        assert f"node {name} returned" in said


def assert_every_step_once(trained: list[Trained]) -> None:
    steps = [each.step for each in trained]
    assert steps == list(range(steps[0], steps[0] + len(steps)))


def assert_went_on(trained: list[Trained], *, after: int) -> None:
    """One planned change: the newer round goes on `after` that step or later, and comes to the same losses.

    While a checkpoint is written the ranks train on. What they come to until the round ends is lost with what is
    left, and a step is trained again that not all of them had completed.
    """
    first, last = trained[0].round, trained[-1].round
    left, entered = [[each for each in trained if each.round == number] for number in (first, last)]
    assert len(left) + len(entered) == len(trained), trained
    assert_every_step_once(left)
    assert_every_step_once(entered)
    assert after < entered[0].step <= left[-1].step + 1, (after, entered[0], left[-1])
    losses = {each.step: each.loss for each in left}
    assert all(losses.get(each.step, each.loss) == each.loss for each in entered), trained


class Undisturbed:
    """`with Undisturbed(job):` what happens inside stops no training: the round stays, each step is there once."""

    def __init__(self, job: LiveJob):
        self.job = job

    def __enter__(self) -> None:
        self.before, self.at = self.job.status(), len(self.job.trained())
        self.healed = self.job.healed().keys()

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            return
        self.job.wait_for_steps()
        trained, after = self.job.trained()[self.at :], self.job.status()
        assert_every_step_once(trained)
        assert {each.round for each in trained} == {self.before["round"]}
        # Whoever reads while the watchdog comes back is told what the operator wrote down, which is less.
        self.job.wait("what was healed before, and no more", lambda: self.job.healed().keys() == self.healed)
        for name in ("round", "restarts", "podsCreated"):
            assert after[name] == self.before[name], f"{name}: {self.job.describe()}"


def test_every_part_is_ready_and_one_watchdog_leads(installed: Installation, chart: HelmChart) -> None:
    pods = [pod for part in PARTS for pod in installed.pods(part).values()]
    ready = {
        pod["metadata"]["name"]: all(each["ready"] for each in pod["status"]["containerStatuses"]) for pod in pods
    }
    assert len(ready) == 7 + len(installed.cluster.nodes), ready
    assert all(ready.values()), ready
    assert installed.field("pdb", "holdfast-watchdog", ".status.disruptionsAllowed") == "1"
    assert "leading" in chart.test()


def test_the_example_trains_on_two_nodes_with_a_third_as_spare(job: LiveJob) -> None:
    apply_example(job)
    job.kubectl("patch", "tj", job.name, "--type=merge", "-p", json.dumps({"spec": TELLS_OF_NO_SLOW_RANK}))
    job.wait("a spare and two members", lambda: has_spare(job), patient(240.0))
    job.wait("ranks with steps", lambda: job.trained() and all(rank["step"] for rank in job.ranks()))
    assert len({pod["spec"]["nodeName"] for pod in job.pods().values()}) == 3
    job.wait("steps in its status", lambda: job.status().get("step"))


def test_its_members_were_tested(installed: Installation) -> None:
    said = "".join(installed.kubectl("logs", pod) for pod in installed.pods("watchdog"))
    assert "event=MemberTested" in said
    assert "could not be tested" not in said


def test_kubectl_and_its_plugin_show_the_job(job: LiveJob) -> None:
    header, row = job.kubectl("get", "tj", job.name).splitlines()
    assert header.split() == ["NAME", "PHASE", "STEP", "READY", "WANTED", "ETTR", "INCIDENTS", "AGE", "PROBLEM"]
    assert row.split()[:2] == ["bytes", "Running"]
    assert re.search(r"members +2 of 2 ready, 1 spare", job.holdfast("status"))
    assert job.holdfast("incidents").strip() == "no incident"
    looked_at = job.holdfast("doctor")
    assert re.findall(r"^(?:warn|FAIL) +(.*?)  ", looked_at, re.MULTILINE) == [], looked_at


def test_a_spare_takes_over_when_a_node_loses_power(cluster: Cluster, job: LiveJob) -> None:
    name = node_to_take(job)
    gone = next(pod for pod, each in job.pods().items() if each["spec"]["nodeName"] == name)
    before, died = job.newest(), time.monotonic()
    cluster.nodes[name].kill()
    job.wait("a newer round", lambda: job.newest().round > before.round)
    print(f"trained again {time.monotonic() - died:.1f} s after {name} lost power")

    job.wait("the incident's end", lambda: "Recovered" in str(job.status()["recentIncidents"]))
    (incident,) = (each for each in job.status()["recentIncidents"] if each["kind"] == "MemberLost")
    assert incident["culprit"] == f"node {name}"
    job.wait("a replacement that waits for a node", lambda: "bytes-3" in job.pods())
    job.wait("the pod of the dead node let go", lambda: gone not in job.pods())
    told = "\n".join(job.events())
    for event in ("IncidentOpened: ", "IncidentRecovered: ", f"MemberReplaced: bytes-3 in place of {gone}"):
        assert event in told, told
    job.wait("no place for the replacement", lambda: job.condition("CapacityAvailable") == "False Unschedulable")

    cluster.nodes[name].start()
    cluster.wait_ready(name)
    job.wait("a spare again", lambda: has_spare(job), patient(240.0))


def test_a_drained_node_is_left_in_good_order(job: LiveJob) -> None:
    name, before, at = node_to_take(job), job.newest(), len(job.trained())
    healed = job.healed()
    job.kubectl("drain", name, "--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={WITHIN_S:.0f}s")
    job.wait("a newer round", lambda: job.newest().round > before.round)
    job.wait_for_steps()
    assert_went_on(job.trained()[at:], after=saved_on_request(job, before.round))
    assert name not in {rank["node"] for rank in job.ranks()}
    new = {key: each for key, each in job.healed().items() if key not in healed}
    assert not new, json.dumps(new)
    job.kubectl("uncordon", name)
    job.wait("a spare again", lambda: has_spare(job), patient(240.0))


def saved_on_request(job: LiveJob, number: int) -> int:
    """The step of the newest checkpoint that was asked of round `number`. It may be deleted by now."""
    journal = map(json.loads, job.holdfast("journal", job.name, "-o", "json").splitlines())
    events = [each["event"] for each in journal]
    recorded = [each for each in events if each["type"] == "CheckpointRecorded" and each["round"] == number]
    return max(each["step"] for each in recorded if each.get("wanted") is not None)


def test_a_suspended_job_gives_its_nodes_back_and_goes_on_from_where_it_was(
    job: LiveJob, reference: LiveJob
) -> None:
    job.wait_for_steps(10)  # rank 0 prints one of ten
    at, before = len(job.trained()), job.newest()
    suspend(job, is_so=True)
    job.wait("no pods", lambda: not job.pods())
    assert re.search(r"^step \d+ loss \d", job.holdfast("logs", "--rank", "0"), re.MULTILINE), "also without a pod"
    status, newest = job.status(), job.newest().step
    saved = status["lastCheckpoint"]["step"]
    assert (status["phase"], saved) == ("Suspended", saved_on_request(job, before.round))
    assert saved <= newest

    compare_until = newest + 20
    try:
        train_reference(reference, compare_until)
    finally:
        suspend(job, is_so=False)
    job.wait("further steps", lambda: job.newest().step >= compare_until)
    trained = job.trained()
    assert_went_on(trained[at:], after=saved)
    assert next(each.step for each in trained[at:] if each.round > before.round) == saved + 1
    # Every loss that was ever noted, also those of steps that a fault took back, is the undisturbed run's.
    undisturbed = {each.step: each.loss for each in reference.trained()}
    assert len(undisturbed) == compare_until
    wrong = [each for each in trained if each.step <= compare_until and undisturbed[each.step] != each.loss]
    assert wrong == []


@pytest.fixture
def reference(job: LiveJob, checkpoints: SharedVolume) -> Iterator[LiveJob]:
    """The same training without disturbance; deleted after it."""
    yield (run := LiveJob(job.cluster, "reference", checkpoints.folder / "reference.losses"))
    run.kubectl("delete", "tj", "reference", "--wait=false")  # its pods have ended


def train_reference(reference: LiveJob, steps: int) -> None:
    """From its first to its last step, on two nodes."""
    manifest = example()[-1]
    manifest["metadata"]["name"] = reference.name
    spec = manifest["spec"]
    spec["entrypoint"] = ["train.py", "--steps", str(steps), "--losses", "/checkpoints/reference.losses"]
    spec["nodes"], spec["checkpoint"]["uri"] = {"min": 2}, "file:///checkpoints/reference"
    spec |= TELLS_OF_NO_SLOW_RANK
    reference.kubectl("apply", "-f", "-", given=json.dumps(manifest))
    reference.wait_while_it_trains("its success", lambda: reference.status().get("phase") == "Succeeded")
    assert reference.healed() == {}


def suspend(job: LiveJob, *, is_so: bool) -> None:
    job.kubectl("patch", "tj", job.name, "--type=merge", "-p", json.dumps({"spec": {"suspend": is_so}}))


def test_training_does_not_notice_that_the_leading_watchdog_dies(installed: Installation, job: LiveJob) -> None:
    job.wait("a spare again", lambda: has_spare(job), patient(240.0))
    died = installed.leader()
    with Undisturbed(job):
        installed.kill(died)
        job.wait("another leader", lambda: installed.leader() not in ("", died))
        job.wait("a watchdog that answers", lambda: job.condition("WatchdogReachable") == "True Connected")


def test_another_operator_repeats_nothing(installed: Installation, job: LiveJob) -> None:
    died, told, pods = installed.lease_holder(), job.events(), job.pods()
    with Undisturbed(job):
        installed.kill(died)
        job.wait("another holder of the lease", lambda: installed.lease_holder() not in ("", died))
        written = job.status()["step"]
        job.wait("a status written by it", lambda: job.status()["step"] != written)
    assert job.pods().keys() == pods.keys()
    assert job.events() == told


def test_training_goes_on_without_redis_and_decisions_after_it(installed: Installation, job: LiveJob) -> None:
    with Undisturbed(job):
        installed.kubectl("scale", "statefulset", "holdfast-redis", "--replicas=0")
        job.wait("the trouble in the status", lambda: job.condition("WatchdogReachable").startswith("False"))
        job.wait_for_steps()
        installed.kubectl("scale", "statefulset", "holdfast-redis", "--replicas=3")
        job.wait("no trouble", lambda: job.condition("WatchdogReachable") == "True Connected")
    assert any(event.startswith("WatchdogReachable: ") for event in job.events())


def test_an_engineer_steers_it_with_interventions(cluster: Cluster, job: LiveJob) -> None:
    said = job.holdfast("checkpoint", "bytes", "--reason", "before lunch")
    assert re.search(r"checkpoint of step \d+ committed", said)
    before, node = job.newest(), job.ranks()[0]["node"]
    assert f"node {node} evicted" in job.holdfast("evict", node, "--job", "bytes", "--reason", "it smells")
    job.wait("a newer round", lambda: job.newest().round > before.round)
    assert node not in {rank["node"] for rank in job.ranks()}
    job.wait("no pod on it", lambda: node not in {pod["spec"].get("nodeName") for pod in job.pods().values()})
    # Asked for, not a fault: this job keeps away from it, others may use it.
    assert "taints" not in json.loads(cluster.kubectl("get", "node", node, "-o", "json"))["spec"]
    assert f"node {node} returned" in job.holdfast("return", node, "--job", "bytes", "--reason", "aired")
    job.wait("a spare on it", lambda: has_spare(job), patient(240.0))
    asked = json.loads(job.kubectl("get", "interventions", "-o", "json"))["items"]
    assert [each["status"]["state"] for each in asked] == ["Done"] * 3


def test_a_worker_dies_alone(installed: Installation, job: LiveJob) -> None:
    assert worker_is_lost(installed, job).again <= 1


# Three nodes bear three Redis, two watchdogs and two operators: each part is on a node that is lost.
@pytest.mark.parametrize("name", ["node-1", "node-2", "node-3"])
def test_a_worker_dies_while_another_node_is_without_power(cluster: Cluster, job: LiveJob, name: str) -> None:
    node_is_lost(cluster, job, name)


def test_primary_leader_and_acting_operator_are_lost_at_once(installed: Installation, job: LiveJob) -> None:
    leaders_are_lost(installed, job)


@pytest.mark.parametrize("members", [1, 2])
def test_kubectl_scale_changes_the_number_of_members(job: LiveJob, members: int) -> None:
    job.kubectl("scale", "tj", job.name, f"--replicas={members}")
    job.wait(f"a world of {members}", lambda: is_world(job, members))
    job.wait_for_steps()


def is_world(job: LiveJob, size: int) -> bool:
    status = job.status()
    return (status["phase"], status["worldSize"], status["members"]["wanted"]) == ("Running", size, size)


def test_an_upgrade_of_every_part_ends_no_round(installed: Installation, chart: HelmChart, job: LiveJob) -> None:
    job.wait("a spare again", lambda: has_spare(job), patient(240.0))
    changed = {part: {**values().get(part, {}), "podAnnotations": {"made": "anew"}} for part in PARTS}
    with Undisturbed(job):
        chart.upgrade(changed, ready_within_s=int(patient(240)))
        job.wait("every pod anew", lambda: all(is_anew(installed, part) for part in PARTS))
        job.wait("a watchdog that answers", lambda: job.condition("WatchdogReachable") == "True Connected")


def is_anew(installed: Installation, part: str) -> bool:
    pods = installed.pods(part).values()
    return all(pod["metadata"].get("annotations", {}).get("made") == "anew" for pod in pods)


def test_a_deleted_job_is_saved_and_takes_everything_with_it(job: LiveJob, checkpoints: SharedVolume) -> None:
    job.kubectl("delete", "tj", job.name, f"--timeout={WITHIN_S:.0f}s")
    kinds = "tj,pods,services,poddisruptionbudgets,interventions"
    left = lambda: job.kubectl("get", kinds, "-l", "holdfast.dev/job=bytes", "-o", "name")  # noqa: E731
    job.cluster.wait("nothing left of it", lambda: not left())
    assert (checkpoints.folder / "bytes" / f"step-{job.newest().step:08d}").exists()


def test_a_job_that_claims_its_gpus_gets_a_worker_for_each_and_heals(
    cluster: Cluster, checkpoints: SharedVolume, claimed: ClaimedGpus
) -> None:
    job = LiveJob(cluster, "claimed", checkpoints.folder / "claimed.losses")
    manifests = [*example()[:-1], claimed.template(), claiming(job.name)]
    job.kubectl("apply", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}))
    job.wait("a spare and two members", lambda: has_spare(job), patient(240.0))
    job.wait("two workers on each", lambda: job.status().get("worldSize") == 2 * PER_NODE)
    at = {pod: each["spec"]["nodeName"] for pod, each in job.pods().items()}
    assert claimed.held(job) == at
    for pod in at:
        assert MARK in job.kubectl("exec", pod, "-c", "trainer", "--", "env")

    before = job.newest()
    kill_worker(job, job.ranks()[0]["node"])
    job.wait("a newer round after a killed worker", lambda: job.newest().round > before.round)

    # A drained node's pod gives its devices back, and the next one waits for them. With Redis' primary on it, if
    # there is such a node: what a decision was acknowledged by goes with it.
    job.wait("a spare again", lambda: has_spare(job), patient(240.0))
    installed = Installation(cluster)
    redis = installed.field("pod", installed.primary(), ".spec.nodeName")
    before, nodes = job.newest(), [rank["node"] for rank in job.ranks()]
    name = redis if redis in nodes else nodes[0]
    job.kubectl("drain", name, "--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={WITHIN_S:.0f}s")
    job.wait("a newer round after a drain", lambda: job.newest().round > before.round)
    assert name not in claimed.held(job).values()
    job.kubectl("uncordon", name)
    job.wait("a spare on it again", lambda: has_spare(job), patient(240.0))
    assert sorted(claimed.held(job).values()) == sorted(cluster.nodes)

    # So does that of a node without power, of which nobody hears.
    before, name = job.newest(), node_to_take(job)
    cluster.nodes[name].kill()
    job.wait("a newer round after a loss of power", lambda: job.newest().round > before.round)
    cluster.nodes[name].start()
    cluster.wait_ready(name)
    claimed.start_on(cluster.nodes[name])
    take_back(job, name)
    job.wait("a spare with its devices", lambda: has_spare(job) and name in claimed.held(job).values())

    job.kubectl("delete", "tj", job.name, f"--timeout={WITHIN_S:.0f}s")
    cluster.wait("no claim left", lambda: not job.kubectl("get", "resourceclaims", "-o", "name"))


@pytest.fixture
def claimed(cluster: Cluster, chart: HelmChart) -> Iterator[ClaimedGpus]:
    gpus = ClaimedGpus(cluster)
    gpus.start()
    yield gpus
    if Installation(cluster).definitions():
        job = LiveJob(cluster, "claimed", Path())
        job.kubectl("delete", "tj", job.name, "--ignore-not-found", f"--timeout={WITHIN_S:.0f}s")
    gpus.stop()  # without it no pod that has devices goes


def claiming(name: str) -> dict[str, Any]:
    """The example, its pods with a claim; how many workers a node runs is for the claim to say."""
    manifest: dict[str, Any] = example()[-1]
    manifest["metadata"]["name"] = name
    spec = manifest["spec"]
    del spec["processesPerNode"]
    spec["entrypoint"] = ["train.py", "--steps=100000", "--pace=0.3", f"--losses=/checkpoints/{name}.losses"]
    spec["checkpoint"]["uri"] = f"file:///checkpoints/{name}"
    pod = spec["template"]["spec"]
    pod["resourceClaims"] = [{"name": REQUEST, "resourceClaimTemplateName": TEMPLATE}]
    pod["containers"][0]["resources"]["claims"] = [{"name": REQUEST}]
    return manifest


def test_uninstalling_leaves_the_definitions_unless_told_otherwise(
    installed: Installation, chart: HelmChart
) -> None:
    chart.uninstall()
    kinds = "deployments,statefulsets,daemonsets,services,jobs"
    installed.cluster.wait("nothing left of it", lambda: not installed.kubectl("get", kinds, "-o", "name"))
    assert installed.definitions() == 3
    chart.install({**values(), "crds": {"keep": False}})
    chart.uninstall()
    installed.cluster.wait("no definitions", lambda: installed.definitions() == 0)
    installed.cluster.wait("no workload left", lambda: not installed.kubectl("get", "all", "-o", "name"))
