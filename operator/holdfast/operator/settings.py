"""The operator program's settings: built once in `main`, checked, passed down."""

from dataclasses import dataclass
from pathlib import Path

from holdfast.api.errors import InvalidInput, Problem
from holdfast.operator.decide.observed import Cordoning, Mode
from holdfast.wire.address import Address


@dataclass(frozen=True)
class Settings:
    """Everything the program is told.

    `watchdog`: HOST:PORT, as this program and the pods reach it.
    `watchdog_token_file`: read again for every connection, because projected tokens change.
    `watchdog_ca_file`: who may have signed its certificate; pods get it, too. None: it is spoken to plainly.
    `launcher_image`: carries the launcher into users' images.
    `audience`: of the token that pods show the watchdog.
    `namespaces`: none means all, the way most clusters run one operator.
    `mode`: observe decides and reports without changing anything, for trying Holdfast on a cluster.
    `cordoning`: consume where another remediator takes nodes out of service.
    `maintenance_taints`: keys that mean "leave this node in good order".
    `lease_namespace`, `lease_name`, `identity`: who of several operators acts.
    `lease_s`: how long a dead leader keeps the others waiting; 15 s survives a busy API server.
    `listen`: HOST:PORT for health and metrics; port 0 takes any free one.
    `metrics_token_file`: who shows this token may read the metrics; nobody when there is none.
    `kubeconfig`: empty takes the pod's own service account.
    `resync_s`: every job is looked at this often though nothing changed; 300 s costs a look, not a write.
    """

    watchdog: str
    watchdog_token_file: Path
    launcher_image: str
    audience: str
    namespaces: tuple[str, ...]
    mode: Mode
    cordoning: Cordoning
    maintenance_taints: tuple[str, ...]
    lease_namespace: str
    lease_name: str
    identity: str
    lease_s: float
    listen: str
    metrics_token_file: Path | None
    kubeconfig: str
    resync_s: float
    watchdog_ca_file: Path | None = None

    def __post_init__(self) -> None:
        problems: list[Problem] = []
        for flag, text, port in (("--watchdog", self.watchdog, 1), ("--listen", self.listen, 0)):
            fix = f"give HOST:PORT, the port from {port} to 65535"
            try:
                Address.parse(text, given_by=flag, fix=fix, port_min=port)
            except InvalidInput as error:
                problems += error.problems
        for flag, seconds in (("--lease-seconds", self.lease_s), ("--resync", self.resync_s)):
            if not seconds >= 1.0:
                problems.append(Problem(flag, seconds, "give 1 seconds or more"))
        for flag, text in (("--launcher-image", self.launcher_image), ("--identity", self.identity)):
            if not text.strip():
                problems.append(Problem(flag, text, "give one"))
        if problems:
            raise InvalidInput(*problems)

    @property
    def listen_at(self) -> tuple[str, int]:
        """Host and port of `listen`."""
        address = Address.parse(self.listen, given_by="--listen", port_min=0)
        return address.host, address.port
