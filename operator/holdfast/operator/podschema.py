"""The structural schema of `spec.template`: what of a pod the API server checks when a job is applied.

Only what Holdfast itself reads or refuses is said here. Every other field of a pod is kept as it is written, also
one of a Kubernetes that is newer than this: what pods may have is for the API server to say, which is asked by a
dry run. The rules have the words of `decide/template.py`, which checks the same.
Source: https://kubernetes.io/docs/reference/using-api/cel/
"""

import re
from typing import Any, Final

from holdfast.api.gpus import TRAINER
from holdfast.operator.celrules import RULES, Rule, rules
from holdfast.operator.decide.template import (
    COMPARES,
    FIXES,
    INTEGER,
    LAUNCHER,
    METADATA_FIELDS,
    QUANTITY,
    RESERVED_ENVIRONMENT,
    RESERVED_PATHS,
    RESERVED_VOLUMES,
    TOLERATION_OPERATORS,
    Fix,
)
from holdfast.operator.kube.objects import OUR_PREFIX, SHM_SIZE

Schema = dict[str, Any]

OPEN: Final = {"x-kubernetes-preserve-unknown-fields": True}
# More than any pod has, for the estimate that the server makes of what a rule may cost.
CONTAINERS_MAX: Final = 64
GPUS: Final = ("nvidia.com/gpu", "amd.com/gpu")
"""Resources that are looked at; of others a quantity may be written as anything that Kubernetes takes."""
ENTRIES_MAX: Final = 1024
TEXT_MAX: Final = 4096

_NAMED: Final = f"has(c.name) && c.name == '{TRAINER}'"


def of_trainer(rule: str, pod: str = "self") -> str:
    """`rule` about a container `t`: the one named trainer, else the first. `pod` is where the pod's spec is."""
    first = re.sub(r"\bt\b", f"{pod}.containers[0]", rule)
    named = re.sub(r"\bt\b", "c", rule)
    is_named = f"{pod}.containers.exists(c, {_NAMED})"
    of_named = f"{pod}.containers.all(c, !({_NAMED}) || ({named}))"
    return f"size({pod}.containers) == 0 || ({is_named} ? {of_named} : ({first}))"


def _texts(names: frozenset[str] | tuple[str, ...]) -> str:
    return "[" + ", ".join(f"'{name}'" for name in sorted(names)) + "]"


def _paths() -> str:
    """Of mounts, however they may be written: `/var/run` is a link to `/run` in most images."""
    links = {re.sub("^/var/run/", "/run/", path) for path in RESERVED_PATHS} | RESERVED_PATHS
    return _texts(frozenset(f"{path}{end}" for path in links for end in ("", "/")))


def _text(description: str, **more: Any) -> Schema:
    return {"type": "string", "description": description, "maxLength": TEXT_MAX, **more}


def _list(description: str, items: Schema, most: int = ENTRIES_MAX, **more: Any) -> Schema:
    atomic = {"x-kubernetes-list-type": "atomic"}
    return {"type": "array", "description": description, "maxItems": most, "items": items, **atomic, **more}


def _object(description: str, properties: Schema, *given: Rule, **more: Any) -> Schema:
    made = {"type": "object", "description": description, **OPEN, "properties": properties, **more}
    return made | ({RULES: rules(*given)} if given else {})


def _texts_by_name(description: str, *given: Rule) -> Schema:
    values = {"type": "string", "maxLength": 256 * 1024}
    made: Schema = {
        "type": "object",
        "description": description,
        "additionalProperties": values,
        "maxProperties": 256,
    }
    return made | ({RULES: rules(*given)} if given else {})


def _metadata() -> Schema:
    """Closed: a field that no pod has is refused by its name."""
    ours = f"self.all(k, !k.startsWith('{OUR_PREFIX}')"
    labels = _texts_by_name("Labels of each pod.", Rule(f"{ours})", FIXES[Fix.OUR_NAME]))
    size = f"!('{SHM_SIZE}' in self) || self['{SHM_SIZE}'].matches('^{QUANTITY}$')"
    annotations = _texts_by_name(
        "Annotations of each pod.",
        Rule(f"{ours} || k == '{SHM_SIZE}')", FIXES[Fix.OUR_NAME]),
        Rule(size, FIXES[Fix.SIZE]),
    )
    known = {"labels": labels, "annotations": annotations}
    others = {
        name: {"description": "Not read.", "nullable": True, **kind}
        for name, kind in METADATA_FIELDS.items()
        if name not in known
    }
    return {
        "type": "object",
        "description": "Labels and annotations of each pod.",
        "properties": {**known, **others},
    }


