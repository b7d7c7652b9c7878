"""A launcher that imports beforehand what its script needs: how workers come by it from one round to the next."""

from pathlib import Path

import pytest
from fake_watchdog import FakeWatchdog
from launch_harness import Nodes, line_in

from holdfast.api.membership import Join, Warmed

SCRIPT = """
import os, sys, time
held = [name for name in ("named", "found") if name in sys.modules]
sys.path.append(sys.argv[1])
import named, found
print("held", *held, flush=True)
while True:
    print("trains", flush=True)
    time.sleep(0.5)
"""


async def test_a_worker_of_the_next_round_finds_what_the_job_names_imported(
    watchdog: FakeWatchdog, nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "site-packages"
    for name in ("named", "found"):
        (packages / name).mkdir(parents=True)
        (packages / name / "__init__.py").write_text("")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    monkeypatch.setenv("PYTHONPATH", str(packages))
    node = await nodes.start(
        "a", watchdog.endpoint, str(script), str(packages), flags=("--preload", "named,learned")
    )
    await watchdog.wait_for(Join)
    await watchdog.wait_for(Warmed)
    await line_in(node.output, "imported beforehand modules=1")
    await watchdog.show(watchdog.round(1, "a"))
    assert await line_in(node.log(0, 1), "held") == "held named"
    # It trains, and imports nothing more: what it imported beside that is learned.
    await line_in(node.output, "imported beforehand modules=2")
    await watchdog.show(watchdog.round(2, "a"))
    assert await line_in(node.log(0, 2), "held") == "held named found"
