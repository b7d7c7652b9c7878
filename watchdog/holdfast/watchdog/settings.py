"""The watchdog program's settings: built once in `main`, checked, passed down."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from holdfast.api.errors import InvalidInput, Problem, Unavailable
from holdfast.api.policy import CordonOn, Policy, XidAction

STATE_FILE_NAME = "watchdog.json"
REDIS_SCHEMES = ("redis", "rediss")
REDIS_PORT = 6379
SENTINEL_PORT = 26379
# Where Kubernetes puts a pod's own account.
# Source: https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/
ACCOUNT_DIRECTORY = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# A leader that died is missed for this long. Renewed every third of it, two renewals may be late before a standby
# takes over; a pause of the process or of Redis that long is rare, and costs a change of leader, no more.
LEASE_TTL_S = 3.0


# What whoever runs the cluster says of every job; what a job says itself comes first.


class ClusterPolicy(msgspec.Struct, frozen=True):
    """`xid_actions` override the catalogue for every job that does not override the same number itself.

    `cordon_on` no job overrides.
    """

    xid_actions: Mapping[int, XidAction] = {}
    cordon_on: CordonOn = CordonOn.ANYTHING

    def applied_to(self, policy: Policy) -> Policy:
        """The policy as the job is judged by, and as it is journaled: a replay needs nothing else."""
        said = dict(self.xid_actions)
        return msgspec.structs.replace(policy, cordon_on=self.cordon_on, cluster_xid_actions=said)


NO_CLUSTER_POLICY = ClusterPolicy()


class AuthMode(StrEnum):
    """Who says whose a token is."""

    TOKEN_FILE = "token-file"
    KUBERNETES = "kubernetes"


@dataclass(frozen=True)
class ListenAddress:
    """Where to listen. Port 0 takes any free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "ListenAddress":
        """From HOST:PORT. Raises InvalidInput."""
        host, _, port = text.rpartition(":")
        host = host.strip("[]")
        try:
            known = host == "localhost" or bool(ipaddress.ip_address(host))
        except ValueError:
            known = False
        if not known:
            raise InvalidInput(
                Problem("--listen", text, "give an address of this machine, such as 127.0.0.1:7077")
            )
        if not port.isdecimal() or int(port) > 65535:
            raise InvalidInput(Problem("--listen", text, "give a port from 0 (any free one) to 65535"))
        return cls(host, int(port))

    @property
    def loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Host:
    """A name or an address, and a port."""

    name: str
    port: int

    def __str__(self) -> str:
        return f"{self.name}:{self.port}"


@dataclass(frozen=True)
class RedisAddress:
    """A Redis and the database in it. Its text never holds the password.

    `hosts`: the one Redis; or, where `primary` names a Redis with replicas, the Sentinels that watch over it and
    say which of them takes writes now. Sentinels are asked with the same password.
    """

    hosts: tuple[Host, ...]
    database: int = 0
    encrypted: bool = False
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    primary: str | None = None

    @classmethod
    def parse(cls, text: str, *, password: str | None = None) -> "RedisAddress":
        """From redis://[USER[:PASSWORD]@]HOST[:PORT][/DATABASE]; rediss:// for TLS. Raises InvalidInput.

        With Sentinels redis+sentinel://HOST[:PORT],HOST[:PORT],.../NAME[/DATABASE].
        """
        try:
            parts = urlsplit(text)
            transport, _, watched = parts.scheme.partition("+")
            login, _, where = parts.netloc.rpartition("@")
            path = parts.path.strip("/").split("/")
            primary = unquote(path.pop(0)) if watched else None
            database = "/".join(path) or "0"
            known = transport in REDIS_SCHEMES and watched in ("", "sentinel") and primary != ""
            port = SENTINEL_PORT if watched else REDIS_PORT
            places = [urlsplit(f"//{each}") for each in where.split(",")]
            hosts = tuple(Host(each.hostname or "", each.port or port) for each in places)
            named = all(each.name for each in hosts) and (len(hosts) == 1 or primary is not None)
            if not known or not named or not database.isdecimal():
                raise ValueError(text)
        except ValueError:
            fix = "give redis://HOST:PORT/DATABASE or redis+sentinel://HOST:PORT,HOST:PORT/NAME; rediss for TLS"
            raise InvalidInput(Problem("--store", text.rpartition("@")[2], fix)) from None
        username, _, given = (unquote(each) or None for each in login.partition(":"))
        return cls(hosts, int(database), transport == "rediss", username, password or given, primary)

    def __str__(self) -> str:
        scheme = f"redis{'s' * self.encrypted}{'+sentinel' * (self.primary is not None)}"
        name = "" if self.primary is None else f"{self.primary}/"
        return f"{scheme}://{','.join(map(str, self.hosts))}/{name}{self.database}"


