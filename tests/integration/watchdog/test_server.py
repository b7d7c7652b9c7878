"""The watchdog over real connections: membership, telemetry, plans, reads, and everything that may go wrong."""

import logging
import socket
from base64 import b64decode
from contextlib import suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import aiohttp
import msgspec
import pytest
from aiohttp import WSCloseCode, web
from forgetful_store import MemoryStore
from msgspec.structs import replace
from peers import INGEST_TOKEN, JOB, TO_LAUNCHER, TOKEN, AgentPeer, LauncherPeer, join, policy_of, rigged

from holdfast.api.bounds import WHOLE_MAX
from holdfast.api.checkpoint import StoredCheckpoint
from holdfast.api.event import (
    CheckpointRecorded,
    ClockTicked,
    FindingMade,
    MemberDeparting,
    MemberJoined,
    ReplicasAgreed,
    RunRecorded,
    StorageListed,
)
from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.intervention import InterventionAction, InterventionRequest
from holdfast.api.ledger import LedgerReport
from holdfast.api.membership import (
    Beat,
    CheckpointCommitted,
    CheckpointsStored,
    Departing,
    Join,
    Leave,
    LedgerTold,
    Refused,
    Restored,
    RoundEntered,
    RunDescribed,
    Verified,
    Warmed,
    WorkerExited,
    WorkersFinished,
)
from holdfast.api.policy import RestartBudget
from holdfast.api.rankrecord import Phase
from holdfast.api.round import Closed, Idle, Seat
from holdfast.api.runmanifest import RunManifest
from holdfast.api.telemetry import (
    AgentHello,
    NodeReport,
    Pace,
    PreemptionNoticed,
    ProcessState,
    RankSample,
    ReportTaken,
    XidRaised,
)
from holdfast.api.workeroutput import TAIL_BYTES_MAX, WorkerOutput
from holdfast.watchdog.metrics.counts import Count
from holdfast.watchdog.server.websocket import Socket
from holdfast.watchdog.store.sqlite import SqliteStore
from holdfast.watchdog.store.store import START, Bound

T = TypeVar("T")


def killed(shown: Seat, *, rank: int) -> WorkerExited:
    return WorkerExited(shown.number, rank, age_s=0.0, signal=9, error="Killed")


def events(store: MemoryStore, kind: type[T]) -> list[T]:
    return [line.event for line in store.tail(JOB, START) if isinstance(line.event, kind)]


async def test_members_form_a_round_and_a_death_makes_the_next_one() -> None:
    async with rigged() as rig:
        await rig.submit(policy_of(nodes=2))
        first, second = await rig.launcher("m1"), await rig.launcher("m2")
        shown = await first.enter()
        assert (await second.enter()).number == shown.number
        assert shown.world_size == 2
        await second.say(killed(shown, rank=1))
        healed = await first.round_after(shown.number)
        assert (await second.round_after(shown.number)).number == healed.number
        assert (healed.place, healed.members) == (0, 2)
        _, found = await rig.get(f"/v1/jobs/{JOB}/incidents")
        assert [each["cause"] for each in found] == ["signal 9"]
        assert (await rig.get(f"/v1/jobs/{JOB}/incidents/{found[0]['id']}"))[1] == found[0]
        assert (await rig.get(f"/v1/jobs/{JOB}/round"))[1]["number"] == healed.number


async def test_a_job_whose_members_all_finish_is_closed_with_success() -> None:
    async with rigged() as rig:
        await rig.submit(policy_of(nodes=1))
        launcher = await rig.launcher("m1")
        shown = await launcher.enter()
        await launcher.say(WorkersFinished(shown.number))
        assert (await launcher.shown(Closed)).succeeded
        assert (await rig.status())["phase"] == "Succeeded"


async def test_what_is_desired_is_shown_right_after_joining_also_after_a_reconnect() -> None:
    async with rigged() as rig:
        await rig.submit(policy_of(nodes=2))
        first, second = await rig.launcher("m1"), await rig.launcher("m2")
        shown = await first.enter()
        again = await rig.launcher("m1", held_round=shown.number)
        assert await again.round_after(0) == shown
        code, reason = await first.ended()
        assert (code, "another launcher" in reason) == (1008, True)
        # The older connection's end is no loss of the member.
        await again.say(RoundEntered(shown.number, reentrant=True))
        await second.enter()
        await second.say(killed(shown, rank=1))
        await again.round_after(shown.number)
        _, found = await rig.get(f"/v1/jobs/{JOB}/incidents")
        assert [each["cause"] for each in found] == ["signal 9"]


