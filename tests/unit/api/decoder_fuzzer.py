"""Every decoder of what somebody else wrote, fed with damaged messages: an answer, or its one documented error.

    python tests/unit/api/decoder_fuzzer.py [SECONDS [SEED]]      an hour from a random seed, unless told

Cases follow from the seed alone. A failure prints the decoder, the seed and the number of the case.
"""

import random
import resource
import secrets
import sys
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml

sys.path.insert(0, str(Path(__file__).parents[1] / "checkpoint"))
from stored_bytes import FUZZERS

from holdfast.agent.conditions.memory import Kept
from holdfast.agent.kernel.log import Bookmark
from holdfast.agent.kernel.message import parse_message
from holdfast.agent.kernel.source import parse_line, parse_record
from holdfast.agent.launch.forking import FromWarmParent, ToWarmParent
from holdfast.agent.launch.logs import WorkerRun
from holdfast.agent.launch.preload import PreloadList
from holdfast.agent.launch.settings import Claims, bound_to
from holdfast.agent.launch.spawned import SpawnCall
from holdfast.agent.linktest.judgement import Measured
from holdfast.agent.linktest.wire import Done, Ended, Joined, ToLead, ToMember, Turn
from holdfast.agent.memberfile import Member
from holdfast.agent.selftest.station import FromStation
from holdfast.agent.sensors.cloud_notice import NotNotice, aws_rebalance_notice, aws_spot_notice, azure_notices
from holdfast.agent.sensors.simulated_gpu import BadFault, Fault, parse_fault
from holdfast.api import runhistory, runmanifest
from holdfast.api.audit import Audit, Probe, ProbeAnswer, Soundness
from holdfast.api.bitflip import BitFlip, NanOutput
from holdfast.api.bulletin import Bulletin, KeptScalars
from holdfast.api.control import Attached, Entered, FromWorker, ToWorker
from holdfast.api.cordon import CordonedBy, read_cordoned_by
from holdfast.api.decoding import Tagged, decode, decode_any, decode_json, decode_msgpack, tags_of
from holdfast.api.disturbance import Ailment, Disturbance
from holdfast.api.drill import Drill
from holdfast.api.errors import Damaged, InvalidInput, InvalidSpec, Malformed, Unavailable
from holdfast.api.event import Event, JobSubmitted, MemberJoined
from holdfast.api.feed import FeedHello, JobGone, PlacesTold, Pulse, Told, Whoami
from holdfast.api.fleet import FleetReport, Rate
from holdfast.api.incident import Incident
from holdfast.api.intervention import (
    Forecast,
    InterventionAction,
    InterventionOutcome,
    InterventionRequest,
    InterventionState,
)
from holdfast.api.ledger import Entry, LedgerReport, Row
from holdfast.api.membership import CheckpointCommitted, FromLauncher, Join, Restored, ToLauncher, WorkerExited
from holdfast.api.plan import FromOperator, NodeObserved, NodeState, OperatorHello, Plan, ToOperator
from holdfast.api.planned import PLAN_ANNOTATION, expects_of
from holdfast.api.policy import Policy, ReportingPolicy
from holdfast.api.rankrecord import Phase
from holdfast.api.rehearsal import Kind, Look, Rehearsal, Seen
from holdfast.api.round import Desired, Idle, Shown
from holdfast.api.runhistory import RunHistory
from holdfast.api.runmanifest import Code, RunManifest
from holdfast.api.scalars import ScalarsLogged
from holdfast.api.selftest import Judged, LinkTest, Tested, TestLevel, Verdict
from holdfast.api.status import JobStatus, LastSeen, RankStatus
from holdfast.api.telemetry import AgentHello, FromAgent, NodeReport, ProcessState, RankSample, ToAgent, XidRaised
from holdfast.api.trainingjob import read_trainingjob
from holdfast.checkpoint.commit.retention import Need
from holdfast.checkpoint.format import manifest
from holdfast.checkpoint.memory import protocol, record
from holdfast.checkpoint.storage.journal import Head
from holdfast.cli import figures
from holdfast.cli.figures import kept_in, read_figures
from holdfast.cli.hosts.task import HostTask
from holdfast.cli.statedirectory import ListeningAt, RunningJob
from holdfast.cli.watchdogclient import JournalPage
from holdfast.console.runbook.written import read_check
from holdfast.integrations.marks import Mark
from holdfast.trainer.storetable import Add, Answer, Await, Hello, Request
from holdfast.watchdog import brain
from holdfast.watchdog.access.auth import grants_in
from holdfast.watchdog.access.reviews import expiry
from holdfast.watchdog.brain.reputation import Fleet
from holdfast.watchdog.brain.state import JobState
from holdfast.watchdog.leadership import Readiness
from holdfast.watchdog.server.reports import AgentMessages
from holdfast.watchdog.store.store import Journaled, Snapshot
from holdfast.wire.answer import Explanation, explanation
from holdfast.wire.frame import FrameReader, frame
from holdfast.wire.kube.reply import Said

