"""Many jobs in one program: a publisher that takes long to end keeps no other job waiting."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.api.bulletin import Bulletin
from holdfast.api.feed import PlacesTold
from holdfast.api.policy import ReportingPolicy
from holdfast.console.trackers import program
from holdfast.console.trackers.credentials import OwnEnvironment
from holdfast.console.trackers.settings import TrackerSettings, parse_settings


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
    return SimpleNamespace(program=made, bulletins=bulletins)


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
