"""What the whole fleet has failed by, and for how long it was watched: the one record behind places and rates.

Two things are kept of all jobs together: each failure, with what was known of its nodes then, and the GPU time in
which nothing or something failed, by everything that failures are told apart by. Both in weeks: a week that is too
old goes with its failures and its GPU time, so that a rate always divides what belongs together. A job that is
deleted leaves both behind.
"""

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from holdfast.api.finding import OF_NODES, FindingKind
from holdfast.api.incident import Incident, Rung
from holdfast.api.place import FaultFamily, Place
from holdfast.watchdog.brain.gatherings import Exposure, Located, family_of, nodes_of

HOUR_S: Final = 3600.0
WEEK_S: Final = 7 * 86400.0
WEEKS_KEPT: Final = 13
# Places are judged by four whole weeks and the one that is running, as nodes are looked back over 28 days.
# Source: https://arxiv.org/abs/2410.21680
WEEKS_JUDGED: Final = 5
# A node that fails in the same way again within this time has not been mended in between.
EPISODE_S: Final = 3600.0
FAILURES_KEPT: Final = 4096
# Beyond this many of a kind, the GPU time of further ones is not told apart: whoever invents labels fills nothing.
GROUPS_MAX: Final = 4096

BAND_C: Final = 10
NOTHING_KNOWN: Final[Mapping[str, float]] = MappingProxyType({})

# What breaks by itself. What a script or its data did is no failure of the fleet.
OF_THE_FLEET: Final = OF_NODES | {FindingKind.PROCESS_EXIT, FindingKind.COLLECTIVE_FAILED, FindingKind.HANG}


class Failure(msgspec.Struct, frozen=True):
    """One incident of a job, as far as the fleet is concerned. `where` are the places of the nodes it names.

    `interrupts`: training stood still for it. `celsius` is how hot the hottest GPU of its node was, None where it
    names no node or nobody knows.
    """

    job: str
    incident: str
    at: float
    kind: FindingKind
    cause: str
    family: FaultFamily | None
    interrupts: bool
    celsius: float | None = None
    where: dict[str, tuple[Place, ...]] = {}


class Spent(msgspec.Struct, frozen=True):
    """GPU time of one week, in GPU-seconds, and node time in node-seconds: of everything, behind each place by its
    kind, and by kind of all nodes with such a place. `hours` are by hour of the day (UTC), `bands` by band of
    temperature, as far as that is known.
    """

    gpu_s: float = 0.0
    node_s: float = 0.0
    behind: dict[str, dict[str, float]] = {}
    of_kind: dict[str, float] = {}
    hours: dict[int, float] = {}
    bands: dict[str, float] = {}


class Failures(msgspec.Struct, frozen=True):
    """`spent` is by the number of the week since 1970."""

    failures: tuple[Failure, ...] = ()
    spent: dict[int, Spent] = {}


