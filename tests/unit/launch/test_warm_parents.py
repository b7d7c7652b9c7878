"""Which parent a worker is forked from, and when a parent that nothing is forked from any more ends."""

import asyncio
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.launch import forkserver, warmparents
from holdfast.agent.launch.forking import EntrypointKind, Fork, GroupGone, Preload, Ready
from holdfast.agent.launch.forkserver import ForkServer
from holdfast.agent.launch.preload import (
    LEFT_MAX,
    PreloadList,
    leave_what_killed,
    read_list,
    stamp_of,
    trying_file,
)
from holdfast.agent.launch.settings import Entrypoint
from holdfast.agent.launch.warmparents import WarmParents, list_file

REQUEST = Fork(1, "rank0", EntrypointKind.SCRIPT, ("train.py",), {}, "/", "/log")
LEFT: list[PreloadList] = []

PROVEN = PreloadList(("transformers",), proven=True)


class FakeServer:
    """A `ForkServer` without a process."""

    made: list["FakeServer"]

    def __init__(self, *, on_message: Any, wanted: Path | None = None, **_: Any) -> None:
        self.on_message, self.wanted = on_message, wanted
        self.ready: Ready | None = None
        self.forked: list[Fork] = []
        self.is_idle, self.ended = True, False
        FakeServer.made.append(self)

    @property
    def is_warm(self) -> bool:
        return self.ready is not None and self.ready.warm

    def fork(self, request: Fork) -> None:
        self.forked.append(request)
        self.is_idle = False

    def is_now(self, ready: Ready) -> None:
        self.ready = ready
        self.on_message(ready)

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.ended = True


@pytest.fixture
def parents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WarmParents:
    FakeServer.made = []
    LEFT.clear()
    monkeypatch.setattr(warmparents, "ForkServer", FakeServer)
    return WarmParents(
        entrypoint=Entrypoint(EntrypointKind.SCRIPT, REQUEST.argv),
        environment={},
        run_dir=tmp_path,
        on_message=lambda message: None,
        on_left=LEFT.append,
    )


def installed(folder: Path) -> Ready:
    file = folder / "package.py"
    file.write_text("VERSION = 1\n")
    return Ready(warm=True, loaded=1, files=(str(file),), stamp=stamp_of([str(file)]))


async def test_a_worker_waits_for_the_parent_that_imports_what_it_needs(
    parents: WarmParents, tmp_path: Path
) -> None:
    parents.season(PROVEN)
    plain, seasoned = FakeServer.made
    assert seasoned.wanted == list_file(tmp_path, 1)
    plain.is_now(Ready(warm=True))
    parents.fork(REQUEST)
    parents.fork_plain(REQUEST)
    assert (len(plain.forked), len(seasoned.forked)) == (1, 0)
    seasoned.is_now(installed(tmp_path))
    parents.fork(REQUEST)
    assert (len(plain.forked), len(seasoned.forked)) == (1, 2)


async def test_nobody_waits_for_a_parent_of_no_use(parents: WarmParents) -> None:
    parents.season(PROVEN)
    plain, seasoned = FakeServer.made
    parents.fork(REQUEST)
    seasoned.is_now(Ready(warm=False, reason="2 threads run"))
    parents.fork(REQUEST)
    assert (len(plain.forked), len(seasoned.forked)) == (2, 0)


async def test_nobody_waits_long_for_an_import(parents: WarmParents, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warmparents, "IMPORTING_S", 0.0)
    parents.season(PROVEN)
    plain, seasoned = FakeServer.made
    parents.fork(REQUEST)
    for _ in range(2):
        await asyncio.sleep(0)
    parents.fork(REQUEST)
    assert (len(plain.forked), len(seasoned.forked)) == (2, 0)


async def test_nobody_waits_for_what_is_imported_for_the_first_time(parents: WarmParents, tmp_path: Path) -> None:
    """It may take several tries, of which each begins anew."""
    parents.season(PreloadList(("transformers",)))
    plain, seasoned = FakeServer.made
    parents.fork(REQUEST)
    seasoned.is_now(installed(tmp_path))
    parents.fork(REQUEST)
    assert (len(plain.forked), len(seasoned.forked)) == (1, 1)


