"""A question in a file: YAML with `model`, `cluster`, `training`, and what is assumed where that is known better.

A TrainingJob that `holdfast plan --write` wrote carries its question, and the layout that was chosen: it is as
good.

model: {config: config.json}          # of Hugging Face; or the numbers of `holdfast.planner.model.Model`
cluster: {gpu: H100, gpus: 1024}      # gpu: a name of the catalogue, or the numbers of `Gpu`
training: {sequence: 8192, batch: 2048, tokens: 2e12}
reliability: {rate: 3.8}
reached: {matmul: 0.6}
spot: {price: 1.2, interruptions: 20}
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import yaml

from holdfast.api.errors import InvalidInput, Problem
from holdfast.api.planned import PLAN_ANNOTATION, carried
from holdfast.api.policy import Expects
from holdfast.planner.bounds import not_negative, positive
from holdfast.planner.cluster import Cluster
from holdfast.planner.gpu import gpu_of
from holdfast.planner.hfconfig import read_config
from holdfast.planner.layout import Layout, Training
from holdfast.planner.model import Model
from holdfast.planner.plan import Question
from holdfast.planner.reliability import Reliability
from holdfast.planner.run import MATMUL_FP8, Efficiency
from holdfast.planner.spot import Spot

Part = TypeVar("Part", bound=msgspec.Struct)
SECTIONS = ("model", "cluster", "training", "reliability", "reached", "spot")
CARRIED: Final = (*SECTIONS, "layout", "expects")
"""Of a job also the layout, and what whoever watches the job compares."""
Sections = dict[str, dict[str, object]]


def read_sections(path: Path) -> Sections:
    """The sections of a file, or of the plan that a TrainingJob in it carries, still as they were written.

    Raises InvalidInput.
    """
    try:
        documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise InvalidInput(Problem("FILE", str(path), f"give a file that can be read: {error.strerror}")) from None
    # What YAML has tags and dates for ends in errors that are not its own.
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:
        raise InvalidInput(Problem("FILE", str(path), f"give YAML: {' '.join(str(error).split())}")) from None
    jobs = [each for each in documents if isinstance(each, dict) and each.get("kind") == "TrainingJob"]
    given = _carried(path, jobs[0]) if jobs else documents[0] if len(documents) == 1 else None
    known = CARRIED if jobs else SECTIONS
    if not isinstance(given, dict):
        raise InvalidInput(Problem("FILE", str(path), f"give sections: {', '.join(SECTIONS)}"))
    wrong = [
        Problem(str(name), value, f"give one of the sections {', '.join(SECTIONS)}, each with names and values")
        for name, value in given.items()
        if name not in known or not isinstance(value, dict)
    ]
    if wrong:
        raise InvalidInput(*wrong)
    return {str(name): dict(value) for name, value in given.items()}


def layout_of(sections: Mapping[str, Mapping[str, object]]) -> Layout | None:
    """The layout that a job's plan chose; None of a question. Raises InvalidInput."""
    if "layout" not in sections:
        return None
    layout = _part("layout", sections["layout"], Layout)
    degrees = ("tensor", "pipeline", "context", "expert", "data", "micro_batch", "chunks")
    if wrong := [*positive(layout, "layout", degrees), *not_negative(layout, "layout", ("shards",))]:
        raise InvalidInput(*wrong)
    return layout


def carried_text(question: Question, layout: Layout, expects: Expects) -> str:
    """What a job carries of its plan, as `read_sections` reads it again."""
    parts = {name: getattr(question, name) for name in SECTIONS} | {"layout": layout, "expects": expects}
    plain = {name: _plain(msgspec.to_builtins(part)) for name, part in parts.items() if part is not None}
    text: str = yaml.safe_dump(plain, sort_keys=False, default_flow_style=None, width=110)
    return text


def _plain(value: object) -> object:
    if not isinstance(value, dict):
        return value
    return {name: _plain(each) for name, each in value.items() if each is not None}


