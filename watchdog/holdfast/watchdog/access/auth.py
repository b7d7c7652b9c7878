"""Who may do what: a token stands for a caller, a caller has roles."""

import hmac
import logging
import os
import secrets
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import msgspec
import yaml

from holdfast.api.errors import HoldfastError, InvalidInput, Problem, Unavailable

logger = logging.getLogger(__name__)

TOKEN_BYTES = 32
TOKEN_LENGTH_MIN = 16
# How the API server names a pod's account.
# Source: https://kubernetes.io/docs/reference/access-authn-authz/authentication/#service-account-tokens
ACCOUNT_PREFIX = "system:serviceaccount:"


class Role(StrEnum):
    """What a caller may do."""

    INGEST = "ingest"  # launchers and agents: join, report
    VIEW = "view"  # read everything, of all namespaces
    OPERATE = "operate"  # submit jobs, intervene, act for the cluster


ALL_ROLES = frozenset(Role)


class Identity(msgspec.Struct, frozen=True):
    """Who a caller is to Kubernetes, beside the name: what a SubjectAccessReview asks about."""

    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


class Caller(msgspec.Struct, frozen=True):
    """Who asks. `namespace` is the only one whose jobs it may send signals for; None: those of all. `pod` is the
    one that its token is bound to, `node` the node of that pod, where Kubernetes says it (from 1.30 on).

    `identity`: who that is to Kubernetes; None when the API server knows nothing of it.
    """

    name: str
    roles: frozenset[Role]
    namespace: str | None = None
    pod: str | None = None
    identity: Identity | None = None
    node: str | None = None

    def may_ingest_for(self, job: str) -> bool:
        """Whether signals about the job `namespace/name` are taken from this caller."""
        return self.namespace is None or job.partition("/")[0] == self.namespace


class Authenticator(Protocol):
    """Tells who holds a token. Asked once per request or connection."""

    async def caller(self, token: str) -> Caller | None:
        """Who holds the token, None when nobody does. Raises Unavailable when that cannot be told now."""

    async def close(self) -> None:
        """Release what is held. No call follows."""


class Grant(msgspec.Struct, frozen=True):
    """One token and what it allows."""

    token: str
    roles: frozenset[Role]


class TokenFile:
    """The embedded authenticator: tokens from a file only its owner can read.

    One token a line; roles may follow it, separated by commas, all of them when none does.
    """

    def __init__(self, grants: tuple[Grant, ...]) -> None:
        self._grants = grants

    @classmethod
    def read(cls, path: Path) -> "TokenFile":
        """Read the file. Raises InvalidInput when others could read it or it holds no token, Unavailable."""
        try:
            mode = path.stat().st_mode
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise Unavailable(f"the token file {path} cannot be read: {error}") from error
        if mode & 0o077:
            fix = f"let only its owner read it (chmod 600 {path})"
            raise InvalidInput(Problem("token file", f"{path} with mode {mode & 0o777:o}", fix))
        grants = []
        for line in text.splitlines():
            token, _, names = line.strip().partition(" ")
            if not token:
                continue
            if len(token) < TOKEN_LENGTH_MIN:
                # The token itself stays out of the message.
                fix = f"give every token at least {TOKEN_LENGTH_MIN} characters"
                raise InvalidInput(Problem("token file", str(path), fix))
            try:
                roles = frozenset(Role(name.strip()) for name in names.split(",")) if names.strip() else ALL_ROLES
            except ValueError:
                fix = f"name roles from: {', '.join(Role)}"
                raise InvalidInput(Problem("token file", names, fix)) from None
            grants.append(Grant(token, roles))
        if not grants:
            raise InvalidInput(Problem("token file", str(path), "write a token into it, or remove it to get one"))
        return cls(tuple(grants))

    @classmethod
    def read_or_create(cls, path: Path) -> "TokenFile":
        """Read the file; make one with a random token for all roles when there is none. Raises as `read`."""
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return cls.read(path)
        except OSError as error:
            raise Unavailable(f"the token file {path} cannot be made: {error}") from error
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(secrets.token_urlsafe(TOKEN_BYTES) + "\n")
        return cls.read(path)

    async def caller(self, token: str) -> Caller | None:
        """Compares with every token in constant time, so that timing tells nothing about any of them."""
        given = token.encode("utf-8", "surrogateescape")  # as it came over the wire
        matches = [grant for grant in self._grants if hmac.compare_digest(grant.token.encode(), given)]
        return Caller("the token", matches[0].roles) if matches else None

    async def close(self) -> None:
        return


# Which roles users and groups have in a cluster: a file that its people keep.


class Grants(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Roles by user name and by group name.

    Any account of a pod may send signals for jobs of its own namespace without being named: that is what launchers
    present. Everything else must be granted.
    """

    users: dict[str, frozenset[Role]] = {}
    groups: dict[str, frozenset[Role]] = {}

    def caller(self, user: str, groups: Sequence[str], pod: str | None = None) -> Caller:
        """What this user is to us; `pod` is the one that the token is bound to."""
        roles = self.users.get(user, frozenset()).union(*(self.groups.get(each, frozenset()) for each in groups))
        namespace, _, account = user.removeprefix(ACCOUNT_PREFIX).partition(":")
        is_account = user.startswith(ACCOUNT_PREFIX) and namespace and account
        if not is_account or Role.INGEST in roles:
            return Caller(user, roles)
        return Caller(user, roles | {Role.INGEST}, namespace, pod)


class GrantsFile:
    """Reads the file again whenever it has changed. Raises InvalidInput, Unavailable when made."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._version: tuple[int, int] | None = None
        self._grants = Grants()
        if path is not None:
            self._read_if_new(path)

    def newest(self) -> Grants:
        """The grants as the file has them; those read last while it cannot be read."""
        try:
            if self._path is not None and self._read_if_new(self._path):
                logger.info("grants read path=%s", self._path)
        except HoldfastError as error:
            logger.error("grants stay as they were reason=%s", error)
        return self._grants

    def _read_if_new(self, path: Path) -> bool:
        try:
            status = path.stat()
            # Kubernetes replaces a mounted file by another one, so its number changes even within one tick of the
            # clock.
            version = status.st_mtime_ns, status.st_ino
            if version == self._version:
                return False
            self._version = version
            self._grants = grants_in(path.read_bytes(), given_by=str(path))
        except OSError as error:
            raise Unavailable(f"the grants file {path} cannot be read: {error}") from error
        return True


def grants_in(content: bytes, *, given_by: str) -> Grants:
    """The grants that a file's content gives. Raises InvalidInput."""
    try:
        return msgspec.convert(yaml.safe_load(content.decode()) or {}, Grants)
    # YAML's dates and nesting end in errors that are not its own.
    except (msgspec.ValidationError, yaml.YAMLError, ValueError, RecursionError) as error:
        fix = f"give 'users' and 'groups', each name with a list of roles ({', '.join(Role)}): {error}"
        raise InvalidInput(Problem("--grants", given_by, fix)) from error
