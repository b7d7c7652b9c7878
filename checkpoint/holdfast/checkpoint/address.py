"""What a person writes to name a directory of checkpoints, or one of them."""

from dataclasses import dataclass

from holdfast.api.errors import InvalidInput, Problem
from holdfast.checkpoint.local import LocalStorage, parse_uri
from holdfast.checkpoint.naming import committed_step


@dataclass(frozen=True, slots=True)
class Address:
    """A directory, and the step of one checkpoint in it, None where all are meant."""

    storage: LocalStorage
    step: int | None


def read_address(uri: str) -> Address:
    """`DIRECTORY` or `DIRECTORY/step-00000012`. Raises InvalidInput when there is no such directory."""
    path = parse_uri(uri.rstrip("/") or "/")
    step = committed_step(path.name)
    if not path.is_dir():
        fix = "name a directory of checkpoints, or one step-… in it"
        raise InvalidInput(Problem(field="uri", value=uri, fix=fix))
    return Address(LocalStorage(path if step is None else path.parent), step)