MESSAGES_LEFT_OVER_MIB = 64
JOB_FILE = b"""
apiVersion: holdfast.dev/v1alpha1
kind: TrainingJob
metadata: {name: gpt, namespace: default}
spec:
  entrypoint: [train.py, --lr, "0.1"]
  nodes: {min: 2, max: 8, spares: 1}
  checkpoint: {uri: file:///data, interval: 10m, keep: 3}
  faultPolicy: {xid: {"79": Evict}, heartbeat: {interval: 1s, lost: 3s}}
"""


@dataclass(frozen=True)
class Target:
    """One decoder: what it raises by its documentation, messages it takes, and the type that it makes, if one."""

    read: Callable[[bytes], object]
    raises: tuple[type[Exception], ...]
    seeds: tuple[bytes, ...]
    kind: Any = None


def _packed(kind: Any, *seeds: object) -> Target:
    decoder = msgspec.msgpack.Decoder(kind)
    return Target(
        lambda body: decode(decoder, body), (Malformed,), tuple(map(msgspec.msgpack.encode, seeds)), kind
    )


def _written(kind: Any, *seeds: object) -> Target:
    return Target(lambda body: decode_json(body, kind), (Malformed,), tuple(map(msgspec.json.encode, seeds)), kind)


def _read_job(body: bytes) -> object:
    try:
        document = yaml.safe_load(body)
    except (yaml.YAMLError, ValueError, RecursionError):
        return None  # what a job file's own reader says is no YAML
    return read_trainingjob(document) if isinstance(document, dict) else None


def _read_token(body: bytes) -> object:
    return bound_to(f"e30.{urlsafe_b64encode(body).decode()}.c2ln")


def _read_expiry(body: bytes) -> object:
    return expiry(f"e30.{urlsafe_b64encode(body).decode()}.c2ln")


def _read_grants(body: bytes) -> object:
    return grants_in(body, given_by="grants")


def _read_cordon(body: bytes) -> object:
    return read_cordoned_by(body.decode("utf-8", "replace"))


def _read_carried(body: bytes) -> object:
    return expects_of({PLAN_ANNOTATION: body.decode("utf-8", "replace")})


def _read_deletions(body: bytes) -> object:
    return decode_msgpack(body, dict[str, float])


def _read_kernel(body: bytes) -> object:
    found = parse_record(body), parse_line(body)
    return parse_message(body.decode("utf-8", "replace")), found


def _read_notices(body: bytes) -> object:
    text = body.decode("utf-8", "replace")
    for read in (aws_rebalance_notice, lambda each: aws_spot_notice(each, None)):
        with suppress(NotNotice):
            read(text)
    return list(azure_notices(text, "m", None))


def _read_golden(body: bytes) -> object:
    return decode_json(body, dict[str, dict[str, str]])


def _read_fault(body: bytes) -> object:
    return parse_fault(body, gpus=2)


def _frames(body: bytes) -> object:
    return list(FrameReader().feed(body))


