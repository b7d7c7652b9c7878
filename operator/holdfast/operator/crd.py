"""The definitions of our objects for the API server, made from the types that read them.

`python -m holdfast.operator.crd` writes them as chart templates; `--plain` prints them for `kubectl apply`.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from holdfast.api.condition import ConditionKind
from holdfast.api.costspec import PRICE_FIX
from holdfast.api.faultpolicy import LOSS_FIX, LOST_FIX
from holdfast.api.interventionspec import InterventionSpec, InterventionStatus
from holdfast.api.jobstatus import TrainingJobStatus
from holdfast.api.metadata import API_VERSION
from holdfast.api.remediation import RemediationSpec, RemediationStatus
from holdfast.api.trainingjob import (
    ENTRYPOINT_FIX,
    GROUPS_HOLD_STATE_FIX,
    MODELS_IN_GROUP_FIX,
    RANGE_FIX,
    TOO_FEW_GPUS_FIX,
    WHOLE_GROUPS_FIX,
    WHOLE_MODELS_FIX,
    JobSpec,
)
from holdfast.operator.celrules import RULES, Rule, accessor, milliseconds, rules
from holdfast.operator.crdschema import Half, Schema, structural
from holdfast.operator.decide.template import (
    NAME_LENGTH_FIX,
    NAME_LENGTH_MAX,
    SELECTED_NODE_FIX,
    SERVICE_NAME,
    SERVICE_NAME_FIX,
)
from holdfast.operator.podschema import GPUS, of_trainer, pod_template

GROUP, VERSION = API_VERSION.split("/")
TEMPLATES = Path("helm/holdfast/templates/crds")


class Column(msgspec.Struct, frozen=True, rename={"path": "jsonPath"}, omit_defaults=True):
    """A column of `kubectl get`. Those of a priority are for `-o wide` only."""

    name: str
    type: str
    path: str
    description: str
    priority: int = 0


_AGE = Column("Age", "date", ".metadata.creationTimestamp", "Time since it was created.")
JOB_COLUMNS = (
    Column("Phase", "string", ".status.phase", "Where the job is in its life."),
    Column("Step", "integer", ".status.step", "The last step that every rank has completed."),
    Column(
        "Ready",
        "integer",
        ".status.members.ready",
        "Members that train, before that those that joined; 0 when Stalled, empty while the watchdog is away.",
    ),
    Column("Wanted", "integer", ".status.members.wanted", "Members the job should have now."),
    Column(
        "ETTR",
        "number",
        ".status.goodput.ettr",
        "Useful training time over wall time; empty when Stalled.",
    ),
    Column("Incidents", "integer", ".status.incidents", "How many incidents there have been."),
    _AGE,
    Column(
        "Problem",
        "string",
        '.status.conditions[?(@.type=="InvalidSpec")].message',
        "Why the spec is refused; empty when it is accepted.",
    ),
    Column("Round", "integer", ".status.round", "The number of the newest round.", priority=1),
    Column("World", "integer", ".status.worldSize", "Ranks in the round.", priority=1),
    Column("Restarts", "integer", ".status.restarts", "How often the job was restarted.", priority=1),
    Column("Checkpoint", "integer", ".status.lastCheckpoint.step", "The newest committed step.", priority=1),
    Column(
        "Policy",
        "string",
        '.status.conditions[?(@.type=="PolicyChecked")].reason',
        "What the check of its changed policy came to.",
        priority=1,
    ),
)
REQUEST_COLUMNS = (
    Column("Job", "string", ".spec.job", "The TrainingJob it is about."),
    Column("Action", "string", ".spec.action", "What is asked for."),
    Column("State", "string", ".status.state", "What became of it."),
    _AGE,
    Column("Outcome", "string", ".status.outcome", "What was done, why not, or what it waits for."),
    Column("Reason", "string", ".spec.reason", "Why it was asked for.", priority=1),
)
REMEDIATION_COLUMNS = (
    Column("Action", "string", ".spec.action", "What is asked for."),
    Column("Outcome", "string", ".status.outcome", "What became of it; empty while nobody has begun."),
    Column("Job", "string", ".spec.job", "The TrainingJob that found it first."),
    Column("Incident", "string", ".spec.incident", "Its incident."),
    _AGE,
    Column("Reason", "string", ".spec.reason", "What was found.", priority=1),
    Column("Message", "string", ".status.message", "What was done, or why it failed.", priority=1),
)
REMEDIATION_RULES = rules(
    Rule("self.spec.node == self.metadata.name", "the object has the name of its node: spec.node", ".spec.node")
)
# Of a job whose parts are right by themselves; each in the words of the reader (holdfast.api, decide/template).
# A name is judged once: an object that has one already is not refused for it.
NAME_RULES = rules(
    Rule(
        f"oldSelf.hasValue() || size(self.metadata.name) <= {NAME_LENGTH_MAX}",
        f"metadata.name: {NAME_LENGTH_FIX}",
        old=True,
    ),
    Rule(
        f"oldSelf.hasValue() || self.metadata.name.matches('^{SERVICE_NAME}$')",
        f"metadata.name: {SERVICE_NAME_FIX}",
        old=True,
    ),
)
_RANKS = "(self.parallelism.tensor * self.parallelism.context * self.parallelism.pipeline)"
_GROUP = "self.parallelism.replicaGroupNodes"
_NO_GROUP = f"!has({_GROUP})"
_COUNTED = "has(self.processesPerNode)"


_COUNTS = " + ".join(
    f"(has({count}) && string({count}).matches('^[0-9]{{1,9}}$') ? int({count}) : 0)"
    for count in (f"t.resources.limits.{accessor(name)}" for name in GPUS)
)
_ENOUGH_GPUS = (
    f"!has(t.resources) || !has(t.resources.limits) || {_COUNTS} == 0 || {_COUNTS} >= self.processesPerNode"
)
# Such a job may be older than the rule: it is suspended, and resumed, as it is.
_AS_BEFORE = (
    "oldSelf.hasValue() && oldSelf.value().?processesPerNode == self.?processesPerNode && "
    "oldSelf.value().template.spec.containers == self.template.spec.containers"
)


def _whole_worlds() -> Iterator[Rule]:
    """Both ends of the range hold whole models, and whole replica groups."""
    for end, there in (("min", "true"), ("max", "has(self.nodes.max)")):
        nodes = f"self.nodes.{end}"
        yield Rule(
            f"!{_COUNTED} || !({there}) || {nodes} * self.processesPerNode % {_RANKS} == 0",
            WHOLE_MODELS_FIX,
            f".nodes.{end}",
        )
        yield Rule(f"{_NO_GROUP} || !({there}) || {nodes} % {_GROUP} == 0", WHOLE_GROUPS_FIX, f".nodes.{end}")
    yield Rule(
        f"{_NO_GROUP} || !{_COUNTED} || {_GROUP} * self.processesPerNode % {_RANKS} == 0",
        MODELS_IN_GROUP_FIX,
        ".parallelism.replicaGroupNodes",
    )
    yield Rule(
        f"{_NO_GROUP} || !has(self.checkpoint.memory) || self.checkpoint.memory.everySteps == 0",
        GROUPS_HOLD_STATE_FIX,
        ".checkpoint.memory.everySteps",
    )


JOB_RULES = rules(
    *_whole_worlds(),
    Rule(
        f"!{_COUNTED} || ({_AS_BEFORE}) || ({of_trainer(_ENOUGH_GPUS, 'self.template.spec')})",
        TOO_FEW_GPUS_FIX,
        ".processesPerNode",
        old=True,
    ),
    Rule(
        "!has(self.template.spec.nodeSelector) || "
        "!('kubernetes.io/hostname' in self.template.spec.nodeSelector) || "
        "(has(self.nodes.max) ? self.nodes.max : self.nodes.min) <= 1",
        SELECTED_NODE_FIX,
        ".template.spec.nodeSelector",
    ),
)
ENTRYPOINT_RULES = rules(Rule("self.size() == 0 || self[0] != ''", ENTRYPOINT_FIX))
NODES_RULES = rules(
    Rule(
        "!has(self.max) || self.min <= self.max",
        RANGE_FIX,
        ".min",
    )
)
HEARTBEAT_RULES = rules(
    Rule(
        "!has(self.lost) || !has(self.interval) || "  # as in the default, before it is filled in
        f"{milliseconds('self.lost')} >= 2.0 * {milliseconds('self.interval')}",
        LOST_FIX,
        ".lost",
    )
)
LINKS_RULES = rules(
    Rule(f"{milliseconds('self.flow')} <= 60000.0", "write at most 1m", ".flow"),
    Rule(f"{milliseconds('self.gang')} <= 600000.0", "write at most 10m", ".gang"),
    Rule(
        f"{milliseconds('self.timeout')} >= 20000.0 && {milliseconds('self.timeout')} <= 3600000.0",
        "write 20s to 1h",
        ".timeout",
    ),
)
XID_RULES = rules(
    Rule("self.all(k, k.matches('^[0-9]{1,9}$'))", "write a whole number"),
    Rule("self.all(k, !k.matches('^[0-9]{1,9}$') || int(k) <= 1023)", "write a number of at most 1023"),
    Rule("self.all(k, !k.matches('^[0-9]{1,9}$') || int(k) >= 1)", "write a number of at least 1"),
)
LOSS_RULES = rules(
    Rule(
        "!has(self.learningRateSteps) || self.learningRateScale < 1.0",
        LOSS_FIX,
        ".learningRateSteps",
    )
)
PRICE_RULES = rules(
    Rule(
        "has(self.gpu) || has(self.capacity)",
        PRICE_FIX,
    )
)
_KINDS = [repr(each.value) for each in ConditionKind]
CONDITION_RULES = rules(
    Rule(f"self.all(k, k in [{', '.join(_KINDS)}])", f"write one of: {', '.join(_KINDS[:-1])} or {_KINDS[-1]}")
)
SPEC_RULES: Mapping[str, list[dict[str, Any]]] = {
    "": JOB_RULES,
    "entrypoint": ENTRYPOINT_RULES,
    "nodes": NODES_RULES,
    "startup.links": LINKS_RULES,
    "faultPolicy.heartbeat": HEARTBEAT_RULES,
    "faultPolicy.xid": XID_RULES,
    "faultPolicy.loss": LOSS_RULES,
    "faultPolicy.conditions": CONDITION_RULES,
    "cost.prices.[]": PRICE_RULES,
}
"""By the path of the part of the spec that they are of; `[]` is each entry of a list."""
REQUEST_RULES = (
    {
        "rule": "(self.action in ['Evict', 'Return', 'Test']) == has(self.node)",
        "message": "node is needed by Evict, Return and Test, and read by no other action",
    },
    {
        "rule": "(self.action == 'Resize') == has(self.nodes)",
        "message": "nodes is needed by Resize, and read by no other action",
    },
    {
        "rule": "(self.action == 'Rewind') == has(self.rewind)",
        "message": "rewind is needed by Rewind, and read by no other action",
    },
    {
        "rule": "(self.action == 'SkipBatches') == has(self.skipBatches)",
        "message": "skipBatches is needed by SkipBatches, and read by no other action",
    },
    {
        "rule": "(self.action == 'Profile') == has(self.profile)",
        "message": "profile is needed by Profile, and read by no other action",
    },
    {
        "rule": "!has(self.fresh) || !self.fresh || self.action == 'Restart'",
        "message": "fresh is read by Restart alone",
    },
    {
        "rule": "!has(self.level) || self.action == 'Test'",
        "message": "level is read by Test alone",
    },
    {"rule": "self == oldSelf", "message": "an Intervention is done once: make another instead of changing it"},
)


CONDITION: Schema = {
    "type": "object",
    "required": ["type", "status", "lastTransitionTime", "reason"],
    "properties": {
        "type": {"type": "string", "description": "What is said of the job."},
        "status": {"type": "string", "description": "Whether it is so.", "enum": ["True", "False", "Unknown"]},
        "reason": {"type": "string", "description": "Why, in one word for programs."},
        "message": {"type": "string", "description": "Why, in a sentence for people."},
        "lastTransitionTime": {
            "type": "string",
            "description": "Since when it has had this status.",
            "format": "date-time",
        },
        "observedGeneration": {"type": "integer", "description": "The generation of the spec it was said of."},
    },
}
"""Source: https://github.com/kubernetes/apimachinery/blob/master/pkg/apis/meta/v1/types.go"""