async def test_a_forecast_says_what_would_happen_and_changes_nothing() -> None:
    store = MemoryStore()
    async with rigged(store) as rig:
        await rig.submit(policy_of(nodes=2))
        first, second = await rig.launcher("m1"), await rig.launcher("m2")
        shown = await first.enter()
        await second.enter()
        await rig.until(f"/v1/jobs/{JOB}/status", lambda status: status["phase"] == "Running" or status["round"])
        request = InterventionRequest("dry-run", JOB, InterventionAction.EVICT, "why", node="node-m2")
        path = f"/v1/jobs/{JOB}/forecast?request="
        lines = store.last(JOB)
        status, told = await rig.get(path + quote(msgspec.json.encode(request)))
        assert (status, told["state"], told["outcome"]) == (200, "Done", "node node-m2 evicted")
        assert any("node node-m2 gets no more pods" in each for each in told["effects"])
        assert store.last(JOB) == lines
        assert (await rig.get(f"/v1/jobs/{JOB}/round"))[1]["number"] == shown.number
        for wrong in ("", quote(b'{"id": "x"}'), quote(msgspec.json.encode(replace(request, job="a/b")))):
            assert (await rig.get(path + wrong))[0] == 400


async def test_what_workers_wrote_is_told_when_their_launcher_has_left_and_is_no_event() -> None:
    store = MemoryStore()
    path = f"/v1/jobs/{JOB}/logs"
    ended = WorkerOutput(0, 7, 1, 1.0, 2.0, "signal 9", 0, b"loss 2.0\n\xff")
    async with rigged(store) as rig:
        await rig.submit(policy_of(nodes=1))
        launcher = await rig.launcher("m1")
        shown = await launcher.enter()
        await launcher.say(ended)
        await launcher.say(
            replace(ended, round=shown.number + 1, ended_at=3.0, ended_with="", tail=b"x" * TAIL_BYTES_MAX)
        )
        await launcher.say(Leave("stopped by SIGTERM"))
        newest, before = await rig.until(f"{path}?rank=0", lambda body: len(body) == 2)
        assert (newest["ended_with"], newest["tail"]) == ("", "x" * TAIL_BYTES_MAX)
        assert (before["member"], before["node"], before["tail"]) == ("m1", "node-m1", "loss 2.0\n\ufffd")
        assert await rig.get(f"{path}?node=node-m1") == (200, [newest, before])
        assert await rig.get(f"{path}?rank=9") == (200, [])
        assert (await rig.get(path))[0] == (await rig.get(f"{path}?rank=x"))[0] == 400
        assert (await rig.get(f"{path}?rank=0", token=INGEST_TOKEN))[0] == 403
        assert not [line for line in store.tail(JOB, START) if "Output" in type(line.event).__name__]
        hostile_fields: tuple[tuple[str, object, int], ...] = (
            ("tail", b"x" * (TAIL_BYTES_MAX + 1), 1008),
            ("ended_with", "x" * 65, 1008),
            ("rank", -1, 1007),
            ("ended_at", float("nan"), 1007),
            ("started_at", 1e300, 1008),
        )
        for name, wrong, expected in hostile_fields:
            hostile = await rig.launcher(f"hostile-{name.replace('_', '-')}")
            await hostile.say(replace(ended, **{name: wrong}))
            code, reason = await hostile.ended()
            assert (code, name in reason) == (expected, True), reason
        assert len((await rig.get(f"{path}?rank=0"))[1]) == 2


async def test_the_ranks_and_nodes_of_a_finished_job_are_still_told() -> None:
    async with rigged() as rig:
        await rig.submit(policy_of(nodes=1))
        launcher = await rig.launcher("m1")
        shown = await launcher.enter()
        agent = await rig.connect("/v1/agent")
        await agent.send_bytes(msgspec.msgpack.encode(AgentHello("node-m1", "boot", JOB)))
        await agent.send_bytes(msgspec.msgpack.encode(NodeReport("node-m1", "boot", 1)))
        await rig.until(f"/v1/jobs/{JOB}/nodes", bool)
        await launcher.say(WorkersFinished(shown.number))
        await rig.until(f"/v1/jobs/{JOB}/status", lambda status: status["ended_at"] is not None)
        _, nodes = await rig.get(f"/v1/jobs/{JOB}/nodes")
        assert [(each["node"], each["hearing"]) for each in nodes] == [("node-m1", "Ended")]
        assert (await rig.get(f"/v1/jobs/{JOB}/ranks"))[0] == 200


async def test_a_newer_launcher_takes_the_members_place_and_the_older_is_refused() -> None:
    async with rigged() as rig:
        await rig.submit(policy_of(nodes=2))
        older = await rig.launcher("m1", boot="old")
        await rig.until("/v1/jobs", lambda _: "m1" in rig.watchdog.host(JOB).launchers)
        await rig.launcher("m1", boot="new")
        assert "another launcher has joined as member m1" in (await older.shown(Refused)).reason


