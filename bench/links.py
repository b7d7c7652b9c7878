"""How soon a bad link among 8 nodes is named, on network namespaces and cables of 200 Mbit/s.

    python bench/links.py [--seconds 4] [--gang 5] [--quick]

Each trial is a whole link test: the processes start, measure and judge. A trial that names anything else than what
was made bad, or anything where nothing was, is a failure and not a figure. --quick: 2 trials, for CI.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import linklab
import msgspec
from figure import BUILD, Figure, measured, publish, unmeasured
from linklab import Relay

from holdfast.api.selftest import Judged

NODES = 8
NAMED_S = 60.0
PORT = "29611"
MODULE = (sys.executable, "-m", "holdfast.agent.linktest")

BAD = 2
TRIALS: Mapping[str, Mapping[int, Relay]] = {
    "a relay alone, nothing bad": {BAD: Relay()},
    "10 ms more": {BAD: Relay(delay_s=10e-3)},
    "1 % lost": {BAD: Relay(loss=0.01)},
    "half duplex": {BAD: Relay(half_duplex=True)},
}
QUICK = ("10 ms more", "1 % lost")
PATH = (2, 5)  # these meet in the first round of the schedule


def trial(seconds: float, gang: float) -> tuple[Judged, float]:
    """One test on the lab that stands, and how long it took from the start of its processes."""
    began = time.perf_counter()
    lead = [*MODULE, "--json", "lead", "--nodes", str(NODES), "--listen", f"{linklab.LEAD}:{PORT}"]
    leading = subprocess.Popen(
        linklab.inside(linklab.SWITCH, *lead, "--seconds", str(seconds), "--gang", str(gang)),
        stdout=subprocess.PIPE,
    )
    members = []
    for node in range(NODES):
        join = (*MODULE, "join", f"{linklab.LEAD}:{PORT}", "--node", f"n{node}")
        inside = linklab.inside(linklab.name_of(node), *join, "--address", linklab.address_of(node))
        members.append(subprocess.Popen(inside, stdout=subprocess.DEVNULL))
    told, _ = leading.communicate(timeout=600)
    took_s = time.perf_counter() - began
    for member in members:
        member.wait(timeout=60)
    return msgspec.json.decode(told, type=Judged), took_s


def named(judged: Judged) -> str:
    """Whom a test blames, in words."""
    return ", ".join([*judged.nodes, *(f"{each.one} - {each.other}" for each in judged.links)])


def figure_of(name: str, judged: Judged, took_s: float, right: str) -> Figure:
    print(f"{name}: {judged.verdict} in {took_s:.1f} s: {judged.says}", flush=True)
    if named(judged) != right:
        sys.exit(f"{name}: blamed {named(judged) or 'nobody'}, not {right or 'nobody'}")
    return measured(f"{name}, named among {NODES} nodes", ours=[took_s], other=[NAMED_S], unit="s", target=1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--gang", type=float, default=5.0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--folder", type=Path, default=BUILD)
    flags = parser.parse_args()
    if os.geteuid() != 0:
        publish(
            "links",
            [unmeasured("links", unit="s", target=1.0, reason="namespaces need root")],
            folder=flags.folder,
        )
        return
    figures = []
    for name, relays in TRIALS.items():
        if flags.quick and name not in QUICK:
            continue
        with linklab.lab(NODES, dict(relays)):
            judged, took_s = trial(flags.seconds, flags.gang)
        figures.append(figure_of(name, judged, took_s, f"n{BAD}" if "nothing" not in name else ""))
    if not flags.quick:
        with linklab.lab(NODES, {}):
            linklab.lose_between(*PATH, 0.01)
            judged, took_s = trial(flags.seconds, flags.gang)
        figures.append(figure_of("1 % lost between two", judged, took_s, "n{} - n{}".format(*PATH)))
    publish("links", figures, folder=flags.folder)


if __name__ == "__main__":
    main()
