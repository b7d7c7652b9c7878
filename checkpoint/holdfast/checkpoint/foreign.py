"""Checkpoints in a framework's own format, in the storage of Holdfast.

The framework writes and reads the files, for it alone knows its state. Everything around that is as with the
library's own checkpoints: nothing is one before every rank's files are durable and each block of them is hashed, a
rename makes it one, a newer round fences older ones, a history that was given up is not restored, and old ones are
deleted. The folder says in `framework.json` whose format it is.

Training stands still while a framework saves: it writes its live state.
"""

import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from holdfast.api.checkpoint import all_finite
from holdfast.api.decoding import decode_json
from holdfast.api.errors import Damaged, HoldfastError, InvalidInput, Malformed, Problem
from holdfast.api.rankrecord import Phase
from holdfast.api.round import Tier
from holdfast.checkpoint.capture.savegroup import SaveGroup
from holdfast.checkpoint.commit.discovery import read_manifest
from holdfast.checkpoint.commit.retention import Writer
from holdfast.checkpoint.errors import NothingToRestore, SaveFailed, SavingStopped
from holdfast.checkpoint.format import manifest
from holdfast.checkpoint.format.manifest import (
    FRAMEWORK_FILE,
    FileRecord,
    Framework,
    Manifest,
    Recorder,
    hashing_with,
)
from holdfast.checkpoint.format.verifiedfile import VerifiedFile
from holdfast.checkpoint.restore.opening import Opening, open_together
from holdfast.checkpoint.runport import RunPort
from holdfast.checkpoint.save.saves import FAILURES_MAX, StorageReport
from holdfast.checkpoint.save.share import Share, gathered
from holdfast.checkpoint.save.tidying import Tidying, retention_of
from holdfast.checkpoint.save.verdict import decide, explained
from holdfast.checkpoint.storage.address import storage_at
from holdfast.checkpoint.storage.local import LocalStorage, parse_uri

_LOG = logging.getLogger(__name__)

_READ_BYTES: Final = 8 << 20
_DESCRIPTION_BYTES_MAX: Final = 4096