def definitions() -> dict[str, Schema]:
    """The CustomResourceDefinitions by plural name, as the API server takes them."""
    spec, status = structural(JobSpec, Half.SPEC), structural(TrainingJobStatus, Half.STATUS)
    # On one machine the template may be left out; a pod cannot be made without one.
    spec["required"] = [*spec["required"], "template"]
    spec["properties"]["template"] = pod_template(spec["properties"]["template"]["description"])
    for path, given in SPEC_RULES.items():
        _part(spec, path)[RULES] = given
    status["properties"]["conditions"] |= {
        "items": CONDITION,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    }
    scale = {
        "specReplicasPath": ".spec.nodes.max",
        "statusReplicasPath": ".status.members.pods",
        "labelSelectorPath": ".status.selector",
    }
    names = {"kind": "TrainingJob", "plural": "trainingjobs", "singular": "trainingjob", "shortNames": ["tj"]}
    about = "A training run that is kept running: faults are detected, judged and healed without a human."
    jobs = _definition(names, about, spec, status, JOB_COLUMNS, {"status": {}, "scale": scale})
    jobs["spec"]["versions"][0]["schema"]["openAPIV3Schema"][RULES] = NAME_RULES
    spec, status = structural(InterventionSpec, Half.SPEC), structural(InterventionStatus, Half.STATUS)
    spec[RULES] = list(REQUEST_RULES)
    names = {"kind": "Intervention", "plural": "interventions", "singular": "intervention", "shortNames": ["itv"]}
    about = "What an on-call engineer asks for, of one job. It is done once and stays as a record."
    interventions = _definition(names, about, spec, status, REQUEST_COLUMNS, {"status": {}})
    spec, status = structural(RemediationSpec, Half.SPEC), structural(RemediationStatus, Half.STATUS)
    kind = "NodeRemediation"
    names = {"kind": kind, "plural": "noderemediations", "singular": "noderemediation", "shortNames": ["nrm"]}
    about = (
        "What Holdfast asks of whoever repairs nodes. It has its node's name; its status says what became of it."
    )
    remediations = _definition(names, about, spec, status, REMEDIATION_COLUMNS, {"status": {}})
    remediations["spec"]["scope"] = "Cluster"  # nodes belong to no namespace
    root = remediations["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    root[RULES] = REMEDIATION_RULES
    return {"trainingjobs": jobs, "interventions": interventions, "noderemediations": remediations}


def _part(schema: Schema, path: str) -> Schema:
    for name in filter(None, path.split(".")):
        schema = schema["items"] if name == "[]" else schema["properties"][name]
    return schema


def _definition(
    names: Schema, about: str, spec: Schema, status: Schema, columns: Sequence[Column], subresources: Schema
) -> Schema:
    group_names = {**names, "listKind": f"{names['kind']}List", "categories": ["holdfast"]}
    root = {
        "type": "object",
        "description": about,
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": API_VERSION},
            "kind": {"type": "string", "description": names["kind"]},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
    }
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": root},
        "subresources": subresources,
        "additionalPrinterColumns": [msgspec.to_builtins(column) for column in columns],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names['plural']}.{GROUP}"},
        "spec": {"group": GROUP, "scope": "Namespaced", "names": group_names, "versions": [version]},
    }