async def test_a_closed_connection_is_a_loss_and_leaving_is_none() -> None:
    async with rigged() as rig:
        await rig.submit(policy_of(nodes=3))
        peers = [await rig.launcher(name) for name in ("m1", "m2", "m3")]
        for peer in peers:
            shown = await peer.enter()
        await peers[2].say(Leave("scaled down"))
        shown = await peers[0].enter(shown.number)
        assert (await rig.get(f"/v1/jobs/{JOB}/incidents"))[1] == []
        await peers[1].socket.close()
        await peers[0].round_after(shown.number)
        _, found = await rig.get(f"/v1/jobs/{JOB}/incidents")
        assert [each["cause"] for each in found] == ["connection closed"]


async def test_who_was_silent_for_too_long_is_told_so_and_is_a_member_again_once_it_has_joined_anew() -> None:
    async with rigged() as rig:
        await rig.submit(policy_of(nodes=2))
        peers = [await rig.launcher(name) for name in ("m1", "m2")]
        shown, _ = [await peer.enter() for peer in peers]
        host = rig.watchdog.host(JOB)
        subject = Subject(JOB, node="node-m2", member="m2")
        evidence = (Evidence("connection of m2", "open, but silent for 3.1 s", 0.0),)
        lost = Finding(FindingKind.MEMBER_LOST, subject, "silent for 3.1 s", evidence, Confidence.PROBABLE, 0.0)
        host.record(FindingMade(lost))
        code, reason = await peers[1].ended()
        assert (code, reason) == (WSCloseCode.TRY_AGAIN_LATER, "silent for 3.1 s: counted as lost; join again")
        assert "m2" not in host.launchers
        shown = await peers[0].enter(shown.number)
        assert shown.world_size == 1
        back = await rig.launcher("m2")
        await back.say(Warmed())
        await rig.until("/v1/jobs", lambda _: host.job.state.eligible_count() == 2)


async def test_a_launcher_may_come_before_its_job_is_submitted() -> None:
    async with rigged() as rig:
        launcher = await rig.launcher("m1")
        await rig.until("/v1/jobs", lambda found: found)
        await rig.submit(policy_of(nodes=1))
        assert (await launcher.round_after(0)).world_size == 1


async def test_launchers_that_all_are_others_when_the_watchdog_is_back_go_on_and_nobody_is_blamed() -> None:
    store = MemoryStore()
    async with rigged(store) as rig:
        await rig.submit(policy_of(nodes=2))
        peers = [await rig.launcher(name) for name in ("m1", "m2")]
        shown = [await peer.enter() for peer in peers]
        job = rig.watchdog.host(JOB).job
        await rig.until("/v1/jobs", lambda _: all(each.entered_round for each in job.state.members))
        rig.watchdog.stop()  # as if killed: it hears nothing of those that go after it
    async with rigged(store) as rig:
        peers = [await rig.launcher(name, boot="boot-2") for name in ("m1", "m2")]
        again = [await peer.round_after(shown[0].number) for peer in peers]
        assert [each.world_size for each in again] == [2, 2]
        (found,) = (await rig.get(f"/v1/jobs/{JOB}/incidents"))[1]
        assert (found["cause"], found["culprit"]) == ("lost while no watchdog was there", {"job": JOB})
        assert rig.watchdog.host(JOB).job.state.suspicions == ()


async def test_a_commit_counts_in_its_round_only() -> None:
    store = MemoryStore()
    async with rigged(store) as rig:
        await rig.submit(policy_of(nodes=1))
        launcher = await rig.launcher("m1")
        first = await launcher.enter()
        await launcher.say(CheckpointCommitted(first.number, step=10, uri="file:///c/10"))
        await launcher.say(killed(first, rank=0))
        second = await launcher.enter(first.number)
        await launcher.say(CheckpointCommitted(first.number, step=11, uri="file:///c/11"))
        await launcher.say(CheckpointCommitted(second.number, step=12, uri="file:///c/12"))
        await rig.until(f"/v1/jobs/{JOB}/status", lambda body: (body["last_checkpoint"] or {}).get("step") == 12)
        assert [each.step for each in events(store, CheckpointRecorded)] == [10, 12]
        assert await rig.scraped("holdfast_watchdog_fenced_messages_total") == 1


async def test_what_is_said_again_after_a_reconnect_changes_nothing() -> None:
    store = MemoryStore()
    async with rigged(store) as rig:
        await rig.submit(policy_of(nodes=1))
        launcher = await rig.launcher("m1")
        shown = await launcher.enter()
        said = (
            Restored(shown.number, rank=0, step=0),
            CheckpointCommitted(shown.number, step=10, uri="file:///c/10"),
            CheckpointCommitted(shown.number, step=20, uri="file:///c/20"),
        )
        for message in said:
            await launcher.say(message)
        again = await rig.launcher("m1", held_round=shown.number)
        for message in said:
            await again.say(message)
        await rig.until(f"/v1/jobs/{JOB}/status", lambda _: rig.watchdog.tally[Count.DUPLICATE_MESSAGES] == 3)
        assert await rig.scraped("holdfast_watchdog_duplicate_messages_total") == 3
        assert await rig.scraped("holdfast_watchdog_replaced_connections_total") == 1
        assert [each.step for each in events(store, CheckpointRecorded)] == [10, 20]
        assert (await rig.status())["last_checkpoint"]["step"] == 20


