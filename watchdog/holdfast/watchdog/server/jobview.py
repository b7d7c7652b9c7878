"""One job as whoever watches it is told: what changed since the last look, as messages of the feed."""

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from holdfast.api.condition import Condition
from holdfast.api.errors import HoldfastError
from holdfast.api.feed import (
    GPU_HEALTHS,
    GpusTold,
    HeatTold,
    Hour,
    IncidentTold,
    JobTold,
    NodeRanks,
    NodeRemark,
    NodesTold,
    PlacesTold,
    RanksTold,
    StepsTold,
    Told,
)
from holdfast.api.incident import Incident
from holdfast.api.round import Round
from holdfast.api.telemetry import RankSample
from holdfast.watchdog.brain.status import pending_tests, status_of, with_trouble
from holdfast.watchdog.server.fleet import FleetMemory
from holdfast.watchdog.server.host import JobHost
from holdfast.watchdog.server.jobs import incidents_of, silent_after_s
from holdfast.watchdog.server.rankcolumns import RankColumns, floats, ranks

logger = logging.getLogger(__name__)

# What moves slowly, or means little alone, is looked at as often in a large job: processes, GPUs, nodes.
CLOSELY_EVERY: Final = 5
NODES_IN_A_ROW: Final = 512
INCIDENTS_TOLD: Final = 100
STATUS_AT_MOST_EVERY_S: Final = 0.2

_HEALTH_NUMBERS: Final = {health: number for number, health in enumerate(GPU_HEALTHS)}
_ENCODE = msgspec.msgpack.Encoder().encode


