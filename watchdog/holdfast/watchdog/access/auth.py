"""Who may do what: a token stands for a caller, a caller has roles."""

import hmac
import os
import secrets
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import msgspec

from holdfast.api.errors import InvalidInput, Problem, Unavailable

TOKEN_BYTES = 32
TOKEN_LENGTH_MIN = 16


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
        ...

    async def close(self) -> None:
        """Release what is held. No call follows."""
        ...


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
        grants = tuple(_grant(line, path) for line in text.splitlines() if line.strip())
        if not grants:
            raise InvalidInput(Problem("token file", str(path), "write a token into it, or remove it to get one"))
        return cls(grants)

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


def _grant(line: str, path: Path) -> Grant:
    token, _, names = line.strip().partition(" ")
    if len(token) < TOKEN_LENGTH_MIN:
        # The token itself stays out of the message.
        raise InvalidInput(
            Problem("token file", str(path), f"give every token at least {TOKEN_LENGTH_MIN} characters")
        )
    try:
        roles = frozenset(Role(name.strip()) for name in names.split(",")) if names.strip() else ALL_ROLES
    except ValueError:
        known = ", ".join(role.value for role in Role)
        raise InvalidInput(Problem("token file", names, f"name roles from: {known}")) from None
    return Grant(token, roles)
