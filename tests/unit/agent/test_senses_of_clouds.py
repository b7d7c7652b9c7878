"""Whose notices are heeded is what the command line says, else what the firmware says."""

from pathlib import Path

import pytest

from holdfast.agent.sensing import node_sensors
from holdfast.agent.sensors.preemption import PreemptionNotices
from holdfast.agent.settings import parse_settings


@pytest.mark.parametrize(("whose", "heeded"), [("none", 0), ("aws", 1), ("gcp", 1), ("azure", 1)])
def test_a_cloud_that_is_named_is_heeded(tmp_path: Path, whose: str, heeded: int) -> None:
    (tmp_path / "token").write_text("secret")
    off = [word for flag in ("--nvml", "--kernel-log", "--infiniband", "--node-checks") for word in (flag, "off")]
    own = [
        "--job",
        "a/b",
        "--run-dir",
        str(tmp_path),
        "--watchdog",
        "w:1",
        "--token-file",
        str(tmp_path / "token"),
    ]
    senses = node_sensors(parse_settings([*own, *off, "--preemption", whose]))
    assert [type(each) for each in senses.sensors] == [PreemptionNotices] * heeded
    senses.close()
