"""The names Holdfast writes on Kubernetes objects. They are promises: people and policies select by them."""

import msgspec

FINALIZER = "holdfast.dev/wind-up"
JOB_LABEL = "holdfast.dev/job"
MEMBER_LABEL = "holdfast.dev/member"
MADE_FROM = "holdfast.dev/made-from"  # annotation: digest of what a service or budget was made from
QUICK_ENDS = "holdfast.dev/quick-ends"  # annotation: how many pods in a row had ended quickly before this one
AVOIDS = "holdfast.dev/avoids"  # annotation: host names a pod was made to keep away from
SHM_SIZE = "holdfast.dev/shm-size"  # annotation a user sets on the template: the size limit of /dev/shm
CORDON_TAINT = "holdfast.dev/cordoned"
CORDONED_BY = "holdfast.dev/cordoned-by"  # annotation: which job took the node out of service, and why
HOSTNAME_LABEL = "kubernetes.io/hostname"
OUR_PREFIX = "holdfast.dev/"


class CordonedBy(msgspec.Struct, frozen=True):
    """The value of the annotation CORDONED_BY, as JSON. `at` is RFC 3339; `incident` empty: somebody asked."""

    job: str
    reason: str = ""
    incident: str = ""
    at: str = ""


def read_cordoned_by(text: str | None) -> CordonedBy | None:
    """What the annotation says, None when there is none or it is not ours."""
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=CordonedBy)
    except msgspec.MsgspecError:
        return None


def selector_of(job: str) -> str:
    """The label selector of a job's pods, as text."""
    return f"{JOB_LABEL}={job}"
