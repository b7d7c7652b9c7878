"""Pods that were made of an earlier template than the job has now, and whether they are to be made anew.

A change of the template alone moves nobody: training goes on in the pods that run, and new ones are made of the
new template. A Restart that is asked for after the change makes all anew. A pod that never began is made anew at
once: an image that cannot be pulled is the usual reason for the change.
"""

from holdfast.api.trainingjob import TrainingJob
from holdfast.operator.case import Case
from holdfast.operator.marks import EDITION, ROLL_TO
from holdfast.operator.objects import Metadata, Pod
from holdfast.operator.podbuilder import edition_of
from holdfast.operator.template import Template, read_template

NAMES_SHOWN = 5


def is_earlier(pod: Pod, edition: str) -> bool:
    """Whether it was made of another template. One on which nothing is written is taken for what it should be."""
    return pod.metadata.annotations.get(EDITION, edition) != edition


def is_rolled(job: Metadata, edition: str) -> bool:
    """Whether somebody asked for all pods to be of this edition."""
    return job.annotations.get(ROLL_TO) == edition


def earlier(case: Case, job: TrainingJob) -> list[Pod]:
    """The pods that count and were made of another template than the job has now."""
    edition = edition_of(job)
    return [pod for pod in case.roll.live if is_earlier(pod, edition)]


def difference(pods: list[Pod], job: TrainingJob) -> str:
    """What runs in these pods, and what new ones get; `pods` is not empty."""
    template = read_template(job.spec.template)
    assert isinstance(template, Template), "pods were made of it"
    trainer = template.spec.containers[template.trainer]
    images = sorted({each.image for pod in pods for each in pod.spec.containers if each.name == trainer.name})
    names = ", ".join(pod.metadata.name for pod in pods[:NAMES_SHOWN])
    more = f" and {len(pods) - NAMES_SHOWN} more" if len(pods) > NAMES_SHOWN else ""
    return f"{names}{more} run an earlier template (image {', '.join(images)}); new pods get image {trainer.image}"
