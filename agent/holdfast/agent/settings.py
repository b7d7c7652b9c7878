"""The agent's settings: built from the command line once, validated, passed down."""

import argparse
import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from holdfast.api.errors import InvalidInput, Problem
from holdfast.wire.access import Access, Address, Credential, Trust

KERNEL_LOG: Final = "/dev/kmsg"
_KERNEL_LOGS: Final[Mapping[str, str | None]] = {"auto": KERNEL_LOG, "off": None}
_SECONDS_OF = {"ms": 1e-3, "s": 1.0, "m": 60.0}


class Cloud(Enum):
    """The cloud whose preemption notices to act on. AUTO: the one that the machine's own firmware names."""

    AUTO = "auto"
    NONE = "none"
    AWS = "aws"
    GCP = "gcp"
    AZURE = "azure"


ANY_LOOPBACK_PORT: Final = Address("127.0.0.1", 0)
KUBELET_POD_LOGS: Final = "/var/log/pods"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """What one agent is told. `interval_s` holds until the watchdog asks for another pace.

    Either `job` and `run_dir` are given (one job's agent) or `kubelet_pods` (the agent of a node where any job's
    pods may run; a `run_dir` is then its own, for what others on the node want to know of it or tell it).
    `kubelet_pod_logs` tells which pod each of those is. `metrics_token_file` has the bearer token that grants
    access to the metrics. `listen` is where they are served: by default on loopback and any free port, as several
    agents may share a machine. With `simulated_gpus` the machine is somebody's own and nothing else is sensed.

    `nvml`, `amd_smi`, `infiniband` and `node_checks` say whether a source is used where this machine has it.
    `kernel_log` is the kernel's device or a log file, None: it is not read. `dcgm_exporter` is the URL of an
    exporter that runs already. `disks` are paths whose file systems must not fill up.
    """

    node: str
    job: str | None
    run_dir: str | None
    kubelet_pods: str | None = None
    kubelet_pod_logs: str = KUBELET_POD_LOGS
    watchdog: Access
    metrics_token_file: str
    listen: Address = ANY_LOOPBACK_PORT
    simulated_gpus: int = 0
    nvml: bool = True
    amd_smi: bool = True
    kernel_log: str | None = KERNEL_LOG
    dcgm_exporter: str | None = None
    preemption: Cloud = Cloud.AUTO
    infiniband: bool = True
    node_checks: bool = True
    disks: tuple[str, ...] = ()
    interval_s: float = 1.0  # well inside the 3 s after which a silent node counts as lost
    die_with_parent: bool = False  # the embedded mode: nothing may be left when its starter is killed


def parse_settings(arguments: Sequence[str]) -> AgentSettings:
    """Read the command line. Raises InvalidInput, or SystemExit where argparse answers itself."""
    given = _parser().parse_args(arguments)
    metrics_token_file = given.metrics_token_file or given.token_file
    authority: str | None = given.watchdog_ca_file or None
    files = {
        "--token-file": given.token_file,
        "--metrics-token-file": metrics_token_file,
        "--watchdog-ca-file": authority,
    }
    problems = [
        *_tenancy_problems(given),
        *(
            Problem(flag, path, "name a file this user can read")
            for flag, path in files.items()
            if path is not None and not os.access(path, os.R_OK)
        ),
    ]
    if not 0 <= given.simulated_gpus <= 64:
        problems.append(Problem("--simulated-gpus", given.simulated_gpus, "give a number from 0 to 64"))
    if given.kernel_log not in _KERNEL_LOGS and not os.path.isabs(given.kernel_log):
        problems.append(Problem("--kernel-log", given.kernel_log, "say auto, off or a file's whole path"))
    if given.dcgm_exporter is not None:
        url = urlsplit(given.dcgm_exporter)
        if url.scheme not in ("http", "https") or not url.hostname:
            advice = "give it as http://HOST:PORT/metrics"
            problems.append(Problem("--dcgm-exporter", given.dcgm_exporter, advice))
    if problems:
        raise InvalidInput(*problems)
    return AgentSettings(
        node=given.node,
        job=given.job,
        run_dir=None if given.run_dir is None else os.path.abspath(given.run_dir),
        kubelet_pods=None if given.kubelet_pods is None else os.path.abspath(given.kubelet_pods),
        kubelet_pod_logs=os.path.abspath(given.kubelet_pod_logs),
        watchdog=Access(
            Address.parse(given.watchdog, given_by="--watchdog"),
            Credential(file=Path(given.token_file).absolute()),
            Trust(authority and os.path.abspath(authority), given_by="--watchdog-ca-file"),
        ),
        metrics_token_file=os.path.abspath(metrics_token_file),
        listen=Address.parse(given.listen, given_by="--listen", port_min=0),
        simulated_gpus=given.simulated_gpus,
        nvml=given.nvml == "auto",
        amd_smi=given.amd_smi == "auto",
        kernel_log=_KERNEL_LOGS.get(given.kernel_log, given.kernel_log),
        dcgm_exporter=given.dcgm_exporter,
        preemption=Cloud(given.preemption),
        infiniband=given.infiniband == "auto",
        node_checks=given.node_checks == "auto",
        disks=tuple(given.disk),
        interval_s=parse_duration_s("--interval", given.interval),
        die_with_parent=given.die_with_parent,
    )