def week_of(at: float) -> int:
    return int(at // WEEK_S)


def failure_of(
    incident: Incident, places: Mapping[str, tuple[Place, ...]], heat: Mapping[str, float]
) -> Failure | None:
    """What an incident is to the fleet; None where it is nothing of its."""
    is_exit = incident.kind is FindingKind.PROCESS_EXIT and not incident.cause.startswith("signal")
    if incident.kind not in OF_THE_FLEET or is_exit or incident.innocent or incident.own_rule:
        return None
    nodes = nodes_of(incident.culprit)
    return Failure(
        job=incident.job,
        incident=incident.id,
        at=incident.detected_at,
        kind=incident.kind,
        cause=incident.cause,
        family=family_of(incident.kind, incident.culprit, incident.cause),
        interrupts=any(each.rung > Rung.SKIP_STEP and each.round is not None for each in incident.actions),
        celsius=next((heat[node] for node in nodes if node in heat), None),
        where={node: places.get(node, ()) for node in nodes},
    )


def failed(
    known: Failures,
    incident: Incident,
    places: Mapping[str, tuple[Place, ...]],
    heat: Mapping[str, float] = NOTHING_KNOWN,
) -> Failures:
    """The record that knows of this incident. Told again, or of its later versions, it is the same failure.

    `places` and `heat` (degrees Celsius) are by node.
    """
    failure = failure_of(incident, places, heat)
    at = _place_of(known, incident)
    if failure is None:
        if at is None:
            return known
        return msgspec.structs.replace(known, failures=(*known.failures[:at], *known.failures[at + 1 :]))
    if at is not None:
        # Where its nodes were when it began: by now they may be gone.
        where = {node: known.failures[at].where.get(node) or each for node, each in failure.where.items()}
        failure = msgspec.structs.replace(failure, where=where, celsius=known.failures[at].celsius)
        if failure == known.failures[at]:
            return known
        return msgspec.structs.replace(known, failures=(*known.failures[:at], failure, *known.failures[at + 1 :]))
    if _goes_on(known, failure):
        return known
    return _kept(msgspec.structs.replace(known, failures=(*known.failures, failure)), failure.at)


def _place_of(known: Failures, incident: Incident) -> int | None:
    """Where it is kept, None where it is not. The next job of the same name counts incidents from one again."""
    named = incident.detected_at, incident.id, incident.job
    each = known.failures
    places = range(len(each) - 1, -1, -1)
    return next((n for n in places if (each[n].at, each[n].incident, each[n].job) == named), None)


def _goes_on(known: Failures, failure: Failure) -> bool:
    """Whether it is one that was told of a short while ago, come back."""
    alike = (failure.job, failure.kind, failure.cause, failure.where.keys())
    return bool(failure.where) and any(
        failure.at - each.at < EPISODE_S and (each.job, each.kind, each.cause, each.where.keys()) == alike
        for each in reversed(known.failures[-64:])
    )


class Nodes(msgspec.Struct, frozen=True):
    """What is known of the nodes of a round: how many GPUs each has, the places of each, how hot each is."""

    gpus: int
    places: tuple[tuple[Place, ...], ...]
    celsius: tuple[float, ...] = ()


def trained(known: Failures, since: float, until: float, nodes: Nodes) -> Failures:
    """The record after these nodes had ranks from `since` to `until` (seconds)."""
    count, bands = Counter(nodes.places), Counter(map(band_of, nodes.celsius))
    spent = dict(known.spent)
    while since < until:
        end = min(until, (since // HOUR_S + 1) * HOUR_S)
        week = week_of(since)
        spent[week] = _more(spent.get(week, Spent()), since, end - since, nodes.gpus, count, bands)
        since = end
    return _kept(Failures(known.failures, spent), until)


def band_of(celsius: float) -> str:
    """The band of ten degrees, as it is told: "60-69"."""
    low = int(celsius // BAND_C) * BAND_C
    return f"{low}-{low + BAND_C - 1}"


def hour_of(at: float) -> int:
    """The hour of the day, UTC."""
    return int(at // HOUR_S) % 24


def _more(
    spent: Spent,
    at: float,
    seconds: float,
    gpus: int,
    count: Mapping[tuple[Place, ...], int],
    bands: Mapping[str, int],
) -> Spent:
    behind = {kind: dict(each) for kind, each in spent.behind.items()}
    of_kind, hours, hot = dict(spent.of_kind), dict(spent.hours), dict(spent.bands)
    for places, many in count.items():
        gpu_s = seconds * gpus * many
        for kind in {each.kind for each in places}:
            of_kind[kind] = of_kind.get(kind, 0.0) + gpu_s
        for place in places:
            told = behind.setdefault(place.kind, {})
            if place.name in told or len(told) < GROUPS_MAX:
                told[place.name] = told.get(place.name, 0.0) + gpu_s
    for band, many in bands.items():
        hot[band] = hot.get(band, 0.0) + seconds * gpus * many
    node_s = seconds * sum(count.values())
    hours[hour_of(at)] = hours.get(hour_of(at), 0.0) + gpus * node_s
    return Spent(spent.gpu_s + gpus * node_s, spent.node_s + node_s, behind, of_kind, hours, hot)


def _kept(known: Failures, now: float) -> Failures:
    """Without weeks that are too old; with too many failures the oldest week goes, and its GPU time with it."""
    first = week_of(now) - WEEKS_KEPT + 1
    weeks = sorted({*known.spent, *(week_of(each.at) for each in known.failures)})
    failures = tuple(each for each in known.failures if week_of(each.at) >= first)
    while len(failures) > FAILURES_KEPT and len(weeks := [each for each in weeks if each >= first]) > 1:
        first = weeks[1]
        failures = tuple(each for each in failures if week_of(each.at) >= first)
    spent = {week: each for week, each in known.spent.items() if week >= first}
    return Failures(failures[-FAILURES_KEPT:], spent)


# What of it is asked about places.


def located(known: Failures, now: float) -> list[Located]:
    """The failures of the weeks by which places are judged, of a kind that a place can bring about."""
    first = week_of(now) - WEEKS_JUDGED + 1
    return [
        Located(each.at, each.family, each.where)
        for each in known.failures
        if each.family is not None and each.where and week_of(each.at) >= first
    ]


def exposure(known: Failures, now: float) -> Exposure:
    """The GPU time of the same weeks."""
    first = week_of(now) - WEEKS_JUDGED + 1
    behind: dict[Place, float] = {}
    of_kind: dict[str, float] = {}
    for week, spent in known.spent.items():
        if week < first:
            continue
        for kind, gpu_s in spent.of_kind.items():
            of_kind[kind] = of_kind.get(kind, 0.0) + gpu_s
        for kind, names in spent.behind.items():
            for name, gpu_s in names.items():
                place = Place(kind, name)
                behind[place] = behind.get(place, 0.0) + gpu_s
    return Exposure(behind, of_kind)