def _container(*, is_init: bool) -> Schema:
    name = _text("Its name.")
    variable = _object("A variable.", {"name": _text("Its name.")})
    mount = _object("A mount.", {"mountPath": _text("Where.")})
    restart = _object(
        "What an exit code leads to.", {"action": _text("Restart, RestartAllContainers.", maxLength=64)}
    )
    count = {"x-kubernetes-int-or-string": True, "maxLength": 64, "description": "How many."}
    limits = _object("Quantities by resource.", dict.fromkeys(GPUS, count))
    properties = {
        "name": name,
        "image": _text("What it runs."),
        "command": _list("What it runs; of the trainer spec.entrypoint is.", {"type": "string"}),
        "args": _list("Its arguments; of the trainer spec.entrypoint has them.", {"type": "string"}),
        "env": _list("Its variables.", variable),
        "volumeMounts": _list("Where its volumes are.", mount),
        "resources": _object("What it asks for and may use.", {"limits": limits}),
        "restartPolicy": _text("When it is started again in place.", maxLength=64),
        "restartPolicyRules": _list("The same, by exit code.", restart, 64),
    }
    given = [Rule(f"!has(self.name) || self.name != '{LAUNCHER}'", FIXES[Fix.CONTAINER_OF_OURS], ".name")]
    if is_init:
        calm = "!has(self.restartPolicyRules) || self.restartPolicyRules.all(r, !has(r.action) || "
        given.append(
            Rule(f"{calm}r.action != 'RestartAllContainers')", FIXES[Fix.RESTARTS_ALL], ".restartPolicyRules")
        )
    else:
        once = "!has(self.restartPolicy) || self.restartPolicy == 'Never'"
        given.append(Rule(once, FIXES[Fix.RESTARTED], ".restartPolicy"))
        calm = "!has(self.restartPolicyRules) || size(self.restartPolicyRules) == 0"
        given.append(Rule(calm, FIXES[Fix.RESTARTED], ".restartPolicyRules"))
    return _object("A container.", properties, *given)


def _toleration() -> Schema:
    number = f"has(self.value) && self.value.matches('{INTEGER}')"
    compares = f"!has(self.operator) || !(self.operator in {_texts(COMPARES)}) || ({number})"
    properties = {
        "key": _text("Of the taint."),
        "operator": _text(
            "Exists, Equal, Gt, Lt; empty is Equal.", enum=["", *TOLERATION_OPERATORS], maxLength=16
        ),
        "value": _text("Of the taint.", maxLength=253),
        "effect": _text("Of the taint."),
        "tolerationSeconds": {"type": "integer", "format": "int64", "description": "For how long."},
    }
    return _object("A taint that pods may meet.", properties, Rule(compares, FIXES[Fix.COMPARES], ".value"))


def _pod() -> Schema:
    volume = _object(
        "A volume.",
        {"name": _text("Its name.", maxLength=253)},
        Rule(f"!has(self.name) || !(self.name in {_texts(RESERVED_VOLUMES)})", FIXES[Fix.VOLUME_OF_OURS], ".name"),
    )
    number = {"type": "integer", "format": "int64"}
    properties = {
        "containers": _list(
            "The trainer, and what runs beside it.", _container(is_init=False), CONTAINERS_MAX, minItems=1
        ),
        "initContainers": _list(
            "What runs before, or beside from before on.", _container(is_init=True), CONTAINERS_MAX
        ),
        "volumes": _list("Volumes.", volume),
        "tolerations": _list("Taints of nodes that pods may be on.", _toleration()),
        "nodeSelector": _texts_by_name("Labels of the nodes that pods may be on."),
        "terminationGracePeriodSeconds": {**number, "minimum": 0, "description": "Time to end in."},
        "activeDeadlineSeconds": {**number, "description": "Not for a member."},
        "restartPolicy": _text("Never."),
        "hostname": _text("Its member's name, always."),
        "hostnameOverride": _text("Its member's name, always."),
        "subdomain": _text("The job's name, always."),
        "nodeName": _text("For the scheduler to say."),
        "schedulerName": _text("Who places the pods."),
        "setHostnameAsFQDN": {"type": "boolean", "description": "Not for a member."},
    }
    none = [
        ("hostname", Fix.HOST_NAME),
        ("hostnameOverride", Fix.HOST_NAME),
        ("subdomain", Fix.HOST_NAME),
        ("nodeName", Fix.ONE_NODE),
        ("activeDeadlineSeconds", Fix.DEADLINE),
    ]
    environment = f"!has(t.env) || t.env.all(e, !has(e.name) || !(e.name in {_texts(RESERVED_ENVIRONMENT)}))"
    mounts = f"!has(t.volumeMounts) || t.volumeMounts.all(m, !has(m.mountPath) || !(m.mountPath in {_paths()}))"
    return _object(
        "An ordinary pod's; the operator asks the API server whether it takes it.",
        properties,
        *(Rule(f"!has(self.{field})", FIXES[fix], f".{field}") for field, fix in none),
        Rule(
            "!has(self.setHostnameAsFQDN) || !self.setHostnameAsFQDN", FIXES[Fix.HOST_NAME], ".setHostnameAsFQDN"
        ),
        Rule("!has(self.restartPolicy) || self.restartPolicy == 'Never'", FIXES[Fix.RESTARTED], ".restartPolicy"),
        Rule(of_trainer("!has(t.command) || size(t.command) == 0"), FIXES[Fix.COMMAND], ".containers"),
        Rule(of_trainer("!has(t.args) || size(t.args) == 0"), FIXES[Fix.COMMAND], ".containers"),
        Rule(of_trainer(environment), FIXES[Fix.VARIABLE_OF_OURS], ".containers"),
        Rule(of_trainer(mounts), FIXES[Fix.MOUNT_OF_OURS], ".containers"),
        required=["containers"],
    )


def pod_template(description: str) -> Schema:
    """Of `spec.template`. It is closed down to the pod's own spec, of which anything may be said."""
    return {
        "type": "object",
        "description": description,
        "required": ["spec"],
        "properties": {"metadata": _metadata(), "spec": _pod()},
    }