async def test_the_list_of_what_is_stored_is_taken_as_it_is_told_and_never_out_of_date() -> None:
    store = MemoryStore()
    async with rigged(store) as rig:
        await rig.submit(policy_of(nodes=1))
        launcher = await rig.launcher("m1")
        shown = await launcher.enter()
        one, two = (StoredCheckpoint(step, shown.number, f"step-{step:08d}", healthy=True) for step in (10, 20))
        first = CheckpointsStored(shown.number, "file:///c", 1, (one,), saved=10)
        second = CheckpointsStored(shown.number, "file:///c", 2, (two, one), saved=20)
        said = (
            CheckpointsStored(shown.number, "file:///c", 0),
            CheckpointCommitted(shown.number, step=10, uri="file:///c/step-00000010"),
            first,
            CheckpointCommitted(shown.number, step=20, uri="file:///c/step-00000020"),
            first,
            second,
            second,
            CheckpointsStored(shown.number - 1, "file:///c", 0),
            CheckpointCommitted(shown.number, step=30, uri="file:///c/step-00000030"),
        )
        for message in said:
            await launcher.say(message)
        await rig.until("/v1/jobs", lambda _: len(events(store, CheckpointRecorded)) == 3)
        assert [each.count for each in events(store, StorageListed)] == [0, 1, 2]
        assert rig.watchdog.tally[Count.DUPLICATE_MESSAGES] == 1
        held = rig.watchdog.host(JOB).job.state.storage
        assert held is not None
        assert [(each.step, each.name) for each in held.checkpoints][1:] == [
            (20, "step-00000020"),
            (30, "step-00000030"),
        ]


async def test_how_a_run_was_started_is_journaled_once_and_again_when_it_is_another() -> None:
    store = MemoryStore()
    async with rigged(store) as rig:
        await rig.submit(policy_of(nodes=1))
        launcher = await rig.launcher("m1")
        shown = await launcher.enter()
        first = RunManifest(1, shown.number, ("python", "train.py"), settings={"seeds": {"torch": "1"}})
        second = RunManifest(1, shown.number, ("python", "train.py"), settings={"seeds": {"torch": "2"}})
        for manifest in (first, first, second):
            await launcher.say(RunDescribed(shown.number, manifest))
        await rig.until("/v1/jobs", lambda _: len(events(store, RunRecorded)) == 2)
        assert [each.manifest for each in events(store, RunRecorded)] == [first, second]
        assert rig.watchdog.tally[Count.DUPLICATE_MESSAGES] == 1


async def test_the_greatest_count_of_what_is_stored_leaves_a_state_that_can_be_kept() -> None:
    """A commit counts one more, and no store writes a number beyond 64 bits."""
    async with rigged() as rig:
        await rig.submit(policy_of(nodes=1))
        launcher = await rig.launcher("m1")
        shown = await launcher.enter()
        await launcher.say(CheckpointsStored(shown.number, "file:///c", WHOLE_MAX))
        await launcher.say(CheckpointCommitted(shown.number, step=10, uri="file:///c/step-00000010"))
        await rig.until("/v1/jobs", lambda _: rig.watchdog.host(JOB).job.state.checkpoints != ())
        msgspec.msgpack.encode(rig.watchdog.host(JOB).job.state)


async def test_who_runs_rank_0_is_told_what_is_verified_with_each_commit_and_after_a_reconnect() -> None:
    async with rigged() as rig:
        await rig.submit(policy_of(nodes=2))
        first, second = await rig.launcher("m1"), await rig.launcher("m2")
        shown = await first.enter()
        await second.enter()
        await first.say(Restored(shown.number, rank=0, step=None))
        await rig.until("/v1/jobs", lambda _: rig.watchdog.host(JOB).job.state.restored_step == 0)
        rig.watchdog.host(JOB).record(ReplicasAgreed(shown.number, 15))
        for step in (10, 20):
            await first.say(CheckpointCommitted(shown.number, step=step, uri=f"file:///c/{step}"))
            assert await first.shown(Verified) == Verified(shown.number, 15)
        again = await rig.launcher("m1", held_round=shown.number)
        assert await again.shown(Verified) == Verified(shown.number, 15)
        await second.say(killed(shown, rank=1))
        assert (await again.round_after(shown.number)).restore.verified == 15
        message = await second.socket.receive()
        assert isinstance(TO_LAUNCHER.decode(message.data), Seat | Idle), "the others need not know"


