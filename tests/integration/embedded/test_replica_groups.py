"""Replica groups of two by two real processes: FSDP2 within a group, the average between groups."""

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from embeddedrun import holdfast, job_file

SCRIPT = Path(__file__).parents[3] / "examples/replicas/train.py"
STEPS = 100


def trace(folder: Path) -> list[list[dict[str, Any]]]:
    """What each process wrote of its steps, in order."""
    return [
        [json.loads(line) for line in each.read_text().splitlines()] for each in sorted(folder.glob("*.jsonl"))
    ]


def test_a_killed_member_takes_its_group_out_and_the_group_comes_back_equal(tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.mkdir()
    words = ["--steps", str(STEPS), "--pace", "0.1", "--trace", str(lines)]
    more = "  parallelism: {replicaGroupNodes: 2}\n"
    job = job_file(tmp_path, script=SCRIPT.read_text(), words=words, nodes="{min: 2, max: 4}", more=more)
    faults = tmp_path / "faults.yaml"
    faults.write_text("- {at: {step: 10}, do: kill-worker, rank: 0}\n")
    state = tmp_path / "state"
    ended = holdfast("run", job, "--state-dir", state, "--faults", faults)
    assert ended.returncode == 0, ended.stderr

    (incident,) = json.loads(holdfast("incidents", "--state-dir", state, "-o", "json").stdout)
    assert (incident["kind"], incident["state"], incident.get("lostSteps", 0)) == ("ProcessExit", "Recovered", 0)
    known = trace(lines)
    every = list(range(1, STEPS + 1))
    stayed = [each for each in known if [line["step"] for line in each] == every]
    back = [each for each in known if each not in stayed and each[-1]["step"] == STEPS]
    assert (len(known), len(stayed), len(back)) == (5, 2, 2)  # the one that was killed ended before
    # Those that stayed went through rounds with two groups, with one, and with two again; they left out no step.
    for each in stayed:
        counts = [line["groups"] for line in each]
        assert [one for one, other in pairwise([*counts, 0]) if one != other] == [2, 1, 2]
    # The others were away for some steps: the peer re-entered, the dead one is a new process.
    away = [[line["step"] for line in each] for each in back]
    assert away[0][-1] == away[1][-1] == STEPS
    assert all(set(steps) < set(every) for steps in away)
    assert min(map(len, away)) < max(map(len, away))
    # Whoever holds the same shard has the same bits after every step, the returned group from its first one on.
    digests = defaultdict(set)
    for line in (line for each in known for line in each):
        digests[line["step"], line["inside"]].add(line["digest"])
    assert all(len(found) == 1 for found in digests.values())
