"""One run, read as an engineer does: logs, also before a restart, a dry run, and what is left after the end."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from embeddedrun import HOLDFAST, PATIENCE_S, TOY, interrupt, job_file, running, wait_until

from holdfast.cli.main import answer

pytestmark = pytest.mark.long

SAYING = TOY.replace("run.enter(train)", "import os\nprint('worker', os.getpid(), 'begins')\nrun.enter(train)")


def test_a_run_is_read_while_it_trains_and_after_it_was_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    here = ("--state-dir", str(state))

    def asked(*words: str) -> tuple[int, str, str]:
        code = answer([*words, *here])
        said = capsys.readouterr()
        return code, said.out, said.err

    job = job_file(tmp_path, script=SAYING, words=["100000"], nodes="{min: 2, max: 2}")
    (tmp_path / "faults.yaml").write_text("- {at: {step: 20}, do: kill-worker, rank: 1}\n")
    with running("run", job, *here, "--faults", tmp_path / "faults.yaml") as process:
        wait_until(lambda: _recovered(asked), "the recovery of the killed worker")
        _, newest, heading = asked("logs", "--rank", "1")
        nodes = [rank["node"] for rank in json.loads(asked("ranks", "-o", "json")[1])]
        assert f"rank 1 on {nodes[1]}, " in heading
        code, before, heading = asked("logs", "--rank", "1", "--previous")
        assert code == 0
        assert heading.rstrip().endswith("with signal 9")
        assert {before.split()[0], before.split()[2]} == {"worker", "begins"}
        assert before != newest, "another process"
        assert asked("logs", "--tail", "1")[1].splitlines()[1] == f"[rank1] {newest.rstrip()}"
        assert asked("logs", "--node", nodes[1])[1] == newest
        assert asked("logs", "--rank", "1", "--since", "1h")[1] == newest
        assert newest not in asked("logs", "--rank", "1", "--since", "1ms")[1]
        follower = subprocess.Popen(
            [*HOLDFAST, "logs", "--rank", "1", "--follow", *here], stdout=subprocess.PIPE, text=True
        )
        assert follower.stdout is not None
        assert follower.stdout.readline() == newest
        assert follower.poll() is None, "it goes on while the run does"

        code, would, _ = asked("evict", "node-2", "--dry-run")
        assert code == 0
        assert would.startswith("# It would be Done: node node-2 evicted\n# What would happen now:\n# - ")
        assert yaml.safe_load(would)["spec"]["node"] == "node-2"
        assert asked("resume", "--dry-run")[0] == 1
        shown = json.loads(asked("status", "-o", "json")[1])
        assert (shown["phase"], shown["avoided_nodes"], shown["source"]) == ("Running", [], "watchdog")
        interrupt(process)
    follower.communicate(timeout=PATIENCE_S)
    assert follower.returncode == 0, "it ends with the run"

    code, said, _ = asked("status", "-o", "json")
    last = json.loads(said)
    assert (code, last["phase"], last["source"]) == (0, "Stopped", "store")
    assert shown["step"] > 0
    assert last["step"] > 0, "what was decided from, up to a second behind what the ranks said"
    code, said, remark = asked("ranks", "-o", "json")
    ranks = json.loads(said)
    assert "Stopped; this is what was last known" in remark
    assert [(rank["rank"], rank["node"]) for rank in ranks] == list(enumerate(nodes))
    assert all(rank["step"] >= last["step"] and rank["loss"] > 0 for rank in ranks)
    assert {rank["process"] for rank in ranks} <= {"Gone", "Unknown"}
    code, said, remark = asked("nodes", "-o", "json")
    assert [(node["node"], node["hearing"], len(node["gpus"])) for node in json.loads(said)] == [
        ("node-1", "Ended", 1),
        ("node-2", "Ended", 1),
    ]
    assert asked("logs", "--rank", "1", "--previous")[1] == before
    code, would, _ = asked("pause", "--dry-run")
    assert code == 0
    assert would.startswith("# Only the shape was checked; what would happen is unknown")


def _recovered(asked: Callable[..., tuple[int, str, str]]) -> bool:
    code, said, _ = asked("incidents", "-o", "json")
    return code == 0 and [each["state"] for each in json.loads(said)] == ["Recovered"]
