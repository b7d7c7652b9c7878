"""TrainingJobs that must be refused, as people write them, and what they are told.

Each is a small valid job in which the text in `spec` (YAML, as in a job file) replaces fields of the same name; in
`metadata` likewise. `says` is one problem's whole text: field, value, fix. The table serves the reader of specs,
the operator's reconcile and, where the API server checks the same, a real API server.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any

import yaml

from holdfast.api.costspec import PRICE_FIX
from holdfast.api.faultpolicy import LOSS_FIX
from holdfast.api.quantity import EXCESS_FIX, INTERVAL_FIX, PERCENT_FIX, STEPS_FIX, SUSTAINED_FIX, ZERO_FIX
from holdfast.api.trainingjob import (
    GROUPS_HOLD_STATE_FIX,
    MODELS_IN_GROUP_FIX,
    TOO_FEW_GPUS_FIX,
    WHOLE_GROUPS_FIX,
    WHOLE_MODELS_FIX,
)
from holdfast.operator.decide.template import FIXES, SELECTED_NODE_FIX, SERVICE_NAME_FIX, Fix

BASE = """
apiVersion: holdfast.dev/v1alpha1
kind: TrainingJob
metadata: {name: gpt, namespace: default}
spec:
  entrypoint: [train.py]
  nodes: {min: 1, max: 2}
  template: {spec: {containers: [{name: trainer, image: registry.example/train:1}]}}
