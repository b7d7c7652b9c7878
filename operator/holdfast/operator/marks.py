"""The names Holdfast writes on Kubernetes objects. They are promises: people and policies select by them.

Those on a node that was taken out of service are in `holdfast.api.cordon`.
"""

FINALIZER = "holdfast.dev/wind-up"
JOB_LABEL = "holdfast.dev/job"
MEMBER_LABEL = "holdfast.dev/member"
MADE_FROM = "holdfast.dev/made-from"  # annotation: digest of what a service or budget was made from
QUICK_ENDS = "holdfast.dev/quick-ends"  # annotation: how many pods in a row had ended quickly before this one
AVOIDS = "holdfast.dev/avoids"  # annotation: host names a pod was made to keep away from
EDITION = "holdfast.dev/edition"  # annotation: digest of the template a pod was made of
ROLL_TO = "holdfast.dev/roll-to"  # annotation of a job: the edition that a Restart asked all its pods to be of
SHM_SIZE = "holdfast.dev/shm-size"  # annotation a user sets on the template: the size limit of /dev/shm
HOSTNAME_LABEL = "kubernetes.io/hostname"
OUR_PREFIX = "holdfast.dev/"


def selector_of(job: str) -> str:
    """The label selector of a job's pods, as text."""
    return f"{JOB_LABEL}={job}"
