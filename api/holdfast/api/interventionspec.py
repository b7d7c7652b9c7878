"""The Intervention as an on-call engineer writes it. It validates into the request that travels."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from msgspec import Meta
from pydantic import Field, StringConstraints, model_validator

from holdfast.api.bounds import LINE_LENGTH_MAX, NAME_LENGTH_MAX, NODES_MAX, STEPS_MAX, WHOLE_MAX
from holdfast.api.intervention import InterventionAction, InterventionRequest, InterventionState
from holdfast.api.metadata import Metadata, Name
from holdfast.api.profile import RANKS_MAX
from holdfast.api.profile import STEPS as PROFILE_STEPS
from holdfast.api.profile import STEPS_MAX as PROFILE_STEPS_MAX
from holdfast.api.section import MISSING, Section, contradiction, parse
from holdfast.api.selftest import TestLevel
from holdfast.api.written import Written

Text = Annotated[str, StringConstraints(min_length=1, max_length=LINE_LENGTH_MAX)]
NodeName = Annotated[str, StringConstraints(min_length=1, max_length=NAME_LENGTH_MAX)]
NEEDS: Mapping[InterventionAction, str] = {
    InterventionAction.EVICT: "node",
    InterventionAction.RETURN: "node",
    InterventionAction.TEST: "node",
    InterventionAction.REWIND: "rewind",
    InterventionAction.RESIZE: "nodes",
    InterventionAction.SKIP_BATCHES: "skip_batches",
    InterventionAction.PROFILE: "profile",
}
"""The one field each action needs beside `reason`."""
MAY_HAVE: Mapping[str, InterventionAction] = {
    "fresh": InterventionAction.RESTART,
    "level": InterventionAction.TEST,
}
"""Fields that one action reads where they are given. No action reads any other."""


class Rewind(Section):
    """Where to go back to, and what to do differently from there."""

    to_step: Annotated[int, Field(ge=0, le=WHOLE_MAX)]
    """The step to go back to; the newest checkpoint at or before it is restored."""
    learning_rate_scale: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The learning rate from there, as a share of what it was."""
    skip_batches: Annotated[int, Field(ge=0, le=STEPS_MAX)] = 0
    """How many batches are passed over."""


class Profile(Section):
    """Which ranks record which part of their work."""

    ranks: Annotated[
        tuple[Annotated[int, Field(ge=0, le=WHOLE_MAX)], ...], Field(min_length=1, max_length=RANKS_MAX)
    ]
    """The ranks, eight at most."""
    steps: Annotated[int, Field(ge=1, le=PROFILE_STEPS_MAX)] = PROFILE_STEPS
    """How many of their next steps."""


class InterventionSpec(Section):
    """What is asked for, of which job, and why."""

    job: Name
    """The TrainingJob, in the same namespace."""
    action: InterventionAction
    """What is to be done."""
    reason: Text
    """Why, for whoever reads the record."""
    node: NodeName | None = None
    """The node, for Evict, Return and Test."""
    nodes: Annotated[int, Field(ge=1, le=NODES_MAX)] | None = None
    """How many nodes the job should run on, for Resize."""
    rewind: Rewind | None = None
    """Where to go back to, for Rewind."""
    skip_batches: Annotated[int, Field(ge=1, le=STEPS_MAX)] | None = None
    """How many batches to pass over, for SkipBatches."""
    profile: Profile | None = None
    """Which ranks record how many of their next steps, for Profile."""

    fresh: bool = False
    """Whether the job starts over, whatever checkpoints there are, for Restart."""
    level: TestLevel | None = None
    """How thorough, for Test. Left out: full of a node without ranks, light of one with ranks."""

    @model_validator(mode="after")
    def _has_what_its_action_reads(self) -> Self:
        for name, action in MAY_HAVE.items():
            given = getattr(self, name)
            if given and self.action is not action:
                told = str(given) if isinstance(given, TestLevel) else given
                raise contradiction(name, told, f"remove it; {self.action} does not read it")
        needed = NEEDS.get(self.action)
        for name in ("node", "nodes", "rewind", "skip_batches", "profile"):
            value = getattr(self, name)
            field = "skipBatches" if name == "skip_batches" else name
            if name == needed and value is None:
                raise contradiction(field, MISSING, f"add it; {self.action} needs it")
            if name != needed and value is not None:
                shown = value if isinstance(value, int | str) else "a mapping"
                raise contradiction(field, shown, f"remove it; {self.action} does not read it")
        return self


class InterventionStatus(Written, frozen=True):
    """Written by Holdfast; never read as input."""

    state: Annotated[InterventionState | None, Meta(description="Pending, Done or Refused.")] = None
    outcome: Annotated[
        str | None, Meta(description="What was done, why it was refused, or what it waits for.")
    ] = None
    started_at: Annotated[str | None, Meta(description="When the operator first wrote of it.")] = None
    finished_at: Annotated[str | None, Meta(description="When it was done or refused.")] = None


class Intervention(Section):
    """One request, done once and recorded for ever."""

    api_version: Literal["holdfast.dev/v1alpha1"]
    kind: Literal["Intervention"]
    metadata: Metadata = Metadata()
    spec: InterventionSpec
    status: InterventionStatus | None = None


def read_intervention(document: Mapping[str, Any]) -> Intervention:
    """A decoded document as an Intervention. Raises InvalidSpec naming every problem."""
    return parse(Intervention, document)


def request_of(intervention: Intervention, id: str) -> InterventionRequest:
    """The request as it travels. `id` makes a repeated request the same request."""
    spec = intervention.spec
    rewind = spec.rewind
    return InterventionRequest(
        id=id,
        job=f"{intervention.metadata.namespace}/{spec.job}",
        action=spec.action,
        reason=spec.reason,
        node=spec.node,
        nodes=spec.nodes,
        to_step=rewind.to_step if rewind else None,
        skip_batches=rewind.skip_batches if rewind else spec.skip_batches or 0,
        learning_rate_scale=rewind.learning_rate_scale if rewind else 1.0,
        fresh=spec.fresh,
        level=spec.level,
        ranks=spec.profile.ranks if spec.profile else (),
        steps=spec.profile.steps if spec.profile else None,
    )
