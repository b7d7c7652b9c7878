import fcntl
import json
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from embeddedrun import (
    TOY,
    assert_nothing_is_left,
    family,
    holdfast,
    interrupt,
    is_alive,
    job_file,
    running,
    wait_until,
)
from gates import Gates
from held_gpus import assert_every_gpu_second_is_booked
from patience import patient
from warm_source import warm_parents_of_their_own

TINY_MODEL = ("--layers", "1", "--width", "32", "--batch", "4", "--length", "32")


def test_a_killed_worker_and_a_lost_node_are_healed(tmp_path: Path) -> None:
    job = job_file(tmp_path, script=TOY, words=["400"], nodes="{min: 1, max: 2, spares: 1}")
    faults = tmp_path / "faults.yaml"
    faults.write_text(
        "- {at: {step: 20}, do: kill-worker, rank: 1}\n"
        "- {at: {step: 20}, after: recovered, do: kill-node, rank: 1}\n"
        "- {at: {step: 20}, after: recovered, do: kill-watchdog}\n"
    )
    state = tmp_path / "state"
    ended = holdfast("run", job, "--state-dir", state, "--faults", faults)
    assert ended.returncode == 0, ended.stderr
    assert "default/toy succeeded" in ended.stderr

    incidents = json.loads(holdfast("incidents", "--state-dir", state, "-o", "json").stdout)
    assert [incident["state"] for incident in incidents[:2]] == ["Recovered", "Recovered"]
    assert [incident["kind"] for incident in incidents[:2]] == ["ProcessExit", "MemberLost"]
    assert [incident["culprit"].get("rank") for incident in incidents[:1]] == [1]
    assert "signal 9" in holdfast("why", incidents[0]["id"], "--state-dir", state).stdout
    # Its runbook: what was done to that node, over the whole run and over none of it.
    asked = holdfast("runbook", "node-suspect", "--since", "1h", "--state-dir", state, "-o", "json")
    first = json.loads(asked.stdout)["checks"][0]
    assert (asked.returncode, first["id"], first["verdict"]) == (1, "same-node-again", "suspect"), asked.stdout
    assert first["next"] == f"holdfast self-test {incidents[0]['culprit']['node']} --state-dir {state}"
    assert (
        '"suspect"'
        not in holdfast("runbook", "node-suspect", "--since", "1ms", "--state-dir", state, "-o", "json").stdout
    )
    # What is written about it: the document, all of an hour, and a check that finds the fault again.
    page = tmp_path / "page.html"
    written = holdfast("postmortem", incidents[1]["id"], "--output", page, "--state-dir", state)
    assert written.returncode == 0, written.stderr
    assert f"Postmortem of {incidents[1]['id']}: MemberLost of node" in page.read_text()
    told = holdfast("postmortem", "--since", "1h", "--format", "md", "--state-dir", state).stdout
    assert all(f"## {each['id']}: " in told for each in incidents)
    assert "| Detecting | " in told
    assert told.count("Steps complete on every rank") >= 2
    checks = tmp_path / "checks"
    checks.mkdir()
    distilled = holdfast("postmortem", "last", "--distill", checks / "again.yaml", "--state-dir", state)
    assert distilled.returncode == 0, distilled.stderr
    (symptom,) = yaml.safe_load((checks / "again.yaml").read_text())["symptoms"]
    asked = holdfast("runbook", symptom, "--since", "1h", "--checks", checks, "--state-dir", state, "-o", "json")
    again = [each for each in json.loads(asked.stdout)["checks"] if each["id"].startswith("again-")]
    assert [each["verdict"] for each in again] == ["suspect"]
    replayed = holdfast("replay", "--state-dir", state)
    assert replayed.returncode == 0, replayed.stdout
    # Lived through again in virtual time, as it was and under a policy of its own.
    words = ("--policy", job, "--seeds", "2", "--workers", "1", "-o", "json")
    lived = holdfast("simulate", "--journal", state, *words)
    assert lived.returncode == 0, lived.stderr
    found = json.loads(lived.stdout)
    assert (found["job"], found["happenings"], found["says"]) == ("default/toy", 2, "noise")
    ettr = next(each for each in found["reproduced"] if each["name"] == "ettr")
    assert 0.0 < ettr["really"] < 1.0
    assert all(each["change"]["mean"] == 0.0 for each in found["comparison"]["differences"])

    assert_every_gpu_second_is_booked(state)
    told = json.loads(holdfast("status", "--state-dir", state, "-o", "json").stdout)
    assert (told["phase"], told["step"], told["source"]) == ("Succeeded", 400, "store")
    ranks = json.loads(holdfast("ranks", "--state-dir", state, "-o", "json").stdout)
    assert {rank["step"] for rank in ranks} <= {399, 400}, "as last heard, or a step before the end"

    again = holdfast("run", job, "--state-dir", state)
    assert again.returncode == 0
    assert "an earlier run brought this job to its end; nothing was started" in again.stderr


def test_a_run_that_was_stopped_goes_on_from_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates = Gates(tmp_path / "gates")
    for name, value in gates.environment.items():
        monkeypatch.setenv(name, value)
    gates.close(40)
    losses = tmp_path / "losses.jsonl"
    words = ["--steps", "60", "--checkpoint-every", "10", "--losses", str(losses), *TINY_MODEL]
    job = job_file(tmp_path, script=gates.script(), words=words, nodes="{min: 2, max: 2}")
    state = tmp_path / "state"
    with pytest.MonkeyPatch.context() as patch:
        warm_parents_of_their_own(patch)  # of which nothing is left
        with running("run", job, "--state-dir", state, "--save-within", "0.5") as process:
            wait_until((state / "checkpoints" / "step-00000010").exists, "a checkpoint")
            pids = family(process)
            said = interrupt(process)
            assert process.returncode == 130
            # Its ranks wait at a gate, and can save nothing more.
            assert re.search(r"stopped; (?:nothing was saved .*|step \d+ was saved before, .*)\n$", said)
            assert_nothing_is_left(pids)
    gates.open(40)
    before = [json.loads(line)["step"] for line in losses.read_text().splitlines()]

    ended = holdfast("run", job, "--state-dir", state)
    assert ended.returncode == 0, ended.stderr
    steps = [json.loads(line)["step"] for line in losses.read_text().splitlines()]
    resumed_at = steps[len(before)]
    assert resumed_at > 10
    assert resumed_at % 10 == 1
    assert steps[-1] == 60
    assert_every_gpu_second_is_booked(state)


