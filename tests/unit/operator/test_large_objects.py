"""Objects as large as a user can make them, beside those of everybody else."""

import gc
import tracemalloc
from typing import Any

import msgspec
import pytest

from holdfast.api.errors import InvalidSpec
from holdfast.api.trainingjob import TrainingJob
from holdfast.operator.decide.observed import read_spec
from holdfast.operator.kube.objects import SPEC_BYTES_MAX, Intervention, Job, Node, Pod

OURS = {"holdfast.dev/job": "gpt"}
OBJECT_BYTES = 200_000


def bulky(metadata: dict[str, Any] | None = None, **parts: Any) -> bytes:
    padding = {f"padding-{number}": "x" * 1_000 for number in range(OBJECT_BYTES // 1_000)}
    about = {"name": "gpt", "namespace": "research", "labels": OURS | padding, "annotations": OURS | padding}
    return msgspec.json.encode({"metadata": about | (metadata or {}), **parts})


def job_with(template: dict[str, Any]) -> Job:
    spec = {"entrypoint": ["train.py"], "nodes": {"min": 1}, "template": template}
    return msgspec.json.decode(bulky(spec=spec), type=Job)


@pytest.mark.parametrize("kind", [Job, Pod, Intervention])
def test_of_labels_and_annotations_only_ours_are_kept(kind: type[Job]) -> None:
    metadata = msgspec.json.decode(bulky(), type=kind).metadata
    assert metadata.labels == metadata.annotations == OURS


def test_a_node_keeps_its_labels() -> None:
    metadata = msgspec.json.decode(bulky(), type=Node).metadata
    assert metadata.annotations == OURS
    assert len(metadata.labels) > len(OURS)


def test_nothing_of_a_page_is_kept_but_what_is_read() -> None:
    def kept() -> list[Job]:
        page = b"[" + b",".join([bulky(spec={"entrypoint": ["train.py"]})] * 20) + b"]"
        return msgspec.json.decode(page, type=list[Job])

    kept()
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    jobs = kept()
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(jobs) == 20
    assert after - before < OBJECT_BYTES


def test_a_spec_that_is_too_long_is_refused_in_words_and_not_kept() -> None:
    assert isinstance(read_spec(job_with({"spec": {"containers": []}})), TrainingJob)
    job = job_with({"spec": {"containers": [{"name": "trainer", "args": ["x" * SPEC_BYTES_MAX]}]}})
    refused = read_spec(job)
    assert isinstance(refused, InvalidSpec)
    assert str(refused).startswith("spec (bytes of JSON): 65649 is not accepted; write at most 65536;")
    assert "ConfigMap" in str(refused)
    assert bytes(job.spec) == b"{}"
