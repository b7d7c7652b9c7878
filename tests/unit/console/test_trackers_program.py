"""Many jobs in one program: a publisher that takes long to end keeps no other job waiting."""

import asyncio
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.api.bulletin import Bulletin
from holdfast.api.feed import JobGone, PlacesTold
from holdfast.api.policy import ReportingPolicy
from holdfast.console.trackers import program, publisher
from holdfast.console.trackers.credentials import OwnEnvironment
from holdfast.console.trackers.desk import KEPT_S, Desk, sweep
from holdfast.console.trackers.records import Mark
from holdfast.console.trackers.settings import TrackerSettings, parse_settings
from holdfast.console.trackers.spool import SpoolWriter


@dataclass
class SlowDesk:
    """A desk whose publisher ends when `ends` is set."""

    bulletin: Bulletin
    settings: TrackerSettings
    credentials: object
    ends: asyncio.Event = field(default_factory=asyncio.Event)
    announced: int = 0
    after: tuple[int, str] = (0, "")

    def __post_init__(self) -> None:
        self.job, self.uid, self.reporting = self.bulletin.job, self.bulletin.uid, self.bulletin.reporting

    def hear(self, said: object, now: float) -> None: ...

    def announce(self, bulletin: Bulletin, at: float, now: float) -> None:
        self.announced += 1

    def write(self, now: float) -> None: ...

    async def attend(self, now: float) -> None: ...

    async def stop(self) -> None:
        await self.ends.wait()

    async def retire(self) -> None:
        await self.stop()
        (self.settings.folder / "retired").touch()


def told(job: str, ranks: int) -> Bulletin:
    return Bulletin(job, "", ReportingPolicy(tensorboard=True, ranks=ranks), 1, 0, None, "life")


@pytest.fixture
def trackers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(program, "Desk", SlowDesk)
    arguments = ["--watchdog", "h:1", "--token-file", str(tmp_path / "token"), "--folder", str(tmp_path)]
    made: Any = program.Trackers(parse_settings(arguments), OwnEnvironment())
    bulletins = {"a/a": told("a/a", 1), "b/b": told("b/b", 1)}

    async def bulletin(job: str, desk: object) -> Bulletin:
        return bulletins[job]

    monkeypatch.setattr(made, "_bulletin", bulletin)
    for job in bulletins:
        made.hear(PlacesTold(job, 1, 1, 0, (), (), (), b""))
    return SimpleNamespace(program=made, bulletins=bulletins, folder=tmp_path)


async def test_another_spec_makes_another_desk_once_the_publisher_before_has_ended(trackers: Any) -> None:
    made = trackers.program
    for job in ("a/a", "b/b"):
        await made._turn(job)
    first = made._desks["a/a"]
    trackers.bulletins["a/a"] = told("a/a", 2)
    async with asyncio.timeout(1.0):
        for _ in range(3):
            for job in ("a/a", "b/b"):
                await made._turn(job)
    assert "a/a" not in made._desks
    assert made._desks["b/b"].announced == 4
    first.ends.set()
    await made._ending["a/a"]
    await made._turn("a/a")
    assert made._desks["a/a"].reporting.ranks == 2


async def test_a_job_that_is_gone_takes_its_desk_with_it(trackers: Any) -> None:
    made = trackers.program
    await made._look()
    made._desks["a/a"].ends.set()
    made.hear(JobGone("a/a"))
    await made._look()
    assert set(made._desks) == {"b/b"}
    await made._ending["a/a"]
    assert (trackers.folder / "retired").exists()


async def test_what_is_out_of_every_tracker_goes_with_the_job_and_the_rest_stays(tmp_path: Path) -> None:
    settings = parse_settings(["--watchdog", "h:1", "--token-file", "t", "--folder", str(tmp_path)])
    for code, stays in ((0, False), (1, True)):
        desk = Desk(told("a/a", 1), settings, OwnEnvironment())
        desk._process = await asyncio.create_subprocess_exec("sh", "-c", f"exit {code}")
        await desk._process.wait()
        await desk.attend(0.0)
        await desk.retire()
        assert (tmp_path / "a.a").exists() is stays


def test_a_spool_that_nobody_writes_to_for_a_month_is_swept_and_nothing_else(tmp_path: Path) -> None:
    for name in ("old", "new"):
        SpoolWriter(tmp_path / name, bytes_max=1 << 20).append((), Mark(heard=1, final=1))
    (tmp_path / "tensorboard").mkdir()
    now = max(path.stat().st_mtime for path in (tmp_path / "old").iterdir())
    for path in (*(tmp_path / "old").glob("*.spool"), tmp_path / "tensorboard"):
        os.utime(path, (now - KEPT_S - 60.0,) * 2)
    sweep(tmp_path, now)
    assert {path.name for path in tmp_path.iterdir()} == {"new", "tensorboard"}


def test_a_tracker_that_refuses_is_left_alone_for_a_while_and_then_a_new_process_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "TRIED_AGAIN_S", 0.0)
    monkeypatch.setattr(publisher, "LOOK_S", 0.01)
    monkeypatch.setattr(publisher, "trackers_of", lambda task, environment: {"it": object()})

    class Refused:
        refused, refused_at, waiting = "401", 0.0, ""

        def __init__(self, *given: object, **more: object) -> None: ...

        def run(self) -> None: ...

    monkeypatch.setattr(publisher, "Courier", Refused)
    reporting = ReportingPolicy(tensorboard=True)
    task = publisher.Task("a/a", "key", reporting, str(tmp_path), str(tmp_path), ())
    rest = threading.Event()
    assert publisher.publish(task, stop=threading.Event(), rest=rest)
    assert rest.is_set()
