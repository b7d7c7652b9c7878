"""What Slurm is asked for, and how its words are read."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from holdfast.api.errors import InvalidInput
from holdfast.api.plan import NodeState
from holdfast.api.trainingjob import TrainingJob, read_trainingjob
from holdfast.cli.hosts.reach import READY
from holdfast.cli.hosts.sshhosts import SshHosts, hosts_from
from holdfast.cli.main import answer
from holdfast.cli.slurm.allocation import Allocation, allocation_from
from holdfast.cli.slurm.batchscript import BatchScript, means_nothing
from holdfast.cli.slurm.controller import REASON_LENGTH_MAX, node_lines, reason_text, seconds_of

WITH_GPUS = {"spec": {"containers": [{"name": "t", "resources": {"limits": {"nvidia.com/gpu": 8}}}]}}


def job_with(**spec: Any) -> TrainingJob:
    document = {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "gpt"},
        "spec": {"entrypoint": ["train.py"], "nodes": {"min": 2, "max": 4, "spares": 1}, **spec},
    }
    return read_trainingjob(document)


def options_of(job: TrainingJob, *asked: str) -> list[str]:
    text = BatchScript(job=job, command=("holdfast", "slurm", "a b"), output="/s/logs", asked=asked).text()
    assert text.startswith("#!/bin/bash\n")
    assert text.endswith("\nexec holdfast slurm 'a b'\n")
    lines = [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]
    return [word for line in lines for word in shlex.split(line)]


def test_the_allocation_has_the_nodes_and_the_spares_and_outlives_a_lost_node() -> None:
    options = options_of(job_with())
    assert "--nodes=2-5" in options
    assert {"--no-kill", "--requeue", "--open-mode=append", "--exclusive", "--signal=B:USR1@180"} <= set(options)


def test_as_many_nodes_as_can_be_used_are_asked_for_and_as_many_gpus_as_a_pod_would() -> None:
    options = options_of(job_with(nodes={"min": 3, "max": 3}, template=WITH_GPUS))
    assert "--nodes=3" in options
    assert "--gpus-per-node=8" in options
    assert not [each for each in options_of(job_with()) if "gpu" in each]


def test_options_of_sbatch_are_handed_on_after_ours() -> None:
    assert options_of(job_with(), "--time=24:00:00", "--partition=a100")[-2:] == [
        "--time=24:00:00",
        "--partition=a100",
    ]


def test_a_path_and_an_option_are_one_word_whatever_is_in_them() -> None:
    """Source: https://slurm.schedmd.com/sbatch.html, FILENAME PATTERN; sbatch takes quotes as a shell does."""
    folder = "/shared/my runs/100%j #1"
    text = BatchScript(job=job_with(), command=("true",), output=folder, asked=("--comment=a b # c",)).text()
    assert "\n#SBATCH '--output=/shared/my runs/100%%j #1/slurm-%j.out'\n" in text
    assert "\n#SBATCH '--comment=a b # c'\n" in text
    with pytest.raises(InvalidInput, match="--state-dir"):
        BatchScript(job=job_with(), command=("true",), output="/s\n#SBATCH --uid=0").text()


@pytest.mark.parametrize(
    ("told", "expected"),
    [("3:00\n", 180.0), ("59", 59.0), ("1-02:03:04", 93784.0), ("UNLIMITED", None), ("INVALID", None), ("", None)],
)
def test_a_time_of_squeue_is_read(told: str, expected: float | None) -> None:
    assert seconds_of(told) == expected


@pytest.mark.parametrize(
    ("option", "fix"),
    [
        ("--nodes=7", "it follows from the job file"),
        ("--no-requeue", "it follows from the job file"),
        ("-N7", "write it as --NAME=VALUE"),
        ("--time=1\n#SBATCH --nodes=1", "write it as --NAME=VALUE"),
    ],
)
def test_an_option_that_breaks_what_is_relied_on_is_refused(option: str, fix: str) -> None:
    with pytest.raises(InvalidInput, match=rf"--sbatch: .*{fix}"):
        options_of(job_with(), option)


def test_what_slurm_does_not_hear_is_said() -> None:
    assert means_nothing(job_with()) == ()
    said = means_nothing(
        job_with(
            template=WITH_GPUS,
            placement={"pack": ["rack"]},
            ttlAfterFinished="1h",
            reporting={"tensorboard": True},
        )
    )
    fields = ["spec.template", "spec.placement.pack", "spec.ttlAfterFinished", "spec.reporting"]
    assert [sentence.split()[0] for sentence in said] == fields