async def test_what_was_installed_anew_is_not_used_and_made_anew(parents: WarmParents, tmp_path: Path) -> None:
    wanted = PreloadList(("transformers",))
    parents.season(wanted)
    plain, seasoned = FakeServer.made
    seasoned.is_now(installed(tmp_path))
    (tmp_path / "package.py").write_text("VERSION = 2 and more\n")
    parents.fork(REQUEST)
    assert (len(plain.forked), len(seasoned.forked)) == (1, 0)
    assert len(FakeServer.made) == 3
    assert read_list(list_file(tmp_path, 2)) == wanted


async def test_a_parent_that_is_replaced_ends_with_the_last_of_its_workers(
    parents: WarmParents, tmp_path: Path
) -> None:
    parents.season(PreloadList(("transformers",)))
    seasoned = FakeServer.made[1]
    await asyncio.sleep(0)
    seasoned.is_now(installed(tmp_path))
    parents.fork(REQUEST)
    parents.season(PreloadList(("transformers", "datasets")))
    await asyncio.sleep(0)
    assert not seasoned.ended, "it would take its worker along"
    seasoned.is_idle = True
    seasoned.on_message(GroupGone(7))
    await asyncio.sleep(0)
    assert seasoned.ended


async def test_what_a_parent_imports_when_it_is_replaced_is_not_taken_for_what_killed_it(
    parents: WarmParents, tmp_path: Path
) -> None:
    parents.season(PreloadList(("transformers",)))
    await asyncio.sleep(0)
    first = FakeServer.made[1]
    assert first.wanted is not None
    trying_file(first.wanted).write_text("transformers")
    longer = PreloadList(("transformers", "datasets"))
    parents.season(longer)
    second = FakeServer.made[2]
    assert second.wanted is not None
    leave_what_killed(second.wanted)
    assert read_list(second.wanted) == longer
    for _ in range(3):
        await asyncio.sleep(0)
    assert first.ended
    assert sorted(each.name for each in tmp_path.iterdir()) == ["preload-2.json"]


async def test_what_a_replaced_parent_had_to_leave_is_no_news(parents: WarmParents, tmp_path: Path) -> None:
    parents.season(PreloadList(("transformers",)))
    first = FakeServer.made[1]
    first.is_idle = False
    parents.season(PreloadList(("transformers", "datasets")))
    first.on_message(Ready(warm=True))
    assert not LEFT
    FakeServer.made[2].on_message(Ready(warm=True))
    (told,) = LEFT
    assert told.modules == ("transformers", "datasets")


async def test_the_same_list_again_and_an_empty_one_make_no_other_parent(parents: WarmParents) -> None:
    parents.season(PreloadList())
    assert len(FakeServer.made) == 1
    for _ in range(2):
        parents.season(PreloadList(("transformers",)))
    assert len(FakeServer.made) == 2


class NeverReady(ForkServer):
    """One whose processes end before they say anything."""

    starts = 0

    def _start_process(self) -> tuple["subprocess.Popen[bytes]", socket.socket]:
        self.starts += 1
        if self.starts > LEFT_MAX + 1:
            MANY.set()
        ours, theirs = socket.socketpair()
        theirs.close()
        return subprocess.Popen(["true"]), ours


MANY = asyncio.Event()


async def test_a_parent_that_never_gets_ready_is_given_up_and_the_plain_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_up = asyncio.Event()
    monkeypatch.setattr(forkserver, "_DELAY_S_MAX", 0.0)
    monkeypatch.setattr(forkserver.log, "warning", lambda *_: given_up.set())
    for wanted, over in ((tmp_path / "list.json", given_up), (None, MANY)):
        server = NeverReady(preload=Preload.TORCH, environment={}, on_message=lambda _: None, wanted=wanted)
        running = asyncio.create_task(server.run())
        async with asyncio.timeout(20):
            await over.wait()
        assert MANY.is_set() is (wanted is None)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
