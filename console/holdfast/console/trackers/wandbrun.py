"""A run in Weights & Biases. Its history only grows, so rows come here once they are final.

Every row carries its `step`, which all series are drawn over. W&B's own step only counts rows.
"""

import contextlib
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import wandb
from wandb.proto import wandb_internal_pb2

from holdfast.api.errors import InvalidInput, Problem, Unavailable
from holdfast.api.policy import WandbTarget
from holdfast.console.trackers.records import Ended, Note
from holdfast.console.trackers.settling import Retold, Shown
from holdfast.console.trackers.tracker import RunIdentity

STEP: Final = "step"
_INIT_S: Final = 60.0
# The layout of a .wandb file: LevelDB's log, behind a header of seven bytes.
# Source: https://github.com/google/leveldb/blob/main/doc/log_format.md
_FILE_HEAD: Final = 7
_BLOCK: Final = 32768
_RECORD: Final = struct.Struct("<IHB")
_WHOLE, _LAST = 1, 4


class WandbRun:
    """The job's run; `folder` holds what is on its way, and in offline mode all of it."""

    forgets = False
    shows = True

    def __init__(self, identity: RunIdentity, target: WandbTarget, folder: Path, *, offline: bool) -> None:
        self._identity = identity
        self._target = target
        self._folder = folder
        self._offline = offline
        self._run: Any = None  # wandb's own types are not strict
        self._row = 0
        self._series: set[str] = set()

    def open(self, series: str, published: int) -> int:
        if self._run is None:
            try:
                # One for each opening: W&B names what is in it by the second.
                folder = self._folder / f"wandb-{sum(1 for _ in self._folder.glob('wandb-*')) + 1:04d}"
                folder.mkdir(parents=True)
                self._run = wandb.init(
                    project=self._target.project,
                    entity=self._target.entity or None,
                    id=self._identity.key,
                    name=self._identity.name,
                    group=self._identity.job.replace("/", "."),
                    resume="allow",
                    dir=str(folder),
                    mode="offline" if self._offline else "online",
                    settings=self._settings(),
                )
            except wandb.errors.UsageError as error:
                raise InvalidInput(Problem("WANDB_API_KEY", None, f"W&B refuses it: {error}")) from error
            except (wandb.errors.Error, OSError, TimeoutError) as error:
                raise Unavailable(f"W&B: {error}") from error
            self._series.clear()
        newest, rows = self._newest(series + STEP)
        self._row = max(self._row, rows)
        self._define(series)
        return newest

    def _settings(self) -> Any:
        return wandb.Settings(
            base_url=self._target.url,
            silent=True,
            console="off",
            init_timeout=_INIT_S,
            disable_git=True,
            disable_code=True,
            x_disable_stats=True,  # the system figures of this machine say nothing of the job's
            x_disable_meta=True,
            x_disable_machine_info=True,
        )

    def _newest(self, name: str) -> tuple[int, int]:
        """The greatest value of `name` that is in the run already, and the next number of a row."""
        if not self._offline:
            said = self._run.summary.get(name)
            return (-1 if said is None else int(said)), int(self._run.step)
        newest, rows = -1, 0
        for path in self._folder.glob(f"wandb-*/wandb/offline-run-*/run-{self._identity.key}.wandb"):
            for row in histories(path):
                newest, rows = max(newest, int(row.get(name, -1))), max(rows, int(row.get("_step", -1)) + 1)
        return newest, rows

    def _define(self, series: str) -> None:
        if series not in self._series:
            self._series.add(series)
            self._run.define_metric(f"{series}*", step_metric=series + STEP)

    def show(self, rows: Sequence[Shown]) -> None:
        for row in rows:
            self._define(row.series)
            values = {row.series + name: value for name, value in row.values.items()}
            self._run.log({**values, row.series + STEP: row.step, "at": row.at}, step=self._row)
            self._row += 1

    def back(self, step: int) -> None:
        raise NotImplementedError("W&B forgets nothing")

    def note(self, note: Note | Retold) -> None:
        if isinstance(note, Retold):
            self._define(note.series)
            given_up = f"steps {note.after + 1} to {note.until} were given up; those that count are {note.series}*"
            self._run.summary[f"given-up/{note.series.rstrip('/')}"] = given_up
            return
        said = {"title": note.title, "event": note.event, "at": note.at, "step": note.step, "text": note.text}
        self._run.summary[f"incidents/{note.id}"] = said
        if note.event == "opened" and not note.is_old:
            self._run.alert(title=note.title, text=note.text)

    def close(self, ended: Ended | None) -> None:
        if self._run is None:
            return
        run, self._run = self._run, None
        with contextlib.suppress(Exception):  # the connection is gone: what is on disk can be synced later
            if ended is not None:
                run.summary["holdfast/ended"] = ended.reason
            run.finish(exit_code=0 if ended is None or ended.succeeded else 1)
            wandb.teardown()  # what writes the file is a process of W&B's, which ends only now


def histories(path: Path) -> Iterator[Mapping[str, Any]]:
    """The rows of a .wandb file, in order; of one that is being written those that are whole."""
    made: Any = wandb_internal_pb2  # its classes are made when it is imported
    for body in _records(path.read_bytes()):
        record = made.Record()
        try:
            record.ParseFromString(body)
        except Exception:  # google's DecodeError: a record that was torn
            return
        if record.WhichOneof("record_type") == "history":
            yield {item.key or ".".join(item.nested_key): _number(item.value_json) for item in record.history.item}


def _number(text: str) -> Any:
    with contextlib.suppress(ValueError):
        return json.loads(text)
    return text


def _records(data: bytes) -> Iterator[bytes]:
    offset, body = _FILE_HEAD, b""
    while offset + _RECORD.size <= len(data):
        left = _BLOCK - offset % _BLOCK
        if left < _RECORD.size:  # the end of a block, which holds no head
            offset += left
            continue
        _, length, kind = _RECORD.unpack_from(data, offset)
        offset += _RECORD.size
        if offset + length > len(data) or kind == 0:
            return
        body += data[offset : offset + length]
        offset += length
        if kind in (_WHOLE, _LAST):
            yield body
            body = b""
