from pathlib import Path
from typing import Any

import pytest

from holdfast.api.errors import InvalidInput, InvalidSpec
from holdfast.api.trainingjob import TrainingJob, read_trainingjob
from holdfast.cli.embedded.jobfile import Prepared, prepare


def job_with(**spec: Any) -> TrainingJob:
    return read_trainingjob(
        {
            "apiVersion": "holdfast.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": "gpt"},
            "spec": {"entrypoint": ["train.py", "--lr", "1"], "nodes": {"min": 2, "max": 4}, **spec},
        }
    )


def prepared(tmp_path: Path, nodes: int | None = None, **spec: Any) -> Prepared:
    (tmp_path / "train.py").touch()
    return prepare(job_with(**spec), tmp_path / "job.yaml", nodes, tmp_path / "checkpoints")


def test_the_script_is_found_beside_the_job_file(tmp_path: Path) -> None:
    made = prepared(tmp_path)
    assert made.entrypoint == (str(tmp_path / "train.py"), "--lr", "1")
    assert made.working_directory == tmp_path


def test_a_module_and_a_program_are_run_as_such(tmp_path: Path) -> None:
    assert prepared(tmp_path, entrypoint=["-m", "pkg.train", "x"]).entrypoint == ("-m", "pkg.train", "x")
    flag, program, argument = prepared(tmp_path, entrypoint=["sh", "x"]).entrypoint
    assert (flag, Path(program).name, argument) == ("--no-python", "sh", "x")


@pytest.mark.parametrize(
    ("given", "expected"),
    [(None, "{here}/checkpoints"), ("runs/a", "{here}/runs/a"), ("file:///data/a", "file:///data/a")],
)
def test_checkpoints_go_where_the_file_says_seen_from_the_file(
    tmp_path: Path, given: str | None, expected: str
) -> None:
    uri = prepared(tmp_path, checkpoint={"uri": given} if given else {}).job.spec.checkpoint.uri
    assert uri == expected.format(here=tmp_path)


def test_a_store_that_cannot_be_used_yet_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"spec.checkpoint.uri: 's3://bucket/a' is not accepted; write file:///"):
        prepared(tmp_path, checkpoint={"uri": "s3://bucket/a"})


def test_the_number_of_nodes_lowers_the_maximum(tmp_path: Path) -> None:
    assert prepared(tmp_path, 3).job.spec.nodes.max == 3
    assert prepared(tmp_path, 3).job.spec.nodes.min == 2


@pytest.mark.parametrize(
    ("nodes", "spec", "message"),
    [
        (1, {}, "--nodes: 1 is not accepted; the job allows 2 to 4 (spec.nodes.min and spec.nodes.max)"),
        (5, {}, "--nodes: 5 is not accepted; the job allows 2 to 4 (spec.nodes.min and spec.nodes.max)"),
        (
            3,
            {"parallelism": {"tensor": 2}},
            "--nodes: 3 is not accepted; 3 x 1 processes do not divide by 2 (tensor x context x pipeline)",
        ),
        (
            None,
            {"entrypoint": ["gone.py"]},
            "spec.entrypoint[0]: 'gone.py' is not accepted; there is no such file in {here}, where the "
            "job file is",
        ),
        (
            None,
            {"entrypoint": ["-m"]},
            "spec.entrypoint[0]: '-m' is not accepted; name the module to run after -m",
        ),
        (
            None,
            {"entrypoint": ["no-such-program"]},
            "spec.entrypoint[0]: 'no-such-program' is not accepted; it is neither a .py file, nor -m and a "
            "module, nor a program that is installed",
        ),
    ],
)
def test_what_cannot_run_here_is_refused(
    tmp_path: Path, nodes: int | None, spec: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        prepared(tmp_path, nodes, **spec)
    assert str(refused.value) == message.format(here=tmp_path)


def test_a_suspended_job_is_not_run_to_wait_for_ever(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"spec\.suspend: True is not accepted; set it to false"):
        prepared(tmp_path, suspend=True)
