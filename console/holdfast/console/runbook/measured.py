"""Figures of a job that a written check may look at, each as it is now; None is Unknown."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from holdfast.api.status import RankStatus
from holdfast.console.runbook.known import Known

Measured = tuple[float | None, Mapping[str, object]]
"""The figure, and whom it is of: a node or a rank."""
_NOBODY: Final[Mapping[str, object]] = MappingProxyType({})


def _of_status(name: str) -> Callable[[Known], Measured]:
    def look(known: Known) -> Measured:
        value = None if known.status is None else getattr(known.status, name)
        return (None if value is None else float(value)), _NOBODY

    return look


def _of_ranks(name: str) -> Callable[[Known], Measured]:
    """The greatest over the ranks that tell it."""

    def look(known: Known) -> Measured:
        told: list[tuple[float, RankStatus]] = []
        for each in known.ranks or ():
            value = getattr(each, name)
            if value is not None:
                told.append((float(value), each))
        if not told:
            return None, _NOBODY
        value, worst = max(told, key=lambda each: each[0])
        return value, {"rank": worst.rank, "node": worst.node}

    return look


def _temperature(known: Known) -> Measured:
    told = [
        (gpu.temperature_c, node.node)
        for node in known.nodes or ()
        for gpu in node.gpus
        if gpu.temperature_c is not None
    ]
    if not told:
        return None, _NOBODY
    value, node = max(told)
    return value, {"node": node}


def _checkpoint_age(known: Known) -> Measured:
    saved = known.status.last_checkpoint if known.status is not None else None
    return (None if saved is None else known.now - saved.at), _NOBODY


FIGURES: Final[Mapping[str, Callable[[Known], Measured]]] = MappingProxyType(
    {
        "stepAgeSeconds": _of_status("step_age_s"),
        "stepTimeSeconds": _of_status("step_time_s"),
        "ettr": _of_status("ettr"),
        "restarts": _of_status("restarts"),
        "evictions": _of_status("evictions"),
        "incidentsOpen": _of_status("incidents_open"),
        "checkpointAgeSeconds": _checkpoint_age,
        "rankProgressAgeSeconds": _of_ranks("progress_age_s"),
        "rankHeardAgeSeconds": _of_ranks("heard_age_s"),
        "rankGradNorm": _of_ranks("grad_norm"),
        "gpuTemperatureCelsius": _temperature,
    }
)
"""By the name that a check gives."""