@pytest.mark.parametrize("takes_ledgers", [True, False])
async def test_who_saves_is_told_what_the_job_has_cost_once_a_minute_of_a_round(takes_ledgers: bool) -> None:
    async with rigged() as rig:
        await rig.submit(policy_of(nodes=1))
        launcher = await rig.launcher("m1", takes_ledgers=takes_ledgers)
        shown = await launcher.enter()
        await launcher.say(Restored(shown.number, rank=0, step=None))
        await rig.until("/v1/jobs", lambda _: rig.watchdog.host(JOB).job.state.restored_step == 0)
        rig.watchdog.host(JOB).record(ReplicasAgreed(shown.number, 15))
        told: list[Verified | LedgerTold] = []
        for step in (10, 20, 30):
            await launcher.say(CheckpointCommitted(shown.number, step=step, uri=f"file:///c/{step}"))
            while sum(isinstance(each, Verified) for each in told) < step // 10:
                told.append(await launcher.shown(Verified | LedgerTold))
        ledgers = [each for each in told if isinstance(each, LedgerTold)]
        assert len(ledgers) == takes_ledgers
        for each in ledgers:
            assert each.round == shown.number
            assert msgspec.json.decode(each.report, type=LedgerReport).job == JOB


async def test_a_spare_cannot_commit() -> None:
    store = MemoryStore()
    async with rigged(store) as rig:
        await rig.submit(policy_of(nodes=1, spares=1))
        launcher = await rig.launcher("m1")
        shown = await launcher.enter()
        spare = await rig.launcher("m2")
        assert (await spare.shown(Idle)).number == shown.number, "a spare has no seat"
        await spare.say(CheckpointCommitted(shown.number, step=10, uri="file:///c/10"))
        await rig.until(f"/v1/jobs/{JOB}/status", lambda _: rig.watchdog.tally[Count.FENCED_MESSAGES] == 1)
        assert events(store, CheckpointRecorded) == []


async def test_a_slow_reader_delays_nobody_and_catches_up_with_the_newest_round() -> None:
    async with rigged() as rig:
        await rig.submit(policy_of(nodes=2, restarts=RestartBudget(backoff_s=0.0)))
        quick, slow = await rig.launcher("m1"), await rig.launcher("m2")
        shown = await quick.enter()
        await slow.enter()
        transport = slow.socket._response.connection.transport
        transport.pause_reading()
        for _ in range(2):  # a third death would condemn the node
            await quick.say(killed(shown, rank=0))
            shown = await quick.enter(shown.number)
        transport.resume_reading()
        assert (await slow.round_after(shown.number - 1)).number == shown.number


class TestBadPeers:
    @pytest.mark.parametrize("path", ["/v1/member", "/v1/agent", "/v1/operator"])
    @pytest.mark.parametrize(
        ("frame", "code"),
        [
            (b"\xc1garbage", 1007),
            (b"", 1007),
            (b"\x91" * 50_000, 1007),
            (msgspec.msgpack.encode({"type": "Nonsense"}), 1007),
            (msgspec.msgpack.encode({"type": "Join", "job": 7}), 1007),
            (b"x" * (2 << 20), 1009),
        ],
        ids=["garbage", "empty", "deep", "unknown type", "wrong fields", "oversized"],
    )
    async def test_a_frame_that_is_no_message_closes_the_connection_and_changes_nothing(
        self, path: str, frame: bytes, code: int
    ) -> None:
        async with rigged() as rig:
            peer = LauncherPeer(await rig.connect(path), "m1")
            await peer.socket.send_bytes(frame)
            assert (await peer.ended())[0] == code
            assert (await rig.get("/v1/jobs")) == (200, [])

    async def test_a_text_frame_is_refused(self) -> None:
        async with rigged() as rig:
            peer = LauncherPeer(await rig.connect("/v1/member"), "m1")
            await peer.socket.send_str("{}")
            assert await peer.ended() == (1007, "send binary frames of msgpack")
            assert await rig.scraped("holdfast_watchdog_bad_messages_total") == 1

    async def test_the_first_message_must_be_a_join(self) -> None:
        async with rigged() as rig:
            peer = LauncherPeer(await rig.connect("/v1/member"), "m1")
            await peer.say(Beat())
            assert await peer.ended() == (1008, "the first message must be Join")

    @pytest.mark.parametrize(
        ("bad", "says"),
        [
            (join("m1", ports=()), "ports"),
            (join("m1", ports=(0,)), "ports"),
            (join("m/1"), "member"),
            (join("m1", node=""), "node"),
            (join("m1", job="no-namespace"), "namespace/name"),
        ],
        ids=["no ports", "port 0", "member name", "node name", "job name"],
    )
    async def test_a_join_that_cannot_be_a_member_is_refused_with_the_reason(self, bad: Join, says: str) -> None:
        async with rigged() as rig:
            peer = LauncherPeer(await rig.connect("/v1/member"), "m1")
            await peer.say(bad)
            assert says in (await peer.shown(Refused)).reason
            assert (await peer.ended())[0] == 1008

    @pytest.mark.parametrize(
        ("bad", "says"),
        [(join("m1", local_size=0), "local_size: 0"), (join("m1", boot="x" * 300), "boot: ")],
        ids=["no workers", "boot name"],
    )
    async def test_a_join_beyond_the_bounds_of_the_wire_is_no_message(self, bad: Join, says: str) -> None:
        async with rigged() as rig:
            peer = LauncherPeer(await rig.connect("/v1/member"), "m1")
            await peer.say(bad)
            code, reason = await peer.ended()
            assert (code, says in reason) == (1007, True), reason

    async def test_a_bad_message_of_a_member_is_its_loss_and_nobody_elses(self) -> None:
        store = MemoryStore()
        async with rigged(store) as rig:
            await rig.submit(policy_of(nodes=2))
            good, bad = await rig.launcher("m1"), await rig.launcher("m2")
            shown = await good.enter()
            await bad.enter()
            await bad.socket.send_bytes(b"\xc1")
            assert (await bad.ended())[0] == 1007
            assert (await good.round_after(shown.number)).world_size == 1
            assert len(events(store, MemberJoined)) == 2

    async def test_a_departure_at_no_time_at_all_is_refused_and_never_recorded(self) -> None:
        store = MemoryStore()
        async with rigged(store) as rig:
            await rig.submit(policy_of(nodes=1))
            launcher = await rig.launcher("m1")
            await launcher.enter()
            await launcher.say(Departing("told to end", float("nan")))
            assert (await launcher.ended())[0] == 1007
            assert events(store, MemberDeparting) == []


