"""The pod that tries a changed policy on the run so far: `holdfast simulate`, with the right to read this job.

It runs in the job's namespace, under an account of its own that may get the TrainingJob: the watchdog lets whoever
may do that read its journal. What the policy comes to are its last words; what it says at length is in its log.
"""

from typing import Any, Final, cast

import msgspec

from holdfast.api.decoding import decode_json
from holdfast.api.errors import Malformed
from holdfast.api.judgement import Brief
from holdfast.api.metadata import API_VERSION
from holdfast.api.trainingjob import TrainingJob
from holdfast.operator.decide.action import StartCheck
from holdfast.operator.decide.observed import Options
from holdfast.operator.decide.podbuilder import owner_reference
from holdfast.operator.decide.pods import end_of, has_ended
from holdfast.operator.decide.template import TOKEN_FILE, TOKEN_LIFE_S, TOKEN_PATH, TOKEN_VOLUME
from holdfast.operator.kube.objects import CHANGE, CHECK_LABEL, Pod

Manifest = dict[str, Any]
CONTAINER: Final = "simulate"
FOLDER: Final = "/etc/holdfast/check"
FILES: Final = "holdfast-check"
POLICY: Final = "holdfast.dev/policy"  # annotation: the job as it is to be tried, which the pod has as a file
WATCHDOG_CA: Final = "holdfast.dev/watchdog-ca"  # annotation: who signed the watchdog's certificate, likewise
LAST_WORDS: Final = "/dev/termination-log"
PROCESSES: Final = 2
USER: Final = 65532
BORROWED: Final = ("imagePullSecrets", "tolerations")
"""Of the job's own pods: how images are got here, and where anything may run."""


def pod_name(job: str, change: str) -> str:
    """Of the pod that tries that change, and of all that it is allowed by. No member has such a name."""
    return f"{job}-{change}-check"


def checking(job: TrainingJob, options: Options, change: str) -> StartCheck:
    """What tries the policy that the job's spec has, whose digest is `change`. The template is a checked one."""
    name = job.metadata.name or ""
    about = {
        "name": pod_name(name, change),
        "namespace": job.metadata.namespace,
        "labels": {
            CHECK_LABEL: name,
            "app.kubernetes.io/name": "trainingjob",
            "app.kubernetes.io/component": "policy-check",
            "app.kubernetes.io/instance": name,
            "app.kubernetes.io/managed-by": "holdfast",
        },
        "ownerReferences": [owner_reference(name, job.metadata.uid or "")],
    }
    api, version = "rbac.authorization.k8s.io", "rbac.authorization.k8s.io/v1"
    group = API_VERSION.partition("/")[0]
    rule = {"apiGroups": [group], "resources": ["trainingjobs"], "resourceNames": [name], "verbs": ["get"]}
    subject = {"kind": "ServiceAccount", "name": about["name"], "namespace": job.metadata.namespace}
    files = {POLICY: _tried(job)} | ({WATCHDOG_CA: options.watchdog_ca} if options.watchdog_ca else {})
    return StartCheck(
        account={
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": about,
            "automountServiceAccountToken": False,
        },
        role={"apiVersion": version, "kind": "Role", "metadata": about, "rules": [rule]},
        binding={
            "apiVersion": version,
            "kind": "RoleBinding",
            "metadata": about,
            "roleRef": {"apiGroup": api, "kind": "Role", "name": about["name"]},
            "subjects": [subject],
        },
        pod={
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**about, "annotations": {CHANGE: change, **files}},
            "spec": _spec(job, options, str(about["name"])),
        },
    )


def _tried(job: TrainingJob) -> str:
    """The job as a file, without its template, of which only the number of GPUs matters here."""
    spec = job.spec.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude={"template"})
    spec |= {"processesPerNode": job.spec.local_size(), "suspend": False}
    about = {"name": job.metadata.name, "namespace": job.metadata.namespace}
    document = {"apiVersion": API_VERSION, "kind": "TrainingJob", "metadata": about, "spec": spec}
    return msgspec.json.encode(document).decode()


def _spec(job: TrainingJob, options: Options, account: str) -> Manifest:
    given = cast(Manifest, job.spec.template)["spec"]
    token = {"audience": options.audience, "expirationSeconds": TOKEN_LIFE_S, "path": "token"}
    files = {POLICY: "changed.yaml"} | ({WATCHDOG_CA: "ca.crt"} if options.watchdog_ca else {})
    items = [
        {"path": path, "fieldRef": {"fieldPath": f"metadata.annotations['{name}']"}}
        for name, path in files.items()
    ]
    trust = ("--ca-file", f"{FOLDER}/ca.crt") if options.watchdog_ca else ()
    container = {
        "name": CONTAINER,
        "image": options.check_image,
        "command": [
            *("python3", "-m", "holdfast.cli", "simulate", "--job", job.id, "--policy", f"{FOLDER}/changed.yaml"),
            *("--watchdog", options.watchdog, "--token-file", TOKEN_FILE, *trust),
            *("--workers", str(PROCESSES), "--brief", LAST_WORDS),
        ],
        "resources": options.check_resources.manifest,
        "terminationMessagePath": LAST_WORDS,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [
            {"name": FILES, "mountPath": FOLDER, "readOnly": True},
            {"name": TOKEN_VOLUME, "mountPath": TOKEN_PATH, "readOnly": True},
        ],
    }
    return {
        **{field: given[field] for field in BORROWED if given.get(field)},
        "serviceAccountName": account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "activeDeadlineSeconds": max(1, int(options.check_s)),
        "terminationGracePeriodSeconds": 1,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [
            {"name": FILES, "downwardAPI": {"items": items}},
            {"name": TOKEN_VOLUME, "projected": {"sources": [{"serviceAccountToken": token}]}},
        ],
    }


def change_of(pod: Pod) -> str:
    """Which change it tries."""
    return pod.metadata.annotations.get(CHANGE, "")


def found_by(pod: Pod) -> Brief | str | None:
    """What it came to, or why it came to nothing; None while it has not ended."""
    if not has_ended(pod):
        return None
    ends = (each.state.terminated for each in pod.status.container_statuses if each.name == CONTAINER)
    said = next((end.message for end in ends if end is not None), "")
    if not pod.status.reason and said.startswith("{"):
        try:
            return decode_json(said.encode(), Brief)
        except Malformed as error:
            return f"what it said cannot be read: {error}"
    return end_of(pod)
