"""What the run itself has left in a checkpoint, for comparing runs: read back when a round goes on from it."""

import logging
from collections.abc import Sequence

from holdfast.api import ledger, runhistory, runmanifest
from holdfast.api.checkpoint import StoredCheckpoint
from holdfast.api.errors import Damaged
from holdfast.checkpoint.commit.discovery import read_manifest
from holdfast.checkpoint.format.files import Files
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.verifiedfile import VerifiedFile
from holdfast.checkpoint.restore.restore import Position

_LOG = logging.getLogger(__name__)

BYTES_MAX = {
    runmanifest.FILE_NAME: runmanifest.BYTES_MAX,
    runhistory.FILE_NAME: runhistory.BYTES_MAX,
    ledger.FILE_NAME: ledger.BYTES_MAX,
}
"""How large the files are at the most, by name."""

GOES_ON = (runmanifest.FILE_NAME, runhistory.FILE_NAME)
"""What a run goes on from. What it has cost is the watchdog's to know."""


def read_enclosure(files: Files, name: str, manifest: Manifest, file: str) -> bytes | None:
    """The verified bytes of one such `file` of the checkpoint `name`, None when it has none. Raises Damaged, or
    OSError when the storage fails.
    """
    record = manifest.files.get(file)
    if record is None:
        return None
    if record.size_bytes > BYTES_MAX[file]:
        raise Damaged(f"{file} of {name} has {record.size_bytes} bytes, more than the {BYTES_MAX[file]} allowed")
    return bytes(VerifiedFile(files, f"{name}/{file}", record).read(0, record.size_bytes))


def read_enclosed(files: Files, line: Sequence[StoredCheckpoint], position: Position) -> dict[str, bytes]:
    """Those of the newest checkpoint of `line` (newest first) that is not above the step that was restored and was
    not found damaged. What cannot be read is left out: training does without.
    """
    step, found = position.step, dict[str, bytes]()
    there = [each for each in line if step is not None and each.step <= step and each.name not in position.damaged]
    for checkpoint in there[:1]:
        for file in GOES_ON:
            try:
                manifest = read_manifest(files, checkpoint.name)
                if (document := read_enclosure(files, checkpoint.name, manifest, file)) is not None:
                    found[file] = document
            except (Damaged, OSError) as error:
                known = (checkpoint.name, file, error)
                _LOG.warning("what a run left in its checkpoint is not known name=%s file=%s reason=%s", *known)
    return found
