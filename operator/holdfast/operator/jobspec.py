"""A TrainingJob as the API server shows it, read as a whole."""

from typing import Any

import msgspec

from holdfast.api.errors import InvalidSpec, Problem
from holdfast.api.metadata import API_VERSION
from holdfast.api.trainingjob import TrainingJob, read_trainingjob
from holdfast.operator.objects import SPEC_BYTES_MAX, Job


def read_spec(job: Job) -> TrainingJob | InvalidSpec:
    """The job as its user wrote it, or every problem with it."""
    if job.oversize:
        fix = f"write at most {SPEC_BYTES_MAX}; files and long scripts belong into a ConfigMap or the image"
        return InvalidSpec(Problem("spec (bytes of JSON)", job.oversize, fix))
    about = job.metadata
    document: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": "TrainingJob",
        "metadata": {
            "name": about.name,
            "namespace": about.namespace,
            "uid": about.uid,
            "generation": about.generation,
        },
        "spec": msgspec.json.decode(job.spec),
    }
    try:
        return read_trainingjob(document)
    except InvalidSpec as error:
        return error
