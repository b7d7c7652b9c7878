"""The manifest: what a committed checkpoint consists of, down to a hash of every block of every file.

It is a JSON document `{"seal": ..., "body": {...}}`; the seal is the hash of the body's bytes, so that damage to
the manifest itself shows as well. Hashes are XXH3-128: they find accidents, not forgeries.

Whoever can seal a manifest can write any. So every number has a bound, names name files of the folder, and each
file has as many blocks as it is long: what is read by a manifest takes no more time and memory than its files.

For storage that others can write to as well, manifests are signed. A signature is the HMAC-SHA-256 (RFC 2104) of
the manifest's body. It covers the whole checkpoint, since a signed manifest lists the SHA-256 of every block.
Where keys are given, nothing is read but what is signed with one of them; where none is, signatures are not looked
at.
"""

import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import xxhash

from holdfast.api.decoding import decode_json
from holdfast.api.errors import Damaged, InvalidInput, Malformed, Problem

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


FILE_NAME = "manifest.json"
FRAMEWORK_FILE = "framework.json"
"""In a checkpoint in a framework's own format, in place of an index: whose format it is."""
FORMAT = 1
BLOCK_BYTES = 4 << 20  # Small enough that a resharded read verifies little more than it needs.
BYTES_MAX = 1 << 30  # Of the document: the hashes of the blocks of more than 100 TB.
WORLD_MAX = 1 << 20  # Ten times the ranks of the largest clusters there are.

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
"""A number of steps, batches or bytes."""
FileName = Annotated[str, msgspec.Meta(pattern=r"^(?!\.\.?\Z)[A-Za-z0-9_.-]{1,255}\Z")]
"""Of a file in the checkpoint's own folder."""
_PART = r"(?!\.\.?(?:/|\Z))[A-Za-z0-9_.-]{1,255}"
FilePath = Annotated[str, msgspec.Meta(pattern=rf"^{_PART}(?:/{_PART}){{0,7}}\Z")]
"""The same, or of a file in one of its folders: what a framework writes may have some."""
_Hash = Annotated[str, msgspec.Meta(min_length=32, max_length=64)]
World = Annotated[int, msgspec.Meta(ge=1, le=WORLD_MAX)]


class FileRecord(msgspec.Struct, frozen=True):
    """A file's size and the hash of each block of `BLOCK_BYTES`; the last one may be shorter."""

    size_bytes: Count
    blocks: tuple[_Hash, ...]


class Manifest(msgspec.Struct, frozen=True):
    """One checkpoint: the state after `step` completed steps, committed by `round`.

    `parent` is the step that round had restored, None when it started afresh: it tells which older checkpoints
    are this one's past and which belong to a history that was given up. `batches` is how many batches each
    rank had taken. `healthy` is whether the last loss and gradient norm of every rank that could tell were finite,
    None when none could.
    """

    format: int
    step: Count
    round: Count
    parent: Count | None
    world_size: World
    batches: Count
    files: dict[FilePath, FileRecord]
    healthy: bool | None = None


class Framework(msgspec.Struct, frozen=True):
    """What `FRAMEWORK_FILE` says."""

    format: str


class _Sealed(msgspec.Struct, frozen=True, omit_defaults=True):
    seal: str
    body: msgspec.Raw
    signature: str = ""


Hashing = Callable[..., Any]
"""Makes what takes bytes with `update` and gives their hash with `hexdigest`."""

FAST: Hashing = xxhash.xxh3_128
STRONG: Hashing = hashlib.sha256
_BY_DIGITS = {32: FAST, 64: STRONG}


def hash_block(block: bytes | bytearray | memoryview) -> str:
    return xxhash.xxh3_128_hexdigest(block)


def hashing_with(keys: Keyring) -> Hashing:
    """That of blocks where manifests are signed with `keys`, or not, where there are none."""
    return STRONG if keys else FAST


def is_hash_of(wanted: str, parts: Sequence[memoryview]) -> bool:
    """Whether `wanted` is the hash of the parts, one after the other."""
    hashing = _BY_DIGITS.get(len(wanted))
    if hashing is None:
        return False
    digest = hashing()
    for part in parts:
        digest.update(part)
    return bool(digest.hexdigest() == wanted)


class Recorder:
    """The record of a file that is seen from front to back, piece by piece."""

    def __init__(self, hashing: Hashing = FAST) -> None:
        self._size = 0
        self._blocks: list[str] = []
        self._hashing = hashing
        self._digest = hashing()

    def add(self, part: memoryview) -> None:
        """What comes next in the file."""
        left = part.cast("B")
        while left.nbytes:
            room = BLOCK_BYTES - self._size % BLOCK_BYTES
            self._digest.update(left[:room])
            self._size += min(room, left.nbytes)
            left = left[room:]
            if self._size % BLOCK_BYTES == 0:
                self._end_block()

    def record(self) -> FileRecord:
        """Of all that was added; nothing may be added any more."""
        if self._size % BLOCK_BYTES:
            self._end_block()
        return FileRecord(size_bytes=self._size, blocks=tuple(self._blocks))

    def _end_block(self) -> None:
        self._blocks.append(self._digest.hexdigest())
        self._digest = self._hashing()


def record_of(parts: Sequence[memoryview], hashing: Hashing = FAST) -> FileRecord:
    """The record of a file that consists of `parts`, one after the other."""
    recorder = Recorder(hashing)
    for part in parts:
        recorder.add(part)
    return recorder.record()


def encode(manifest: Manifest, keys: Keyring | None = None) -> bytes:
    """The file's bytes, signed where there are keys: then its blocks were hashed as `hashing_with` them."""
    body = msgspec.json.encode(manifest)
    signature = keys.sign(body) if keys else ""
    return msgspec.json.encode(_Sealed(hash_block(body), msgspec.Raw(body), signature))


def decode(document: bytes, keys: Keyring | None = None) -> Manifest:
    """Raises Damaged when the bytes are not what `encode` made of a checkpoint that can be, or are of a format
    that this version cannot read, or are not signed with one of `keys`, if there are any.
    """
    if len(document) > BYTES_MAX:
        raise Damaged(f"the manifest has {len(document)} bytes, more than the {BYTES_MAX} that one may have")
    try:
        sealed = decode_json(document, _Sealed)
        body = bytes(sealed.body)
        if hash_block(body) != sealed.seal:
            raise Damaged("the manifest does not match its seal")
        if keys:
            keys.require(body, sealed.signature)
        manifest = decode_json(body, Manifest)
    except Malformed as error:
        raise Damaged(f"the manifest cannot be read: {error}") from error
    if manifest.format != FORMAT:
        raise Damaged(f"the manifest is of format {manifest.format}, this version reads {FORMAT}")
    if manifest.parent is not None and manifest.parent > manifest.step:
        raise Damaged(f"the manifest of step {manifest.step} says that it goes on from step {manifest.parent}")
    for name, record in manifest.files.items():
        if len(record.blocks) != -(-record.size_bytes // BLOCK_BYTES):
            raise Damaged(f"{name} is said to have {record.size_bytes} bytes in {len(record.blocks)} blocks")
        if keys and not all(_BY_DIGITS.get(len(each)) is STRONG for each in record.blocks):
            raise Damaged(f"the manifest is signed, and the hashes of {name} are too weak for that")
    return manifest
