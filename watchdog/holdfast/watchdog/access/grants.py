"""Which roles users and groups have: a file that the cluster's people keep."""

import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec
import yaml

from holdfast.api.errors import HoldfastError, InvalidInput, Problem, Unavailable
from holdfast.watchdog.access.auth import Caller, Role

logger = logging.getLogger(__name__)

# How the API server names a pod's account.
# Source: https://kubernetes.io/docs/reference/access-authn-authz/authentication/#service-account-tokens
ACCOUNT_PREFIX = "system:serviceaccount:"


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
        namespace = _namespace_of(user)
        if namespace is None or Role.INGEST in roles:
            return Caller(user, roles)
        return Caller(user, roles | {Role.INGEST}, namespace, pod)


class GrantsFile:
    """Reads the file again whenever it has changed. Raises InvalidInput, Unavailable when made."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._version: tuple[int, int] | None = None
        self._grants = Grants()
        if path is not None:
            self._version, self._grants = _version(path), _read(path)

    def newest(self) -> Grants:
        """The grants as the file has them; those read last while it cannot be read."""
        if self._path is None:
            return self._grants
        try:
            version = _version(self._path)
            if version != self._version:
                self._version = version
                self._grants = _read(self._path)
                logger.info("grants read path=%s", self._path)
        except HoldfastError as error:
            logger.error("grants stay as they were reason=%s", error)
        return self._grants


def _namespace_of(user: str) -> str | None:
    namespace, _, name = user.removeprefix(ACCOUNT_PREFIX).partition(":")
    return namespace if user.startswith(ACCOUNT_PREFIX) and namespace and name else None


def _version(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise Unavailable(f"the grants file {path} cannot be read: {error}") from error
    # Kubernetes replaces a mounted file by another one, so its number changes even within one tick of the clock.
    return status.st_mtime_ns, status.st_ino


def _read(path: Path) -> Grants:
    try:
        return grants_in(path.read_bytes(), given_by=str(path))
    except OSError as error:
        raise Unavailable(f"the grants file {path} cannot be read: {error}") from error


def grants_in(content: bytes, *, given_by: str) -> Grants:
    """The grants that a file's content gives. Raises InvalidInput."""
    try:
        return msgspec.convert(yaml.safe_load(content.decode()) or {}, Grants)
    # YAML's dates and nesting end in errors that are not its own.
    except (msgspec.ValidationError, yaml.YAMLError, ValueError, RecursionError) as error:
        fix = f"give 'users' and 'groups', each name with a list of roles ({', '.join(Role)}): {error}"
        raise InvalidInput(Problem("--grants", given_by, fix)) from error
