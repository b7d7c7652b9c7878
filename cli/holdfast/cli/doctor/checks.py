"""The checks of an installation: pure functions of the facts, in the order they are told."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from holdfast.api.cordon import CORDON_TAINT, CORDONED_BY
from holdfast.api.kubernetes_versions import NEWEST, OLDEST, minor_of
from holdfast.api.standing import Standing
from holdfast.cli.cluster.kubeapi import Right
from holdfast.cli.cluster.record import JobRecord
from holdfast.cli.doctor.facts import (
    Document,
    Facts,
    Finding,
    InterventionSeen,
    Level,
    NodeSeen,
    PodSeen,
    Unseen,
    Workload,
    unseen,
)

Fact = TypeVar("Fact")
Definitions = Mapping[str, Document | None]
OUTDATED_LEASE: Final = 3.0  # lengths of the lease: clocks of two machines differ, and it is renewed often
PENDING_S_MAX: Final = 60.0
SHOWN_MAX: Final = 5
DIFFERENCES_SHOWN_MAX: Final = 4
OPTIONAL_GROUP: Final = "monitoring.coreos.com"


def examine(facts: Facts) -> tuple[Finding, ...]:
    """Every finding. A server that does not answer is the only one there is then."""
    if isinstance(facts.version, Unseen):
        fix = "check the network, and the server in the kubeconfig"
        return (Finding(Level.FAIL, "API server", facts.version.reason, fix),)
    return (
        _version(facts.version, facts.server),
        *_of("definitions", facts.definitions, lambda found: _definitions(found, facts.expected)),
        *_operator(facts),
        *_watchdog(facts),
        *_redis(facts),
        *_spread(facts),
        *_of("rights", facts.rights, _rights),
        _reading(facts.jobs_read),
        *_agents(facts),
        *_of("nodes", facts.nodes, lambda nodes: _nodes(nodes, facts.jobs)),
        *_of("jobs", facts.jobs, _jobs),
        *_of("interventions", facts.pending, _interventions),
        *_of("Prometheus operator", facts.groups, _monitoring),
    )


def _of(what: str, fact: Fact | Unseen, check: Callable[[Fact], Iterator[Finding]]) -> Iterator[Finding]:
    """The findings of a check that looks at one fact."""
    return iter((unseen(what, fact),)) if isinstance(fact, Unseen) else check(fact)


def _version(version: str, server: str) -> Finding:
    found = re.match(r"v?(\d+)\.(\d+)", version)
    says = f"{version} at {server}"
    if found is None:
        fix = f"use Kubernetes {OLDEST} or newer"
        return Finding(Level.WARN, "API server", f"{says}, a version nobody knows", fix)
    minor = int(found[1]), int(found[2])
    if minor < minor_of(OLDEST):
        fix = f"upgrade it: Kubernetes {OLDEST} or newer is supported"
        return Finding(Level.WARN, "API server", says, fix)
    newer = f", newer than {NEWEST}, the newest that this version of Holdfast was tried on"
    return Finding(Level.OK, "API server", f"{says}{newer}" if minor > minor_of(NEWEST) else says)


def _definitions(found: Definitions, of_this_version: Mapping[str, Document]) -> Iterator[Finding]:
    for name, installed in found.items():
        what = f"definition {name}"
        expected = of_this_version.get(name)
        if installed is None:
            fix = "install the Helm chart with crds.install=true"
            yield Finding(Level.FAIL, what, "it is not installed", fix)
        elif expected is None:
            yield Finding(Level.WARN, what, "installed; whether it is of this version is not known")
        elif differs := difference(installed, expected):
            fix = "upgrade the chart or this command, so that both are of one version"
            yield Finding(Level.WARN, what, f"installed, but of another version: {differs}", fix)
        else:
            yield Finding(Level.OK, what, "installed, of this version")


def difference(installed: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    """What differs, in a few words; empty when the same versions have the same fields of the same types.

    Descriptions, and rules that an old server drops, are not compared: they change nothing that is stored.
    """
    mine, theirs = _versions(expected), _versions(installed)
    for name, schema in mine.items():
        if name not in theirs:
            return f"version {name} is missing"
        wanted, found = dict(_fields(schema)), dict(_fields(theirs[name]))
        differing = [
            *(f"{path} is missing" for path in wanted if path not in found),
            *(f"{path} is unknown to this version" for path in found if path not in wanted),
            *(f"{path} is of another type" for path in wanted if path in found and wanted[path] != found[path]),
        ]
        if differing:
            return _listed(differing, DIFFERENCES_SHOWN_MAX)
    return ""


def _versions(definition: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    versions = definition.get("spec", {}).get("versions", [])
    return {each["name"]: each.get("schema", {}).get("openAPIV3Schema", {}) for each in versions}


def _fields(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Every field's path and type."""
    for name, field in schema.get("properties", {}).items():
        if not path and name not in ("spec", "status"):
            continue  # every object has these
        here = f"{path}.{name}" if path else name
        yield here, str(field.get("type", ""))
        yield from _fields(field, here)
    for part in ("items", "additionalProperties"):
        if isinstance(schema.get(part), Mapping):
            yield from _fields(schema[part], f"{path}[]")