class TestRoles:
    @pytest.mark.parametrize("path", ["/v1/jobs", "/metrics", "/v1/member", "/v1/agent", "/v1/operator"])
    @pytest.mark.parametrize(
        "headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}]
    )
    async def test_without_a_valid_token_nothing_is_open(self, path: str, headers: dict[str, str]) -> None:
        async with rigged() as rig, rig.http.get(rig.url(path), headers=headers) as response:
            assert response.status == 401
            assert "Authorization: Bearer" in (await response.json())["error"]

    async def test_a_role_opens_only_what_it_is_for(self) -> None:
        async with rigged() as rig:
            status, body = await rig.get("/v1/jobs", token=INGEST_TOKEN)
            assert (status, body["error"]) == (403, "this needs the role view; the token has ingest")
            assert (await rig.post("/v1/jobs", policy_of(), token=INGEST_TOKEN))[0] == 403
            with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
                await rig.connect("/v1/operator", token=INGEST_TOKEN)

    async def test_health_is_open_to_everybody(self) -> None:
        async with rigged() as rig, rig.http.get(rig.url("/healthz")) as response:
            assert (response.status, await response.json()) == (200, {"status": "ok"})


class TestRequests:
    async def test_the_same_policy_again_changes_nothing(self) -> None:
        store = MemoryStore()
        async with rigged(store) as rig:
            await rig.submit(policy_of())
            before = store.last(JOB)
            await rig.submit(policy_of())
            assert store.last(JOB) == before

    @pytest.mark.parametrize(
        ("body", "says"),
        [
            (b"not json", "body"),
            (b'{"job": "a/b"}', "nodes_min"),
            (msgspec.json.encode(msgspec.structs.replace(policy_of(), nodes_min=5)), "nodes_max"),
            (msgspec.json.encode(msgspec.structs.replace(policy_of(), job="NO")), "namespace/name"),
        ],
        ids=["no JSON", "missing field", "impossible range", "bad name"],
    )
    async def test_a_policy_nobody_could_work_with_is_refused_with_the_fix(self, body: bytes, says: str) -> None:
        async with rigged() as rig:
            status, answer = await rig.post("/v1/jobs", body)
            assert status == 400
            assert says in answer["error"]
            assert (await rig.get("/v1/jobs"))[1] == []

    async def test_a_body_beyond_the_limit_is_refused(self) -> None:
        async with rigged() as rig:
            assert (await rig.post("/v1/jobs", b" " * (1 << 20)))[0] == 413

    @pytest.mark.parametrize("path", ["/v1/jobs/no/such/status", "/v1/jobs/no/such/incidents/inc-1", "/nowhere"])
    async def test_what_is_not_there_is_told_as_json(self, path: str) -> None:
        async with rigged() as rig:
            status, body = await rig.get(path)
            assert status == 404
            assert body["error"]

    async def test_an_intervention_is_answered_and_the_same_id_gets_the_same_answer(self) -> None:
        store = MemoryStore()
        async with rigged(store) as rig:
            await rig.submit(policy_of(nodes=1))
            launcher = await rig.launcher("m1")
            await launcher.enter()
            asked = InterventionRequest("i-1", JOB, InterventionAction.PAUSE, "maintenance")
            first = await rig.post(f"/v1/jobs/{JOB}/interventions", asked)
            assert first[0] == 200
            assert first[1]["state"] == "Done"
            before = store.last(JOB)
            assert await rig.post(f"/v1/jobs/{JOB}/interventions", asked) == first
            assert store.last(JOB) == before
            assert (await rig.status())["phase"] == "Suspended"

    async def test_the_same_intervention_gets_the_same_answer_after_a_restart(self) -> None:
        store = MemoryStore()
        asked = InterventionRequest("i-1", JOB, InterventionAction.RETURN, "try", node="n9")
        async with rigged(store) as rig:
            await rig.submit(policy_of(nodes=1))
            first = await rig.post(f"/v1/jobs/{JOB}/interventions", asked)
            assert first[1]["state"] == "Refused"
        async with rigged(store) as rig:
            assert await rig.post(f"/v1/jobs/{JOB}/interventions", asked) == first

    async def test_an_intervention_for_another_job_than_the_paths_is_refused(self) -> None:
        async with rigged() as rig:
            await rig.submit(policy_of(nodes=1))
            asked = InterventionRequest("i-1", "other/job", InterventionAction.PAUSE, "x")
            assert (await rig.post(f"/v1/jobs/{JOB}/interventions", asked))[0] == 400

    async def test_the_journal_is_read_in_pages(self) -> None:
        async with rigged() as rig:
            await rig.submit(policy_of(nodes=1))
            _, page = await rig.get(f"/v1/jobs/{JOB}/journal?after=0")
            assert [line["event"]["type"] for line in page["lines"]] == ["JobSubmitted"]
            assert (page["next_after"], page["first"], page["compacted_at"]) == (None, 1, None)
            assert (await rig.get(f"/v1/jobs/{JOB}/origin"))[1]["offset"] == 0
            assert (await rig.get(f"/v1/jobs/{JOB}/journal?after=1"))[1]["lines"] == []
            assert (await rig.get(f"/v1/jobs/{JOB}/journal?after=-1"))[0] == 400

    async def test_a_compacted_journal_says_where_it_begins(self) -> None:
        store = MemoryStore(Bound(lines=1))
        async with rigged(store) as rig:
            await rig.submit(policy_of(nodes=1))
            job = rig.watchdog.host(JOB).job
            for _ in range(2):
                job.save(rig.watchdog.clock.now())
                rig.watchdog.host(JOB).record(ClockTicked())
            job.save(rig.watchdog.clock.now())
            _, page = await rig.get(f"/v1/jobs/{JOB}/journal?after=0")
            assert [line["offset"] for line in page["lines"]] == [3]
            assert (page["first"], page["compacted_at"] is None) == (3, False)
            _, origin = await rig.get(f"/v1/jobs/{JOB}/origin")
            kept = store.earlier(JOB)
            assert kept is not None
            assert (origin["offset"], b64decode(origin["state"])) == (kept.offset, kept.state)

    async def test_metrics_are_text_for_prometheus(self) -> None:
        async with rigged() as rig:
            await rig.submit(policy_of(nodes=1))
            async with rig.http.get(rig.url("/metrics"), headers={"Authorization": f"Bearer {TOKEN}"}) as response:
                text = await response.text()
            assert f'holdfast_watchdog_journal_lines{{training_job="{JOB}"}} 1' in text
            assert f'holdfast_watchdog_journal_bytes{{training_job="{JOB}"}} 0' in text
            assert "holdfast_watchdog_bad_messages_total 0" in text


