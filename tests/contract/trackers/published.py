"""What stands in a tracker in the end, read back as its own readers do; and one that is only a fake."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from mlflow_server import StartingServer
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from holdfast.api.bounds import NAME_LENGTH_MAX
from holdfast.api.errors import Unavailable
from holdfast.api.policy import MlflowTarget, WandbTarget
from holdfast.console.trackers.eventfiles import EventFiles
from holdfast.console.trackers.mlflowrun import MlflowRun
from holdfast.console.trackers.reach import AllowedHosts
from holdfast.console.trackers.records import Ended, Note
from holdfast.console.trackers.settling import Retold, Shown
from holdfast.console.trackers.tracker import RunIdentity, Tracker
from holdfast.console.trackers.wandbrun import WandbRun, histories

IDENTITY = RunIdentity("0123456789abcdef", "gpt", "research/gpt")
EVERYWHERE = AllowedHosts(("*",))
assert len(IDENTITY.key) < NAME_LENGTH_MAX


class Place(Protocol):
    """One tracker's storage. `tracker` is a new process's adapter for the same run."""

    def tracker(self) -> Tracker: ...

    def read(self, name: str) -> list[tuple[int, float]]:
        """Every value of the series that a reader finds, in its order."""

    def notes(self) -> str:
        """Everything that is noted."""


class FakeTracker:
    """Fills the port in memory. A call that fails has done half of what it should."""

    shows = True

    def __init__(self, place: "FakePlace") -> None:
        self._place = place
        self.forgets = place.forgets

    def open(self, series: str, published: int) -> int:
        self._place.call()
        self._place.opened += 1
        if self.forgets:
            self.back(published)
            return published
        return max((row.step for row in self._place.rows if row.series == series), default=-1)

    def show(self, rows: Sequence[Shown]) -> None:
        half = len(rows) // 2
        self._place.rows += rows[:half]
        self._place.call()
        self._place.rows += rows[half:]

    def back(self, step: int) -> None:
        self._place.rows = [row for row in self._place.rows if row.step <= step]

    def note(self, note: Note | Retold) -> None:
        self._place.call()
        self._place.said.append(note)

    def close(self, ended: Ended | None) -> None:
        self._place.ended.append(ended)


class FakePlace:
    """What the fake holds. The calls in `fails`, counted from 1 on, are refused."""

    def __init__(self, *, forgets: bool = False, fails: frozenset[int] = frozenset()) -> None:
        self.forgets = forgets
        self.rows: list[Shown] = []
        self.said: list[Note | Retold] = []
        self.ended: list[Ended | None] = []
        self.opened = 0
        self._fails = fails
        self._calls = 0

    def call(self) -> None:
        self._calls += 1
        if self._calls in self._fails:
            raise Unavailable("the fake is away")

    def tracker(self) -> Tracker:
        return FakeTracker(self)

    def read(self, name: str) -> list[tuple[int, float]]:
        found = [(row.step, {row.series + each: value for each, value in row.values.items()}) for row in self.rows]
        return [(step, values[name]) for step, values in found if name in values]

    def notes(self) -> str:
        return str(self.said)


class WandbPlace:
    """W&B's offline mode: a file for each process, of one run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def tracker(self) -> Tracker:
        return WandbRun(IDENTITY, WandbTarget("gpt", url="https://api.wandb.ai"), self._folder, offline=True)

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob(f"wandb-*/wandb/offline-run-*/run-{IDENTITY.key}.wandb"))

    def read(self, name: str) -> list[tuple[int, float]]:
        series = name[: name.rindex("/") + 1] if name.startswith("again-") else ""
        rows = [row for file in self._files() for row in histories(file)]
        return [(int(row[f"{series}step"]), float(row[name])) for row in rows if name in row]

    def notes(self) -> str:
        return b"".join(file.read_bytes() for file in self._files()).decode("utf-8", "replace")


class EventPlace:
    """TensorBoard's files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def tracker(self) -> Tracker:
        return EventFiles(self._folder)

    def _all(self) -> EventAccumulator:
        found = EventAccumulator(str(self._folder), size_guidance={"scalars": 0, "tensors": 0})
        found.Reload()
        return found

    def read(self, name: str) -> list[tuple[int, float]]:
        found = self._all()
        if name not in found.Tags()["scalars"]:
            return []
        return [(each.step, each.value) for each in found.Scalars(name)]

    def notes(self) -> str:
        found = self._all()
        said = [each for tag in found.Tags()["tensors"] for each in found.Tensors(tag)]
        return str([(each.step, each.tensor_proto.string_val) for each in said]) + str(found.Tags()["tensors"])


class MlflowPlace:
    """A real server, one experiment."""

    def __init__(self, server: StartingServer, experiment: str) -> None:
        self._server = server.started()
        self._experiment = experiment

    def tracker(self) -> Tracker:
        target = MlflowTarget(self._server.uri, self._experiment)
        return MlflowRun(IDENTITY, target, EVERYWHERE, {})

    def read(self, name: str) -> list[tuple[int, float]]:
        (run,) = self._server.runs(self._experiment)
        return self._server.history(run["info"]["run_id"], name)

    def notes(self) -> str:
        (run,) = self._server.runs(self._experiment)
        return str(run["data"]["tags"])