def _operator(facts: Facts) -> Iterator[Finding]:
    yield from _workload(facts, "operator", facts.operator, facts.operator_pods)
    lease = facts.lease
    fix = (
        f"no operator acts; see its log: kubectl -n {facts.namespace} logs -l app.kubernetes.io/component=operator"
    )
    if isinstance(lease, Unseen):
        yield unseen("operator lease", lease)
    elif lease is None or lease.age_s is None or not lease.holder:
        yield Finding(Level.FAIL, "operator lease", "nobody holds it", fix)
    elif lease.age_s > OUTDATED_LEASE * lease.length_s:
        says = f"{lease.holder} renewed it {lease.age_s:.0f} s ago, and it lasts {lease.length_s:.0f} s"
        yield Finding(Level.FAIL, "operator lease", says, fix)
    else:
        yield Finding(Level.OK, "operator lease", f"held by {lease.holder}")


def _watchdog(facts: Facts) -> Iterator[Finding]:
    yield from _workload(facts, "watchdog", facts.watchdog, facts.watchdog_pods)
    watchdog, health = facts.watchdog, facts.health
    if isinstance(watchdog, Unseen) or watchdog is None:
        return
    if isinstance(health, Unseen):
        yield unseen("watchdog leader", health)
    elif health.standing is Standing.LEADING:
        yield Finding(Level.OK, "watchdog leader", "one answers through the service")
    else:
        fix = f"see the store below; kubectl -n {facts.namespace} logs -l app.kubernetes.io/component=watchdog"
        yield Finding(Level.FAIL, "watchdog leader", "nobody leads: only standbys answer", fix)
    if watchdog.ready > 1:
        yield Finding(Level.OK, "watchdog standby", f"{watchdog.ready - 1} could take over")
    elif watchdog.ready == 1:
        fix = "set watchdog.replicas to 2; without a standby a takeover takes as long as starting one"
        yield Finding(Level.WARN, "watchdog standby", "there is none that is ready", fix)


def _workload(
    facts: Facts, name: str, workload: Workload | Unseen | None, pods: tuple[PodSeen, ...] | Unseen
) -> Iterator[Finding]:
    """Whether a part is there and ready."""
    if isinstance(workload, Unseen):
        yield unseen(name, workload)
        return
    if workload is None:
        fix = "install the Helm chart, or say where it is with --holdfast-namespace"
        yield Finding(Level.FAIL, name, f"there is none in namespace {facts.namespace}", fix)
        return
    troubled = [] if isinstance(pods, Unseen) else [pod for pod in pods if pod.trouble]
    why = "; " + _listed([f"{pod.name}: {pod.trouble}" for pod in troubled]) if troubled else ""
    says = f"{workload.ready} of {workload.desired} ready{why}"
    fix = f"kubectl -n {facts.namespace} describe pods -l app.kubernetes.io/component={name}"
    if workload.ready == 0:
        yield Finding(Level.FAIL, name, says, fix)
    elif troubled or workload.ready < workload.desired:
        yield Finding(Level.WARN, name, says, fix)
    else:
        yield Finding(Level.OK, name, says)