def _carried(path: Path, job: Mapping[str, object]) -> Mapping[str, object]:
    metadata = job.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    found = carried(annotations) if isinstance(annotations, dict) else None
    if found is None:
        fix = (
            f"give a job that `holdfast plan --write` wrote (with the annotation {PLAN_ANNOTATION}), or a question"
        )
        raise InvalidInput(Problem("FILE", str(path), fix))
    if "config" in found.get("model", {}):  # whoever wrote the annotation would have a file of ours read
        raise InvalidInput(Problem("model.config", found["model"]["config"], "give the numbers of the model"))
    return found


def question_of(sections: Mapping[str, Mapping[str, object]], folder: Path) -> Question:
    """The question of the sections. A model's `config` is looked up from `folder`. Raises InvalidInput."""
    training = _part("training", sections.get("training", {}), Training)
    return Question(
        model=_model(dict(sections.get("model", {})), folder),
        cluster=_cluster(dict(sections.get("cluster", {}))),
        training=training,
        reliability=_part("reliability", sections.get("reliability", {}), Reliability),
        reached=_reached(sections.get("reached", {}), fp8=training.fp8),
        spot=_part("spot", sections["spot"], Spot) if "spot" in sections else None,
    )


def _reached(given: Mapping[str, object], *, fp8: bool) -> Efficiency:
    """Of a question: what was measured may exceed a data sheet, what is assumed may not. In FP8 matmuls reach less
    of the rate where nothing else is said.
    """
    reached = _part("reached", {"matmul": MATMUL_FP8, **given} if fp8 else given, Efficiency)
    shares = {name: getattr(reached, name) for name in reached.__struct_fields__}
    if wrong := [
        Problem(f"reached.{name}", each, "give a share of at most 1") for name, each in shares.items() if each > 1
    ]:
        raise InvalidInput(*wrong)
    return reached


def _model(given: dict[str, object], folder: Path) -> Model:
    config = given.pop("config", None)
    if config is None:
        return _part("model", {"name": "model", **given}, Model)
    rank = given.pop("adapter_rank", 0)
    if given:
        raise InvalidInput(Problem("model", sorted(given), "give either `config` or the numbers, not both"))
    whole = msgspec.to_builtins(read_config(folder / str(config)))
    return _part("model", {**whole, "adapter_rank": rank}, Model)


def _cluster(given: dict[str, object]) -> Cluster:
    gpu = given.get("gpu")
    if gpu is None:
        raise InvalidInput(Problem("cluster.gpu", None, "give the name of a GPU, as H100"))
    if isinstance(gpu, str):
        given["gpu"] = gpu_of(gpu, "cluster.gpu")
    return _part("cluster", given, Cluster)


def _part(name: str, given: Mapping[str, object], kind: type[Part]) -> Part:
    plain = {key: _number(value) for key, value in given.items()}
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        raise InvalidInput(_refused(name, plain, kind, str(error))) from None


_FIELD: Final = re.compile(r"Object (?:contains unknown|missing required) field `(.+?)`")


def _refused(section: str, given: Mapping[str, object], kind: type[msgspec.Struct], error: str) -> Problem:
    """What msgspec says of a section, told of the one value that it is about."""
    says, _, where = error.partition(" - at `$")
    path = where.rstrip("`").lstrip(".").split(".") if where else []
    fix = f"{says[:1].lower()}{says[1:]}"
    if (about := _FIELD.match(says)) is not None:
        path.append(about[1])
        # Of a section in a section the names are on the page.
        names = f"one of {', '.join(kind.__struct_fields__)}" if len(path) == 1 else "a name that is known there"
        fix = f"give {names}" if "unknown" in says else "it is missing: give it"
    value: object = given
    for each in path:
        value = value.get(each) if isinstance(value, Mapping) else None
    return Problem(".".join([section, *path]), value, fix)


def _number(value: object) -> object:
    """YAML 1.1 takes `2e12` for a word; a whole number of any spelling is one. Sections inside are read so too."""
    if isinstance(value, dict):
        return {key: _number(each) for key, each in value.items()}
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return value
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value