class ForeignCheckpoints:
    """The checkpoints of one round in `format`, at `uri` (default: where the job says). All ranks make it alike,
    once per round, after the process group, and call `restore` before anything else; every method is collective.

    `keep` is as in `Checkpointer`. Raises InvalidInput for a place that is not in a file system that all ranks
    share: a framework writes to paths.
    """

    def __init__(self, run: RunPort, *, format: str, uri: str | None = None, keep: int | None = None) -> None:
        if keep is not None and keep < 1:
            raise InvalidInput(Problem(field="keep", value=keep, fix="write at least 1"))
        self._run, self._format, self._keep = run, format, keep
        place = run.rehearsed_from or uri or run.assignment.restore.uri
        if not place:
            fix = "name a directory that all ranks see, here or as spec.checkpoint.uri of the job"
            raise InvalidInput(Problem(field="uri", value=place, fix=fix))
        storage = storage_at(place)
        if not isinstance(storage, LocalStorage):
            fix = f"name a directory that all ranks see: {format} writes its checkpoints to paths"
            raise InvalidInput(Problem(field="uri", value=place, fix=fix))
        self._storage, self._root = storage, parse_uri(place)
        self._group = SaveGroup(run.assignment)
        self._writer = Writer(0, None)
        self._tidying: Tidying | None = None
        self._attempts = self._failures = 0
        self.restored_step: int | None = None
        self.saved_world_size: int | None = None  # of what was restored

    def restore(self, *, until: int | None = None) -> Path | None:
        """The folder of the newest checkpoint that the round may restore and whose every byte is as it was
        written, for the framework to read; None: training begins afresh. The run is told, also of `until`,
        the last step that is to be made (None: not known).

        Raises as `Checkpointer.steps` does: Fenced, Unavailable, Damaged, NothingToRestore.
        """
        run, part = self._run, self._run.assignment
        directive = part.restore
        opening = open_together(self._storage, self._group, round=part.round, restore=directive)
        skipped = list(opening.unreadable)
        chosen: str | None = None
        for name in opening.candidates:
            if not (problem := self._problem_of(name)):
                chosen = name
                break
            skipped.append(f"{name}: {problem}")
        if chosen is None and directive.tier is not Tier.NONE and (directive.step or skipped):
            reasons = "; ".join(skipped) or "there is none"
            raise NothingToRestore(
                f"no checkpoint of {self._format} at {self._storage.uri} can be used: {reasons}"
            )
        if chosen is not None:
            whole = read_manifest(self._storage, chosen)
            self.restored_step, self.saved_world_size = whole.step, whole.world_size
        self._writer = Writer(opening.number, self.restored_step, opening.token)
        self._get_ready(opening, skipped)
        if part.rank == 0:
            run.enclosed(self.restored_step, {})
        told = tuple(skipped)
        run.restored(self.restored_step, told, tier=Tier.CHECKPOINT, healed=(), follows=(), until=until)
        return None if chosen is None else self._root / chosen

    def save(self, step: int, write: Callable[[Path], object], *, wanted: int | None = None) -> bool:
        """Save the state after `step`: `write` has the framework write it, on every rank, into the empty folder
        that it is given. `wanted` is the request that this answers, as `save_due` gave it.

        True when it is committed. A failure is logged, and training goes on. Raises Fenced when a newer round has
        taken over, SavingStopped when `FAILURES_MAX` saves in a row have failed, and what `run.check` raises.
        """
        if self._run.rehearsed_from is not None:
            return False
        began_s = time.monotonic()
        self._run.check()
        self._run.phase(Phase.CHECKPOINT)
        try:
            name = self._save(step, write)
        except SaveFailed as error:
            self._failures += 1
            if self._group.rank == 0:
                _LOG.warning("checkpoint not saved step=%d failures=%d reason=%s", step, self._failures, error)
            if self._failures >= FAILURES_MAX:
                raise SavingStopped(f"{self._failures} checkpoints in a row failed: {error}") from error
            return False
        self._failures = 0
        if self._group.rank == 0 and self._tidying is not None:
            took_s, number = time.monotonic() - began_s, self._run.assignment.round
            uri = f"{self._storage.uri}/{name}"
            try:
                self._run.committed(step, uri, round=number, wanted=wanted, stall_s=took_s, took_s=took_s)
            except HoldfastError as error:  # It is committed all the same, and will be found there.
                _LOG.warning("commit not reported step=%d reason=%s", step, error)
            self._tidying.saved = step
            self._tidying.tidy()
        return True

    def close(self) -> None:
        """Give back what the ranks talked over."""
        self._group.close()

    def _get_ready(self, opening: Opening, skipped: list[str]) -> None:
        if self._group.rank != 0:
            return
        damaged = [each.partition(":")[0] for each in skipped]
        report = StorageReport(self._run, opening, uri=self._storage.uri, damaged=damaged)
        report.restored(opening.line, self.restored_step)
        self._tidying = Tidying(
            self._storage,
            self._writer,
            retention=lambda: retention_of(self._run, self._keep),
            stored=report.tidied,
        )

    def _problem_of(self, name: str) -> str:
        """Why this checkpoint cannot be used, the same on every rank; "" when it can. Each rank reads a share."""
        problem = ""
        try:
            whole = read_manifest(self._storage, name)
            record = whole.files.get(FRAMEWORK_FILE)
            if record is None or record.size_bytes > _DESCRIPTION_BYTES_MAX:
                raise Damaged(f"it is not one of {self._format}")
            said = VerifiedFile(self._storage, f"{name}/{FRAMEWORK_FILE}", record).read(0, record.size_bytes)
            if (format := decode_json(bytes(said), Framework).format) != self._format:
                raise Damaged(f"it is one of {format}, not of {self._format}")
            for file in sorted(whole.files)[self._group.rank :: self._group.world_size]:
                self._verify(f"{name}/{file}", whole.files[file])
        except (Damaged, Malformed, OSError) as error:
            problem = str(error) or type(error).__name__
        return next((said.decode() for said in self._group.exchange(problem.encode()) if said), "")

    def _verify(self, path: str, record: FileRecord) -> None:
        if self._recorded(path) != record:
            raise Damaged(f"{path} differs from what was written")

    def _recorded(self, path: str, *, durably: bool = False) -> FileRecord:
        """The record of a file as it is now. `durably`: with its bytes on the disk."""
        recorder, memory = Recorder(hashing_with(self._storage.keys)), memoryview(bytearray(_READ_BYTES))
        with (self._root / path).open("rb", buffering=0) as file:
            while count := file.readinto(memory):
                recorder.add(memory[:count])
            if durably:
                os.fsync(file.fileno())
        return recorder.record()

    def _save(self, step: int, write: Callable[[Path], object]) -> str:
        """The name of the checkpoint, committed. Raises SaveFailed or Fenced on every rank alike."""
        self._attempts += 1
        storage, group, writer = self._storage, self._group, self._writer
        folder = storage.commits.folder(step, round=writer.round, token=writer.token, attempt=self._attempts)
        decide(group, storage, lambda: self._made(folder))
        share = Share({})
        try:
            write(self._root / folder)
        except Exception as error:  # Whatever it is, the other ranks wait to be told.
            share = Share({}, failed=f"rank {group.rank}: {explained(error, storage)}")
        failed = [said.decode() for said in group.exchange(share.failed.encode()) if said]
        if not failed:
            share = self._share_of(folder)
        parts = gathered(group, share)
        failed = failed or [each.failed for each in parts if each.failed]
        return decide(group, storage, lambda: self._commit(folder, step, parts, failed))

    def _made(self, folder: str) -> str:
        self._storage.make(folder)
        return folder

    def _share_of(self, folder: str) -> Share:
        """This rank's part of looking at what all have written, and making it durable."""
        try:
            files = files_below(self._root / folder)[self._group.rank :: self._group.world_size]
            records = {file: self._recorded(f"{folder}/{file}", durably=True) for file in files}
            return Share(records, healthy=all_finite((self._run.is_finite(), self._run.parameters_finite())))
        except Exception as error:
            return Share({}, failed=f"rank {self._group.rank}: {explained(error, self._storage)}")

    def _commit(self, folder: str, step: int, parts: list[Share], failed: list[str]) -> str:
        """What the framework wrote becomes a checkpoint, whose name is returned; or nothing of it is left."""
        storage, writer = self._storage, self._writer
        try:
            if failed:
                raise SaveFailed("; ".join(failed))
            files: dict[str, FileRecord] = {}
            for part in parts:
                files |= part.files
            if not files:
                raise SaveFailed(f"{self._format} wrote no file into the folder that it was given")
            # Every rank saw the same files, or the directory is not shared.
            if sorted(files) != files_below(self._root / folder):
                raise SaveFailed(f"the ranks see different files; is {storage.uri} shared by all of them?")
            described = msgspec.json.encode(Framework(self._format))
            files[FRAMEWORK_FILE] = storage.write(f"{folder}/{FRAMEWORK_FILE}", [memoryview(described)])
            document = manifest.encode(self._manifest(step, files, parts), storage.keys)
            manifest.decode(document, storage.keys)  # What no reader would take is no checkpoint.
            storage.write(f"{folder}/{manifest.FILE_NAME}", [memoryview(document)])
            for each in sorted({str(Path(file).parent) for file in files}):
                storage.sync(f"{folder}/{each}")
            storage.sync(folder)
            return storage.commits.publish(folder, step=step, round=writer.round)
        except Exception:
            try:
                storage.remove(folder)
            except OSError as error:
                _LOG.warning("unfinished checkpoint not deleted folder=%s reason=%s", folder, error)
            raise

    def _manifest(self, step: int, files: Mapping[str, FileRecord], parts: list[Share]) -> Manifest:
        return Manifest(
            format=manifest.FORMAT,
            step=step,
            round=self._writer.round,
            parent=self._writer.parent,
            world_size=self._group.world_size,
            batches=0,
            files=dict(files),
            healthy=all_finite(part.healthy for part in parts),
        )


def files_below(folder: Path) -> list[str]:
    """Every file in a folder and its folders, by its path in it, sorted."""
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file())