def report(sequence: int, *, boot: str = "b1", step_time_s: float | None = None) -> NodeReport:
    sample = RankSample(
        1, 0, ProcessState.RUNNING, Phase.FORWARD, 0.1, 0.1, step=sequence, step_time_s=step_time_s
    )
    return NodeReport("n1", boot, sequence, ranks=(sample,))


def eventful(report: NodeReport) -> NodeReport:
    """The report with an event that asks for nothing: the agent keeps it until it is taken."""
    return msgspec.structs.replace(report, events=(XidRaised("GPU-0", 63, 0.1),))


class TestAgents:
    async def test_reports_are_taken_once(self) -> None:
        async with rigged() as rig:
            await rig.submit(policy_of(nodes=1))
            agent = AgentPeer(await rig.connect("/v1/agent"))
            await agent.say(AgentHello("n1", "b1", JOB))
            assert await agent.told() == Pace(1.0)
            for sequence, taken in ((1, 1), (2, 2), (2, 2), (1, 2)):
                await agent.say(eventful(report(sequence)))
                assert await agent.told() == ReportTaken(taken)
            assert rig.watchdog.tally[Count.REPORTS] == 2
            assert await rig.scraped("holdfast_watchdog_duplicate_reports_total") == 2
            await agent.say(report(3))
            await agent.say(report(3))
            assert await agent.told() == ReportTaken(3), (
                "a report without events is only answered when it is repeated"
            )
            assert rig.watchdog.tally[Count.REPORTS] == 3
            assert (await rig.get(f"/v1/jobs/{JOB}/nodes"))[1][0]["node"] == "n1"
            assert (await rig.status())["step"] == 3
            rig.watchdog.host(JOB).taken_at["n1"] -= 3600.0
            assert (await rig.get(f"/v1/jobs/{JOB}/nodes"))[1][0]["hearing"] == "Silent"

    async def test_another_boot_counts_from_the_start(self) -> None:
        async with rigged() as rig:
            await rig.submit(policy_of(nodes=1))
            for boot in ("b1", "b2"):
                agent = AgentPeer(await rig.connect("/v1/agent"))
                await agent.say(AgentHello("n1", boot, JOB))
                await agent.told()
                await agent.say(eventful(report(5, boot=boot)))
                assert await agent.told() == ReportTaken(5)
            assert rig.watchdog.tally[Count.REPORTS] == 2

    async def test_the_pace_is_told_on_connecting_and_when_it_moves(self) -> None:
        async with rigged() as rig:
            await rig.submit(policy_of(nodes=1))
            agent = AgentPeer(await rig.connect("/v1/agent"))
            await agent.say(AgentHello("n1", "b1", JOB))
            assert await agent.told() == Pace(1.0)
            await agent.say(report(1, step_time_s=0.5))
            assert await agent.told() == Pace(1.0, 0.5)

    @pytest.mark.parametrize(
        ("bad", "code"),
        [
            (report(1, boot="other"), 1008),
            (msgspec.structs.replace(report(1), node="n2"), 1008),
            (msgspec.structs.replace(report(1), events=(XidRaised("GPU-1", 79, float("nan")),)), 1007),
            (msgspec.structs.replace(report(1), events=(PreemptionNoticed("cloud", float("inf"), 0.0),)), 1007),
            (AgentHello("n1", "b1", JOB), 1008),
        ],
        ids=["other boot", "other node", "age is no number", "no end of a notice", "hello again"],
    )
    async def test_a_report_that_cannot_be_true_closes_the_connection(self, bad: object, code: int) -> None:
        async with rigged() as rig:
            await rig.submit(policy_of(nodes=1))
            agent = AgentPeer(await rig.connect("/v1/agent"))
            await agent.say(AgentHello("n1", "b1", JOB))
            await agent.told()
            await agent.say(bad)
            assert (await LauncherPeer(agent.socket, "").ended())[0] == code
            assert rig.watchdog.tally[Count.REPORTS] == 0