_JOIN = Join("ns/j", "m", "n", "b", "127.0.0.1", 8, (4000, 4001), warm=True, nodes=(1, 4), shown=7)
_SAMPLE = RankSample(3, 1, ProcessState.RUNNING, Phase.FORWARD, 0.1, 0.1, step=7, loss=2.5)
_MANIFEST = runmanifest.encode(
    RunManifest(1, 3, ("python", "train.py"), Code("/a", "/a", "abc", "diff"), {"seeds": {"torch": "1"}})
)
_HISTORY = RunHistory()
_HISTORY.losses.add(1, 2.5)
_HISTORY.fingerprint(1, "blocks.0", 7)
_LOGGED = KeptScalars(1, ScalarsLogged(3, 0, {"rate": ((7, 0.5),)}, since=4))
_SERIES = b'{"at": [1.5], "step": [1], "loss_median": [2.5], "tokens_s": [9], "step_s": [0.1], "mfu": [null]}'
_CHECK = b"{format: 1, id: a, title: A, symptoms: {hung: 9}, facts: [{incident: {kind: Hang, cause: 'a*'}}]}"
_REPORTING = ReportingPolicy(tensorboard=True)
TARGETS: Mapping[str, Target] = {
    "launcher": _packed(
        FromLauncher,
        _JOIN,
        WorkerExited(3, 1, 0.5, signal=9),
        Restored(3, 0, 7, ("a",)),
        CheckpointCommitted(3, 7, "file:///c"),
    ),
    "agent": _packed(
        FromAgent,
        AgentHello("n", "b", "ns/j"),
        NodeReport("n", "b", 1, ranks=(_SAMPLE,), events=(XidRaised("GPU-0", 79, 0.1),)),
    ),
    "agent of any version": Target(
        lambda body: decode(AgentMessages(), body),
        (Malformed,),
        (
            msgspec.msgpack.encode(
                {
                    **msgspec.to_builtins(NodeReport("n", "b", 1, ranks=(_SAMPLE,))),
                    "events": [{"type": "New"}, {"type": "XidRaised", "gpu": "GPU-0", "xid": 79, "age_s": 0.1}],
                    "conditions": [{"kind": "New"}],
                }
            ),
        ),
    ),
    "worker of any version": Target(
        lambda body: decode_any(msgspec.msgpack.Decoder(FromWorker), body, tags_of(FromWorker)),
        (Malformed,),
        tuple(map(msgspec.msgpack.encode, (Entered(3), {"type": "New", "round": 3}))),
        Tagged,
    ),
    "operator": _packed(FromOperator, OperatorHello("ns/j"), NodeObserved("n", NodeState.READY, rack="r")),
    "shown": _packed(Shown, Idle("ns/j", 3, "forming")),
    "subscriber": _packed(FeedHello, FeedHello("console")),
    "bulletin": _packed(
        Bulletin,
        Bulletin("ns/j", "", ReportingPolicy(tensorboard=True), 1, 0, 4, "life", (KeptScalars(1, _LOGGED),), 1),
    ),
    "to subscriber": _packed(
        Told, Pulse(1.0), JobGone("ns/j"), PlacesTold("ns/j", 1, 1, 1, ("n",), ("",), (), b"")
    ),
    "whoami": _written(Whoami, Whoami("me", ("view",), ("ns",))),
    "to link lead": _written(ToLead, Joined("n", 4711), Done(Measured(one="n", other="m", rate=1e9))),
    "to link member": _written(
        ToMember,
        Turn("m", calls=True, host="10.0.0.1", port=4711, token="t", seconds=4.0),
        Ended(Judged(Verdict.FAILED, {"n": "dead"})),
    ),
    "link test": _written(LinkTest, LinkTest("t", "10.0.0.1", 4711, 2.0, 60.0, leads=True, members=("m", "n"))),
    "to agent": _packed(ToAgent),
    "to operator": _packed(ToOperator),
    "worker": _packed(FromWorker, Attached(7), Entered(3)),
    "store": _packed(Request, Hello("ns/j", 3), Await(("k",), 1.0), Add("k", 1)),
    "transfer hello": _packed(protocol.Hello),
    "transfer question": _packed(protocol.Question),
    "transfer answer": _packed(protocol.Answer),
    "policy": _written(Policy, Policy("ns/j", 1, 4, xid_actions={})),
    "ledger": _written(
        LedgerReport, LedgerReport("ns/j", 1.0, 7, 3, (Entry(Row.SLOW, "2026-01-31", 7, 3, "inc-1"),))
    ),
    "intervention": _written(
        InterventionRequest, InterventionRequest("i1", "ns/j", InterventionAction.EVICT, "why", node="n1")
    ),
    "snapshot record": Target(record.decode, (Malformed,), (), record.SnapshotRecord),
    "manifest": Target(manifest.decode, (Damaged,), (b'{"seal":"00","body":{"format":1}}',), manifest.Manifest),
    "run's manifest": Target(runmanifest.decode, (Damaged,), (_MANIFEST,), runmanifest.RunManifest),
    "run's history": Target(runhistory.decode, (Damaged,), (_HISTORY.encode(2),), runhistory._File),
    "rehearsal": _written(Rehearsal, Rehearsal("file:///c", "/tmp/a", 7, Look(7, "blocks.0"))),
    "observation": _written(Seen, Seen(7, Kind.LEAVE, "blocks.0", 1, "ab", "cd", "'tanh'")),
    "imports list": _written(PreloadList, PreloadList(("transformers",), {"x": "it starts a process"})),
    "spawned": _written(SpawnCall, SpawnCall("train.py:3 in main", 8)),
    "member file": _written(Member, Member("ns/j", "m", "n", "b", 4026531836)),
    "own token": Target(_read_token, (), (b'{"kubernetes.io":{"pod":{"name":"p"},"node":{"name":"n"}}}',), Claims),
    "token's end": Target(_read_expiry, (), (b'{"exp": 1795584475}',), dict[str, object]),
    "grants": Target(_read_grants, (InvalidInput,), (b'{"users": {"a": ["view", "ingest"]}}',)),
    "cordoned by": Target(_read_cordon, (), (b'{"job":"a/b"}',), CordonedBy),
    "deletions": Target(_read_deletions, (Malformed,), (b"\x81\xa3a/b\x01",), dict[str, float]),
    "nodes' memory": _packed(Fleet, Fleet()),
    "event": _packed(
        Event, JobSubmitted(Policy("ns/j", 1, 4)), MemberJoined("m", "n", "b", "h", 8, (7000, 7001), warm=True)
    ),
    "job's state": _packed(JobState, brain.initial("ns/j")),
    "to launcher": _packed(ToLauncher, Idle("ns/j", 3, "forming")),
    "to worker": _packed(ToWorker),
    "store answer": _packed(Answer, Answer()),
    "transfer seal": _packed(protocol.Sealed),
    "transfer greeting": _packed(protocol.Greeting),
    "last seen": _packed(LastSeen),
    "incident": _written(Incident),
    "outcome": _written(InterventionOutcome, InterventionOutcome("i1", InterventionState.DONE, "node n1 evicted")),
    "audit": _written(
        Audit,
        Audit(
            answers=(ProbeAnswer(probe=Probe.CAUSALITY, verdict=Soundness.SUSPECT, says="moved", figure=0.5),),
            not_run={Probe.AGREEMENT: "no reference"},
        ),
    ),
    "self-test": _packed(Tested, Tested(1, TestLevel.LIGHT, Verdict.PASSED, 1.0)),
    "to warm parent": _packed(ToWarmParent),
    "from warm parent": _packed(FromWarmParent),
    "station": _packed(FromStation),
    "conditions kept": _written(Kept),
    "kernel log's bookmark": _written(Bookmark),
    "kernel log": Target(
        _read_kernel, (), (b"4,1,2,-;NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.\n",)
    ),
    "registered workers": _written(tuple[WorkerRun, ...]),
    "cloud notices": Target(
        _read_notices,
        (NotNotice,),
        (
            b'{"action": "terminate", "time": "2026-01-01T00:00:00Z"}',
            b'{"DocumentIncarnation": 1, "Events": [{"EventId": "e", "EventType": "Preempt", "Resources": ["m"], '
            b'"EventStatus": "Scheduled", "NotBefore": "Mon, 19 Sep 2016 18:29:47 GMT"}]}',
        ),
    ),
    "simulated fault": Target(_read_fault, (BadFault,), (b'{"gpu": 0, "xid": 79, "text": "GPU gone"}',), Fault),
    "golden table": Target(
        _read_golden, (Malformed,), (b'{"cpu": {"product-fp32": "aa"}}',), dict[str, dict[str, str]]
    ),
    "disturbance": _written(Disturbance, Disturbance(next(iter(Ailment)), 1)),
    "drill": _written(Drill, Drill(("cpu",), ("slow",))),
    "bit flip": _written(BitFlip, BitFlip(rank=1, step=7, bit=12)),
    "output that is NaN": _written(NanOutput, NanOutput(rank=1, step=7, steps=1)),
    "what a rewind needs": _written(Need, Need()),
    "mark": _written(Mark, Mark(5, 2)),
    "whose format": _written(manifest.Framework, manifest.Framework("lightning")),
    "head of a bucket's journal": _written(Head, Head()),
    "API server's words": _written(Said, Said()),
    "watchdog's refusal": Target(explanation, (), (b'{"error": "no such job"}',), Explanation),
    "watchdog's readiness": _written(Readiness),
    "job's status": _written(JobStatus),
    "incidents": _written(tuple[Incident, ...]),
    "page of the journal": _written(JournalPage),
    "plan": _written(Plan | None),
    "round": _written(Desired | None),
    "forecast": _written(Forecast),
    "where a watchdog listens": _written(ListeningAt, ListeningAt("127.0.0.1", 7000, 7)),
    "a run's own file": _written(RunningJob),
    "a host's task": _written(HostTask),
    "ranks' status": _written(tuple[RankStatus, ...]),
    "line of the journal": _packed(Journaled),
    "snapshot of a job": _packed(Snapshot),
    "fleet": _written(FleetReport, FleetReport(1.0, all=Rate("all", 3, 4000.0, 0.75, 0.155, 2.19))),
    "carried plan": Target(
        _read_carried, (InvalidInput,), (b"model: {layers: 2}\nexpects: {stepSeconds: 2.5, memoryRate: 2.0e+12}",)
    ),
    "console's series": Target(read_figures, (Unavailable,), (_SERIES,), figures._Told),
    "kept series": Target(
        lambda body: kept_in(body, "a/b"), (Malformed,), (b'{"a/b": ' + _SERIES + b"}",), dict[str, msgspec.Raw]
    ),
    "written check": Target(lambda body: read_check(body, "a.yaml"), (InvalidInput,), (_CHECK,)),
    "frames": Target(_frames, (Damaged,), (frame(b"abc") + frame(b"defg"),)),
    "job file": Target(_read_job, (InvalidSpec,), (JOB_FILE,)),
}
_ODD = (
    b"\xff\xfe", b"\x00", b"\xcf" + b"\xff" * 8, b"\xd3\x80" + b"\x00" * 7, b"\xcb\x7f\xf8" + b"\x00" * 6,
    b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff", b"9" * 400, b"1e999",
    b"-1", b"null",
    b"[" * 2000, b'{"a":' * 2000, b"\x91" * 2000, b"\x81\xa1a" * 2000,
)  # fmt: skip


