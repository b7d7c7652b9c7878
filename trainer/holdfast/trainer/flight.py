"""The collectives this process issued last, by torch's flight recorder.

torch records each collective of each group, of NCCL and of gloo, where TORCH_FR_BUFFER_SIZE is above zero, which
Holdfast's launchers see to. gloo's entries stay "scheduled"; that one is over shows by `retired`.
Source: https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from holdfast.api.bounds import NAME_LENGTH_MAX
from holdfast.api.stacks import COLLECTIVES_KEPT, GROUPS_MAX, Collective, is_own, place_of
from holdfast.trainer.torchgroups import recorded

logger = logging.getLogger(__name__)

_DONE: Final = ("completed",)


def last_collectives() -> tuple[Collective, ...]:
    """The newest of each group, oldest first; none where torch keeps no record. Any thread may call it."""
    try:
        return newest_of(recorded())
    except Exception:  # of a library's private format: what it cannot tell is left out
        logger.warning("the flight recorder could not be read", exc_info=True)
        return ()


def newest_of(entries: Sequence[Mapping[str, Any]]) -> tuple[Collective, ...]:
    """The newest of each group among the recorder's `entries`, which are in the order they were issued in."""
    kept: dict[str, list[Mapping[str, Any]]] = {}
    for entry in entries:
        if not entry.get("is_p2p"):
            kept.setdefault(_group_of(entry), []).append(entry)
    newest_groups = sorted(kept.items(), key=lambda each: -int(each[1][-1]["time_created_ns"]))[:GROUPS_MAX]
    return tuple(
        _collective(group, entry) for group, recorded in newest_groups for entry in recorded[-COLLECTIVES_KEPT:]
    )


def _group_of(entry: Mapping[str, Any]) -> str:
    """Its name alone tells groups of one description apart, such as those of an axis of a device mesh."""
    name, description = entry["process_group"]
    is_default = description == "default_pg"
    return str(description if is_default else f"{description} {name}".strip())[:NAME_LENGTH_MAX]


def _collective(group: str, entry: Mapping[str, Any]) -> Collective:
    shapes = ", ".join(
        f"{sizes} {dtype}" for sizes, dtype in zip(entry["input_sizes"], entry["input_dtypes"], strict=False)
    )
    own = (frame for frame in entry.get("frames", ()) if is_own(frame["filename"]))
    place = next((place_of(frame["filename"], frame["line"], frame["name"]) for frame in own), "")
    return Collective(
        group=group,
        sequence=int(entry["collective_seq_id"]),
        operation=str(entry["profiling_name"]).partition(":")[2][:NAME_LENGTH_MAX] or str(entry["profiling_name"]),
        shapes=shapes[:NAME_LENGTH_MAX],
        place=place,
        done=bool(entry.get("retired")) or entry.get("state") in _DONE,
    )
