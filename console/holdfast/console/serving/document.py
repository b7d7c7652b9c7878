"""What the console answers about a job, made of what was heard. Times are seconds on the watchdog's clock."""

import math
import struct
from typing import Any, Final

import msgspec
import numpy as np

from holdfast.api.feed import GPU_HEALTHS, JobTold
from holdfast.api.incident import Incident
from holdfast.api.status import JobPhase, JobStatus
from holdfast.console.feed import Feed
from holdfast.console.heard import PHASES, JobHeard

RANKS_VERSION: Final = 1
INCIDENTS_SHOWN: Final = 100
# Those with something to say come first: of a large job nobody reads more.
NODES_SHOWN: Final = 1000

_ENCODE = msgspec.json.Encoder().encode


class GpuShown(msgspec.Struct, frozen=True, gc=False):
    """One GPU. `why` is what an incident or a condition says of it."""

    uuid: str
    state: str
    temperature_c: float | None
    why: str | None


class NodeShown(msgspec.Struct, frozen=True):
    """One node: `state` is heard, silent, avoided, suspect or tested, and `why` says more."""

    name: str
    rack: str | None
    state: str
    why: str | None
    ranks: tuple[int, ...]
    gpus: tuple[GpuShown, ...]


class Line(msgspec.Struct, frozen=True):
    """The job in one line."""

    phase: str
    step: int | None
    target_steps: int | None
    tokens_s: float | None
    mfu: float | None
    ettr: float | None
    left_s: float | None
    money_h: float | None
    currency: str | None


def line_of(job: JobHeard, told: JobTold) -> Line:
    """Rates are those of the newest step; while none is made nobody knows them. Money goes on meanwhile, for all
    that the job holds.
    """
    point, status, hour = job.series.newest(), told.status, told.hour
    trains = status.phase is JobPhase.RUNNING and job.round is not None
    return Line(
        phase=status.phase.value,
        step=status.step,
        target_steps=status.until_step,
        tokens_s=_known(point.tokens_s) if point is not None and trains else None,
        mfu=_known(point.mfu) if point is not None and trains else None,
        ettr=status.ettr,
        left_s=_left_s(job, status) if trains else None,
        money_h=hour.amount if hour is not None else None,
        currency=hour.currency if hour is not None else None,
    )


def _left_s(job: JobHeard, status: JobStatus) -> float | None:
    """How long the steps that are left take at the pace of late; None where a script does not say how many, or has
    gone beyond what it said.
    """
    pace_s, step, until = job.series.pace_s(), status.step, status.until_step
    if pace_s is None or step is None or until is None or step > until:
        return None
    return (until - step) * pace_s


def summary_of(name: str, told: JobTold) -> dict[str, Any]:
    """A job as one of a list."""
    namespace, _, short = name.partition("/")
    status = told.status
    return {
        "namespace": namespace,
        "name": short,
        "phase": status.phase.value,
        "step": status.step,
        "ettr": status.ettr,
        "open_incidents": status.incidents_open,
    }


def incidents_of(job: JobHeard) -> list[Incident]:
    """The newest first."""
    return sorted(job.incidents.values(), key=lambda each: (each.detected_at, each.id), reverse=True)


def nodes_of(job: JobHeard) -> list[NodeShown]:
    """Those with something to say first, then by name; NODES_SHOWN at most."""
    places = job.places
    if places is None:
        return []
    of_node = _ranks_by_node(job)
    order = sorted(range(len(places.nodes)), key=lambda index: (index not in job.remarks, places.nodes[index]))
    blamed = _blamed(job)
    order.sort(key=lambda index: places.nodes[index] not in blamed)
    offsets, heat = _gpu_offsets(job), job.heat()
    shown = []
    for index in order[:NODES_SHOWN]:
        name = places.nodes[index]
        state, why = _node_state(job, index, blamed.get(name))
        gpus = job.gpus.uuids[index] if job.gpus is not None and index < len(job.gpus.uuids) else ()
        known = heat if state != "silent" else None
        whys = _gpu_whys(job, index)
        shown.append(
            NodeShown(
                name=name,
                rack=places.racks[index] or None,
                state=state,
                why=why,
                ranks=of_node.get(index, ()),
                gpus=tuple(
                    GpuShown(
                        uuid,
                        "unknown" if known is None else GPU_HEALTHS[known[0][number]].value.lower(),
                        None if known is None else _known(round(float(known[1][number]), 1)),
                        whys.get(uuid),
                    )
                    for number, uuid in enumerate(gpus, offsets[index] if gpus else 0)
                ),
            )
        )
    return shown


def _ranks_by_node(job: JobHeard) -> dict[int, tuple[int, ...]]:
    found: dict[int, tuple[int, ...]] = {}
    for share in job.places.ranks if job.places is not None else ():
        found[share.node] = (*found.get(share.node, ()), *range(share.first, share.first + share.count))
    return found


