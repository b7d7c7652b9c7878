"""What every user-facing object carries: its version and its Kubernetes metadata."""

from typing import Annotated

from pydantic import AfterValidator, Field, JsonValue, StringConstraints
from pydantic_core import PydanticCustomError

from holdfast.api.section import Section

API_VERSION = "holdfast.dev/v1alpha1"
LABEL_PATTERN = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
NAME_FIX = "use lower-case letters, digits and dashes, at most 63, starting and ending with a letter or digit"


def _no_dash_at_an_end(value: str) -> str:
    """A Kubernetes label name (RFC 1123): names become parts of pod names, directories and metrics."""
    allowed = set("abcdefghijklmnopqrstuvwxyz0123456789-")
    if not value or len(value) > 63 or set(value) - allowed or value[0] == "-" or value[-1] == "-":
        raise PydanticCustomError("name", "{fix}", {"fix": NAME_FIX})
    return value


Name = Annotated[
    str, AfterValidator(_no_dash_at_an_end), Field(json_schema_extra={"pattern": LABEL_PATTERN, "maxLength": 63})
]
NamePrefix = Annotated[str, StringConstraints(min_length=1, max_length=58)]


class Metadata(Section):
    """Kubernetes object metadata. What only the API server sets is accepted and not read."""

    name: Name | None = None
    generate_name: NamePrefix | None = None
    namespace: Name = "default"
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    uid: str | None = None
    resource_version: str | None = None
    generation: int | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    finalizers: tuple[str, ...] = ()
    owner_references: JsonValue = None
    managed_fields: JsonValue = None
    self_link: str | None = None
