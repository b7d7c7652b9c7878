"""Every number of a question, one after the other, as nobody should write it: a plan or a refusal."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.api.errors import InvalidInput
from holdfast.planner.jobfile import job_of
from holdfast.planner.notes import notes_of
from holdfast.planner.plan import plan
from holdfast.planner.questionfile import layout_of, question_of, read_sections

WHOLE: dict[str, dict[str, Any]] = {
    "model": {
        "layers": 4,
        "hidden": 64,
        "heads": 4,
        "ffn": 256,
        "vocab": 1000,
        "kv_heads": 2,
        "head": 16,
        "positions": 0,
        "adapter_rank": 0,
        "experts": {"count": 4, "active": 2, "ffn": 32, "shared": 1, "dense_layers": 1, "domains": 0},
        "latent": {"query_rank": 8, "kv_rank": 8, "rope": 4, "nope": 8, "value": 8},
    },
    "cluster": {
        "gpu": {
            "name": "own",
            "bf16": 1e15,
            "fp8": 2e15,
            "memory": 8e10,
            "memory_rate": 3e12,
            "nvlink": 0,
            "domain": 0,
            "mesh": False,
        },
        "gpus": 8,
        "per_node": 4,
        "nvlink_domain": 4,
        "network": 5e10,
        "latency_s": 1e-5,
        "nvlink_latency_s": 1e-6,
        "price": 2.0,
        "host": 2.5e10,
        "storage": 1e11,
        "pod": 4,
        "oversubscription": 2,
    },
    "training": {
        "sequence": 128,
        "batch": 32,
        "tokens": 1e9,
        "gradient_bytes": 4,
        "optimizer_bytes": 12,
        "logit_bytes": 6,
        "sample_bytes": 1000,
        "loss": 2.5,
    },
    "reliability": {
        "rate": 3.8,
        "restart_s": 60,
        "save_s": 1.0,
        "repair_days": 3,
        "waiting": 0.01,
        "groups": 2,
        "regroup_s": 20,
        "everybody": 0.1,
        "back_s": 600,
    },
    "spot": {"price": 1.0, "interruptions": 20, "notice_s": 120},
    "reached": {"matmul": 0.5, "flash": 0.5, "memory": 0.8, "links": 0.8},
}
ODD = (0, -1, 1, 3, 1e-300, 1e300, math.nan, math.inf, "many", None, [], {}, True)


def places(part: dict[str, Any], above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for name, value in part.items():
        found += places(value, (*above, name)) if isinstance(value, dict) else [(*above, name)]
    return found


@pytest.mark.parametrize("place", [pytest.param(each, id=".".join(each)) for each in places(WHOLE)])
def test_an_odd_number_is_refused_or_planned_with(place: tuple[str, ...], tmp_path: Path) -> None:
    for odd in ODD:
        given = copy.deepcopy(WHOLE)
        part = given
        for name in place[:-1]:
            part = part[name]
        part[place[-1]] = odd
        try:
            question = question_of(given, Path())
            found = plan(question, {"micro_batch": 1})
        except InvalidInput:
            continue
        for option in found.options:
            assert math.isfinite(option.step.value)
            assert option.step.value > 0
            assert option.memory.value > 0
        if found.options:
            best = found.options[0]
            job = dict(job_of(question, found, best, "it"))
            assert all(math.isfinite(each.value) for each in notes_of(question, best))
            path = tmp_path / "job.yaml"
            path.write_text(yaml.safe_dump(job))
            sections = read_sections(path)
            assert (question_of(sections, tmp_path), layout_of(sections)) == (question, best.layout)


def test_the_question_itself_is_planned_also_without_any_nvlink() -> None:
    found = plan(question_of(copy.deepcopy(WHOLE), Path()))
    assert found.options
    assert {each.layout.tensor for each in found.options} == {1}, "no collective waits for a network in each layer"
