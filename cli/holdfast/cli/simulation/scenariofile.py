"""A scenario as a user gives it: a TrainingJob, or a file with one and what the fleet is like; and settings.

job: job.yaml                     # a TrainingJob beside this file, or its fields; without it Holdfast's defaults
faults: [llama3, ours.yaml]       # presets, files with tables, or kinds written out
fleet: {nodes: 2048, spares: 32}  # and gpus_per_node, free, rack, switch, gpu_hour
days: 54
step_s: 10
seeds: 20
times: {load_s: 20}               # how long what the watchdog does not decide takes
tests_find: 0.7                   # the share of self-tests of a broken device that find it so
script_saves: 100                 # after so many steps the script saves by itself

A setting is one of these by name (`days`, `fleet.rack`, `times.load_s`) or a field of the job's spec
(`checkpoint.interval`), which is read by the same code as a file that is applied.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec
import yaml

from holdfast.api.bounds import NODES_MAX, PER_NODE_MAX
from holdfast.api.errors import InvalidInput, Problem
from holdfast.api.fleet import FleetReport
from holdfast.api.metadata import API_VERSION
from holdfast.api.plainvalues import read_plain
from holdfast.api.policy import GpuHour, Policy
from holdfast.api.trainingjob import JobSpec, policy_of, read_trainingjob
from holdfast.cli.embedded.jobfile import read_documents, read_job_file
from holdfast.simulator.failuretable import (
    checked,
    odd_spread,
    preset,
    preset_names,
    rates_of,
    rates_of_fleet,
    table_of,
)
from holdfast.simulator.fault import FaultRate, Spread
from holdfast.simulator.scenario import Fleet, Scenario, Times

Part = TypeVar("Part", bound=msgspec.Struct)
Some = Annotated[int, msgspec.Meta(ge=1, le=NODES_MAX)]
Count = Annotated[int, msgspec.Meta(ge=0, le=NODES_MAX)]
Document = dict[str, Any]
SECTIONS: Final = ("job", "faults", "fleet", "days", "step_s", "seeds", "times", "tests_find", "script_saves")
SPLITS: Final = ("tensor", "context", "pipeline")
"""What the ranks of one copy of the model are multiplied from."""
SHORT: Final[Mapping[str, str]] = {
    "nodes": "fleet.nodes",
    "spares": "fleet.spares",
    "interval": "checkpoint.interval",
}
"""Names for settings that are varied often."""
SPEC_FIELDS: Final = frozenset(field.alias or name for name, field in JobSpec.model_fields.items())
DAYS: Final = 30.0
SEEDS: Final = 20
SEEDS_MAX: Final = 10_000
DAYS_MAX: Final = 3650.0
GPUS_PER_NODE: Final = 8
SIZE: Final = Fleet(nodes=1)
"""What of a fleet's section is not said."""
PRESET: Final = "llama3"
SECONDS_MAX: Final = 86_400.0
STEPS_MAX: Final = 10**9


