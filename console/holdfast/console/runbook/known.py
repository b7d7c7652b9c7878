"""What is known of a job when somebody asks: what its watchdog answers, as it was read."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final, TypeVar

import msgspec

from holdfast.api.condition import Condition, ConditionState
from holdfast.api.event import (
    JobSubmitted,
    Journaled,
    MemberEntered,
    MemberJoined,
    MembersEntered,
    PodChanged,
    RestoreReported,
    RoundProgressed,
    RunRecorded,
    entries_of,
)
from holdfast.api.incident import Incident, IncidentState
from holdfast.api.plan import Plan, PodState
from holdfast.api.policy import Policy
from holdfast.api.round import Desired, Round
from holdfast.api.runmanifest import RunManifest
from holdfast.api.status import Hearing, JobPhase, JobStatus, NodeStatus, RankStatus

WINDOW_S: Final = 7200.0
FRESH_S: Final = 900.0
HEALED_S: Final = 60.0
SILENT_S: Final = 30.0
"""After so long a rank that nobody heard of is Unknown."""
E = TypeVar("E")


class Restored(msgspec.Struct, frozen=True):
    """Rank 0 of `round` said `at` that it had restored `step` (None: it began anew); `high` is the highest step
    that was complete before, None: Unknown.
    """

    at: float
    round: int
    step: int | None
    high: int | None


class Known(msgspec.Struct, frozen=True, dict=True):
    """One job. None is what could not be read, `unread` says why, by the field's name.

    `now` is the watchdog's clock. What happened in the `window_s` seconds before is looked at. `journal` are its
    lines, oldest first; it is whole when its first line is the job's first.
    """

    job: str
    now: float
    window_s: float = WINDOW_S
    phase: str | None = None
    reason: str = ""
    status: JobStatus | None = None
    ranks: Sequence[RankStatus] | None = None
    nodes: Sequence[NodeStatus] | None = None
    incidents: Sequence[Incident] | None = None
    journal: Sequence[Journaled] | None = None
    desired: Desired | None = None
    plan: Plan | None = None
    unread: Mapping[str, str] = {}

    def why_unread(self, field: str) -> str:
        """Why a field is None."""
        return f"{field} could not be read: {self.unread.get(field, 'nobody has said')}"

    @property
    def since(self) -> float:
        return self.now - self.window_s

    @property
    def span(self) -> str:
        """The window, in words."""
        return f"the last {duration(self.window_s)}{' before its end' if self.is_over else ''}"

    def ago(self, at: float) -> str:
        """How long before somebody asked; of a job that is over, before its end."""
        return f"{duration(max(0.0, self.now - at))} {'before its end' if self.is_over else 'ago'}"

    # incidents

    def recent(self) -> Sequence[Incident]:
        """Incidents that are open, wait for a human or were detected in the window, oldest first."""
        return [each for each in self.incidents or () if self.is_pressing(each) or each.detected_at >= self.since]

    def is_pressing(self, incident: Incident) -> bool:
        """Whether it is open, or waits for a human: of the window, or what a job failed of. Older ones stay Paged
        though the job went on.
        """
        if incident.state is IncidentState.PAGED:
            return incident.detected_at >= self.since or self.phase == JobPhase.FAILED
        return incident.state is IncidentState.OPEN

    def is_fresh(self, incident: Incident) -> bool:
        """Whether it may be what somebody is called about."""
        return self.is_pressing(incident) or incident.detected_at >= self.now - FRESH_S

    def is_healed(self, incident: Incident) -> bool:
        """Whether the job made steps again, and has for a while: what it does now is hardly of that."""
        return incident.recovered_at is not None and incident.recovered_at < self.now - HEALED_S

    # the journal

    def told(self, kind: type[E]) -> Sequence[tuple[float, E]]:
        """Every event of a kind, with its time, oldest first."""
        return [(at, event) for at, event in self._by_kind.get(kind, ()) if isinstance(event, kind)]

    @cached_property
    def _by_kind(self) -> Mapping[type, list[tuple[float, object]]]:
        found: dict[type, list[tuple[float, object]]] = defaultdict(list)
        for line in self.journal or ():
            found[type(line.event)].append((line.at, line.event))
        return found

    @property
    def is_whole(self) -> bool:
        """Whether nothing of the window is missing in the journal."""
        if not self.journal:
            return False
        return self.journal[0].offset == 1 or self.journal[0].at <= self.since

    @property
    def age_s(self) -> float | None:
        """How old the job is; None where the journal does not go back to its first line."""
        return self.now - self.journal[0].at if self.journal and self.journal[0].offset == 1 else None

    @property
    def policy(self) -> Policy | None:
        told = self.told(JobSubmitted)
        return told[-1][1].policy if told else None

    @cached_property
    def manifests(self) -> Sequence[tuple[float, RunManifest]]:
        """How the run was started, each time otherwise than before, oldest first."""
        return [(at, event.manifest) for at, event in self.told(RunRecorded)]

    @cached_property
    def restored(self) -> Sequence[Restored]:
        """Every round that began, as rank 0 told, oldest first."""
        found, high = [], None
        for line in self.journal or ():
            match line.event:
                case RoundProgressed(step=step):
                    high = step if high is None else max(high, step)
                case RestoreReported(round=number, step=step):
                    found.append(Restored(line.at, number, step, high))
        return found

    @cached_property
    def worlds(self) -> Sequence[tuple[float, int, int]]:
        """When each round was entered first, its number, and how many ranks entered it."""
        sizes: dict[str, int] = {}
        rounds: dict[int, tuple[float, set[str]]] = {}
        for line in self.journal or ():
            match line.event:
                case MemberJoined(member=name, local_size=size):
                    sizes[name] = size
                case MemberEntered() | MembersEntered():
                    for each in entries_of(line.event):
                        rounds.setdefault(each.round, (line.at, set()))[1].add(each.member)
        return [
            (at, number, sum(sizes[name] for name in members))
            for number, (at, members) in sorted(rounds.items())
            if members <= sizes.keys()
        ]

    # ranks and nodes

    @property
    def round(self) -> Round | None:
        return self.desired if isinstance(self.desired, Round) else None

    @cached_property
    def unheard(self) -> str:
        """Why nobody can say what all ranks do; empty when all are heard."""
        if self.ranks is None:
            return self.why_unread("ranks")
        if not self.ranks:
            return "no rank runs"
        silent = [each for each in self.ranks if each.heard_age_s is None or each.heard_age_s > SILENT_S]
        return f"{len(silent)} of {len(self.ranks)} ranks are not heard (on {nodes_of(silent)})" if silent else ""

    @cached_property
    def blind(self) -> str:
        """Why nobody can say how the machines are; empty when all agents are heard."""
        if self.nodes is None:
            return self.why_unread("nodes")
        if not self.nodes:
            return "no agent has reported"
        away = {each.node for each in self.nodes if each.hearing is not Hearing.HEARD}
        mute = {each.node for each in self.ranks or ()} - {each.node for each in self.nodes}
        lost = sorted(away | mute)
        return f"{many(len(lost), 'node')} not heard: {listed(lost)}" if lost else ""

    def raised(self) -> Iterator[tuple[NodeStatus, Condition]]:
        """Every condition that holds, with its node."""
        for node in self.nodes or ():
            for each in node.conditions:
                if each.state is ConditionState.RAISED:
                    yield node, each

    @cached_property
    def dark(self) -> str:
        """Why nobody can say what all sensors would; empty when all agents are heard and read all of theirs."""
        if self.blind:
            return self.blind
        found = [(each, each.unreadable[0]) for each in self.nodes or () if each.unreadable]
        if not found:
            return ""
        node, first = found[0]
        return f"{many(len(found), 'node')} cannot read all sensors; {node.node}: {first.source} ({first.reason})"

    def young(self, least_s: float) -> str:
        """Why it is too early to tell: detectors learn what is usual in each round. Empty once they had time."""
        if self.journal is None:
            return self.why_unread("journal")
        at = self.restored[-1].at if self.restored else None
        if at is None or self.now - at >= least_s:
            return ""
        return f"the round began {self.ago(at)}, and what is usual in it is learned in about {duration(least_s)}"

    @cached_property
    def losses(self) -> Sequence[tuple[RankStatus, float]]:
        """The ranks that tell a loss, with it."""
        return [(each, float(each.loss)) for each in self.ranks or () if each.loss is not None]

    @property
    def is_over(self) -> bool:
        return self.status is not None and self.status.ended_at is not None


def pending(known: Known) -> Sequence[PodChanged]:
    """Of each pod that the cluster has not started the newest word."""
    newest = {event.member: event for _, event in known.told(PodChanged)}
    return [each for each in newest.values() if each.state is PodState.PENDING]


def duration(seconds: float) -> str:
    """Roughly how long, as a person says it."""
    for size, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def many(count: int, what: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def listed(names: Sequence[str], most: int = 5) -> str:
    """Some names, and how many more there are."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def nodes_of(ranks: Sequence[RankStatus]) -> str:
    return listed(sorted({each.node for each in ranks}))
