"""How long `make demo` takes to its first step, once it is installed.

    make bench NAME=demo

The limit is what a newcomer waits for before looking elsewhere. The clock starts with the command and ends when
`holdfast status` tells of a step that every rank has completed, looked at twice a second.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from figure import Figure, measured, publish, unmeasured

HOLDFAST = (sys.executable, "-c", "from holdfast.cli.main import main; main()")
NAME = "demo: from the command to its first step"
LIMIT_S = 60.0
PATIENCE_S = 600.0
LOOK_S = 0.5


def first_step_s(state: Path) -> float | None:
    """Seconds until the demo's first step, None when there was none in `PATIENCE_S`."""
    began = time.perf_counter()
    command = (*HOLDFAST, "demo", "--plain", "--state-dir", str(state))
    with (state.parent / "demo.txt").open("wb") as output:
        demo = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        while demo.poll() is None and time.perf_counter() - began < PATIENCE_S:
            if _step(state):
                return time.perf_counter() - began
            time.sleep(LOOK_S)
        return None
    finally:
        demo.send_signal(signal.SIGINT)
        demo.wait()


def _step(state: Path) -> int:
    asked = (*HOLDFAST, "status", "--state-dir", str(state), "-o", "json")
    told = subprocess.run(asked, capture_output=True, text=True, check=False)
    try:
        return int(json.loads(told.stdout)["step"] or 0)
    except (ValueError, LookupError, TypeError):
        return 0  # the watchdog does not listen yet


def figure(runs: int) -> Figure:
    """The median of so many demos, each from the start."""
    took_s: list[float] = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            one = first_step_s(Path(folder) / "state")
        if one is None:
            return unmeasured(NAME, unit="s", target=1.0, reason="a demo made no step")
        took_s.append(one)
    return measured(NAME, ours=took_s, other=[LIMIT_S], unit="s", target=1.0)


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=5)
    publish("demo", [figure(parser.parse_args().runs)])


if __name__ == "__main__":
    main()
