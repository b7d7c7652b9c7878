from pathlib import Path

import pytest

from holdfast.api.errors import InvalidInput
from holdfast.cli.embedded.jobfile import read_job_file

JOB = """
apiVersion: holdfast.dev/v1alpha1
kind: TrainingJob
metadata: {name: gpt}
spec:
  entrypoint: [train.py]
"""
INTERVENTION = """
apiVersion: holdfast.dev/v1alpha1
kind: Intervention
spec: {job: gpt, action: Pause, reason: lunch}
"""


def file_of(tmp_path: Path, text: str | bytes) -> Path:
    file = tmp_path / "job.yaml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return file


def test_the_job_is_found_among_other_documents(tmp_path: Path) -> None:
    assert read_job_file(file_of(tmp_path, f"{INTERVENTION}---{JOB}---\n")).id == "default/gpt"


def test_a_text_that_looks_like_a_date_stays_a_text(tmp_path: Path) -> None:
    job = read_job_file(file_of(tmp_path, JOB.replace("train.py", "train.py, 2026-01-01")))
    assert job.spec.entrypoint == ("train.py", "2026-01-01")


def test_the_keys_of_xids_may_be_numbers(tmp_path: Path) -> None:
    job = read_job_file(file_of(tmp_path, f"{JOB}  faultPolicy: {{xid: {{79: Evict}}}}\n"))
    assert list(job.spec.fault_policy.xid) == [79]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("# nothing\n---\n", "the file is empty"),
        (f"{JOB}  entrypoint: [b.py]\n", "line 7: entrypoint is given twice"),
        ("a: 1\n\tb: 2\n", "line 2: found character '\\t' that cannot start any token"),
        ("a: [1, 2\nb: 3\n", "line 2: expected ',' or ']', but got ':'"),
        ("- a\n- b\n", "a document is not a mapping of names to values"),
        ("just words\n", "a document is not a mapping of names to values"),
        (INTERVENTION, "it holds no document of kind TrainingJob"),
        (f"{JOB}---{JOB}", "it holds 2 TrainingJobs, but one run is one job; split the file"),
        (b"\xff\xfe\x00", "the file is not UTF-8 text"),
        ("a: !!python/object:os.system {}\n", "line 1: could not determine a constructor for the tag"),
        ("? {a: 1}\n: 2\n", "line 1: a name must be a text"),
        ("a: \x00\n", "the file is not YAML: unacceptable character #x0000"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_in_one_sentence(
    tmp_path: Path, text: str | bytes, message: str
) -> None:
    file = file_of(tmp_path, text)
    with pytest.raises(InvalidInput) as refused:
        read_job_file(file)
    assert str(refused.value).startswith(f"file: {file} is not accepted; {message}")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("metadata: {name: a}\n", "kind: (missing) is not accepted; write TrainingJob"),
        ("kind: Job\n", "kind: 'Job' is not accepted; write TrainingJob"),
        ("kind: TrainingJob\n", "apiVersion: (missing) is not accepted; write holdfast.dev/v1alpha1"),
        (
            "kind: TrainingJob\napiVersion: v1\n",
            "apiVersion: 'v1' is not accepted; write holdfast.dev/v1alpha1",
        ),
    ],
)
def test_a_document_of_another_kind_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_job_file(file_of(tmp_path, text))
    assert str(refused.value) == message


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="the file cannot be read: No such file or directory"):
        read_job_file(tmp_path / "none.yaml")
