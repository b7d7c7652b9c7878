"""A job file on machines that ssh reaches, and what a host does when whoever holds the run is gone."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from patience import patient
from ssh_server import HOSTS, UNREACHED, SshServer

from holdfast.cli.hosts.certificate import make_certificate
from holdfast.cli.hosts.task import HostTask

EXAMPLES = Path(__file__).parents[2] / "examples"
HOLDFAST = (sys.executable, "-m", "holdfast.cli")
# No script of torch's: what is tried is how hosts are reached, lost and left.
WORK = """
while [ ! -e done ]; do sleep 0.2; done
"""
JOB = """
apiVersion: holdfast.dev/v1alpha1
kind: TrainingJob
metadata: {name: work}
spec:
  entrypoint: [sh, work.sh]
  nodes: {min: 2, max: 2, spares: 1}
  startup: {preflight: none}
"""


def wait_until(what: str, holds: Callable[[], bool], within_s: float = 60.0) -> None:
    deadline = time.monotonic() + patient(within_s)
    while not holds():
        assert time.monotonic() < deadline, f"not within {patient(within_s):.0f} s: {what}"
        time.sleep(0.1)


def test_a_lost_machine_is_healed_by_the_spare_and_nothing_is_left_anywhere(tmp_path: Path) -> None:
    (tmp_path / "work.sh").write_text(WORK)
    (tmp_path / "job.yaml").write_text(JOB)
    keys = tmp_path / "keys"
    keys.mkdir()
    with SshServer(keys) as server, (tmp_path / "said").open("w+") as said:
        command = (
            *HOLDFAST,
            "ssh",
            str(tmp_path / "job.yaml"),
            "--hosts",
            ",".join((UNREACHED, *HOSTS)),
            "--ssh",
            server.command,
        )
        holder = subprocess.Popen(
            (
                *(*command, "--address", "127.0.0.1", "--python", sys.executable, "--fresh"),
                *("--state-dir", str(tmp_path / "state")),
            ),
            stderr=said,
            env={**os.environ, "TMPDIR": str(tmp_path)},
        )
        try:

            def has_said(words: str) -> bool:
                return words in Path(said.name).read_text()

            wait_until(f"two ranks: {said.name}", lambda: has_said("2 ranks; first round"))
            refused = "is tried again: ssh: connect to host 127.0.0.1 port 9: Connection refused"
            assert has_said(f"{UNREACHED} cannot be used now, and {refused}")
            wait_until("they run", lambda: sum(has_ranks(server, host) for host in HOSTS) == 2)
            lost = next(host for host in HOSTS if has_ranks(server, host))
            server.lose(lost)
            wait_until("the loss is known", lambda: has_said(f"node {lost} is gone"))
            others = [host for host in HOSTS if host != lost]
            wait_until("the spare has its ranks", lambda: all(has_ranks(server, host) for host in others))
            (tmp_path / "done").touch()
            assert holder.wait(patient(60.0)) == 0, Path(said.name).read_text()
        finally:
            holder.kill()
            holder.wait()
        wait_until("no process is left", lambda: not any(server.processes(host) for host in HOSTS))


def test_the_task_for_skypilot_runs_the_job_and_ends_on_every_machine(tmp_path: Path) -> None:
    """Its own script, in the variables that SkyPilot sets, with three addresses of this machine."""
    (tmp_path / "work.sh").write_text(WORK)
    (tmp_path / "done").touch()
    (tmp_path / "job.yaml").write_text(JOB)
    task = yaml.safe_load((EXAMPLES / "skypilot" / "task.yaml").read_text())
    assert task["num_nodes"] == len(HOSTS)
    with SshServer(tmp_path) as server:
        variables = {
            **os.environ,
            "JOB": str(tmp_path / "job.yaml"),
            "SSH": server.command,
            "HOLDFAST": " ".join(HOLDFAST),
            "STATE": str(tmp_path / "state"),
            "TMPDIR": str(tmp_path),
            "SKYPILOT_TASK_ID": tmp_path.name,
            "SKYPILOT_NODE_IPS": "\n".join(HOSTS),
        }
        ranks = [
            subprocess.Popen(("bash", "-c", task["run"]), env={**variables, "SKYPILOT_NODE_RANK": str(rank)})
            for rank in range(len(HOSTS))
        ]
        try:
            assert [each.wait(patient(60.0)) for each in ranks] == [0, 0, 0]
        finally:
            for each in ranks:
                each.kill()
            Path(f"/tmp/holdfast-over-{tmp_path.name}").unlink(missing_ok=True)


def has_ranks(server: SshServer, host: str) -> bool:
    """Whether the work itself runs there, and not only a launcher that knows of it."""
    commands = []
    for pid in server.processes(host):
        with suppress(OSError):
            commands.append(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"))
    return any(len(words) == 3 and words[0].endswith(b"sh") and words[1] == b"work.sh" for words in commands)


@pytest.mark.parametrize("way", ["end", "terminated", "silence", "cut off"])
def test_a_host_that_hears_nobody_any_more_ends_what_runs_there(tmp_path: Path, way: str) -> None:
    """One that alone is cut off leaves the run alone: its holder, seen by a shared file, has healed it."""
    make_certificate(tmp_path / "pem", tmp_path / "key", "127.0.0.1")
    task = HostTask(
        job="default/work",
        host="a",
        watchdog="127.0.0.1:9",  # nobody is there either
        token="secret",
        authority=(tmp_path / "pem").read_text(),
        entrypoint=("--no-python", "/bin/sleep", "1000"),
        directory=str(tmp_path),
        local_size=1,
        heartbeat_interval_s=1.0,
        simulated_gpus=1,
        when_alone=("touch", str(tmp_path / "requeued")),
        beat_file=str(tmp_path / "beat"),
    )
    program = (
        "from holdfast.cli.hosts import hostprogram; hostprogram.SILENCE_S = hostprogram.SEEN_WITHIN_S = 2.0; "
        "hostprogram.POLL_S = 0.1; hostprogram.main()"
    )
    host = subprocess.Popen(
        (sys.executable, "-c", program), stdin=subprocess.PIPE, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    assert host.stdin is not None
    said = host.stdin.fileno()
    os.write(said, task.line())

    def is_up() -> bool:
        os.write(said, b"\n")
        return bool(list(tmp_path.glob("holdfast-a-*/agent.json")))

    wait_until("its agent runs", is_up)
    if way == "end":
        host.stdin.close()
    if way == "terminated":
        host.terminate()
    if way == "cut off":
        wait_until("it ends", lambda: bool((tmp_path / "beat").write_text(str(time.monotonic())) and host.poll()))
    code = host.wait(patient(30.0))
    host.stdin.close()
    assert code == (128 + signal.SIGTERM if way in ("end", "terminated") else 3)
    assert (tmp_path / "requeued").exists() == (way == "silence")
    assert not list(tmp_path.glob("holdfast-a-*"))