class TestStoreFails:
    async def test_nothing_is_decided_it_is_visible_and_healing_goes_on_afterwards(self, tmp_path: Path) -> None:
        store = SqliteStore(tmp_path / "watchdog.db")
        async with rigged(store) as rig:
            await rig.submit(policy_of(nodes=1))
            launcher = await rig.launcher("m1")
            shown = await launcher.enter()
            await rig.until(
                f"/v1/jobs/{JOB}/journal", lambda body: body["lines"][-1]["event"]["type"] == "MemberEntered"
            )
            store._connection.execute("PRAGMA query_only = 1")
            await launcher.say(killed(shown, rank=0))
            health = await rig.until("/healthz", lambda body: body["status"] != "ok")
            assert "cannot be written" in health["reason"]
            assert (await rig.get("/healthz"))[0] == 503
            assert (await rig.status())["round"] == shown.number
            assert (await rig.post("/v1/jobs", policy_of(nodes=2)))[0] == 503
            store._connection.execute("PRAGMA query_only = 0")
            await launcher.round_after(shown.number)
            assert (await rig.get("/healthz"))[0] == 200

    async def test_another_watchdog_on_the_store_ends_this_one(self, tmp_path: Path) -> None:
        store = SqliteStore(tmp_path / "watchdog.db")
        async with rigged(store) as rig:
            await rig.submit(policy_of(nodes=1))
            other = SqliteStore(tmp_path / "watchdog.db")
            other.claim()
            other.close()
            assert (await rig.post("/v1/jobs", policy_of(nodes=2)))[0] == 503
            assert rig.fenced == ["another watchdog has taken over this store"]


async def test_a_peer_whose_connection_breaks_is_a_loss() -> None:
    async with rigged() as rig:
        await rig.submit(policy_of(nodes=2))
        stays, goes = await rig.launcher("m1"), await rig.launcher("m2")
        shown = await stays.enter()
        await goes.enter()
        # No closing handshake: what a killed process leaves behind.
        goes.socket.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        assert (await stays.round_after(shown.number)).world_size == 1


@pytest.mark.parametrize(("whose", "when"), [(web.StreamResponse, "prepare"), (Socket, "listen")])
async def test_a_peer_that_goes_while_it_is_answered_is_no_error(
    whose: type, when: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def break_off(*_: object, **__: object) -> None:
        raise aiohttp.ClientConnectionResetError("Cannot write to closing transport")

    async with rigged() as rig:
        await rig.submit(policy_of(nodes=1))
        with monkeypatch.context() as patched:
            patched.setattr(whose, when, break_off)
            with suppress(aiohttp.ClientError, AssertionError, TypeError):
                await (await rig.launcher("m1")).enter()
        assert (await (await rig.launcher("m1")).enter()).world_size == 1
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR] == []
