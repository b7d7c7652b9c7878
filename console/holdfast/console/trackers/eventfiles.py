"""TensorBoard's event files. Steps that were given up are taken back by a start event, which purges them.

Source: https://github.com/tensorflow/tensorboard/blob/master/tensorboard/backend/event_processing/event_accumulator.py
(on SessionLog.START every event of that step and later ones, in files before, is an orphan)
"""

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.plugins.text.plugin_data_pb2 import TextPluginData
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from holdfast.api.errors import Unavailable
from holdfast.console.trackers.records import Ended, Note
from holdfast.console.trackers.settling import Retold, Shown


class EventFiles:
    """Files in one folder; each opening and each going back begins another one."""

    forgets = True
    shows = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None  # tensorboard has no types
        self._step = 0

    def open(self, series: str, published: int) -> int:
        self._begin(published)
        return published

    def back(self, step: int) -> None:
        self._begin(step)

    def _begin(self, published: int) -> None:
        self.close(None)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._writer = EventFileWriter(str(self._folder))
        except OSError as error:
            raise Unavailable(f"event files cannot be written: {error}") from error
        self._step = published
        start = SessionLog(status=SessionLog.SessionStatus.Value("START"))
        self._writer.add_event(Event(wall_time=_now(), step=published + 1, session_log=start))
        self._flush()

    def show(self, rows: Sequence[Shown]) -> None:
        for row in rows:
            values = [
                Summary.Value(tag=name, simple_value=value)
                for name, value in row.values.items()
                if not math.isnan(value)
            ]
            self._writer.add_event(Event(wall_time=row.at, step=row.step, summary=Summary(value=values)))
            self._step = row.step
        self._flush()

    def note(self, note: Note | Retold) -> None:
        if isinstance(note, Retold):
            return  # nothing here is ever told twice
        content = TextPluginData(version=0).SerializeToString()
        metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text", content=content))
        said = f"**{note.event}** {note.title}\n\n{note.text}"
        shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
        tensor = TensorProto(dtype="DT_STRING", string_val=[said.encode()], tensor_shape=shape)
        value = Summary.Value(tag=f"incidents/{note.id}/{note.event}", metadata=metadata, tensor=tensor)
        # At the newest step that is out: a later one would be an orphan after the next start.
        step = max(0, self._step)
        self._writer.add_event(Event(wall_time=note.at, step=step, summary=Summary(value=[value])))
        self._flush()

    def close(self, ended: Ended | None) -> None:
        if self._writer is not None:
            writer, self._writer = self._writer, None
            try:
                writer.close()
            except OSError as error:
                raise Unavailable(f"event files cannot be written: {error}") from error

    def _flush(self) -> None:
        try:
            self._writer.flush()
        except OSError as error:
            raise Unavailable(f"event files cannot be written: {error}") from error


def _now() -> float:
    return time.time()  # noqa: TID251 - files are ordered by it, and TensorBoard shows it
