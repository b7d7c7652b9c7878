"""Where a member's pod may go: one per node, not on avoided nodes, close together where the job asks for it."""

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.operator.marks import HOSTNAME_LABEL, JOB_LABEL
from holdfast.operator.template import PREFERRED, REQUIRED

Manifest = dict[str, Any]
WEIGHT_MAX = 100  # Kubernetes' own


def affinity(given: Mapping[str, Any], job: str, avoided: Sequence[str], pack: Sequence[str]) -> Manifest:
    """The user's affinity, of a checked template, with Holdfast's added. `avoided` are host name labels."""
    merged: Manifest = dict(given)
    if avoided:
        merged["nodeAffinity"] = _away_from(given.get("nodeAffinity") or {}, avoided)
    merged["podAntiAffinity"] = _one_per_node(given.get("podAntiAffinity") or {}, job)
    if pack:
        merged["podAffinity"] = _together(given.get("podAffinity") or {}, job, pack)
    return merged


def rack_of(labels: Mapping[str, str], pack: Sequence[str]) -> str:
    """Which nodes it shares power and cooling with: the closest of the domains the job packs by that it is in."""
    return next((labels[domain] for domain in pack if labels.get(domain)), "")


def _away_from(given: Mapping[str, Any], avoided: Sequence[str]) -> Manifest:
    """Terms are alternatives: each of them has to keep away."""
    away = {"key": HOSTNAME_LABEL, "operator": "NotIn", "values": list(avoided)}
    terms: list[Manifest] = (given.get(REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
    kept = [{**term, "matchExpressions": [*(term.get("matchExpressions") or ()), away]} for term in terms]
    return {**given, REQUIRED: {"nodeSelectorTerms": kept}}


def _one_per_node(given: Mapping[str, Any], job: str) -> Manifest:
    alone = {"labelSelector": {"matchLabels": {JOB_LABEL: job}}, "topologyKey": HOSTNAME_LABEL}
    return {**given, REQUIRED: [*(given.get(REQUIRED) or ()), alone]}


def _together(given: Mapping[str, Any], job: str, pack: Sequence[str]) -> Manifest:
    """The closest domain weighs most, each further one half of it."""
    members = {"matchLabels": {JOB_LABEL: job}}
    wishes = [
        {
            "weight": max(1, WEIGHT_MAX >> place),
            "podAffinityTerm": {"labelSelector": members, "topologyKey": domain},
        }
        for place, domain in enumerate(pack)
    ]
    return {**given, PREFERRED: [*(given.get(PREFERRED) or ()), *wishes]}
