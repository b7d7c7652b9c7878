"""What a pod writes into its own `holdfast-run` volume: the node's real agent reads it and tells the watchdog.

The node's folders are as the kubelet keeps them. The victim's member gpt-0 is on the node and honest; beside it is
a pod of the same namespace or of another one.
"""

import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from neighbours import SECRET_LOSS, SECRET_STEP, Scene
from record_writer import SECOND_NS, RecordWriter, step_zone

from holdfast.agent.jobstream import JobStreams
from holdfast.agent.memberfile import FILE_NAME, Member, own_pid_namespace, write_member
from holdfast.agent.nodeview import NodeView
from holdfast.agent.program import _begin_stream
from holdfast.agent.sensing import NodeSensors, Sensing
from holdfast.agent.sensors.process import PidMap
from holdfast.agent.settings import AgentSettings
from holdfast.agent.tenants import KubeletPods, PodNames
from holdfast.api.control import record_file_name
from holdfast.api.telemetry import NodeReport
from holdfast.wire.access import Access, Address, Credential

NODE = "node-1"


@dataclass
class Node:
    """A node's folders of pods and of their logs, and its agent."""

    there: Scene
    folder: Path

    def __post_init__(self) -> None:
        for each in ("pods", "logs"):
            (self.folder / each).mkdir()
        (self.folder / "token").write_text(self.there.tokens.of["agent"])

    def pod(self, namespace: str, name: str) -> Path:
        """The run volume of a pod that the kubelet started."""
        uid = f"uid-{name}"
        (self.folder / "logs" / f"{namespace}_{name}_{uid}").mkdir()
        volume = self.folder / "pods" / uid / "volumes" / "kubernetes.io~empty-dir" / "holdfast-run"
        volume.mkdir(parents=True)
        return volume

    def claims(self, volume: Path, job: str, member: str) -> None:
        """The pod says that it is this member of this job."""
        write_member(volume, Member(job, member, NODE, "b1", own_pid_namespace()))

    def writes(self, volume: Path, *ranks: int, **said: object) -> None:
        """Its records, of these ranks of the victim's round."""
        number = self.there.host(self.there.victim).job.state.round
        assert number is not None
        now = time.monotonic_ns()
        for place, rank in enumerate(ranks):
            zone = {"round": number.number, "rank": rank, "world_size": 4, "step": SECRET_STEP + 1}
            zone |= {"loss": SECRET_LOSS, "published_ns": now, "phase_started_ns": now - SECOND_NS}
            RecordWriter(volume, place).step(step_zone(**(zone | said)))

    async def heard(self) -> dict[str, NodeReport]:
        """What each job was told; the victim's, of what its own member wrote and of nothing else."""
        told = await self.told()
        said = [(each.rank, each.step, each.member) for each in told[self.there.victim].ranks]
        assert sorted(said) == [(0, SECRET_STEP, "gpt-0"), (1, SECRET_STEP, "gpt-0")]
        return told

    async def told(self) -> dict[str, NodeReport]:
        """The agent starts, looks, and what it has to say arrives; by job, what was taken of it."""
        address, port = self.there.url.removeprefix("http://").split(":")
        watchdog = Access(Address(address, int(port)), Credential(file=self.folder / "token"))
        settings = AgentSettings(
            node=NODE, job=None, run_dir=None, kubelet_pods=str(self.folder / "pods"),
            kubelet_pod_logs=str(self.folder / "logs"), watchdog=watchdog,
            metrics_token_file=str(self.folder / "token"),
        )  # fmt: skip
        streams = JobStreams(partial(_begin_stream, settings), PidMap())
        names = PodNames(settings.kubelet_pod_logs)
        tenants = KubeletPods(str(settings.kubelet_pods), names)
        sensing = Sensing(NodeSensors(), tenants=tenants, streams=streams, view=NodeView())
        sensing.look(time.monotonic())
        told = {}
        try:
            for stream in streams:
                host = self.there.host(stream.job)
                boot = stream.outbox._boot
                await self.there.until(
                    lambda host=host, boot=boot: getattr(host.taken.get(NODE), "boot", "") == boot
                )
                told[stream.job] = host.taken[NODE]
        finally:
            await streams.close()
        return told


@asynccontextmanager
async def node(there: Scene) -> AsyncIterator[Node]:
    """The victim's member is on it, and the agent has told of it; that is how things stand."""
    with TemporaryDirectory() as folder:
        made = Node(there, Path(folder))
        volume = made.pod(there.tokens.victim, "gpt-0")
        made.claims(volume, there.victim, "gpt-0")
        made.writes(volume, 0, 1, step=SECRET_STEP)
        await made.heard()
        there.before = there.standing()
        assert f"step {SECRET_STEP} " in there.before.ranks[0]
        yield made


async def left(there: Scene, namespace: str, name: str, job: str, member: str, **said: object) -> None:
    """The pod claims to be that member, and leaves records of all ranks of the node, one step on."""
    async with node(there) as made:
        volume = made.pod(namespace, name)
        made.claims(volume, job, member)
        made.writes(volume, 0, 1, **said)
        await made.heard()


async def a_foreign_pod_says_that_it_is_a_member(there: Scene) -> None:
    await left(there, there.tokens.intruder, "evil-0", there.victim, "gpt-0")


async def a_foreign_pod_says_that_it_is_of_the_job(there: Scene) -> None:
    await left(there, there.tokens.intruder, "evil-0", there.victim, "evil-0")


