"""Signed manifests, for storage that others can write to as well.

A signature is the HMAC-SHA-256 (RFC 2104) of the manifest's body. It covers the whole checkpoint, since a signed
manifest lists the SHA-256 of every block. Where keys are given, nothing is read but what is signed with one of
them; where none is, signatures are not looked at.
"""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.api.errors import Damaged, InvalidInput, Problem

KEY_FILE_VARIABLE = "HOLDFAST_CHECKPOINT_KEY_FILE"
"""Names the file of the keys: one a line, the newest first."""

_CHARACTERS_MIN = 32  # As long as the hash is. Source: RFC 2104, section 3
_FILE_BYTES_MAX = 1 << 16
_PURPOSE = b"holdfast checkpoint manifest\0"  # What is signed with the same key elsewhere is none of these.


@dataclass(frozen=True, slots=True)
class Keyring:
    """`keys` are those that count, the newest first, which signs. None: nothing is signed."""

    keys: tuple[bytes, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.keys)

    def sign(self, body: bytes) -> str:
        """In hex; "" without a key."""
        return _signature(self.keys[0], body) if self.keys else ""

    def require(self, body: bytes, signature: str) -> None:
        """Raises Damaged when there are keys, and the signature is of none of them."""
        if not self.keys:
            return
        if not signature:
            raise Damaged(
                f"the manifest is not signed, and {KEY_FILE_VARIABLE} names keys that it must be signed with"
            )
        given = signature.encode(errors="replace")
        if not any(hmac.compare_digest(_signature(key, body).encode(), given) for key in self.keys):
            raise Damaged(f"the manifest is not signed with any of the keys that {KEY_FILE_VARIABLE} names")


NO_KEYS = Keyring()


def given_keys(environment: Mapping[str, str]) -> Keyring:
    """The keys that the environment names a file of. Raises InvalidInput when that cannot be used."""
    named = environment.get(KEY_FILE_VARIABLE, "")
    if not named:
        return NO_KEYS
    fix = f"name a file with a key of {_CHARACTERS_MIN} characters or more in each line, the newest first"
    try:
        with Path(named).open("rb") as file:
            content = file.read(_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidInput(Problem(KEY_FILE_VARIABLE, named, f"{fix} ({error.strerror})")) from error
    keys = tuple(line.strip() for line in content.splitlines() if line.strip())
    if not keys or len(content) > _FILE_BYTES_MAX or any(len(key) < _CHARACTERS_MIN for key in keys):
        raise InvalidInput(Problem(KEY_FILE_VARIABLE, named, fix))
    return Keyring(keys)


def _signature(key: bytes, body: bytes) -> str:
    return hmac.new(key, _PURPOSE + body, "sha256").hexdigest()
