"""TrainingJobs that must be refused, as people write them, and what they are told.

Each is a small valid job in which the text in `spec` (YAML, as in a job file) replaces fields of the same name; in
`metadata` likewise. `says` is one problem's whole text: field, value, fix. The table serves the reader of specs,
the operator's reconcile and, where the API server checks the same, a real API server.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any

import yaml

BASE = """
apiVersion: holdfast.dev/v1alpha1
kind: TrainingJob
metadata: {name: gpt, namespace: default}
spec:
  entrypoint: [train.py]
  nodes: {min: 1, max: 2}
  template: {spec: {containers: [{name: trainer, image: registry.example/train:1}]}}
"""


@dataclass(frozen=True)
class Invalid:
    """One of them. `name` is what is wrong, in words."""

    name: str
    spec: str
    says: str
    metadata: str = "{}"

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


def _refused(field: str, value: str, fix: str) -> str:
    return f"{field}: {value} is not accepted; {fix}"


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
    Invalid(
        "an empty argument",
        "entrypoint: ['']",
        _refused("spec.entrypoint[0]", "''", "write a text that is not empty"),
    ),
    Invalid(
        "no node at all",
        "nodes: {min: 0}",
        _refused("spec.nodes.min", "0", "write a number of at least 1"),
    ),
    Invalid(
        "a minimum above the maximum",
        "nodes: {min: 32, max: 30}",
        _refused("spec.nodes.min", "32", "write at most 30, the value of max, or raise max"),
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
    Invalid(
        "a misspelt field",
        "faultpolicy: {}",
        _refused("spec.faultpolicy", "{}", "there is no such field; did you mean faultPolicy?"),
    ),
    Invalid(
        "torchrun's word for nodes",
        "nnodes: 2",
        _refused("spec.nnodes", "2", "there is no such field; did you mean nodes?"),
    ),
    Invalid(
        "a snake in a camel's place",
        "processes_per_node: 8",
        _refused("spec.processes_per_node", "8", "there is no such field; did you mean processesPerNode?"),
    ),
    Invalid(
        "no process on a node",
        "processesPerNode: 0",
        _refused("spec.processesPerNode", "0", "write a number of at least 1"),
    ),
    Invalid(
        "a world that splits a model",
        "{nodes: {min: 3, max: 4}, processesPerNode: 2, parallelism: {tensor: 2, context: 2}}",
        _refused(
            "spec.nodes.min",
            "3",
            "3 x 2 processes do not divide by 4 (parallelism.tensor x context x pipeline); "
            "choose a number of nodes that does",
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
    Invalid(
        "a test of links that never ends",
        "startup: {links: {flow: 2m}}",
        _refused("spec.startup.links.flow", "'2m'", "write at most 1m"),
    ),
    Invalid(
        "rings that never end",
        "startup: {links: {gang: 1h}}",
        _refused("spec.startup.links.gang", "'1h'", "write at most 10m"),
    ),
    Invalid(
        "a test of links that is over at once",
        "startup: {links: {timeout: 1s}}",
        _refused("spec.startup.links.timeout", "'1s'", "write 20s to 1h"),
    ),
    Invalid(
        "a time-out without a unit", "startup: {timeout: 600}", _refused("spec.startup.timeout", "600", DURATION)
    ),
    Invalid(
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
    Invalid(
        "one late heartbeat as a loss",
        "faultPolicy: {heartbeat: {interval: 2s, lost: 3s}}",
        _refused("spec.faultPolicy.heartbeat.lost", "'3s'", "write at least twice the interval, 4s or more"),
    ),
    Invalid(
        "an unknown action for an XID",
        "faultPolicy: {xid: {'79': Reboot}}",
        _refused("spec.faultPolicy.xid.79", "'Reboot'", "write one of: 'Ignore', 'Watch', 'Restart' or 'Evict'"),
    ),
    Invalid(
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
    Invalid(
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
    Invalid(
        "containers as a mapping",
        "template: {spec: {containers: {name: trainer}}}",
        _refused(f"{TEMPLATE}.containers", "{'name': 'trainer'}", "write a list"),
    ),
    Invalid(
        "a command of the image's own",
        _container("command: [python, train.py]"),
        _refused(f"{TRAINER}.command", "['python', 'train.py']", "remove it; spec.entrypoint is what runs"),
    ),
    Invalid(
        "arguments of the image's own",
        _container("args: [--config, 7b.toml]"),
        _refused(f"{TRAINER}.args", "['--config', '7b.toml']", "remove it; spec.entrypoint is what runs"),
    ),
    Invalid(
        "a command of the trainer, which is not the first container",
        _pod("containers: [{name: sidecar, command: [sleep]}, {name: trainer, command: [python]}]"),
        _refused(f"{TEMPLATE}.containers[1].command", "['python']", "remove it; spec.entrypoint is what runs"),
    ),
    Invalid(
        "pods that are started again in place",
        _pod("restartPolicy: OnFailure"),
        _refused(
            f"{TEMPLATE}.restartPolicy",
            "'OnFailure'",
            "remove it; a pod that ended is replaced by one of a new name",
        ),
    ),
    Invalid(
        "a host name for all",
        _pod("hostname: trainer"),
        _refused(f"{TEMPLATE}.hostname", "'trainer'", "remove it; each pod's host name is its member's name"),
    ),
    Invalid(
        "a subdomain of another service",
        _pod("subdomain: mine"),
        _refused(f"{TEMPLATE}.subdomain", "'mine'", "remove it; each pod's host name is its member's name"),
    ),
    Invalid(
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
    Invalid(
        "a variable that Holdfast sets",
        _container("env: [{name: HOLDFAST_MEMBER, value: me}]"),
        _refused(
            f"{TRAINER}.env[0].name", "'HOLDFAST_MEMBER'", "give it another name; Holdfast sets this variable"
        ),
    ),
    Invalid(
        "a mount over the run directory",
        _container("volumeMounts: [{name: scratch, mountPath: /run/holdfast/}]"),
        _refused(
            f"{TRAINER}.volumeMounts[0].mountPath",
            "'/run/holdfast/'",
            "mount it elsewhere; Holdfast mounts a volume there",
        ),
    ),
    Invalid(
        "a volume of Holdfast's name",
        _pod("volumes: [{name: data}, {name: holdfast-run}]"),
        _refused(
            f"{TEMPLATE}.volumes[1].name",
            "'holdfast-run'",
            "give it another name; Holdfast adds a volume of this name",
        ),
    ),
    Invalid(
        "an init container of Holdfast's name",
        _pod("initContainers: [{name: holdfast-launcher}]"),
        _refused(
            f"{TEMPLATE}.initContainers[0].name",
            "'holdfast-launcher'",
            "give it another name; Holdfast adds a container of this name",
        ),
    ),
    Invalid(
        "a container of Holdfast's name",
        _pod("containers: [{name: trainer}, {name: holdfast-launcher}]"),
        _refused(
            f"{TEMPLATE}.containers[1].name",
            "'holdfast-launcher'",
            "give it another name; Holdfast adds a container of this name",
        ),
    ),
    Invalid(
        "a label of Holdfast's own",
        "template: {metadata: {labels: {holdfast.dev/job: other}}, spec: {containers: [{name: trainer}]}}",
        _refused(
            "spec.template.metadata.labels.holdfast.dev/job",
            "'other'",
            "remove it; holdfast.dev/ is Holdfast's own",
        ),
    ),
    Invalid(
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
    Invalid(
        "a name that is too long for host names",
        "{}",
        _refused("metadata.name", f"'{'a' * 53}'", "use at most 52 characters; pods are named after it"),
        metadata=f"name: {'a' * 53}",
    ),
    Invalid(
        "a name that no service can have",
        "{}",
        _refused("metadata.name", "'7b'", "start with a letter; a service is named after it"),
        metadata="name: 7b",
    ),
)
"""What the operator refuses beside: there is no pod to be made of it."""

INVALID_SPECS = (*READING, *IN_A_CLUSTER)


class Stop(Enum):
    """Where it ends on an API server of version 1.20, which knows no rules. Tried on a real one."""

    SCHEMA = "the API server refuses it"
    PRUNED = "the API server drops the field without a word, as old ones do"
    OPERATOR = "the API server takes it and the operator says what is wrong"


_PRUNED = frozenset(("a misspelt field", "torchrun's word for nodes", "a snake in a camel's place"))
_PAST_THE_SCHEMA = frozenset(
    (
        "a minimum above the maximum",
        "a world that splits a model",
        "a duration of nothing",
        "a test of links that never ends",
        "rings that never end",
        "a test of links that is over at once",
        "one late heartbeat as a loss",
        "an XID beyond all XIDs",
        "more than everything",
    )
)


def stopped_by(given: Invalid) -> Stop:
    """Where `given` ends on an old API server. A newer one refuses more by the rules of the definition."""
    if given.name in _PRUNED:
        return Stop.PRUNED
    later = given in IN_A_CLUSTER and given.name != "no template"
    return Stop.OPERATOR if later or given.name in _PAST_THE_SCHEMA else Stop.SCHEMA