class Draft:
    """A scenario that is being put together. `says` is what it is called, `folder` where its files are."""

    def __init__(self, says: str, job: Document, sections: Document, folder: Path) -> None:
        self.says = says
        self._job = job
        self._sections = sections
        self._folder = folder
        self._nodes: Document = {}  # of the spec's section `nodes`, what was set by name

    def copy(self, says: str) -> "Draft":
        """Another one of the same contents."""
        other = deepcopy(self)
        other.says = says
        return other

    def set(self, name: str, text: str) -> None:
        """Give one setting another value, written as in YAML. Raises InvalidInput for a name that is none."""
        path = SHORT.get(name, name).split(".")
        value = _plain(text, name)
        if path[0] == "nodes" and len(path) == 2:
            self._nodes[path[1]] = value
        elif path[0] in SPEC_FIELDS:
            _put(self._job, ["spec", *path], value, name)
        elif path[0] in ("days", "step_s", "seeds", "tests_find", "script_saves") and len(path) == 1:
            self._sections[path[0]] = value
        elif path[0] in ("fleet", "times") and len(path) == 2:
            _put(self._sections, path, value, name)
        else:
            known = ", ".join([*SHORT, "days", "step_s", "tests_find", "script_saves", "fleet.NAME", "times.NAME"])
            fix = f"give one of {known}, or a field of the job's spec, as checkpoint.interval"
            raise InvalidInput(Problem("setting", name, fix))

    def use(self, tables: Iterable[str]) -> None:
        """Let these presets and files say what fails, in place of what the file says."""
        self._sections["faults"] = [_beside(each, Path()) for each in tables]

    @property
    def seeds(self) -> int:
        """How many runs are wanted. Raises InvalidInput."""
        seeds = self._sections.get("seeds", SEEDS)
        if type(seeds) is not int or not 1 <= seeds <= SEEDS_MAX:
            raise InvalidInput(Problem("seeds", seeds, f"give 1 to {SEEDS_MAX}"))
        return seeds

    def policy(self) -> Policy:
        """The job's, of the fleet's size. Raises InvalidSpec, InvalidInput."""
        document, given = deepcopy(self._job), self._part("fleet", _Size)
        spec = document.setdefault("spec", {})
        if isinstance(spec, dict):  # else whoever reads the job refuses it
            if given.gpus_per_node is not None:
                spec["processesPerNode"] = given.gpus_per_node
            if given.nodes is not None:
                spec["nodes"] = _resized(spec, given.nodes)
            if given.spares is not None:
                _put(spec, ["nodes", "spares"], given.spares, "spares")
            for name, value in self._nodes.items():
                _put(spec, ["nodes", name], value, f"nodes.{name}")
        policy = policy_of(read_trainingjob(document))
        if policy.suspend:
            raise InvalidInput(
                Problem("spec.suspend", value=True, fix="set it to false: nothing of the job would run")
            )
        if given.gpu_hour is not None:
            currency = policy.gpu_hour.currency if policy.gpu_hour is not None else "USD"
            policy = msgspec.structs.replace(policy, gpu_hour=GpuHour(given.gpu_hour, currency))
        return policy

    def fleet(self, policy: Policy) -> Fleet:
        """The machines for that policy. Raises InvalidInput."""
        given = self._part("fleet", _Size)
        return Fleet(
            nodes=policy.nodes_max,
            gpus_per_node=policy.processes_per_node,
            spares=policy.spares,
            free=given.free,
            rack=given.rack,
            switch=given.switch,
            gpu_hour=policy.gpu_hour.amount if policy.gpu_hour is not None else None,
        )

    def times(self) -> Times:
        """How long what nobody decides takes. Raises InvalidInput."""
        times = self._part("times", Times)
        wrong: list[Problem] = []
        for name in Times.__struct_fields__:
            value, field = getattr(times, name), f"times.{name}"
            if isinstance(value, Spread):
                wrong += odd_spread(field, value)
            elif not 0 <= value <= SECONDS_MAX:
                wrong.append(Problem(field, value, f"give seconds from 0 to {SECONDS_MAX:g}"))
        if wrong:
            raise InvalidInput(*wrong)
        return times

    def faults(self, gpus_per_node: int) -> tuple[FaultRate, ...]:
        """What fails, of all tables together. Raises InvalidInput."""
        given = self._sections.get("faults", [PRESET])
        if not isinstance(given, list) or not given:
            fix = f"give a list of presets ({', '.join(preset_names())}), files and kinds"
            raise InvalidInput(Problem("faults", given, fix))
        rates: list[FaultRate] = []
        for place, each in enumerate(given):
            field = f"faults[{place}]"
            if isinstance(each, dict):
                rates += rates_of(table_of({"kinds": [each]}, field), field)
            elif isinstance(each, str):
                rates += _told_in(each, self._folder, gpus_per_node, field)
            else:
                raise InvalidInput(Problem(field, each, "give a preset, a file or a kind"))
        return checked(_named_once(rates), "faults")

    def scenario(self) -> Scenario:
        """All of it. Raises InvalidSpec for the job, InvalidInput for the rest."""
        policy = self.policy()
        scenario = Scenario(
            policy=policy,
            fleet=self.fleet(policy),
            faults=self.faults(policy.processes_per_node),
            days=self._number("days", DAYS, DAYS_MAX),
            times=self.times(),
        )
        return msgspec.structs.replace(
            scenario,
            step_s=self._number("step_s", scenario.step_s, SECONDS_MAX),
            tests_find=self._share("tests_find", scenario.tests_find),
            script_saves=self._steps("script_saves"),
        )

    def _number(self, name: str, default: float, most: float) -> float:
        return self._within(name, default, 1e-3, most, f"give a number from 0.001 to {most:g}")

    def _steps(self, name: str) -> int:
        given = self._sections.get(name, 0)
        if type(given) is not int or not 0 <= given <= STEPS_MAX:
            raise InvalidInput(Problem(name, given, f"give a number of steps, at most {STEPS_MAX}; 0 for never"))
        return given

    def _share(self, name: str, default: float) -> float:
        return self._within(name, default, 0.0, 1.0, "give a share from 0 to 1")

    def _within(self, name: str, default: float, least: float, most: float, fix: str) -> float:
        given = self._sections.get(name, default)
        value = read_plain(given, float, name) if not isinstance(given, bool) else math.nan
        if not least <= value <= most:
            raise InvalidInput(Problem(name, given, fix))
        return value

    def _part(self, name: str, kind: type[Part]) -> Part:
        given = self._sections.get(name)
        return read_plain({} if given is None else given, kind, name)