@dataclass(frozen=True)
class KubernetesAuth:
    """How tokens are reviewed by the API server.

    `api_server`: its base URL. `account`: the directory with this pod's own `token` and the `ca.crt` to trust.
    `audience`: what a token must have been made for, so that one made for somebody else is worth nothing here.
    `grants`: the file that gives roles to users and groups; None gives none beyond a pod's own.
    """

    api_server: str
    account: Path
    audience: str
    grants: Path | None


@dataclass(frozen=True)
class TlsFiles:
    """The certificate (with its chain) and its key, as PEM. Read again when they change."""

    certificate: Path
    key: Path


@dataclass(frozen=True)
class Succession:
    """How replicas over one Redis share the work.

    `identity`: what people find in the lock. `peer`: the URL of the service in front of all replicas; a leader
    that Redis does not answer asks there whether another one leads.
    """

    identity: str = "watchdog"
    ttl_s: float = LEASE_TTL_S
    peer: str | None = None


@dataclass(frozen=True)
class WatchdogSettings:
    """Everything the program is told.

    `listen`: any free port unless told, so that two runs on a machine never collide.
    `store`: the SQLite file, made when it is not there, or a Redis.
    `auth`: the token file, mode 0600, made with a random token when it is not there; or the API server.
    `tls`: None speaks plainly.
    `succession`: used with Redis only; a file has one watchdog at a time.
    `metrics_token_file`: who shows the token in it may read the metrics, beside those with the role view.
    `told_in`: the file where others read the address; beside the SQLite file when not given.
    `cluster`: what holds for every job.
    """

    listen: ListenAddress
    store: Path | RedisAddress
    auth: Path | KubernetesAuth
    tls: TlsFiles | None = None
    succession: Succession = Succession()
    metrics_token_file: Path | None = None
    told_in: Path | None = None
    cluster: ClusterPolicy = NO_CLUSTER_POLICY

    def __post_init__(self) -> None:
        """Raises InvalidInput when tokens would cross a network for everybody to read, or to guess."""
        if not self.listen.loopback and self.tls is None and isinstance(self.auth, Path):
            fix = "give a loopback address, or --auth kubernetes, or --tls-cert and --tls-key"
            raise InvalidInput(Problem("--listen", str(self.listen), fix))
        if self.succession.ttl_s < 1.0:
            raise InvalidInput(Problem("--lease-ttl", self.succession.ttl_s, "give 1 s or more"))

    @property
    def state_file(self) -> Path | None:
        """Where others read the address, None when nobody is told: in a cluster a service is the address."""
        if self.told_in is None and isinstance(self.store, Path):
            return self.store.parent / STATE_FILE_NAME
        return self.told_in


def store_address(text: str, password_file: Path | None) -> Path | RedisAddress:
    """A Redis when `text` is a URL, else a file. Raises InvalidInput, Unavailable."""
    if "://" not in text:
        if password_file is not None:
            raise InvalidInput(
                Problem("--store-password-file", str(password_file), "leave it out: a file needs none")
            )
        return Path(text).absolute()
    password = None
    if password_file is not None:
        try:
            password = password_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise Unavailable(f"the password file {password_file} cannot be read: {error}") from error
    return RedisAddress.parse(text, password=password)
