"""What a person writes to name a directory of checkpoints, or one of them."""

from dataclasses import dataclass

from holdfast.api.errors import InvalidInput, Problem
from holdfast.checkpoint.local import parse_uri
from holdfast.checkpoint.naming import committed_step
from holdfast.checkpoint.storage import Storage
from holdfast.checkpoint.storageuri import storage_at


@dataclass(frozen=True, slots=True)
class Address:
    """A directory, or a prefix of an object store, and the step of one checkpoint in it; None: all are meant."""

    storage: Storage
    step: int | None

    def narrowed(self, step: int | None) -> int | None:
        """The step that is meant where `step` is asked for besides; None as above. Raises InvalidInput when the
        address names another.
        """
        if self.step is not None and step not in (None, self.step):
            fix = f"the address names step {self.step} already"
            raise InvalidInput(Problem(field="--step", value=step, fix=fix))
        return self.step if step is None else step


def is_local(uri: str) -> bool:
    """Whether it names a file or folder of this machine's file systems."""
    return "://" not in uri or uri.startswith("file:")


def read_address(uri: str) -> Address:
    """`DIRECTORY` or `DIRECTORY/step-00000012`. Raises InvalidInput when it names no place, or no folder that is
    there.
    """
    whole = uri.rstrip("/")
    if is_local(uri):
        path = parse_uri(whole or "/")
        if not path.is_dir():
            fix = "name a directory of checkpoints, or one step-… in it"
            raise InvalidInput(Problem(field="uri", value=uri, fix=fix))
        whole = str(path)
    root, _, last = whole.rpartition("/")
    step = committed_step(last)
    return Address(storage_at(whole if step is None else root or "/"), step)
