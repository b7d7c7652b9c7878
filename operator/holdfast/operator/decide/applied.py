"""What kubectl was given of a job and the API server left out of it: fields that no TrainingJob has.

A server that is not asked to be strict drops such fields without a word: before 1.25 every one, later ones for
clients that say `--validate=false` or `warn`. What `kubectl apply` was given is in an annotation that it writes;
nothing else tells. `spec.template` is not looked at here: a pod of it is tried, strictly.
Source: https://kubernetes.io/docs/tasks/manage-kubernetes-objects/declarative-config/
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from holdfast.api.errors import SHOWN_MAX
from holdfast.api.nesting import read
from holdfast.api.section import Section, fields_of, nearest
from holdfast.api.trainingjob import JobSpec
from holdfast.operator.kube.objects import LAST_APPLIED, Job

FIELDS_TOLD_MAX: Final = 10


class _Applied(msgspec.Struct, frozen=True):
    """The annotation, as far as it is read."""

    spec: dict[str, Any]


def applied_text(job: Job) -> str:
    """What kubectl was given, empty where nobody wrote it down."""
    return job.metadata.annotations.get(LAST_APPLIED, "")


def left_out(job: Job) -> tuple[str, ...] | None:
    """The fields that were applied, that no job has and that are not stored, in words; None: nobody knows.

    A field that is known and is not there says nothing: somebody may have removed it since, by other means.
    """
    if job.oversize:
        return None
    try:
        applied = read(applied_text(job).encode(), _Applied).spec
        stored = read(bytes(job.spec), dict[str, Any])
    except msgspec.MsgspecError:
        return None
    unknown = list(_unknown(JobSpec, applied, stored, "spec"))
    told = tuple(_told(*each) for each in unknown[:FIELDS_TOLD_MAX])
    more = len(unknown) - len(told)
    return (*told, f"{more} more") if more else told


def _unknown(
    section: type[Section], applied: Mapping[str, Any], stored: Mapping[str, Any], path: str
) -> Iterator[tuple[type[Section], str, str]]:
    """The section, the path and the name of each."""
    fields = fields_of(section)
    for name, value in applied.items():
        place, below, kept = f"{path}.{name}", fields.get(name), stored.get(name)
        if name not in fields and name not in section.not_built:
            if name not in stored:
                yield section, place, name
        elif below is not None and isinstance(value, dict) and isinstance(kept, dict):
            yield from _unknown(below, value, kept, place)


def _told(section: type[Section], place: str, name: str) -> str:
    shown = place if place.isprintable() else repr(place)
    if len(shown) > SHOWN_MAX:
        shown = f"{shown[:SHOWN_MAX]}..."
    near = nearest(name, fields_of(section))
    return shown if near is None else f"{shown} (did you mean {near}?)"
