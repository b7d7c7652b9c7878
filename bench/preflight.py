"""How soon a job's preflight names a bad link among 8 nodes, and goes on without what it named.

    python bench/preflight.py [--trial NAME]

The whole way: `holdfast ssh` on network namespaces with cables of 200 Mbit/s, one launcher each; the watchdog asks
for the test, the launchers measure, an incident names the node or the link, and the first round is formed of the
others. A trial that names anything but what was made bad is a failure and not a figure. Needs to be root.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import linklab
from figure import BUILD, Figure, measured, publish, unmeasured
from linklab import Relay

NODES = 8
NAMED_S = 60.0
PATIENCE_S = 300.0
BAD = 2
PATH = (2, 5)  # these meet in the first round of the schedule
HOLDFAST = (sys.executable, "-m", "holdfast.cli")
JOB = """
apiVersion: holdfast.dev/v1alpha1
kind: TrainingJob
metadata: {name: preflight}
spec:
  entrypoint: [sh, work.sh]
  nodes: {min: 7, max: 7, spares: 1}
  startup: {preflight: none, links: {flow: 2s, gang: 3s, timeout: 2m}}
"""
WORK = "while [ ! -e done ]; do sleep 0.2; done\n"
# Called as ssh is; the last two words are the host, which is a namespace, and the line for its shell.
SSH = """
for word; do host=$line; line=$word; done
exec ip netns exec "$host" sh -c "$line"
"""
TRIALS: Mapping[str, tuple[Callable[[], AbstractContextManager[None]], str]] = {
    "10 ms more": (lambda: linklab.lab(NODES, {BAD: Relay(delay_s=10e-3)}), f"node {linklab.name_of(BAD)}"),
    "1 % lost": (lambda: linklab.lab(NODES, {BAD: Relay(loss=0.01)}), f"node {linklab.name_of(BAD)}"),
    "1 % lost between two": (
        lambda: linklab.lab(NODES, {}),
        "link {} - {}".format(*map(linklab.name_of, PATH)),
    ),
}


def trial(folder: Path, right: str) -> float:
    """One job on the lab that stands: seconds from when the test is asked for until the right one is named."""
    (folder / "work.sh").write_text(WORK)
    (folder / "job.yaml").write_text(JOB)
    (folder / "ssh").write_text(SSH)
    hosts = ",".join(map(linklab.name_of, range(NODES)))
    command = (*HOLDFAST, "ssh", str(folder / "job.yaml"), "--hosts", hosts, "--ssh", f"sh {folder / 'ssh'}")
    options = ("--address", linklab.LEAD, "--fresh", "--state-dir", str(folder / "state"))
    log = folder / "said"
    with log.open("w") as said:
        environment = {**os.environ, "TMPDIR": str(folder)}
        holder = subprocess.Popen(
            linklab.inside(linklab.SWITCH, *command, *options), cwd=folder, stderr=said, env=environment
        )
        try:
            began = _seen(log, "the links between", holder)
            named = _seen(log, "SelfTest of", holder)
            _seen(log, "7 ranks; first round", holder)
            (folder / "done").touch()
            holder.wait(PATIENCE_S)
        finally:
            holder.terminate()
            holder.wait(PATIENCE_S)
    blamed = [line for line in log.read_text().splitlines() if "SelfTest of" in line]
    if len(blamed) != 1 or f"SelfTest of {right}:" not in blamed[0]:
        sys.exit(f"blamed {blamed}, not {right} alone\n{log.read_text()}")
    return named - began


def _seen(log: Path, words: str, holder: "subprocess.Popen[bytes]") -> float:
    """When the run has said so."""
    deadline = time.monotonic() + PATIENCE_S
    while words not in log.read_text():
        if time.monotonic() > deadline or holder.poll() is not None:
            sys.exit(f"never said {words!r}:\n{log.read_text()}")
        time.sleep(0.05)
    return time.monotonic()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trial", choices=TRIALS, help="This one alone.")
    flags = parser.parse_args()
    if os.geteuid() != 0:
        missed = unmeasured("preflight", unit="s", target=1.0, reason="namespaces need root")
        publish("preflight", [missed], folder=BUILD)
        return
    figures: list[Figure] = []
    for name, (lab, right) in TRIALS.items():
        if flags.trial not in (None, name):
            continue
        with lab(), tempfile.TemporaryDirectory() as folder:
            if right.startswith("link"):
                linklab.lose_between(*PATH, 0.01)
            took_s = trial(Path(folder), right)
        print(f"{name}: {right} named in {took_s:.1f} s", flush=True)
        what = f"{name}, named by the preflight of {NODES} nodes"
        figures.append(measured(what, ours=[took_s], other=[NAMED_S], unit="s", target=1.0))
    publish("preflight", figures, folder=BUILD)


if __name__ == "__main__":
    main()