class JobView:
    """Of one job: `frames` are the newest messages of each kind, encoded; `put` is given those that changed."""

    def __init__(self, host: JobHost, fleet: FleetMemory, put: Callable[[tuple[str, str], bytes], None]) -> None:
        self.host = host
        self.frames: dict[tuple[str, str], bytes] = {}
        self._put = put
        self._fleet = fleet
        self._name = host.job.name
        self._looks = 0
        self._news = -1  # of the host, at the last look
        self._columns = RankColumns()
        self._incidents: dict[str, Incident] = {}
        self._told: dict[str, object] = {}  # by kind: what was told last
        self._status_at = 0.0
        self._layout = self._looked_at = 0
        self._places: object = None
        self._nodes: tuple[str, ...] = ()

    def decided(self) -> None:
        """Tell of a decision at once; of many in a row, the status waits for the next look."""
        self._tell_incidents()
        if self.host.clock.now() >= self._status_at + STATUS_AT_MOST_EVERY_S:
            self._tell_status()

    def look(self) -> Iterator[None]:
        """Tell what changed since the last look; others get their turn at each None."""
        closely = self._looks % CLOSELY_EVERY == 0
        large = len(self._nodes) > NODES_IN_A_ROW
        self._looks += 1
        if not closely and self.host.news == self._news:
            return
        self._news = self.host.news
        closely = closely or not large
        self._tell_incidents()
        progress = self.host.job.progress
        shares, heard = progress.heard() if progress is not None else (None, {})
        samples = list(heard.values())
        self._tell_places(shares, heard)
        yield from self._columns.look(samples, closely=closely or self._layout != self._looked_at)
        self._looked_at = self._layout
        self._tell_ranks()
        self._tell_status()
        if closely:
            yield from self._tell_nodes()

    def _tell(self, kind: str, told: Told, compared: object = None) -> None:
        """Unless it says what was said last; `compared` is what of it counts."""
        compared = told if compared is None else compared
        if self._told.get(kind) == compared:
            return
        self._told[kind] = compared
        self._send(kind, told)

    def _send(self, kind: str, told: Told) -> None:
        key, frame = (self._name, kind), _ENCODE(told)
        self.frames[key] = frame
        self._put(key, frame)

    def _tell_status(self) -> None:
        job, now = self.host.job, self.host.clock.now()
        self._status_at = now
        seen = _Seen(job.progress.step(), self._columns) if job.progress is not None else None
        status = with_trouble(status_of(job.shown, seen, now), job.trouble)
        policy, ledger = job.state.policy, job.state.ledger
        amount = ledger.price_of_all
        told = JobTold(
            self._name,
            status,
            flops=policy.flops if policy else None,
            hour=Hour(amount, ledger.currency) if amount is not None else None,
        )
        self._tell("job", told, msgspec.structs.replace(told, status=msgspec.structs.replace(status, now=0.0)))

    def _tell_incidents(self) -> None:
        """Those that changed: an incident is never changed in place. At first also those that are filed."""
        newest: dict[str, Incident] = {each.id: each for each in self.host.job.state.incidents}
        if not self._incidents:
            try:
                newest = dict(list(incidents_of(self.host).items())[-INCIDENTS_TOLD:])
            except HoldfastError as error:
                logger.warning("filed incidents are not told job=%s reason=%s", self._name, error)
        for id, incident in newest.items():
            if self._incidents.get(id) is not incident:
                self._incidents[id] = incident
                self._send(f"incident {id}", IncidentTold(self._name, incident))
        for id in list(self._incidents)[: max(0, len(self._incidents) - INCIDENTS_TOLD)]:
            if id not in newest:
                del self._incidents[id]
                self.frames.pop((self._name, f"incident {id}"), None)

    def _tell_places(self, shares: Round | None, heard: Mapping[int, RankSample]) -> None:
        """Where the job is; a new layout of the columns whenever somebody came or the round is another one."""
        taken, running = self.host.taken, self.host.job.state.desired
        number = running.number if isinstance(running, Round) else None
        places = (number, shares, len(heard), len(taken), self.host.job.state.racks)
        if places == self._places:
            return
        self._places = places
        self._layout += 1
        parts = shares.ranks if shares is not None else ()
        self._nodes = tuple(sorted({*taken, *(each.node for each in parts)}))
        index = {node: number for number, node in enumerate(self._nodes)}
        racks = self.host.job.state.racks
        told = PlacesTold(
            self._name,
            self._layout,
            round=number,
            world=shares.world_size if shares is not None else 0,
            nodes=self._nodes,
            racks=tuple(racks.get(node, "") for node in self._nodes),
            ranks=tuple(NodeRanks(index[each.node], each.first_rank, each.local_size) for each in parts),
            order=ranks(list(heard)),
        )
        self._tell("places", told)

    def _tell_ranks(self) -> None:
        of = self._columns
        self._tell("ranks", RanksTold(self._name, self._layout, of.phase, of.process))
        steps = StepsTold(self._name, self._layout, self.host.clock.now(), of.columns, of.waited)
        self._tell("steps", steps, (self._layout, of.columns))

    def _tell_nodes(self) -> Iterator[None]:
        """What there is to say of the nodes and of their GPUs."""
        host, now = self.host, self.host.clock.now()
        policy, nodes, layout = host.job.state.policy, self._nodes, self._layout
        silent_s = silent_after_s(policy) if policy is not None else math.inf
        avoided = {order.node: order.reason for order in host.job.state.avoided}
        pending = {test.node: f"{test.level} self-test pending" for test in pending_tests(host.job.state)}
        tested = {**host.job.state.links.bad, **pending}
        remarks: list[NodeRemark] = []
        uuids: list[tuple[str, ...]] = []
        health, heat = bytearray(), bytearray()
        for first in range(0, len(nodes), NODES_IN_A_ROW):
            for number, node in enumerate(nodes[first : first + NODES_IN_A_ROW], first):
                report = host.taken.get(node)
                silent = report is None or now - host.taken_at[node] > silent_s
                known = self._fleet.told_of(node, now, self._name)
                conditions = report.conditions if report is not None else ()
                remark = NodeRemark(
                    number, silent, avoided.get(node, ""), known, tested.get(node, ""), _ageless(conditions)
                )
                if remark != NodeRemark(number):
                    remarks.append(remark)
                gpus = report.gpus if report is not None else ()
                uuids.append(tuple([gpu.uuid for gpu in gpus]))
                health += bytes([_HEALTH_NUMBERS[gpu.health] for gpu in gpus])
                heat += floats([gpu.temperature_c for gpu in gpus])
            yield None
        self._tell("nodes", NodesTold(self._name, layout, tuple(remarks)))
        self._tell("gpus", GpusTold(self._name, layout, tuple(uuids)))
        self._tell("heat", HeatTold(self._name, layout, bytes(health), bytes(heat)))


def _ageless(conditions: tuple[Condition, ...]) -> tuple[Condition, ...]:
    """Their ages grow all the time, and are no news."""
    return tuple([msgspec.structs.replace(each, age_s=0.0) for each in conditions]) if conditions else ()


class _Seen(msgspec.Struct, frozen=True):
    """What a status asks of the ranks, from the columns made last."""

    newest: int | None
    columns: RankColumns

    def step(self) -> int | None:
        return self.newest

    def loss(self) -> float | None:
        return self.columns.loss()

    def step_time_s(self) -> float | None:
        return self.columns.step_time_s()