def template(definition: Schema) -> str:
    """The definition as a chart template: installed and kept as the values say."""
    metadata = (
        f"metadata:\n  name: {definition['metadata']['name']}\n"
        '  labels:\n    {{- include "holdfast.labels" . | nindent 4 }}\n'
        "  {{- if .Values.crds.keep }}\n  annotations:\n    helm.sh/resource-policy: keep\n  {{- end }}\n"
    )
    spec = _text({"spec": definition["spec"]})
    head = "{{- /* Written by `python -m holdfast.operator.crd`: not to be edited. */ -}}\n"
    head += "{{- if .Values.crds.install }}\n"
    kind = _text({"apiVersion": definition["apiVersion"], "kind": definition["kind"]})
    return f"{head}{kind}{metadata}{spec}{{{{- end }}}}\n"


def _text(value: Any) -> str:
    return yaml.dump(value, Dumper=_Plain, sort_keys=False, width=110, allow_unicode=True)


class _Plain(yaml.SafeDumper):
    """No anchors: what is the same twice is written twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m holdfast.operator.crd", description=__doc__)
    parser.add_argument("--plain", action="store_true", help="print plain manifests instead of writing templates")
    parser.add_argument("--into", type=Path, default=TEMPLATES, help=f"folder of the templates ({TEMPLATES})")
    given = parser.parse_args(arguments)
    if given.plain:
        sys.stdout.write("---\n".join(_text(definition) for definition in definitions().values()))
        return
    for name, definition in definitions().items():
        (given.into / f"{name}.yaml").write_text(template(definition))


if __name__ == "__main__":
    main()
