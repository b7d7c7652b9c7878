"""Replica groups of two by two real processes: FSDP2 within a group, the average between groups, checkpoints."""

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from embeddedrun import holdfast, job_file

from holdfast.checkpoint.commit.discovery import discover
from holdfast.checkpoint.storage.local import LocalStorage

pytestmark = pytest.mark.long

SCRIPT = Path(__file__).parents[3] / "examples/replicas/train.py"
STEPS = 100


def trace(folder: Path) -> list[list[dict[str, Any]]]:
    """What each process wrote of its steps, in order."""
    return [
        [json.loads(line) for line in each.read_text().splitlines()] for each in sorted(folder.glob("*.jsonl"))
    ]


ALL_LOST_AT = 70


def is_alone(line: dict[str, Any]) -> bool:
    """Whether one group trained without the other. Later members of both are killed, one after the other."""
    return line["groups"] == 1 and line["step"] < ALL_LOST_AT


def test_a_killed_member_takes_its_group_out_and_the_group_comes_back_equal(tmp_path: Path) -> None:
    """And when members of both groups are killed, both restore from what the group that had stayed has saved."""
    lines = tmp_path / "lines"
    lines.mkdir()
    words = ["--steps", str(STEPS), "--pace", "0.1", "--save-every", "50", "--trace", str(lines)]
    more = "  parallelism: {replicaGroupNodes: 2}\n"
    job = job_file(tmp_path, script=SCRIPT.read_text(), words=words, nodes="{min: 2, max: 4}", more=more)
    faults = tmp_path / "faults.yaml"
    faults.write_text(
        "- {at: {step: 10}, do: kill-worker, rank: 0}\n"
        f"- {{at: {{step: {ALL_LOST_AT}}}, after: recovered, do: kill-worker, rank: 1}}\n"
        f"- {{at: {{step: {ALL_LOST_AT}}}, do: kill-worker, rank: 3}}\n"
    )
    state = tmp_path / "state"
    ended = holdfast("run", job, "--state-dir", state, "--faults", faults)
    assert ended.returncode == 0, ended.stderr

    incident, *more = json.loads(holdfast("incidents", "--state-dir", state, "-o", "json").stdout)
    assert (incident["kind"], incident["state"], incident.get("lostSteps", 0)) == ("ProcessExit", "Recovered", 0)
    assert {(each["kind"], each["state"]) for each in more} == {("ProcessExit", "Recovered")}
    known = trace(lines)
    # Those that stayed went through rounds with two groups, with one, and with two again; they left out no step.
    rounds = sorted({line["round"] for each in known for line in each})
    last = rounds[-1]
    stayed = [each for each in known if each[0]["step"] == 1 and any(is_alone(line) for line in each)]
    assert len(stayed) == 2
    for each in stayed:
        before = [line for line in each if line["round"] < last and line["groups"]]
        assert [line["step"] for line in before] == list(range(1, len(before) + 1))
        assert len(before) >= ALL_LOST_AT
        counts = [line["groups"] for line in before]
        assert [one for one, other in pairwise([*counts, 0]) if one != other][:3] == [2, 1, 2]
    # All ranks of both groups began the last round after the step that was saved last, and finished.
    (saved,) = {
        min(line["step"] for line in each if line["round"] == last) - 1 for each in known if on(each, last)
    }
    assert saved == 50
    assert sum(on(each, last) for each in known) == 4
    assert all(each[-1]["step"] == STEPS for each in known if on(each, last))
    # Whoever holds the same shard has the same bits after every step, the returned group from its first one on.
    digests = defaultdict(set)
    for line in (line for each in known for line in each):
        digests[line["step"], line["inside"], line["round"] == last].add(line["digest"])
    assert all(len(found) == 1 for found in digests.values())
    found = {each.step: each.manifest for each in discover(LocalStorage(state / "checkpoints"))[0]}
    assert sorted(found) == [50, STEPS]
    assert found[50].world_size == 2, "one group has saved"
    assert found[STEPS].parent == 50


def on(each: list[dict[str, Any]], number: int) -> bool:
    """Whether the process completed a step in that round."""
    return any(line["round"] == number for line in each)