def _redis(facts: Facts) -> Iterator[Finding]:
    if facts.redis is not None:
        yield from _workload(facts, "redis", facts.redis, facts.redis_pods)
    health = facts.health
    if isinstance(health, Unseen):
        yield unseen("store", health)
    elif health.trouble is not None:
        look = f"kubectl -n {facts.namespace} get pods -l app.kubernetes.io/component=redis"
        fix = f"{look}; training goes on meanwhile"
        yield Finding(Level.FAIL, "store", health.trouble, fix)
    else:
        yield Finding(Level.OK, "store", "the watchdog reaches it, and can record what it decides")


def _spread(facts: Facts) -> Iterator[Finding]:
    """Whether one node takes two of a kind with it: the others may be too few then to go on."""
    findings: list[Finding] = []
    for name, pods in (
        ("operator", facts.operator_pods),
        ("watchdog", facts.watchdog_pods),
        ("redis", facts.redis_pods),
    ):
        what = f"nodes of {name}"
        if isinstance(pods, Unseen):
            findings.append(unseen(what, pods))
            continue
        running: dict[str, list[str]] = {}
        for pod in pods:
            if pod.node and not pod.trouble:
                running.setdefault(pod.node, []).append(pod.name)
        for node, together in running.items():
            if len(together) > 1:
                says = f"{_listed(together)} are on one node, {node}, whose loss takes all of them"
                delete = f"kubectl -n {facts.namespace} delete pod {together[-1]}"
                fix = f"set {name}.spread to required; once another node has room: {delete}"
                findings.append(Finding(Level.WARN, what, says, fix))
    yield from findings
    if not findings:
        yield Finding(Level.OK, "spread", "no two operators, watchdogs or Redis share a node")


def _rights(rights: Mapping[Right, bool]) -> Iterator[Finding]:
    missing = [right for right, held in rights.items() if not held]
    if not missing:
        yield Finding(Level.OK, "rights", "you may read jobs and intervene")
    for right in missing:
        yield Finding(Level.WARN, "rights", f"you lack {right}", f"ask an administrator for {right.role}")


def _reading(jobs_read: int | Unseen) -> Finding:
    if isinstance(jobs_read, Unseen):
        fix = "see the lines above; the whole way is: token, API server, service, watchdog"
        return Finding(Level.FAIL, "reading", jobs_read.reason, fix)
    return Finding(Level.OK, "reading", f"the watchdog answered through the API server: {jobs_read} jobs")


def _agents(facts: Facts) -> Iterator[Finding]:
    agents = facts.agents
    if isinstance(agents, Unseen) or agents is None:
        yield from _workload(facts, "agent", agents, facts.agent_pods)
        return
    says = f"ready on {agents.ready} of {agents.desired} nodes"
    fix = f"kubectl -n {facts.namespace} get pods -l app.kubernetes.io/component=agent -o wide"
    if agents.ready < agents.desired:
        yield Finding(Level.FAIL, "agent", says, fix)
    elif agents.desired == 0:
        yield Finding(Level.WARN, "agent", "it is meant for no node", "check agent.nodeSelector in the values")
    else:
        yield Finding(Level.OK, "agent", says)
    if isinstance(facts.nodes, Unseen) or isinstance(facts.agent_pods, Unseen):
        return
    covered = {pod.node for pod in facts.agent_pods}
    bare = [node.name for node in facts.nodes if node.name not in covered]
    if bare and agents.desired:
        fix = "faults of their GPUs stay unseen; if jobs run there, check the agent's selector and tolerations"
        yield Finding(Level.WARN, "nodes without an agent", _listed(bare), fix)