async def a_foreign_pod_of_a_members_name_says_that_it_is_of_the_job(there: Scene) -> None:
    async with node(there) as made:
        (made.folder / "logs" / f"{there.tokens.intruder}_gpt-0_uid-2").mkdir()
        volume = made.folder / "pods" / "uid-2" / "volumes" / "kubernetes.io~empty-dir" / "holdfast-run"
        volume.mkdir(parents=True)
        made.claims(volume, there.victim, "gpt-0")
        made.writes(volume, 0, 1)
        await made.heard()


async def a_pod_beside_the_job_says_that_it_is_a_member(there: Scene) -> None:
    await left(there, there.tokens.victim, "bystander", there.victim, "gpt-0")


async def a_pod_beside_the_job_says_that_it_is_of_the_job(there: Scene) -> None:
    """The agent passes it on under the pod's own name, and the watchdog knows whose ranks they are."""
    await left(there, there.tokens.victim, "bystander", there.victim, "bystander")


async def a_pod_beside_the_job_says_that_the_ranks_hang(there: Scene) -> None:
    long_ago = time.monotonic_ns() - 3600 * SECOND_NS
    await left(there, there.tokens.victim, "bystander", there.victim, "bystander", published_ns=long_ago)


async def a_pod_beside_the_job_says_that_the_loss_is_not_a_number(there: Scene) -> None:
    await left(there, there.tokens.victim, "bystander", there.victim, "bystander", loss=float("nan"))


async def a_pod_writes_numbers_that_no_training_has(there: Scene) -> None:
    await left(there, there.tokens.victim, "bystander", there.victim, "bystander", rank=2**31 - 1, step=2**62)


async def evils(there: Scene, made: Node) -> Path:
    """The intruder's own volume, of its own job: what is in it the intruder is told by the watchdog."""
    await there.operate(there.intruder, {"evil-0": "node-1"})
    volume = made.pod(there.tokens.intruder, "evil-0")
    made.claims(volume, there.intruder, "evil-0")
    return volume


async def a_record_leads_to_the_victims(there: Scene) -> None:
    """A link in place of its record: its own job would be told the victim's step and loss."""
    async with node(there) as made:
        volume = await evils(there, made)
        record = made.folder / "pods/uid-gpt-0/volumes/kubernetes.io~empty-dir/holdfast-run" / record_file_name(0)
        assert record.exists()
        (volume / record.name).symlink_to(record)
        told = await made.heard()
        assert told[there.intruder].ranks == ()
        assert there.intruder in told


async def a_member_file_leads_to_the_victims(there: Scene) -> None:
    async with node(there) as made:
        volume = made.pod(there.tokens.intruder, "evil-0")
        (volume / FILE_NAME).symlink_to(made.folder / "pods/uid-gpt-0" / FILE_NAME)
        made.writes(volume, 0, 1)
        await made.heard()


async def a_process_of_the_victim_is_asked_about(there: Scene) -> None:
    """Its record names a process that is not in its pod: the agent does not say whether that lives."""
    async with node(there) as made:
        volume = await evils(there, made)
        made.writes(volume, 0, pid=os.getpid())
        told = (await made.heard())[there.intruder]
        assert [each.process.value for each in told.ranks] == ["Unknown"]


async def a_pipe_lies_where_a_file_should(there: Scene) -> None:
    async with node(there) as made:
        volume = made.pod(there.tokens.victim, "bystander")
        os.mkfifo(volume / FILE_NAME)
        own = await evils(there, made)
        os.mkfifo(own / record_file_name(0))
        assert there.victim in await made.heard()


async def its_volume_is_full_of_records(there: Scene) -> None:
    async with node(there) as made:
        volume = made.pod(there.tokens.victim, "bystander")
        made.claims(volume, there.victim, "bystander")
        made.writes(volume, *range(300))
        told = (await made.heard())[there.victim]
        assert {each.rank for each in told.ranks if each.member == "gpt-0"} == {0, 1}


async def a_member_file_is_no_member_file(there: Scene) -> None:
    wrong: tuple[Callable[[Path], object], ...] = (
        lambda path: path.write_bytes(b"\xff" * 100),
        lambda path: path.write_bytes(b"[" * 4000),
        lambda path: path.write_bytes(b"{" + b" " * 100_000),
        lambda path: path.mkdir(),
    )
    async with node(there) as made:
        for number, make in enumerate(wrong):
            make(made.pod(there.tokens.intruder, f"evil-{number}") / FILE_NAME)
        assert set(await made.heard()) == {there.victim}


ATTACKS = (
    a_foreign_pod_says_that_it_is_a_member,
    a_foreign_pod_says_that_it_is_of_the_job,
    a_foreign_pod_of_a_members_name_says_that_it_is_of_the_job,
    a_pod_beside_the_job_says_that_it_is_a_member,
    a_pod_beside_the_job_says_that_it_is_of_the_job,
    a_pod_beside_the_job_says_that_the_ranks_hang,
    a_pod_beside_the_job_says_that_the_loss_is_not_a_number,
    a_pod_writes_numbers_that_no_training_has,
    a_record_leads_to_the_victims,
    a_member_file_leads_to_the_victims,
    a_process_of_the_victim_is_asked_about,
    a_pipe_lies_where_a_file_should,
    its_volume_is_full_of_records,
    a_member_file_is_no_member_file,
)


async def the_member_itself_writes_records(there: Scene) -> None:
    async with node(there) as made:
        volume = made.folder / "pods/uid-gpt-0/volumes/kubernetes.io~empty-dir/holdfast-run"
        made.writes(volume, 0, 1)
        await made.told()
        assert f"step {SECRET_STEP + 1}" in there.standing().ranks[0]


CONTROLS = (the_member_itself_writes_records,)