def cases(target: Target, dice: random.Random) -> Iterator[bytes]:
    """Damaged messages without end."""
    seeds = target.seeds or (b"\x80", b"{}")
    while True:
        body = bytearray(dice.choice(seeds))
        for _ in range(dice.randrange(1, 5)):
            at = dice.randrange(len(body) + 1)
            match dice.randrange(6):
                case 0 if at < len(body):
                    body[at] = dice.randrange(256)
                case 1:
                    del body[at:]
                case 2:
                    body[at:at] = dice.choice(_ODD)
                case 3:
                    body[at:at] = dice.randbytes(dice.randrange(16))
                case 4:
                    other = dice.choice(seeds)
                    body[at:] = other[dice.randrange(len(other) + 1) :]
                case _:
                    del body[at : at + dice.randrange(8)]
        yield bytes(body)


def fuzz(name: str, seed: int | str, count: int) -> int:
    """Feed `count` cases; how many were refused. Raises AssertionError at an undocumented error.

    What is in a checkpoint's storage has fuzzers of its own, which know its hashes.
    """
    target, refused = TARGETS[name], 0
    for number, body in zip(range(count), cases(target, random.Random(f"{seed}/{name}")), strict=False):
        try:
            target.read(body)
        except target.raises as error:
            refused += 1
            if not str(error):
                raise AssertionError(f"{name}, seed {seed}, case {number}: refused without a word") from error
        except Exception as error:
            told = f"{name}, seed {seed}, case {number}: {type(error).__name__}: {error}: {body[:200]!r}"
            raise AssertionError(told) from error
    return refused


def _resident_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(seconds: float = 3600.0, seed: int | None = None) -> None:
    """Fuzz all of them for so long, and print what was done."""
    base = secrets.randbits(32) if seed is None else seed
    ends, turn, fed = time.monotonic() + seconds, 0, 0
    before = 0.0
    while time.monotonic() < ends:
        for name in TARGETS:
            fuzz(name, f"{base}.{turn}", 2000)
            fed += 2000
        for number, stored in enumerate(FUZZERS.values()):
            stored((base << 32) + turn * len(FUZZERS) + number, 2000)
            fed += 2000
        turn += 1
        before = before or _resident_mib()  # after the first turn everything was used once
    grown = _resident_mib() - before
    print(
        f"{fed} cases over {len(TARGETS) + len(FUZZERS)} decoders, seed {base}: "
        f"no undocumented error, memory grew {grown:.1f} MiB"
    )
    assert grown < MESSAGES_LEFT_OVER_MIB, "memory grows with what is fed"


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 3600.0, int(sys.argv[2]) if len(sys.argv) > 2 else None)
