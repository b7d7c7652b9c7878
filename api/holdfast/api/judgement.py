"""What a replay of a run under a changed policy comes to, short enough to be a pod's last words.

`holdfast simulate --brief FILE` writes it as the last words of the pod that tries a job's changed policy; the
operator reads it from the pod's status. Kubernetes keeps 4,096 bytes.
Source: https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

Name = Annotated[str, Meta(max_length=64)]


class Judgement(StrEnum):
    """Of the changed policy."""

    BETTER = "better"
    WORSE = "worse"
    NOISE = "noise"  # the two do not differ beyond noise, and beyond the error of the replay
    NOT_JUDGED = "not judged"  # the run tells too little: no step was kept, or nothing has failed


class Brief(Struct, frozen=True):
    """`minutes`, `gpu_hours` and `money` are what is lost more under the changed policy, `evictions` and `pages`
    how many more there are; negative is less. They are means of `seeds` replays of `faults` faults in `days`;
    `money` is None where no price is told.

    `by` is the figure that decides, `differs` how far the two are apart in it, and `error` how far the replay is
    beside the run itself. `why` says why nothing was judged.
    """

    says: Judgement
    why: Annotated[str, Meta(max_length=1000)] = ""
    days: float = 0.0
    faults: int = 0
    seeds: int = 0
    minutes: float = 0.0
    gpu_hours: float = 0.0
    money: float | None = None
    currency: Name = ""
    evictions: float = 0.0
    pages: float = 0.0
    by: Name = ""
    differs: float = 0.0
    error: float = 0.0