"""


class ToldBy(Enum):
    """Who tells what is wrong first."""

    SCHEMA = "kubectl apply: the API server, by the schema of the definition, in its own words"
    STRICTNESS = "kubectl apply: the API server, which is asked to take no unknown field"
    RULE = "kubectl apply: the API server, by a rule of the definition, in the reader's words"
    READER = "the operator's reader: the job's condition InvalidSpec"
    DRY_RUN = "the API server, asked by the operator about a pod: the job's condition InvalidSpec"


AT_APPLY = (ToldBy.SCHEMA, ToldBy.STRICTNESS, ToldBy.RULE)


@dataclass(frozen=True)
class Invalid:
    """One of them. `name` is what is wrong, in words; `why` is why it is not told when it is applied.

    `at_apply` are the words of a rule where the reader, which meets another mistake first, has other ones.
    """

    name: str
    spec: str
    says: str
    metadata: str = "{}"
    told_by: ToldBy = ToldBy.SCHEMA
    why: str = ""
    at_apply: str = ""

    def document(self) -> dict[str, Any]:
        """The whole TrainingJob. A field that is written as `~` (null) is left out."""
        base: dict[str, Any] = yaml.safe_load(BASE)
        spec = {**base["spec"], **yaml.safe_load(self.spec)}
        base["spec"] = {key: value for key, value in spec.items() if value is not None}
        base["metadata"] = {**base["metadata"], **yaml.safe_load(self.metadata)}
        return base

    @property
    def field(self) -> str:
        """The one that is wrong, as a problem names it."""
        return self.says.partition(": ")[0]

    @property
    def fix(self) -> str:
        """What is to be done, without the numbers that only the reader says."""
        fix = self.says.partition(" is not accepted; ")[2].partition(" (")[0]
        return self.at_apply or fix


def _refused(field: str, value: str, fix: str) -> str:
    return f"{field}: {value} is not accepted; {fix}"


def _by_rule(name: str, spec: str, says: str, **more: str) -> Invalid:
    return Invalid(name, spec, says, told_by=ToldBy.RULE, **more)


def _by_strictness(name: str, spec: str, says: str) -> Invalid:
    return Invalid(name, spec, says, told_by=ToldBy.STRICTNESS)


def _by_reader(name: str, spec: str, says: str, why: str) -> Invalid:
    return Invalid(name, spec, says, told_by=ToldBy.READER, why=why)


def _by_dry_run(name: str, spec: str, says: str) -> Invalid:
    """`says` is a part of what the API server says."""
    return Invalid(name, spec, says, told_by=ToldBy.DRY_RUN, why=PODS_OWN)


NO_FIELD = "there is no such field"
PODS_OWN = "what a pod may have is for the API server to say, and changes with its release"
COUNTED = "the GPUs of a pod are counted by the operator, from limits, requests and claims of devices"
WHOLE, DURATION = "write a whole number", "write a number with a unit, such as 500ms, 10s, 5m or 24h"
TEMPLATE = "spec.template.spec"
TRAINER = f"{TEMPLATE}.containers[0]"


def _pod(pod_spec: str) -> str:
    """A template whose pod spec is this, beside a trainer container of its own unless it has containers."""
    containers = (
        "" if "containers:" in pod_spec.replace("initContainers:", "") else "containers: [{name: trainer}], "
    )
    return f"template: {{spec: {{{containers}{pod_spec}}}}}"


def _container(fields: str) -> str:
    return f"template: {{spec: {{containers: [{{name: trainer, {fields}}}]}}}}"


def _gpus(count: str, more: str = "") -> str:
    """A trainer with so many GPUs, and what else the spec says."""
    trainer = f"{{name: trainer, image: x, resources: {{limits: {{nvidia.com/gpu: {count}}}}}}}"
    return f"{{template: {{spec: {{containers: [{trainer}]}}}}, {more}}}"


RESTARTS = "{action: Restart, exitCodes: {operator: In, values: [42]}}"
RESTARTS_ALL = "{action: RestartAllContainers, exitCodes: {operator: In, values: [42]}}"

READING = (
    Invalid(
        "nothing to run",
        "entrypoint: []",
        _refused("spec.entrypoint", "[]", "list at least one entry"),
    ),
    Invalid(
        "a command line instead of a list",
        "entrypoint: train.py --config 7b.toml",
        _refused("spec.entrypoint", "'train.py --config 7b.toml'", "write a list"),
    ),
    Invalid(
        "a number among the arguments",
        "entrypoint: [train.py, --layers, 32]",
        _refused("spec.entrypoint[2]", "32", "write a text; put it in quotes if it looks like a number"),
    ),
    _by_rule(
        "an empty script",
        "entrypoint: ['', --layers, '32']",
        _refused(
            "spec.entrypoint[0]", "''", "name the script, or -m and a module; only its arguments may be empty"
        ),
    ),
    Invalid(
        "no node at all",
        "nodes: {min: 0}",
        _refused("spec.nodes.min", "0", "write a number of at least 1"),
    ),
    _by_rule(
        "a minimum above the maximum",
        "nodes: {min: 32, max: 30}",
        _refused("spec.nodes.min", "32", "write at most the value of max, or raise max (30)"),
    ),
    Invalid("nodes as a text", "nodes: {min: '4'}", _refused("spec.nodes.min", "'4'", WHOLE)),
    Invalid("half a node", "nodes: {min: 1, max: 1.5}", _refused("spec.nodes.max", "1.5", WHOLE)),
    Invalid(
        "nodes as a number",
        "nodes: 4",
        _refused("spec.nodes", "4", "write a mapping of names to values"),
    ),
    Invalid(
        "a million nodes",
        "nodes: {min: 1, max: 1000000}",
        _refused("spec.nodes.max", "1000000", "write a number of at most 32768"),
    ),
    Invalid(
        "a million spares",
        "nodes: {min: 1, max: 2, spares: 1000000}",
        _refused("spec.nodes.spares", "1000000", "write a number of at most 32768"),
    ),
    Invalid(
        "a million processes on a node",
        "processesPerNode: 1000000",
        _refused("spec.processesPerNode", "1000000", "write a number of at most 1024"),
    ),
    Invalid(
        "more nodes than 64 bits hold",
        "nodes: {min: 1, max: 9223372036854775807}",
        _refused("spec.nodes.max", "9223372036854775807", "write a number of at most 32768"),
    ),
    Invalid(
        "a book as an argument",
        f"entrypoint: ['{'x' * 5000}']",
        _refused(
            "spec.entrypoint[0]", f"'{'x' * 79}... (5002 characters)", "write a text of at most 4096 characters"
        ),
    ),
    Invalid(
        "a checkpoint place without end",
        f"checkpoint: {{uri: 'file:///{'d' * 5000}'}}",
        _refused(
            "spec.checkpoint.uri",
            f"'file:///{'d' * 71}... (5010 characters)",
            "write a text of at most 1024 characters",
        ),
    ),
    Invalid(
        "fewer than no spares",
        "nodes: {min: 1, spares: -1}",
        _refused("spec.nodes.spares", "-1", "write a number of at least 0"),
    ),
    _by_strictness(
        "a misspelt field",
        "faultpolicy: {}",
        _refused("spec.faultpolicy", "{}", "there is no such field; did you mean faultPolicy?"),
    ),
    _by_strictness(
        "torchrun's word for nodes",
        "nnodes: 2",
        _refused("spec.nnodes", "2", "there is no such field; did you mean nodes?"),
    ),
    _by_strictness(
        "a snake in a camel's place",
        "processes_per_node: 8",
        _refused("spec.processes_per_node", "8", "there is no such field; did you mean processesPerNode?"),
    ),
    Invalid(
        "no process on a node",
        "processesPerNode: 0",
        _refused("spec.processesPerNode", "0", "write a number of at least 1"),
    ),
    _by_rule(
        "a world that splits a model",
        "{nodes: {min: 3, max: 4}, processesPerNode: 2, parallelism: {tensor: 2, context: 2}}",
        _refused(
            "spec.nodes.min",
            "3",
            "choose nodes whose processes divide by parallelism.tensor x context x pipeline (3 x 2 by 4)",
        ),
    ),
    Invalid(
        "no tensor parallelism written as zero",
        "parallelism: {tensor: 0}",
        _refused("spec.parallelism.tensor", "0", "write a number of at least 1"),
    ),
    Invalid(
        "an unknown preflight",
        "startup: {preflight: medium}",
        _refused("spec.startup.preflight", "'medium'", "write one of: 'none', 'light' or 'full'"),
    ),
    _by_rule(
        "a test of links that never ends",
        "startup: {links: {flow: 2m}}",
        _refused("spec.startup.links.flow", "'2m'", "write at most 1m"),
    ),
    _by_rule(
        "rings that never end",
        "startup: {links: {gang: 1h}}",
        _refused("spec.startup.links.gang", "'1h'", "write at most 10m"),
    ),
    _by_rule(
        "a test of links that is over at once",
        "startup: {links: {timeout: 1s}}",
        _refused("spec.startup.links.timeout", "'1s'", "write 20s to 1h"),
    ),
    Invalid(
        "a time-out without a unit", "startup: {timeout: 600}", _refused("spec.startup.timeout", "600", DURATION)
    ),
    _by_rule(
        "a duration of nothing",
        "startup: {timeout: 0s}",
        _refused("spec.startup.timeout", "'0s'", "write a duration longer than zero, such as 10s"),
    ),
    Invalid(
        "a duration in words",
        "ttlAfterFinished: 1 day",
        _refused("spec.ttlAfterFinished", "'1 day'", DURATION),
    ),
    Invalid(
        "a checkpoint interval without a unit",
        "checkpoint: {interval: 500}",
        _refused(
            "spec.checkpoint.interval",
            "500",
            "write auto, a duration such as 10m, or a number of steps such as 500steps",
        ),
    ),
    Invalid(
        "no checkpoint kept",
        "checkpoint: {keep: 0}",
        _refused("spec.checkpoint.keep", "0", "write a number of at least 1"),
    ),
    Invalid(
        "an empty checkpoint place",
        "checkpoint: {uri: ''}",
        _refused("spec.checkpoint.uri", "''", "write a text that is not empty"),
    ),
    Invalid(
        "a checkpoint place of a kind that nobody knows",
        "checkpoint: {uri: 's3a://runs/gpt'}",
        _refused(
            "spec.checkpoint.uri",
            "'s3a://runs/gpt'",
            "write a path, file:///path, or s3://, gs://, az://, abfs:// or abfss://bucket/prefix; a place of "
            "another kind the script can name",
        ),
    ),
    _by_rule(
        "one late heartbeat as a loss",
        "faultPolicy: {heartbeat: {interval: 2s, lost: 3s}}",
        _refused("spec.faultPolicy.heartbeat.lost", "'3s'", "write at least twice the interval, 4s or more"),
        at_apply="write at least twice the interval",
    ),
    Invalid(
        "an unknown action for an XID",
        "faultPolicy: {xid: {'79': Reboot}}",
        _refused("spec.faultPolicy.xid.79", "'Reboot'", "write one of: 'Ignore', 'Watch', 'Restart' or 'Evict'"),
    ),
    _by_rule(
        "an XID beyond all XIDs",
        "faultPolicy: {xid: {'9999': Evict}}",
        _refused("spec.faultPolicy.xid.9999", "'9999'", "write a number of at most 1023"),
    ),
    Invalid(
        "a percentage without its sign",
        "faultPolicy: {budget: {clusterFraction: 15}}",
        _refused(
            "spec.faultPolicy.budget.clusterFraction", "15", "write a percentage from 0% to 100%, such as 15%"
        ),
    ),
    _by_rule(
        "more than everything",
        "faultPolicy: {budget: {clusterFraction: 150%}}",
        _refused(
            "spec.faultPolicy.budget.clusterFraction", "'150%'", "write a percentage from 0% to 100%, such as 15%"
        ),
    ),
    Invalid(
        "steps that are a duration",
        "faultPolicy: {loss: {rewindAfter: 5m}}",
        _refused(
            "spec.faultPolicy.loss.rewindAfter",
            "'5m'",
            "write a whole number above zero and the word steps, such as 50steps",
        ),
    ),
    Invalid(
        "a restart of a slow rank",
        "faultPolicy: {straggler: {action: Restart}}",
        _refused("spec.faultPolicy.straggler.action", "'Restart'", "write one of: 'Report', 'Swap' or 'Evict'"),
    ),
    Invalid(
        "fewer than no restarts",
        "faultPolicy: {restarts: {max: -1}}",
        _refused("spec.faultPolicy.restarts.max", "-1", "write a number of at least 0"),
    ),
    Invalid(
        "a free GPU",
        "cost: {gpuHour: 0}",
        _refused("spec.cost.gpuHour", "0", "write a number above 0"),
    ),
    Invalid(
        "a currency as a sign",
        "cost: {gpuHour: 2.5, currency: $}",
        _refused("spec.cost.currency", "'$'", "write a text of the form ^[A-Z]{3}$"),
    ),
    Invalid(
        "a tracker's run in no project",
        "reporting: {wandb: {}}",
        _refused("spec.reporting.wandb.project", "(missing)", "add it"),
    ),
    Invalid("suspended in words", "suspend: 'yes'", _refused("spec.suspend", "'yes'", "write true or false")),
    Invalid(
        "an empty label to pack by",
        "placement: {pack: ['']}",
        _refused("spec.placement.pack[0]", "''", "write a text that is not empty"),
    ),
)
"""What every reader refuses, in a cluster and on one machine."""

LATER_READING = (
    _by_rule(
        "a maximum that splits a model",
        "{nodes: {min: 2, max: 3}, processesPerNode: 2, parallelism: {tensor: 4}}",
        _refused("spec.nodes.max", "3", f"{WHOLE_MODELS_FIX} (3 x 2 by 4)"),
    ),
    _by_rule(
        "a minimum of half a replica group",
        "{nodes: {min: 3, max: 4}, processesPerNode: 1, parallelism: {replicaGroupNodes: 2}}",
        _refused("spec.nodes.min", "3", f"{WHOLE_GROUPS_FIX} (2)"),
    ),
    _by_rule(
        "a maximum of a replica group and a half",
        "{nodes: {min: 2, max: 3}, processesPerNode: 1, parallelism: {replicaGroupNodes: 2}}",
        _refused("spec.nodes.max", "3", f"{WHOLE_GROUPS_FIX} (2)"),
    ),
    _by_rule(
        "a replica group that holds no whole model",
        "{nodes: {min: 8, max: 8}, processesPerNode: 1, parallelism: {tensor: 8, replicaGroupNodes: 4}}",
        _refused("spec.parallelism.replicaGroupNodes", "4", f"{MODELS_IN_GROUP_FIX} (8)"),
    ),
    _by_rule(
        "snapshots beside replica groups",
        "{nodes: {min: 2, max: 2}, parallelism: {replicaGroupNodes: 1}, checkpoint: {memory: {everySteps: 5}}}",
        _refused("spec.checkpoint.memory.everySteps", "5", GROUPS_HOLD_STATE_FIX),
    ),
    _by_rule(
        "a checkpoint every no steps",
        "checkpoint: {interval: 0steps}",
        _refused("spec.checkpoint.interval", "'0steps'", INTERVAL_FIX),
    ),
    _by_rule(
        "a checkpoint all the time",
        "checkpoint: {interval: 0s}",
        _refused("spec.checkpoint.interval", "'0s'", ZERO_FIX),
    ),
    _by_rule(
        "a loss that is too high for no step",
        "faultPolicy: {loss: {rewindAfter: 0steps}}",
        _refused("spec.faultPolicy.loss.rewindAfter", "'0steps'", STEPS_FIX),
    ),
    _by_rule(
        "slow for no step",
        "faultPolicy: {straggler: {sustained: 0steps}}",
        _refused("spec.faultPolicy.straggler.sustained", "'0steps'", SUSTAINED_FIX),
    ),
    _by_rule(
        "slower than twice",
        "faultPolicy: {straggler: {slowerThan: 200%}}",
        _refused("spec.faultPolicy.straggler.slowerThan", "'200%'", EXCESS_FIX),
    ),
    _by_rule(
        "told when more is spent than there is",
        "cost: {gpuHour: 1, budget: {amount: 10, alertAt: 101%}}",
        _refused("spec.cost.budget.alertAt", "'101%'", PERCENT_FIX),
    ),
    _by_rule(
        "a hang at once",
        "faultPolicy: {hang: {timeout: 0ms}}",
        _refused("spec.faultPolicy.hang.timeout", "'0ms'", ZERO_FIX),
    ),
    _by_rule(
        "no wait before a restart, in days",
        "faultPolicy: {restarts: {backoff: 0d0h}}",
        _refused("spec.faultPolicy.restarts.backoff", "'0d0h'", ZERO_FIX),
    ),
    _by_rule(
        "a silence of days that is a loss sooner",
        "faultPolicy: {heartbeat: {interval: 1d, lost: 47h}}",
        _refused("spec.faultPolicy.heartbeat.lost", "'1d23h'", "write at least twice the interval, 2d or more"),
        at_apply="write at least twice the interval",
    ),
    _by_rule(
        "a test of links in days",
        "startup: {links: {timeout: 1d}}",
        _refused("spec.startup.links.timeout", "'1d'", "write 20s to 1h"),
    ),
    _by_rule(
        "an XID of no fault",
        "faultPolicy: {xid: {'0': Evict}}",
        _refused("spec.faultPolicy.xid.0", "'0'", "write a number of at least 1"),
    ),
    _by_rule(
        "an XID in words",
        "faultPolicy: {xid: {fell-off-the-bus: Evict}}",
        _refused("spec.faultPolicy.xid.fell-off-the-bus", "'fell-off-the-bus'", WHOLE),
    ),
    _by_rule(
        "a learning rate for a while that is the same",
        "faultPolicy: {loss: {learningRateSteps: 100}}",
        _refused("spec.faultPolicy.loss.learningRateSteps", "'100'", LOSS_FIX),
    ),
    _by_rule(
        "a price of no GPU",
        "cost: {gpuHour: 2, prices: [{gpuHour: 1}]}",
        _refused("spec.cost.prices[0].gpu", "(missing)", PRICE_FIX),
    ),
    _by_reader(
        "a price said twice",
        "cost: {gpuHour: 2, prices: [{gpu: A, gpuHour: 1}, {gpu: A, gpuHour: 3}]}",
        _refused("spec.cost.prices[1].gpuHour", "3.0", "say the price of A once"),
        "to compare every two entries costs more than the API server lets a rule cost",
    ),
    _by_rule(
        "more processes than GPUs",
        _gpus("8", "processesPerNode: 16"),
        _refused("spec.processesPerNode", "16", f"{TOO_FEW_GPUS_FIX} (8)"),
    ),
    _by_rule(
        "more processes than GPUs that are a text",
        _gpus("'4'", "processesPerNode: 8"),
        _refused("spec.processesPerNode", "8", f"{TOO_FEW_GPUS_FIX} (4)"),
    ),
    _by_rule(
        "more processes than GPUs of the trainer, which is the second container",
        "{processesPerNode: 2, template: {spec: {containers: [{name: log, image: x}, "
        "{name: trainer, image: x, resources: {limits: {nvidia.com/gpu: 1}}}]}}}",
        _refused("spec.processesPerNode", "2", f"{TOO_FEW_GPUS_FIX} (1)"),
    ),
    _by_reader(
        "GPUs that a model cannot be split over",
        _gpus("8", "parallelism: {tensor: 3}"),
        _refused("spec.nodes.min", "1", f"{WHOLE_MODELS_FIX} (1 x 8 by 3)"),
        COUNTED,
    ),
    _by_reader(
        "more GPUs than processes that a node may have",
        _gpus("2000"),
        _refused("spec.template", "'2000 GPUs'", "ask for at most 1024 in a pod"),
        COUNTED,
    ),
)
"""More of the same."""

IN_A_CLUSTER = (
    Invalid(
        "no template",
        "template: ~",
        _refused("spec.template", "(missing)", "add it; in a cluster a job needs a pod template"),
    ),
    Invalid(
        "a template without a pod",
        "template: {}",
        _refused("spec.template.spec", "(missing)", "add it"),
    ),
    Invalid(
        "no container",
        "template: {spec: {containers: []}}",
        _refused(f"{TEMPLATE}.containers", "[]", "list at least one container"),
    ),
    _by_strictness(
        "containers as a mapping",
        "template: {spec: {containers: {name: trainer}}}",
        _refused(f"{TEMPLATE}.containers", "{'name': 'trainer'}", "write a list"),
    ),
    _by_rule(
        "a command of the image's own",
        _container("command: [python, train.py]"),
        _refused(f"{TRAINER}.command", "['python', 'train.py']", "remove it; spec.entrypoint is what runs"),
    ),
    _by_rule(
        "arguments of the image's own",
        _container("args: [--config, 7b.toml]"),
        _refused(f"{TRAINER}.args", "['--config', '7b.toml']", "remove it; spec.entrypoint is what runs"),
    ),
    _by_rule(
        "a command of the trainer, which is not the first container",
        _pod("containers: [{name: sidecar, command: [sleep]}, {name: trainer, command: [python]}]"),
        _refused(f"{TEMPLATE}.containers[1].command", "['python']", "remove it; spec.entrypoint is what runs"),
    ),
    _by_rule(
        "pods that are started again in place",
        _pod("restartPolicy: OnFailure"),
        _refused(
            f"{TEMPLATE}.restartPolicy",
            "'OnFailure'",
            "remove it; a pod that ended is replaced by one of a new name",
        ),
    ),
    _by_rule(
        "a host name for all",
        _pod("hostname: trainer"),
        _refused(f"{TEMPLATE}.hostname", "'trainer'", "remove it; each pod's host name is its member's name"),
    ),
    _by_rule(
        "a subdomain of another service",
        _pod("subdomain: mine"),
        _refused(f"{TEMPLATE}.subdomain", "'mine'", "remove it; each pod's host name is its member's name"),
    ),
    _by_rule(
        "one node for all",
        _pod("nodeName: gpu-1"),
        _refused(
            f"{TEMPLATE}.nodeName",
            "'gpu-1'",
            "remove it; every pod would be put on that one node (use nodeSelector or affinity)",
        ),
    ),
    Invalid(
        "less than no time to end",
        _pod("terminationGracePeriodSeconds: -1"),
        _refused(f"{TEMPLATE}.terminationGracePeriodSeconds", "-1", "write a number of at least 0"),
    ),
    _by_rule(
        "a variable that Holdfast sets",
        _container("env: [{name: HOLDFAST_MEMBER, value: me}]"),
        _refused(
            f"{TRAINER}.env[0].name", "'HOLDFAST_MEMBER'", "give it another name; Holdfast sets this variable"
        ),
    ),
    _by_rule(
        "a mount over the run directory",
        _container("volumeMounts: [{name: scratch, mountPath: /run/holdfast/}]"),
        _refused(
            f"{TRAINER}.volumeMounts[0].mountPath",
            "'/run/holdfast/'",
            "mount it elsewhere; Holdfast mounts a volume there",
        ),
    ),
    _by_rule(
        "a volume of Holdfast's name",
        _pod("volumes: [{name: data}, {name: holdfast-run}]"),
        _refused(
            f"{TEMPLATE}.volumes[1].name",
            "'holdfast-run'",
            "give it another name; Holdfast adds a volume of this name",
        ),
    ),
    _by_rule(
        "an init container of Holdfast's name",
        _pod("initContainers: [{name: holdfast-launcher}]"),
        _refused(
            f"{TEMPLATE}.initContainers[0].name",
            "'holdfast-launcher'",
            "give it another name; Holdfast adds a container of this name",
        ),
    ),
    _by_rule(
        "a container of Holdfast's name",
        _pod("containers: [{name: trainer}, {name: holdfast-launcher}]"),
        _refused(
            f"{TEMPLATE}.containers[1].name",
            "'holdfast-launcher'",
            "give it another name; Holdfast adds a container of this name",
        ),
    ),
    _by_rule(
        "a label of Holdfast's own",
        "template: {metadata: {labels: {holdfast.dev/job: other}}, spec: {containers: [{name: trainer}]}}",
        _refused(
            "spec.template.metadata.labels.holdfast.dev/job",
            "'other'",
            "remove it; holdfast.dev/ is Holdfast's own",
        ),
    ),
    _by_rule(
        "a size that is none",
        "template: {metadata: {annotations: {holdfast.dev/shm-size: big}}, spec: {containers: [{name: trainer}]}}",
        _refused(
            "spec.template.metadata.annotations.holdfast.dev/shm-size", "'big'", "write a quantity such as 64Gi"
        ),
    ),
    Invalid(
        "tolerations that are texts",
        _pod("tolerations: [gpu]"),
        _refused(f"{TEMPLATE}.tolerations[0]", "'gpu'", "write a mapping of names to values"),
    ),
    Invalid(
        "a label that is a number",
        "template: {metadata: {labels: {team: 7}}, spec: {containers: [{name: trainer}]}}",
        _refused(
            "spec.template.metadata.labels[...]",
            "{'team': 7}",
            "write a text; put it in quotes if it looks like a number",
        ),
    ),
    Invalid(
        "a grace period with a unit",
        _pod("terminationGracePeriodSeconds: 30s"),
        _refused(f"{TEMPLATE}.terminationGracePeriodSeconds", "'30s'", "write a whole number"),
    ),
    _by_rule(
        "a name that is too long for host names",
        "{}",
        _refused("metadata.name", f"'{'a' * 53}'", "use at most 52 characters; pods are named after it"),
        metadata=f"name: {'a' * 53}",
    ),
    _by_rule(
        "a name that no service can have",
        "{}",
        _refused(
            "metadata.name",
            "'7b'",
            SERVICE_NAME_FIX,
        ),
        metadata="name: 7b",
    ),
)
"""What the operator refuses beside: there is no pod to be made of it."""

LATER_IN_A_CLUSTER = (
    _by_rule(
        "a name as long as a host name may be",
        "{}",
        _refused("metadata.name", f"'{'a' * 63}'", "use at most 52 characters; pods are named after it"),
        metadata=f"name: {'a' * 63}",
    ),
    _by_strictness(
        "a misspelt annotation",
        "template: {metadata: {annotation: {a: b}}, spec: {containers: [{name: trainer}]}}",
        _refused(
            "spec.template.metadata.annotation", "{'a': 'b'}", "there is no such field; did you mean annotations?"
        ),
    ),
    _by_strictness(
        "a misspelt label",
        "template: {metadata: {lables: {a: b}}, spec: {containers: [{name: trainer}]}}",
        _refused("spec.template.metadata.lables", "{'a': 'b'}", "there is no such field; did you mean labels?"),
    ),
    _by_strictness(
        "a field of another object's",
        "template: {metadata: {nodeSelector: {a: b}}, spec: {containers: [{name: trainer}]}}",
        _refused("spec.template.metadata.nodeSelector", "{'a': 'b'}", "there is no such field; remove it"),
    ),
    _by_rule(
        "a trainer that is started again in place",
        _container("restartPolicy: Always"),
        _refused(f"{TRAINER}.restartPolicy", "'Always'", FIXES[Fix.RESTARTED]),
    ),
    _by_rule(
        "a sidecar that is started again when it fails",
        _pod("containers: [{name: trainer}, {name: log, restartPolicy: OnFailure}]"),
        _refused(f"{TEMPLATE}.containers[1].restartPolicy", "'OnFailure'", FIXES[Fix.RESTARTED]),
    ),
    _by_rule(
        "a trainer that is started again by its exit code",
        _container(f"restartPolicy: Never, restartPolicyRules: [{RESTARTS}]"),
        _refused(f"{TRAINER}.restartPolicyRules", f"[{yaml.safe_load(RESTARTS)}]", FIXES[Fix.RESTARTED]),
    ),
    _by_rule(
        "an init container that starts all again",
        _pod(f"initContainers: [{{name: fetch, restartPolicyRules: [{RESTARTS_ALL}]}}]"),
        _refused(
            f"{TEMPLATE}.initContainers[0].restartPolicyRules",
            f"[{yaml.safe_load(RESTARTS_ALL)}]",
            FIXES[Fix.RESTARTS_ALL],
        ),
    ),
    _by_rule(
        "another host name for all",
        _pod("hostnameOverride: trainer.example.com"),
        _refused(f"{TEMPLATE}.hostnameOverride", "'trainer.example.com'", FIXES[Fix.HOST_NAME]),
    ),
    _by_rule(
        "a host name that is longer than a kernel's",
        _pod("setHostnameAsFQDN: true"),
        _refused(f"{TEMPLATE}.setHostnameAsFQDN", "True", FIXES[Fix.HOST_NAME]),
    ),
    _by_rule(
        "a deadline for a pod",
        _pod("activeDeadlineSeconds: 86400"),
        _refused(f"{TEMPLATE}.activeDeadlineSeconds", "86400", FIXES[Fix.DEADLINE]),
    ),
    _by_rule(
        "a deadline that is over",
        _pod("activeDeadlineSeconds: 1"),
        _refused(f"{TEMPLATE}.activeDeadlineSeconds", "1", FIXES[Fix.DEADLINE]),
    ),
    Invalid(
        "a second and a half to end",
        _pod("terminationGracePeriodSeconds: 1.5"),
        _refused(f"{TEMPLATE}.terminationGracePeriodSeconds", "1.5", WHOLE),
    ),
    _by_rule(
        "a node by its name in place of a label",
        _pod("nodeSelector: {kubernetes.io/hostname: gpu-1}"),
        _refused(f"{TEMPLATE}.nodeSelector.kubernetes.io/hostname", "'gpu-1'", SELECTED_NODE_FIX),
    ),
    _by_rule(
        "a toleration of more than a word",
        _pod("tolerations: [{key: heat, operator: Gt, value: much}]"),
        _refused(f"{TEMPLATE}.tolerations[0].value", "'much'", FIXES[Fix.COMPARES]),
    ),
    _by_rule(
        "a toleration of less than a fraction",
        _pod("tolerations: [{key: heat, operator: Lt, value: '0.5'}]"),
        _refused(f"{TEMPLATE}.tolerations[0].value", "'0.5'", FIXES[Fix.COMPARES]),
    ),
    _by_rule(
        "a toleration of more than nothing said",
        _pod("tolerations: [{key: gpu, operator: Exists}, {key: heat, operator: Gt}]"),
        _refused(f"{TEMPLATE}.tolerations[1].value", "''", FIXES[Fix.COMPARES]),
    ),
    Invalid(
        "a toleration by a misspelt operator",
        _pod("tolerations: [{key: gpu, operator: Exsits}]"),
        _refused(f"{TEMPLATE}.tolerations[0].operator", "'Exsits'", "write one of: Exists, Equal, Gt, Lt"),
    ),
    _by_rule(
        "an annotation of Holdfast's own",
        "template: {metadata: {annotations: {holdfast.dev/edition: x}}, spec: {containers: [{name: trainer}]}}",
        _refused("spec.template.metadata.annotations.holdfast.dev/edition", "'x'", FIXES[Fix.OUR_NAME]),
    ),
    _by_rule(
        "a mount over the launcher",
        _container("volumeMounts: [{name: scratch, mountPath: /opt/holdfast}]"),
        _refused(f"{TRAINER}.volumeMounts[0].mountPath", "'/opt/holdfast'", FIXES[Fix.MOUNT_OF_OURS]),
    ),
)
"""More of the same."""

BY_DRY_RUN = (
    _by_dry_run(
        "a misspelt field of a mount",
        _container("volumeMounts: [{name: data, mountPath: /in, readonly: true}]"),
        "there is no field spec.containers[0].volumeMounts[0].readonly;",
    ),
    _by_dry_run(
        "a misspelt effect",
        _pod("tolerations: [{key: gpu, operator: Exists, efect: NoSchedule}]"),
        "there is no field spec.tolerations[0].efect;",
    ),
    _by_dry_run(
        "a misspelt number of seconds",
        _pod("tolerations: [{key: gpu, operator: Exists, effect: NoExecute, tolerationSecond: 5}]"),
        "there is no field spec.tolerations[0].tolerationSecond;",
    ),
    _by_dry_run(
        "misspelt resources",
        _container("image: x, resourcess: {limits: {memory: 1Gi}}"),
        "there is no field spec.containers[0].resourcess;",
    ),
    _by_dry_run(
        "a misspelt port",
        _container("image: x, ports: [{containerPort: 80, hostport: 80}]"),
        "there is no field spec.containers[0].ports[0].hostport;",
    ),
    _by_dry_run(
        "a pod that may have less than its trainer asks for",
        _pod(
            "resources: {limits: {memory: 1Gi}}, "
            "containers: [{name: trainer, image: x, resources: {requests: {memory: 2Gi}}}]"
        ),
        "spec.resources.",
    ),
    _by_dry_run(
        "a pod that asks for less than its containers",
        _pod(
            "resources: {requests: {cpu: '1'}}, "
            "containers: [{name: trainer, image: x, resources: {requests: {cpu: '2'}}}]"
        ),
        "spec.resources.requests[cpu]",
    ),
    _by_dry_run(
        "GPUs of a whole pod",
        _pod("resources: {limits: {nvidia.com/gpu: 8}}, containers: [{name: trainer, image: x}]"),
        "spec.resources.limits[nvidia.com/gpu]",
    ),
    _by_dry_run(
        "a gate of a name that is none",
        _pod("schedulingGates: [{name: not a name}], containers: [{name: trainer, image: x}]"),
        "spec.schedulingGates[0]",
    ),
    _by_dry_run(
        "the same gate twice",
        _pod(
            "schedulingGates: [{name: a.example/g}, {name: a.example/g}], containers: [{name: trainer, image: x}]"
        ),
        "spec.schedulingGates[1]",
    ),
    _by_dry_run(
        "a gate without a name",
        _pod("schedulingGates: [{}], containers: [{name: trainer, image: x}]"),
        "spec.schedulingGates[0]",
    ),
    _by_dry_run(
        "a claim of devices that no container has",
        "processesPerNode: 1\n" + _container("image: x, resources: {claims: [{name: gpus}]}"),
        "resources.claims[0]",
    ),
)
"""What only the API server knows of pods. `says` is a part of its words."""

INVALID_SPECS = (*READING, *LATER_READING, *IN_A_CLUSTER, *LATER_IN_A_CLUSTER)
"""What Holdfast's own reader says, whoever says it first."""
