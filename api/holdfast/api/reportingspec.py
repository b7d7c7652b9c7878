"""`spec.reporting` of a TrainingJob: where it is published, and who is told of its incidents.

There are no credentials in it. They are in the environment of who publishes: on one machine that of `holdfast
run`, in a cluster a Secret beside the job, by the names that the trackers' own clients read (docs/reporting.md).
"""

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StringConstraints
from pydantic_core import PydanticCustomError

from holdfast.api.bounds import NAME_LENGTH_MAX
from holdfast.api.policy import MlflowTarget, ReportingPolicy, WandbTarget
from holdfast.api.scalars import RANKS_SHOWN_MAX
from holdfast.api.section import Section

SECRET = "holdfast-reporting"
URL = r"^https?://[^/?#@\s]+(/[^\s]*)?$"
_CHARACTERS_MAX = 1024
_DNS = r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"


def _url(text: str) -> str:
    """Raises an error that names the fix for what could carry a password, and for what is no address."""
    if "@" in text.split("://", 1)[-1].split("/", 1)[0]:
        fix = "leave the name and password out; put them into the Secret that spec.reporting.secret names"
        raise PydanticCustomError("credentials", "{fix}", {"fix": fix})
    try:
        _ = urlsplit(text).port
    except ValueError as error:
        raise PydanticCustomError("address", "{fix}", {"fix": f"write https://HOST/path: {error}"}) from error
    return text


Name = Annotated[
    str, StringConstraints(min_length=1, max_length=128), Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_. -]*$")
]
Url = Annotated[
    str, AfterValidator(_url), StringConstraints(min_length=1, max_length=_CHARACTERS_MAX), Field(pattern=URL)
]


class Wandb(Section):
    """A run in Weights & Biases. WANDB_API_KEY is in the environment or the Secret, never here."""

    project: Name
    """The project the run is in."""
    entity: Name | None = None
    """Whose project it is. By default the one of the API key."""
    url: Url | None = None
    """The server, where it is not W&B's own: https://wandb.example."""


class Mlflow(Section):
    """A run in MLflow. What the server asks for is in the environment or the Secret, never here."""

    uri: Url | None = None
    """The tracking server: https://mlflow.example. By default MLFLOW_TRACKING_URI."""
    experiment: Name | None = None
    """The experiment the run is in. By default the job's name."""


class Reporting(Section):
    """Where the job is published, from one place however many ranks it has, and who is told of its incidents."""

    wandb: Wandb | None = None
    """A run in Weights & Biases."""
    mlflow: Mlflow | None = None
    """A run in MLflow."""
    tensorboard: bool = False
    """True: event files of TensorBoard are written, on one machine in the state directory."""
    webhook: Url | None = None
    """An address that is sent each incident when it begins and when it is over."""
    secret: Annotated[str, StringConstraints(min_length=1, max_length=NAME_LENGTH_MAX), Field(pattern=_DNS)] = (
        SECRET
    )
    """The Secret in the job's namespace that has the credentials. On one machine the environment has them."""
    ranks: Annotated[int, Field(ge=1, le=RANKS_SHOWN_MAX)] = 1
    """What the script logs is shown of the ranks below it; from 2 on also each one's own loss and step time."""


def reporting_policy(told: Reporting | None) -> ReportingPolicy | None:
    """What is told, in plain values; None where that is nowhere."""
    if told is None or not (told.wandb or told.mlflow or told.tensorboard or told.webhook):
        return None
    wandb, mlflow = told.wandb, told.mlflow
    return ReportingPolicy(
        wandb=WandbTarget(wandb.project, wandb.entity or "", wandb.url or "") if wandb else None,
        mlflow=MlflowTarget(mlflow.uri or "", mlflow.experiment or "") if mlflow else None,
        tensorboard=told.tensorboard,
        webhook=told.webhook or "",
        secret=told.secret,
        ranks=told.ranks,
    )