def _tenancy_problems(given: argparse.Namespace) -> list[Problem]:
    """What is wrong with --job, --run-dir and --kubelet-pods together."""
    problems = []
    if given.kubelet_pods is None:
        if given.job is None:
            problems.append(Problem("--job", None, "give the job, or --kubelet-pods for the jobs of all pods"))
        if given.run_dir is None:
            problems.append(Problem("--run-dir", None, "name the directory the ranks publish their records in"))
    elif given.job is not None:
        problems.append(Problem("--job", given.job, "leave it out: with --kubelet-pods each pod names its job"))
    elif given.simulated_gpus and given.run_dir is None:
        problems.append(Problem("--run-dir", None, "name a directory for the simulated GPUs' fault script"))
    if given.job is not None and not re.fullmatch(r"[^/\s]+/[^/\s]+", given.job):
        problems.append(Problem("--job", given.job, "give it as NAMESPACE/NAME"))
    return problems


def parse_duration_s(flag: str, text: str) -> float:
    """`500ms`, `1s` or `2m` in seconds, from 0.1 s to one minute. Raises InvalidInput."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m)", text)
    seconds = float(match[1]) * _SECONDS_OF[match[2]] if match else 0.0
    if not 0.1 <= seconds <= 60.0:
        raise InvalidInput(Problem(flag, text, "give a duration from 100ms to 1m, for example 1s"))
    return seconds


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="holdfast agent", description="Senses this node's ranks and GPUs, reports them, exports metrics."
    )
    add = parser.add_argument
    add("--node", default=socket.gethostname(), help="this node's name (default: the host name)")
    add("--job", metavar="NAMESPACE/NAME", help="the one job whose ranks run here")
    add("--run-dir", metavar="DIR", help="where that job's ranks publish their records")
    add("--kubelet-pods", metavar="DIR", help="instead of --job: the kubelet's pods directory, for all jobs here")
    logs = "the kubelet's folders of pod logs, which tell whose pod each one is (default: %(default)s)"
    add("--kubelet-pod-logs", metavar="DIR", default=KUBELET_POD_LOGS, help=logs)
    add("--watchdog", required=True, metavar="HOST:PORT", help="where the watchdog listens")
    add("--token-file", required=True, metavar="FILE", help="the bearer token, in a file")
    authority = "CA certificates (PEM) to trust; enables TLS (default: no TLS)"
    add("--watchdog-ca-file", metavar="FILE", help=authority)
    token = "bearer token that grants access to /metrics (default: --token-file)"
    add("--metrics-token-file", metavar="FILE", help=token)
    add("--listen", default="127.0.0.1:0", metavar="HOST:PORT", help="metrics (0: a free port)")
    add("--simulated-gpus", type=int, default=0, metavar="N", help="pretend to have N GPUs")
    group = parser.add_argument_group("what is sensed of the node; with --simulated-gpus nothing else is")
    sense = group.add_argument
    uses, clouds = ("auto", "off"), [cloud.value for cloud in Cloud]
    sense("--nvml", choices=uses, default="auto", help="the NVIDIA driver's word on the GPUs")
    sense("--amd-smi", choices=uses, default="auto", help="the AMD driver's word on the GPUs")
    sense("--kernel-log", default="auto", metavar="auto|off|FILE", help=f"the kernel's log (auto: {KERNEL_LOG})")
    sense("--dcgm-exporter", metavar="URL", help="a dcgm-exporter that runs beside the agent")
    sense("--preemption", choices=clouds, default="auto", help="cloud whose preemption notices to act on")
    sense("--infiniband", choices=uses, default="auto", help="network ports for training")
    sense("--node-checks", choices=uses, default="auto", help="memory, disks and clock")
    sense("--disk", action="append", default=[], metavar="PATH", help="must not fill up; repeatable")
    add("--interval", default="1s", metavar="DURATION", help="between two reports (default: 1s)")
    add("--die-with-parent", action="store_true", help="be killed when the starter dies")
    return parser
