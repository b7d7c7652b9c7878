"""A run as its checkpoints tell of it: those that are there, how it was started, what its steps gave."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from holdfast.api import ledger, runhistory, runmanifest
from holdfast.api.errors import Damaged, InvalidInput, Problem
from holdfast.api.runhistory import StoredHistory
from holdfast.api.runmanifest import RunManifest
from holdfast.checkpoint.commit.discovery import Found, committed_step, discover, lineage
from holdfast.checkpoint.commit.storage import Storage
from holdfast.checkpoint.restore.enclosed import read_enclosure
from holdfast.checkpoint.storage.address import is_local, read_address
from holdfast.checkpoint.storage.local import parse_uri

_IN_A_STATE_DIRECTORY = "checkpoints"
_CopyPart = 16 << 20
Content = TypeVar("Content")


@dataclass(frozen=True)
class RecordedRun:
    """`line` are the checkpoints of the history that goes on, newest first, at least one."""

    uri: str
    storage: Storage
    line: tuple[Found, ...]

    @property
    def by_step(self) -> Mapping[int, Found]:
        return {each.step: each for each in self.line}

    @cached_property
    def manifest(self) -> RunManifest | None:
        """How it was started, as its newest checkpoint that tells has it; None: none does. Raises Damaged."""
        for each in self.line:
            document = read_enclosure(self.storage, each.name, each.manifest, runmanifest.FILE_NAME)
            if document is not None:
                return runmanifest.decode(document)
        return None

    @cached_property
    def history(self) -> StoredHistory:
        """Its steps, as its newest checkpoint that tells has them; empty where none does. Raises Damaged."""
        for each in self.line:
            document = read_enclosure(self.storage, each.name, each.manifest, runhistory.FILE_NAME)
            if document is not None:
                return runhistory.decode(document)
        return StoredHistory()

    @property
    def cost(self) -> bytes | None:
        """What the run had cost, as its newest checkpoint that tells has it (`api.ledger.LedgerReport` in JSON).
        Raises Damaged.
        """
        told = (read_enclosure(self.storage, each.name, each.manifest, ledger.FILE_NAME) for each in self.line)
        return next((document for document in told if document is not None), None)

    def copy(self, step: int, target: Path) -> None:
        """Copy the checkpoint of `step` into the directory `target`. Raises OSError, and Damaged when a file is
        shorter than its manifest says.
        """
        found = self.by_step[step]
        folder = target / found.name
        folder.mkdir(parents=True)
        sizes = {name: record.size_bytes for name, record in found.manifest.files.items()}
        document = f"{found.name}/manifest.json"
        sizes["manifest.json"] = self.storage.size_bytes(document)
        for name, size in sizes.items():
            with open(folder / name, "xb") as file:
                for offset in range(0, size, _CopyPart):
                    part = self.storage.read(f"{found.name}/{name}", offset, min(_CopyPart, size - offset))
                    if not part:
                        raise Damaged(f"{found.name}/{name} ends at {offset}, it has {size} bytes by its manifest")
                    file.write(part)


def open_run(uri: str) -> RecordedRun:
    """The run whose checkpoints lie at `uri`: a directory or object store, one `step-…` in it (the run up to that
    step), or the state directory of `holdfast run`.

    Raises InvalidInput when there is no checkpoint, OSError when the storage fails.
    """
    address = read_address(_of_a_state_directory(uri))
    found, _ = discover(address.storage)
    if address.step is None:
        line = lineage(found)
    else:
        line = lineage([each for each in found if each.step <= address.step], limit=address.step)
    if not line or (address.step is not None and line[0].step != address.step):
        fix = "no readable checkpoint is there: name the directory that a run saves to, or one step-… in it"
        raise InvalidInput(Problem(field="run", value=uri, fix=fix))
    return RecordedRun(uri, address.storage, tuple(line))


def _of_a_state_directory(uri: str) -> str:
    if not is_local(uri):
        return uri
    path = parse_uri(uri)
    inner = path / _IN_A_STATE_DIRECTORY
    is_state = committed_step(path.name) is None and inner.is_dir()
    return str(inner) if is_state and not any(committed_step(each.name) for each in path.iterdir()) else uri