def _gpu_offsets(job: JobHeard) -> list[int]:
    counts = [len(each) for each in job.gpus.uuids] if job.gpus is not None else []
    return [0, *np.cumsum(counts).tolist()] if counts else []


def _blamed(job: JobHeard) -> dict[str, str]:
    """The nodes that open incidents blame, and what they say."""
    return {each.culprit.node: f"{each.kind}: {each.cause}" for each in job.open_incidents() if each.culprit.node}


def _node_state(job: JobHeard, index: int, blame: str | None) -> tuple[str, str | None]:
    remark = job.remarks.get(index)
    if remark is None:
        return ("suspect", blame) if blame else ("heard", None)
    if remark.silent:
        return "silent", "its agent does not report"
    if remark.avoided:
        return "avoided", remark.avoided
    if remark.tested:
        return "tested", remark.tested
    says = [each.says or each.kind.value for each in remark.conditions]
    why = "; ".join([*([blame] if blame else []), *says, *([remark.known] if remark.known else [])])
    return "suspect", why or None


def _gpu_whys(job: JobHeard, index: int) -> dict[str, str]:
    remark = job.remarks.get(index)
    whys = {each.gpu: each.says for each in remark.conditions if each.gpu} if remark is not None else {}
    return whys | {each.culprit.gpu: each.cause for each in job.open_incidents() if each.culprit.gpu}


def ranks_of(job: JobHeard) -> bytes:
    """The columns of all ranks: u32 version, u32 n; of each rank node u32, step u32, phase u8, health u8, zeros
    to a multiple of four bytes, step time f32, loss f32. Little-endian.
    """
    columns = job.columns()
    n = len(columns.node)
    small = columns.phase.tobytes() + columns.health.tobytes()
    return b"".join(
        (
            struct.pack("<II", RANKS_VERSION, n),
            columns.node.astype("<u4").tobytes(),
            columns.step.astype("<u4").tobytes(),
            small + bytes(-len(small) % 4),
            columns.step_s.astype("<f4").tobytes(),
            columns.loss.astype("<f4").tobytes(),
        )
    )


def names_of(job: JobHeard) -> bytes:
    """What the numbers in the columns of ranks stand for; a rack for each node, null where it is not known."""
    places = job.places
    nodes, racks = (places.nodes, [each or None for each in places.racks]) if places is not None else ((), [])
    return _ENCODE({"nodes": nodes, "racks": racks, "phases": PHASES})


def series_of(job: JobHeard, points: int) -> bytes:
    """The figures over time, and the incidents among them."""
    columns: dict[str, Any] = job.series.columns(points)
    columns["step"] = [None if each is None else int(each) for each in columns["step"]]
    marks = [
        {"at": each.began_at, "incident": each.id, "kind": each.kind.value, "state": each.state.value}
        for each in incidents_of(job)[::-1]
    ]
    return _ENCODE({**columns, "marks": marks})


def point_of(job: JobHeard) -> bytes | None:
    """The newest point, as it is told in the stream; None where there is none."""
    point = job.series.newest()
    if point is None:
        return None
    values = {name: _known(getattr(point, name)) for name in point.__slots__}
    step = values["step"]
    return _ENCODE({**values, "step": None if step is None else int(step)})


class Documents:
    """One job's document, its larger parts made again only when what they say was told anew."""

    def __init__(self, job: JobHeard) -> None:
        self.job = job
        self._incidents = self._nodes = (-1, b"")
        self._ranks = (-1, b"")

    def ranks(self) -> bytes:
        version = self.job.versions["ranks"]
        if self._ranks[0] != version:
            self._ranks = version, ranks_of(self.job)
        return self._ranks[1]

    def incidents(self) -> bytes:
        version = self.job.versions["incidents"]
        if self._incidents[0] != version:
            self._incidents = version, _ENCODE(incidents_of(self.job)[:INCIDENTS_SHOWN])
        return self._incidents[1]

    def nodes(self) -> bytes:
        version = self.job.versions["nodes"] + self.job.versions["incidents"]
        if self._nodes[0] != version:
            self._nodes = version, _ENCODE(nodes_of(self.job))
        return self._nodes[1]

    def whole(self, feed: Feed, *, incidents: bool = True, nodes: bool = True) -> bytes:
        """The document; a part that is left out is null. Not before the job's status was told."""
        told = self.job.told
        assert told is not None
        head = {
            "heard_at": max(told.status.now, feed.heard_at or 0.0),
            "stale_s": feed.stale_s,
            "status": told.status,
            "line": line_of(self.job, told),
            "round": self.job.round,
            "world": self.job.world,
        }
        parts = (
            b'"incidents":' + (self.incidents() if incidents else b"null"),
            b'"nodes":' + (self.nodes() if nodes else b"null"),
        )
        return b"".join((_ENCODE(head)[:-1], b",", b",".join(parts), b"}"))


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