def test_a_run_that_is_killed_leaves_no_process_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warm_parents_of_their_own(monkeypatch)
    job = job_file(tmp_path, script=TOY, words=["10000"], nodes="{min: 2}")
    state = tmp_path / "state"
    with running("run", job, "--state-dir", state) as process:
        # The watchdog; of two nodes the agent, launcher, transfer server, warm parent and worker.
        wait_until(lambda: len(family(process)) >= 11, "all processes")
        pids = family(process)
        process.kill()
        process.wait()
        assert_nothing_is_left(pids)


def test_what_a_worker_says_last_is_shown_when_the_job_fails(tmp_path: Path) -> None:
    job = job_file(
        tmp_path,
        script="import sys; sys.exit('there is no text in /nowhere')",
        nodes="{min: 1}",
        more="  faultPolicy: {restarts: {max: 1, backoff: 1s}}\n",
    )
    ended = holdfast("run", job, "--state-dir", tmp_path / "state")
    assert ended.returncode == 1
    assert "default/toy failed: " in ended.stderr
    assert "there is no text in /nowhere" in ended.stderr.splitlines()[-1]
    asked = holdfast("runbook", "will-not-start", "--state-dir", tmp_path / "state", "-o", "json")
    first = json.loads(asked.stdout)["checks"][0]
    assert (asked.returncode, first["id"], first["verdict"]) == (1, "script-fails", "suspect"), asked.stdout
    assert "there is no text in /nowhere" in first["evidence"]


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    return job_file(tmp_path, script=TOY, words=["10"], nodes="{min: 1, max: 2}")


def refused(ended: "subprocess.CompletedProcess[str]") -> str:
    """The one sentence a refused run ends with."""
    assert "Traceback" not in ended.stderr
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("holdfast: ")
    return last


def test_a_taken_port_is_one_sentence(toy: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = holdfast("run", toy, "--state-dir", tmp_path / "state", "--listen", listen)
    assert ended.returncode == 3
    assert f"port {listen.partition(':')[2]} on 127.0.0.1 is taken" in refused(ended)


def test_a_state_directory_in_use_is_one_sentence(toy: Path, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    with (tmp_path / "state" / "run.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("4711 login-1")
        lock.flush()
        ended = holdfast("run", toy, "--state-dir", tmp_path / "state")
    assert ended.returncode == 3
    assert "is in use by a run that is alive (pid 4711 on login-1)" in refused(ended)


def test_a_state_directory_of_another_job_is_one_sentence(toy: Path, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "run.json").write_text('{"job": "default/other", "job_file": "/x"}')
    ended = holdfast("run", toy, "--state-dir", tmp_path / "state")
    assert ended.returncode == 3
    assert "belongs to the job default/other" in refused(ended)


def test_a_missing_script_is_one_sentence(toy: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").unlink()
    ended = holdfast("run", toy, "--state-dir", tmp_path / "state")
    assert ended.returncode == 2
    assert "spec.entrypoint[0]: 'train.py' is not accepted; there is no such file" in refused(ended)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("listen", ["0.0.0.0:1", "127.0.0.1", "127.0.0.1:99999", "example.org:1"])
def test_an_address_to_listen_at_that_is_none_is_one_sentence(toy: Path, tmp_path: Path, listen: str) -> None:
    ended = holdfast("run", toy, "--state-dir", tmp_path / "state", "--listen", listen)
    assert ended.returncode == 2
    assert f"--listen: '{listen}' is not accepted" in refused(ended)


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 KiB."""
    place = tmp_path / "full"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", place], check=True, timeout=patient(10))
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True, timeout=patient(10))


@pytest.mark.needs("namespaces")
def test_a_full_disk_is_one_sentence(toy: Path, full_disk: Path) -> None:
    ended = holdfast("run", toy, "--state-dir", full_disk / "state")
    assert ended.returncode == 3
    assert "the disk is full" in refused(ended)


def test_is_alive_knows_the_living_from_the_dead() -> None:
    process = subprocess.Popen(["true"])
    wait_until(lambda: not is_alive(process.pid), "the end of true", 5.0)
    process.wait()


def test_a_job_that_failed_goes_on_when_its_mistake_is_mended(tmp_path: Path) -> None:
    script = "import pathlib, sys\nif not pathlib.Path('mended').exists():\n    sys.exit('train.py: not mended')\n"
    job = job_file(tmp_path, script="import sys\nsys.exit(2)\n", words=[], nodes="{min: 1, max: 1}")
    state = tmp_path / "state"
    failed = holdfast("run", job, "--state-dir", state)
    assert failed.returncode == 1, failed.stderr
    assert "no checkpoint was saved, so the same command begins anew" in failed.stderr
    (tmp_path / "mended").touch()
    next(tmp_path.glob("*.py")).write_text(script)
    again = holdfast("run", job, "--state-dir", state)
    assert again.returncode == 0, again.stderr
    assert "an earlier run failed" in again.stderr
    assert_every_gpu_second_is_booked(state)
