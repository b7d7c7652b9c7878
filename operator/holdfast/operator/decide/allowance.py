"""What Holdfast's own containers in users' namespaces ask for and may use at most. Pure.

A quota of a namespace counts every container of a pod, ours as well, and refuses the pod where one has no limit of
what the quota is about; a limit range does as much. So each has requests and limits of cpu, memory and
ephemeral storage, and an installation may say others.
Source: https://kubernetes.io/docs/concepts/policy/resource-quotas/
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.api.errors import InvalidInput, Problem
from holdfast.operator.decide.quantity import quantity_of

STORAGE: Final = "ephemeral-storage"
GUARANTEED: Final = ("cpu", "memory")
"""What a pod's quality of service is judged by."""

Amounts = Mapping[str, Any]


class Allowance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """As a container says its resources: quantities by name."""

    requests: dict[str, str] = {}
    limits: dict[str, str] = {}

    @property
    def manifest(self) -> dict[str, Any]:
        return {name: dict(amounts) for name, amounts in msgspec.structs.asdict(self).items() if amounts}


COPIES_LAUNCHER: Final = Allowance(
    requests={"cpu": "50m", "memory": "64Mi", STORAGE: "256Mi"},
    limits={"cpu": "1", "memory": "256Mi", STORAGE: "512Mi"},
)
"""Of the init container: it copies a launcher of less than 200 MB into a volume, in a second or two."""
CHECKS_POLICY: Final = Allowance(
    requests={"cpu": "500m", "memory": "512Mi", STORAGE: "64Mi"},
    limits={"cpu": "2", "memory": "4Gi", STORAGE: "256Mi"},
)
"""Of the pod that tries a changed policy: it keeps everything in memory, and writes a log."""


def read_allowance(text: str, given_by: str, default: Allowance) -> Allowance:
    """From JSON; empty is `default`. Raises InvalidInput that names what is wrong after `given_by`, a flag."""
    if not text:
        return default
    example = '{"requests": {"cpu": "50m"}, "limits": {"cpu": "1"}}'
    try:
        given = msgspec.json.decode(text, type=Allowance)
    except msgspec.MsgspecError as error:
        raise InvalidInput(Problem(given_by, text, f"write JSON such as {example}: {error}")) from None
    problems = []
    for part, amounts in msgspec.structs.asdict(given).items():
        for name, written in amounts.items():
            amount, most = quantity_of(written), quantity_of(given.limits.get(name))
            where = f"{given_by} {part}.{name}"
            if amount is None or amount < 0:
                problems.append(Problem(where, written, "write a quantity such as 500m or 64Mi"))
            elif most is not None and amount > most:
                problems.append(Problem(where, written, f"write at most its limit, {given.limits[name]}"))
    if problems:
        raise InvalidInput(*problems)
    return given


def beside(ours: Allowance, containers: Sequence[Amounts], pod: Amounts | None = None) -> dict[str, Any]:
    """The resources of an init container of ours in a pod with these `containers`, each as its resources. `pod`:
    those of the whole pod.

    Three things it must not do to them. No container may have more than the whole pod has. The kubelet evicts a
    pod that has more on its disk than the largest limit in it: there is one of ours only where there is one of
    theirs. And a pod is of the class Guaranteed, by which cores are pinned, only if in all of its containers
    requests equal limits: in such a pod ours do so, too.
    Source: https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/ (ephemeral storage),
    https://kubernetes.io/docs/concepts/workloads/pods/pod-qos/,
    https://kubernetes.io/docs/tasks/configure-pod-container/assign-pod-level-resources/
    """
    limits, requests = dict(ours.limits), dict(ours.requests)
    if not any(STORAGE in (each.get("limits") or {}) for each in containers):
        limits.pop(STORAGE, None)
    if all(_is_guaranteed(each) for each in containers):
        requests |= {name: limits[name] for name in GUARANTEED if name in limits}
    most = (pod or {}).get("limits") or {}
    limits = _within(limits, most)
    return Allowance(_within(requests, {**most, **((pod or {}).get("requests") or {})}), limits).manifest


def _within(amounts: Mapping[str, str], most: Amounts) -> dict[str, str]:
    """Each at most as much as is said there."""
    bounded = dict(amounts)
    for name, written in amounts.items():
        amount, bound = quantity_of(written), quantity_of(most.get(name))
        if amount is not None and bound is not None and amount > bound:
            bounded[name] = str(most[name])
    return bounded


def _is_guaranteed(resources: Amounts) -> bool:
    limits = resources.get("limits") or {}
    asked = {**limits, **(resources.get("requests") or {})}
    amounts = [(quantity_of(limits.get(name)), quantity_of(asked.get(name))) for name in GUARANTEED]
    return all(limit is not None and limit == request for limit, request in amounts)