@pytest.mark.parametrize(
    ("state", "reason", "expected"),
    [
        ("allocated", "none", NodeState.READY),
        ("idle", "none", NodeState.READY),
        ("allocated*", "none", NodeState.NOT_READY),
        ("down", "Not responding", NodeState.GONE),
        ("down*", "Not responding", NodeState.GONE),
        ("draining", "firmware", NodeState.DRAINING),
        ("drained", "Prolog error", NodeState.DRAINING),
        ("draining", "holdfast: inc-0001: xid 79", NodeState.READY),
    ],
)
def test_a_state_of_slurm_is_told_to_the_watchdog(state: str, reason: str, expected: NodeState) -> None:
    (line,) = node_lines(f"n1|{state}|10.0.0.1|{reason}\n").values()
    assert line.standing.state is expected
    assert line.standing.takes_work is (expected is NodeState.READY)


def test_lines_of_several_partitions_are_one_node_and_foreign_ones_are_none() -> None:
    told = "n1|idle|a|none\nn1|idle|a|none\nn2|idle|b|x|y\nslurm_load_node error\n"
    assert {name: each.reason for name, each in node_lines(told).items()} == {"n1": "none", "n2": "x|y"}
    assert node_lines(told)["n1"].standing == READY


def test_a_reason_is_one_short_line_that_is_known_as_ours() -> None:
    assert reason_text("inc-1: xid 79\n:  gone") == "holdfast: inc-1: xid 79 : gone"
    assert len(reason_text("x" * 500)) == REASON_LENGTH_MAX


def test_a_node_is_reached_by_a_step_of_its_own(tmp_path: Path) -> None:
    command = Allocation("7", ("n1", "n2"), tmp_path).command("n2", ("python", "-m", "x"))
    assert command[0] == "srun"
    assert {"--jobid=7", "--nodelist=n2", "--nodes=1", "--overlap", "--kill-on-bad-exit=0"} <= set(command)
    assert command[-3:] == ("python", "-m", "x")


def test_outside_of_an_allocation_nothing_runs_there() -> None:
    assert allocation_from({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]"}) == ("7", "n[1-3]")
    with pytest.raises(InvalidInput, match=r"--here: .*sbatch or salloc"):
        allocation_from({})


def test_ssh_is_given_one_word_and_asks_for_no_password() -> None:
    command = SshHosts(("ssh", "-F", "file")).command("user@a", ("/opt/my python", "-m", "x"))
    assert command[:3] == ("ssh", "-F", "file")
    assert "BatchMode=yes" in command
    assert command[-2:] == ("user@a", "exec '/opt/my python' -m x")


@pytest.mark.parametrize("text", ["a,-oProxyCommand=x", "a,,b", "a;b", "a,a", ""])
def test_a_name_that_is_no_machine_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="--hosts"):
        hosts_from(text)
    assert hosts_from("a, user@b,10.0.0.3") == ("a", "user@b", "10.0.0.3")


def script_of(tmp_path: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    """What the command writes for a job file."""
    (tmp_path / "train.py").touch()
    (tmp_path / "job.yaml").write_text(
        "apiVersion: holdfast.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: gpt}\n"
        "spec: {entrypoint: [train.py], checkpoint: {uri: s3://bucket/gpt}}\n"
    )
    state = str(tmp_path / "state")
    assert answer(["slurm", str(tmp_path / "job.yaml"), "--state-dir", state, "--script", *flags]) == 0
    return capsys.readouterr().out


def test_the_script_is_written_and_nothing_is_submitted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = script_of(tmp_path, capsys, "--sbatch=--time=1:00:00")
    assert script.startswith("#!/bin/bash\n")
    assert "#SBATCH --time=1:00:00\n" in script
    assert not (tmp_path / "state").exists()


def test_what_the_allocation_is_told_is_in_the_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--kernel-log", "/var/log/kern.log", "--drain-with", "sudo -n drain", "--save-before", "300")
    script = script_of(tmp_path, capsys, *flags, "--simulate-gpus")
    *_, command = script.splitlines()
    words = shlex.split(command)
    assert words[0] == "exec"
    assert words[2:6] == ["-m", "holdfast.cli", "slurm", "--here"]
    assert " ".join(words).count("--drain-with sudo -n drain --kernel-log /var/log/kern.log --simulate-gpus") == 1
    assert "#SBATCH --signal=B:USR1@300\n" in script


def test_inside_an_allocation_nothing_is_submitted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script_of(tmp_path, capsys)
    job = str(tmp_path / "job.yaml")
    assert answer(["slurm", job, "--here", "--script"]) == 2
    assert "leave --script and --sbatch out" in capsys.readouterr().err
