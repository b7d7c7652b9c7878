"""What is asked of whoever repairs nodes, as an object of the cluster, and what is heard back.

A NodeRemediation has the name of its node, so that there is one at a time. Whoever acts writes its status: an
outcome counts for the newest spec only, as `observedGeneration` says.
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta
from pydantic import Field, StringConstraints

from holdfast.api.bounds import LINE_LENGTH_MAX, NAME_LENGTH_MAX
from holdfast.api.section import Section
from holdfast.api.written import Written

ShortText = Annotated[str, StringConstraints(min_length=1, max_length=NAME_LENGTH_MAX)]


class RemediationAction(StrEnum):
    """What is to be done to the node, the least first."""

    RESET_GPU = "ResetGPU"
    REBOOT = "Reboot"
    REPLACE = "Replace"


class RemediationOutcome(StrEnum):
    """What became of it, as whoever acts says."""

    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class RemediationSpec(Section):
    """What is asked for, of which node, and why."""

    node: ShortText
    """The node: the object has its name."""
    action: RemediationAction
    """What is to be done: ResetGPU, Reboot or Replace."""
    reason: Annotated[str, StringConstraints(min_length=1, max_length=LINE_LENGTH_MAX)]
    """What was found, in a sentence."""
    job: ShortText
    """The TrainingJob that found it first, as NAMESPACE/NAME."""
    incident: ShortText
    """Its incident, which `holdfast why` tells of."""
    gpu: Annotated[str, Field(max_length=NAME_LENGTH_MAX)] | None = None
    """The UUID of the GPU at fault, where it is one."""


class RemediationStatus(Written, frozen=True):
    """Written by whoever acts."""

    outcome: Annotated[RemediationOutcome | None, Meta(description="Running, Succeeded or Failed.")] = None
    message: Annotated[str | None, Meta(description="What was done, or why it failed.")] = None
    observed_generation: Annotated[
        int | None, Meta(description="The metadata.generation of the spec that the outcome is of.")
    ] = None
    started_at: Annotated[str | None, Meta(description="When it was begun.")] = None
    completed_at: Annotated[str | None, Meta(description="When it succeeded or failed.")] = None
