"""What Holdfast puts into a user's pod: the launcher, its run directory, its token, room for shared memory.

The user's image needs nothing but `python3` and torch. An init container copies the launcher into a volume that
the trainer container mounts, so that image and Holdfast are released apart.
"""

from dataclasses import dataclass
from typing import Any, Final

from holdfast.api.trainingjob import TrainingJob
from holdfast.api.trust import WATCHDOG_CA_VARIABLE
from holdfast.operator.observed import Terms

Manifest = dict[str, Any]

LAUNCHER: Final = "holdfast-launcher"
LAUNCHER_PATH: Final = "/opt/holdfast"
RUN_VOLUME: Final = "holdfast-run"  # the agent finds run directories by this name
RUN_PATH: Final = "/var/run/holdfast"
TOKEN_VOLUME: Final = "holdfast-token"
TOKEN_PATH: Final = "/var/run/secrets/holdfast"
TOKEN_FILE: Final = f"{TOKEN_PATH}/token"
TOKEN_LIFE_S: Final = 3600  # the kubelet renews it at 80 % of its life; launchers read it anew
SHARED_MEMORY: Final = "holdfast-shm"
SHARED_MEMORY_PATH: Final = "/dev/shm"

RESERVED_VOLUMES = frozenset((LAUNCHER, RUN_VOLUME, TOKEN_VOLUME, SHARED_MEMORY))
RESERVED_PATHS = frozenset((LAUNCHER_PATH, RUN_PATH, TOKEN_PATH))
FIELDS: Final = {
    "HOLDFAST_MEMBER": "metadata.name",
    "HOLDFAST_NODE": "spec.nodeName",
    "HOLDFAST_POD_IP": "status.podIP",
}
RESERVED_ENVIRONMENT = frozenset(
    (
        *FIELDS,
        "HOLDFAST_JOB",
        "HOLDFAST_ROUND",
        "HOLDFAST_CONTROL",
        "HOLDFAST_RUN_DIR",
        "HOLDFAST_TOKEN",
        WATCHDOG_CA_VARIABLE,
    )
)

LEAVING_S: Final = 5
"""Kept back from the pod's grace period: the launcher ends its workers and itself in it."""
# Any user but root does: the volume is writable for all, and what is copied is readable for all.
COPYING_USER: Final = 65532


@dataclass(frozen=True, slots=True)
class Injection:
    """All of it. `environment`, `mounts` and `command` are the trainer container's."""

    init_container: Manifest
    volumes: tuple[Manifest, ...]
    mounts: tuple[Manifest, ...]
    environment: tuple[Manifest, ...]
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """A /dev/shm in memory; `size` limits it, None leaves it to the pod's memory limit."""

    size: str | None = None


def injection(job: TrainingJob, terms: Terms, grace_s: int, shared_memory: SharedMemory | None) -> Injection:
    """What goes into each pod of `job`. `shared_memory` None: the user's own is used."""
    shared_volume, shared_mount = _shared_memory(shared_memory)
    return Injection(
        init_container=_init_container(terms),
        volumes=(
            {"name": LAUNCHER, "emptyDir": {}},
            {"name": RUN_VOLUME, "emptyDir": {}},
            _token_volume(terms),
            *shared_volume,
        ),
        mounts=(
            {"name": LAUNCHER, "mountPath": LAUNCHER_PATH, "readOnly": True},
            {"name": RUN_VOLUME, "mountPath": RUN_PATH},
            {"name": TOKEN_VOLUME, "mountPath": TOKEN_PATH, "readOnly": True},
            *shared_mount,
        ),
        environment=(
            *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in FIELDS.items()),
            *([{"name": WATCHDOG_CA_VARIABLE, "value": terms.watchdog_ca}] if terms.watchdog_ca else []),
        ),
        command=_command(job, terms, grace_s),
    )


def _command(job: TrainingJob, terms: Terms, grace_s: int) -> tuple[str, ...]:
    interval_s = job.spec.fault_policy.heartbeat.interval.total_seconds()
    return (
        *("python3", f"{LAUNCHER_PATH}/launch"),
        *("--rdzv-endpoint", terms.watchdog, "--rdzv-id", job.id),
        *("--member", "$(HOLDFAST_MEMBER)", "--node", "$(HOLDFAST_NODE)", "--local-addr", "$(HOLDFAST_POD_IP)"),
        *("--run-dir", RUN_PATH, "--token-file", TOKEN_FILE),
        *("--nproc-per-node", str(job.spec.local_size())),
        *("--leave-grace", str(max(0, grace_s - LEAVING_S)), "--heartbeat-interval", f"{interval_s:g}"),
        # Kubernetes would read $(NAME) in a command; on one machine nobody does. The same job means the same.
        *(part.replace("$", "$$") for part in job.spec.entrypoint),
    )


def _init_container(terms: Terms) -> Manifest:
    return {
        "name": LAUNCHER,
        "image": terms.launcher_image,
        "command": ["/install", LAUNCHER_PATH],
        "volumeMounts": [{"name": LAUNCHER, "mountPath": LAUNCHER_PATH}],
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": COPYING_USER,
            "runAsGroup": COPYING_USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def _token_volume(terms: Terms) -> Manifest:
    token = {"audience": terms.audience, "expirationSeconds": TOKEN_LIFE_S, "path": "token"}
    return {"name": TOKEN_VOLUME, "projected": {"sources": [{"serviceAccountToken": token}]}}


def _shared_memory(given: SharedMemory | None) -> tuple[tuple[Manifest, ...], tuple[Manifest, ...]]:
    if given is None:
        return (), ()
    limit = {} if given.size is None else {"sizeLimit": given.size}
    volume = {"name": SHARED_MEMORY, "emptyDir": {"medium": "Memory", **limit}}
    return (volume,), ({"name": SHARED_MEMORY, "mountPath": SHARED_MEMORY_PATH},)
