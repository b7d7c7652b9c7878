"""A test of links as the watchdog asks for it: only who shows the token takes part, nobody is waited for long."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from patience import patient

from holdfast.agent.linktest.asked import PART_VARIABLE
from holdfast.api.selftest import LinkTest, Tested, Verdict

MODULE = (sys.executable, "-m", "holdfast.agent.linktest")
HOST = "127.0.0.1"
UNKNOWN = 3


@pytest.fixture
def port() -> int:
    with socket.create_server((HOST, 0)) as door:
        return int(door.getsockname()[1])


def begun(folder: Path, name: str, part: LinkTest) -> "subprocess.Popen[str]":
    words = ["asked", "--node", name, "--address", HOST, "--number", "7", "--result", str(folder / name)]
    environment = {**os.environ, PART_VARIABLE: msgspec.json.encode(part).decode()}
    return subprocess.Popen([*MODULE, *words], env=environment, stderr=subprocess.PIPE, text=True)


def told(folder: Path, name: str) -> Tested:
    return msgspec.msgpack.decode((folder / name).read_bytes(), type=Tested)


def test_who_does_not_come_is_a_result_and_no_hang(tmp_path: Path, port: int) -> None:
    limit_s = patient(6)
    part = LinkTest("right", HOST, port, flow_s=0.2, limit_s=limit_s)
    lead = msgspec.structs.replace(part, leads=True, members=("a", "b", "late", "stranger"))
    strangers = msgspec.structs.replace(part, token="wrong")
    began = time.monotonic()
    parts = {"a": lead, "b": part, "stranger": strangers, "not-asked": part}
    processes = {name: begun(tmp_path, name, each) for name, each in parts.items()}
    for name, process in processes.items():
        _, says = process.communicate(timeout=patient(60))
        assert process.returncode in (1, UNKNOWN), (name, says)
    assert time.monotonic() - began < limit_s + patient(10)

    found = told(tmp_path, "a").links
    assert found is not None
    assert found.absent == ("late", "stranger")
    assert (found.verdict, found.says) == (
        Verdict.UNKNOWN,
        "1 links are too few to compare with each other: 6 are needed",
    )
    assert (told(tmp_path, "b").number, told(tmp_path, "b").links) == (7, None)
    assert told(tmp_path, "b").verdict is Verdict.PASSED, "it took part; what came of it is for the lead to say"
    for name in ("stranger", "not-asked"):
        assert told(tmp_path, name).verdict is Verdict.FAILED
        assert "went away" in told(tmp_path, name).says


def test_a_lead_that_dies_ends_the_test_of_the_others(tmp_path: Path, port: int) -> None:
    part = LinkTest("right", HOST, port, flow_s=0.2, limit_s=patient(30))
    with socket.create_server((HOST, port)) as lead:
        member = begun(tmp_path, "b", part)
        line, _ = lead.accept()
        with line, line.makefile("rb") as lines:
            joined = json.loads(lines.readline())
            assert (joined["node"], joined["token"]) == ("b", "right")
    member.communicate(timeout=patient(10))
    assert told(tmp_path, "b").verdict is Verdict.FAILED
    assert told(tmp_path, "b").says == "the lead of the link test went away before it was over"


def test_without_a_part_it_says_who_gives_one(tmp_path: Path) -> None:
    words = ["asked", "--node", "b", "--address", HOST, "--number", "7", "--result", str(tmp_path / "b")]
    done = subprocess.run([*MODULE, *words], capture_output=True, text=True, timeout=patient(30), check=False)
    assert done.returncode == 2
    assert "HOLDFAST_LINK_TEST" in done.stderr
    assert "use join instead" in done.stderr