def _nodes(nodes: Sequence[NodeSeen], jobs: Sequence[JobRecord] | Unseen) -> Iterator[Finding]:
    known = None if isinstance(jobs, Unseen) else {each.job for each in jobs}
    cordoned = [node for node in nodes if node.cordon is not None]
    for node in cordoned:
        # Its job returns it; any other of the namespace does once that one is gone; a human where there is none.
        taint, annotation = f"taint node {node.name} {CORDON_TAINT}-", f"annotate node {node.name} {CORDONED_BY}-"
        way_back = f"kubectl {taint}; kubectl {annotation}"
        namespace, _, name = node.job.partition("/")
        if name and (known is None or node.job in known):
            returned = f"kubectl holdfast return {node.name} -n {namespace} --job {name}"
            way_back = returned if known is not None else f"{returned}; where that job is gone: {way_back}"
        fix = f"once repaired: {way_back}"
        yield Finding(Level.WARN, f"node {node.name}", f"taken out of service: {node.cordon}", fix)
    if not cordoned:
        yield Finding(Level.OK, "nodes", f"none of {len(nodes)} is taken out of service")


def _jobs(jobs: Sequence[JobRecord]) -> Iterator[Finding]:
    """What the operator wrote of a job that is wrong, or has not written."""
    ailing = False
    for job in jobs:
        what = f"job {job.job}"
        edit = f"correct it: kubectl -n {job.metadata.namespace} edit tj {job.metadata.name}"
        reach = "see the watchdog above; training goes on meanwhile"
        for type, well, wrong, fix in (
            ("InvalidSpec", "False", "True", edit),
            ("WatchdogReachable", "True", "False", reach),
        ):
            condition = job.condition(type)
            if condition is not None and condition.status == well:
                continue
            ailing = True
            if condition is not None and condition.status == wrong:
                yield Finding(Level.FAIL, what, f"{type} is {wrong}: {condition.says}", fix)
            else:
                why = f": {condition.says}" if condition is not None and condition.says else ""
                not_written = "see the operator above; it writes this"
                yield Finding(Level.WARN, what, f"{type} is not known{why}", not_written)
        altered = job.condition("PodsAltered")
        if altered is not None and (altered.status, altered.reason) == ("True", "Dropped"):
            ailing = True
            fix = "turn the feature on or mend the policy, or leave the field out of spec.template"
            yield Finding(Level.WARN, what, f"PodsAltered is True: {altered.says}", fix)
    if not ailing:
        yield Finding(Level.OK, "jobs", f"all of {len(jobs)} have a valid spec and a watchdog")


def _interventions(pending: Sequence[InterventionSeen]) -> Iterator[Finding]:
    stuck = [each for each in pending if each.age_s > PENDING_S_MAX]
    if not stuck:
        yield Finding(Level.OK, "interventions", "none waits for an outcome")
    for each in stuck[:SHOWN_MAX]:
        fix = "see the operator and the watchdog above; it is done as soon as both are there"
        says = f"{each.action} waits for {each.age_s:.0f} s"
        yield Finding(Level.FAIL, f"intervention {each.name}", says, fix)
    if len(stuck) > SHOWN_MAX:
        yield Finding(Level.FAIL, "interventions", f"{len(stuck) - SHOWN_MAX} more wait")


def _monitoring(groups: frozenset[str]) -> Iterator[Finding]:
    says = "installed: the chart can set up scraping and alerts"
    yield Finding(
        Level.OK, "Prometheus operator", says if OPTIONAL_GROUP in groups else "not installed; it is optional"
    )


def _listed(names: Sequence[str], shown_max: int = SHOWN_MAX) -> str:
    more = f" and {len(names) - shown_max} more" if len(names) > shown_max else ""
    return ", ".join(names[:shown_max]) + more
