"""Scripts as people bring them, with one line: a killed worker and a lost node are healed, and no loss is another.

The undisturbed run is the disturbed one: steps that were lost are trained again, and give what they gave before.
In a smaller world they do so up to rounding, which they can only with the same samples.
"""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from embeddedrun import PATIENCE_S, holdfast, job_file

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]
BROUGHT = ROOT / "bench" / "brought" / "scripts"
# Right after a checkpoint, of which there is one in five steps: they are struck before the next one.
FAULTS = (
    "- {at: {step: 11}, do: kill-worker, rank: 1}\n- {at: {step: 21}, after: recovered, do: kill-node, rank: 1}\n"
)


def brought(folder: Path, script: Path, words: list[str]) -> list[dict]:
    """The script's run through both faults; its incidents."""
    for beside in script.parent.glob("*.py"):
        (folder / beside.name).write_text(beside.read_text())
    job = job_file(folder, script=script.read_text(), words=words, nodes="{min: 1, max: 2}")
    faults = folder / "faults.yaml"
    faults.write_text(FAULTS)
    state = folder / "state"
    ended = holdfast("run", job, "--state-dir", state, "--no-replace", "--no-console", "--faults", faults)
    assert ended.returncode == 0, ended.stderr
    incidents: list[dict] = json.loads(holdfast("incidents", "--state-dir", state, "-o", "json").stdout)
    return incidents


def compared(told: list[tuple[int, float, int]], *, steps: int) -> None:
    """What was trained again gave the same: bit by bit in the same world, up to rounding in a smaller one."""
    by_step: dict[int, list[tuple[float, int]]] = {}
    for step, loss, world in told:
        by_step.setdefault(step, []).append((loss, world))
    assert sorted(by_step) == list(range(1, steps + 1))
    assert {world for of in by_step.values() for _, world in of} == {1, 2}
    again = [of for of in by_step.values() if len(of) > 1]
    assert again, "no step was trained again"
    for (first, world), *later in again:
        for loss, now in later:
            assert loss == first if now == world else math.isclose(loss, first, rel_tol=1e-5)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("script", "kept"),
    [
        ("transformers_trainer", [30, 35, 40]),
        ("accelerate_loop", [25, 30, 35]),  # it breaks out of the loop, which saves nothing more then
    ],
)
def test_one_line_heals_a_framework_bit_by_bit_and_keeps_the_global_batch(
    tmp_path: Path, script: str, kept: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACE_S", "0.1")
    words = [str(tmp_path), "--steps", "40", "--dropout", "0", "--holdfast"]
    incidents = brought(tmp_path, BROUGHT / f"{script}.py", words)
    assert [(each["kind"], each["state"]) for each in incidents] == [
        ("ProcessExit", "Recovered"),
        ("MemberLost", "Recovered"),
    ]
    lines = [json.loads(line) for line in (tmp_path / "losses.jsonl").read_text().splitlines()]
    compared([(each["step"], float.fromhex(each["loss"]), each["world"]) for each in lines], steps=40)
    marks = [
        json.loads(each.read_text()) for each in sorted((tmp_path / "out").glob("checkpoint-*/holdfast.json"))
    ]
    assert [each["step"] for each in marks] == kept
    assert all(each["healthy"] and each["owner"] for each in marks)


@pytest.mark.timeout(240)
def test_the_recipe_for_loops_like_nanogpts_trains_as_without_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Snapshots in memory leave no step to be trained again: compared with is a run of one rank, by hand."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    script = ROOT / "examples" / "nanogpt" / "train.py"
    told, alone = tmp_path / "losses.txt", tmp_path / "alone.txt"
    words = ["--steps", "40", "--pace", "0.05", "--losses"]
    incidents = brought(tmp_path, script, [*words, str(told)])
    assert [each["state"] for each in incidents] == ["Recovered", "Recovered"]
    subprocess.run([sys.executable, script, "--steps", "40", "--losses", alone], check=True, timeout=PATIENCE_S)
    expected = means(alone)
    assert sorted(expected) == list(range(1, 41))
    given = means(told)
    assert sorted(given) == sorted(expected)
    assert all(math.isclose(given[step], loss, rel_tol=1e-4) for step, loss in expected.items())
    worlds = [int(line.split()[3]) for line in told.read_text().splitlines()]
    assert set(worlds) == {1, 2}


def means(file: Path) -> dict[int, float]:
    """The loss of each step over its ranks, each as its ranks told it last."""
    told: dict[int, dict[int, tuple[float, int]]] = {}
    for line in file.read_text().splitlines():
        step, rank, loss, world = line.split()
        told.setdefault(int(step), {})[int(rank)] = float.fromhex(loss), int(world)
    whole = {}
    for step, of in told.items():
        world = of[0][1]
        whole[step] = sum(loss for rank, (loss, _) in of.items() if rank < world) / world
    return whole
