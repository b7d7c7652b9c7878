"""The agent as a process on a log file: an error is reported once, also over a restart of the agent."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fake_ingest import TOKEN, FakeWatchdog
from patience import patient

from holdfast.api.telemetry import NodeReport, XidRaised

QUIET = "--nvml off --infiniband off --node-checks off --preemption none"
END_S = patient(20)


@pytest.fixture
async def watchdog() -> AsyncIterator[FakeWatchdog]:
    watchdog = FakeWatchdog()
    await watchdog.start()
    yield watchdog
    await watchdog.stop()


def agent(tmp_path: Path, watchdog: FakeWatchdog) -> "subprocess.Popen[bytes]":
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    flags = f"--node n --job ns/job --run-dir {tmp_path / 'run'} --token-file {token} {QUIET}"
    command = (sys.executable, "-m", "holdfast.agent", *flags.split(), "--kernel-log", str(tmp_path / "kern.log"))
    return subprocess.Popen((*command, "--watchdog", f"127.0.0.1:{watchdog.port}"), stderr=subprocess.DEVNULL)


def xids(report: NodeReport) -> list[int]:
    return [event.xid for event in report.events if isinstance(event, XidRaised)]


async def test_an_error_in_the_log_is_reported_once_and_a_restart_goes_on(
    tmp_path: Path, watchdog: FakeWatchdog
) -> None:
    log = tmp_path / "kern.log"
    log.write_text("Nov 22 18:00:00 n kernel: NVRM: Xid (PCI:0000:3b:00): 48, history\n")
    first = agent(tmp_path, watchdog)
    try:
        connection = await watchdog.connection()
        assert xids(await connection.report()) == []
        with open(log, "a", encoding="utf-8") as file:
            file.write("Nov 22 18:00:01 n python[7]: NVRM: Xid (PCI:0000:3b:00): 31, quoted\n")
            file.write("Nov 22 18:00:01 n kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n")
        report = await connection.report(lambda report: report.events)
        assert xids(report) == [79]
        assert report.events[0].gpu == "PCI:0000:3b:00"  # type: ignore[union-attr]
    finally:
        first.send_signal(signal.SIGTERM)
        assert first.wait(END_S) == 0
    with open(log, "a", encoding="utf-8") as file:
        file.write("Nov 22 18:00:09 n kernel: NVRM: Xid (PCI:0000:3b:00): 94, while nobody looked\n")
    second = agent(tmp_path, watchdog)
    try:
        connection = await watchdog.connection()
        assert xids(await connection.report(lambda report: report.events)) == [94]
    finally:
        second.send_signal(signal.SIGTERM)
        assert second.wait(END_S) == 0
    assert os.path.exists(tmp_path / "run" / "kernel-log.json")