class _Size(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The section `fleet` as it is written."""

    nodes: Some | None = None
    spares: Count | None = None
    gpus_per_node: Annotated[int, msgspec.Meta(ge=1, le=PER_NODE_MAX)] | None = None
    free: Count = 0
    rack: Some = SIZE.rack
    switch: Some = SIZE.switch
    gpu_hour: Annotated[float, msgspec.Meta(gt=0, le=1e6)] | None = None


def draft_of(file: Path | None) -> Draft:
    """From a TrainingJob, a scenario, or nothing. Raises InvalidInput."""
    if file is None:
        return Draft("defaults", _default_job(), {}, Path())
    documents = read_documents(file)
    if any(isinstance(each, dict) and "kind" in each for each in documents):
        return Draft(file.stem, _job_in(file), {}, file.parent)
    given = documents[0]
    if len(documents) > 1 or not isinstance(given, dict):
        fix = f"give a TrainingJob, or one document with {', '.join(SECTIONS)}"
        raise InvalidInput(Problem("FILE", str(file), fix))
    wrong = [
        Problem(str(name), value, f"give one of {', '.join(SECTIONS)}")
        for name, value in given.items()
        if name not in SECTIONS
    ]
    if wrong:
        raise InvalidInput(*wrong)
    sections = dict(given)
    job = sections.pop("job", None)
    match job:
        case None:
            document = _default_job()
        case str():
            document = _job_in(file.parent / job)
        case dict():
            document = {**_default_job(), **job}
        case _:
            raise InvalidInput(Problem("job", job, "give the file of a TrainingJob, or its fields"))
    return Draft(file.stem, document, sections, file.parent)


def _job_in(file: Path) -> Document:
    """The TrainingJob as it is written there, after it was read as one. Raises InvalidInput."""
    read_job_file(file)
    documents = (each for each in read_documents(file) if each["kind"] == "TrainingJob")
    return dict(next(documents))


def _default_job() -> Document:
    """What a user gets who says nothing but a size."""
    return {
        "apiVersion": API_VERSION,
        "kind": "TrainingJob",
        "metadata": {"name": "simulated", "namespace": "default"},
        "spec": {"entrypoint": ["train.py"], "processesPerNode": GPUS_PER_NODE},
    }


def _resized(spec: Document, nodes: int) -> object:
    """The section `nodes` of a job for so many: its least number in the proportion that it had, in whole replicas
    and replica groups.

    What is no number there is left for whoever reads the job to refuse.
    """
    had, split = spec.get("nodes") or {}, spec.get("parallelism") or {}
    if not (isinstance(had, dict) and isinstance(split, dict)):
        return had
    least, most = had.get("min", 1), had.get("max", had.get("min", 1))
    per_node, degrees = spec.get("processesPerNode", 1), [split.get(name, 1) for name in SPLITS]
    model = math.prod(degrees) if _whole(*degrees) else 1
    kept = nodes
    if _whole(least, most, per_node) and least < most:
        replica = model // math.gcd(model, per_node)
        group = split.get("replicaGroupNodes", 1)
        unit = math.lcm(replica, group) if _whole(group) else replica
        kept = min(nodes, unit * math.ceil(nodes * least / most / unit))
    return {**had, "min": kept, "max": nodes}


def _whole(*values: object) -> bool:
    return all(type(each) is int and each > 0 for each in values)


def _put(document: Document, path: list[str], value: object, name: str) -> None:
    for key in path[:-1]:
        if document.get(key) is None:
            document[key] = {}
        inner = document[key]
        if not isinstance(inner, dict):
            raise InvalidInput(Problem("setting", name, f"{key} is {inner!r} here and has no fields"))
        document = inner
    document[path[-1]] = value


def _plain(text: str, name: str) -> object:
    """A value as YAML has it."""
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise InvalidInput(Problem(name, text, "give a value as in YAML")) from None
    return value


def _beside(name: str, folder: Path) -> str:
    """A file is meant from where the command was called."""
    return name if name in preset_names() else str((folder / name).absolute())


def _told_in(name: str, folder: Path, gpus_per_node: int, field: str) -> tuple[FaultRate, ...]:
    """The rates of a preset or of a file."""
    if name in preset_names():
        return rates_of(preset(name), name)
    file = folder / name
    if not file.is_file():
        preset(name, field)  # which says what there is
    given, *more = read_documents(file)
    if more:
        raise InvalidInput(Problem(field, name, "give one table in a file"))
    if isinstance(given, dict) and "tables" in given:
        return rates_of_fleet(read_plain(given, FleetReport, name), gpus_per_node, name)
    return rates_of(table_of(given, name), name)


def _named_once(rates: Iterable[FaultRate]) -> Iterator[FaultRate]:
    """Kinds of one name in two tables are told apart."""
    seen: dict[str, int] = {}
    for each in rates:
        count = seen[each.name] = seen.get(each.name, 0) + 1
        yield each if count == 1 else msgspec.structs.replace(each, name=f"{each.name} ({count})")
