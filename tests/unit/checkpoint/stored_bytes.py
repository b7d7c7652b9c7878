"""Fuzzers of everything that is decoded out of a checkpoint's storage and a node's memory.

Each takes a seed and a count, and returns how many inputs were refused. An exception that is not documented is
raised as it is, with the seed of its input in a note.
"""

import random
from collections.abc import Callable, Mapping

import msgspec

from holdfast.api.errors import Damaged, Malformed
from holdfast.checkpoint.format import index, manifest
from holdfast.checkpoint.format.index import Box, Index, StoredChunk, StoredObject, StoredTensor, require_whole
from holdfast.checkpoint.format.manifest import FORMAT, FileRecord, Manifest, hash_block
from holdfast.checkpoint.memory import record
from holdfast.checkpoint.memory.record import SnapshotRecord

Fuzzer = Callable[[int, int], int]

FILE = "__0_0.distcp"
_ENTRIES = {
    "model.weight": StoredTensor(
        "bfloat16",
        (4, 2),
        tuple(StoredChunk(FILE, 200 * half, 190, 200 * half + 64, Box((2 * half, 0), (2, 2))) for half in (0, 1)),
    ),
    "scheduler": StoredObject(FILE, 400, 99),
}
_PATHS: dict[str, index.Path] = {"model.weight": ("model", "weight"), "scheduler": ("scheduler",)}
_INDEX = Index(_ENTRIES, _PATHS)
_MANIFEST = Manifest(
    FORMAT,
    12,
    7,
    8,
    4,
    12,
    {FILE: FileRecord(500, ("0" * 32,)), "index.json": FileRecord(9, ("1" * 32,))},
    healthy=True,
)
_RECORD = SnapshotRecord(
    "life", 2, 3, 4, 7, 7, FILE, 500, dict(_ENTRIES), dict(_PATHS), 5, ("10.0.0.1:7900",), healthy=True
)
_NUMBERS = (
    b"-1",
    b"0",
    b"1e999",
    b"1E400",
    b"9" * 30,
    b"9" * 5_000,
    b"4.5",
    b"18446744073709551616",
    b"null",
    b"NaN",
)
_BYTES = (b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\x00", b"\xcf" + b"\xff" * 8, b"\xd3\x80" + b"\0" * 7, b"\xc1")
_DEEP = (b"[", b'{"a":', b"\x91", b"\x81\xa1a")


def fuzz_manifest(seed: int, count: int) -> int:
    """A manifest that is sealed again after each change; one in ten is not."""

    def read(document: bytes, source: random.Random) -> None:
        if source.random() < 0.9:
            document = b'{"seal":"%s","body":%s}' % (hash_block(document).encode(), document)
        manifest.decode(document)

    return _fuzz(msgspec.json.encode(_MANIFEST), read, seed, count)


def fuzz_index(seed: int, count: int) -> int:
    """An index whose hash is right."""

    def read(document: bytes, source: random.Random) -> None:
        require_whole(index.decode(document), _MANIFEST)

    return _fuzz(index.encode(_INDEX), read, seed, count)


def fuzz_snapshot_record(seed: int, count: int) -> int:
    """The record of a snapshot in shared memory, whose digest is right."""
    return _fuzz(record.encode(_RECORD), lambda words, source: record.decode(words), seed, count)


FUZZERS: Mapping[str, Fuzzer] = {
    "manifest": fuzz_manifest,
    "index": fuzz_index,
    "snapshot record": fuzz_snapshot_record,
}


def _fuzz(honest: bytes, read: Callable[[bytes, random.Random], object], seed: int, count: int) -> int:
    refused = 0
    for number in range(count):
        source = random.Random(f"{seed} {number}")
        words = _changed(honest, source)
        try:
            read(words, source)
        except (Damaged, Malformed):
            refused += 1
        except BaseException as error:
            error.add_note(f"input {number} of seed {seed}: {words[:200]!r}")
            raise
    return refused


def _changed(honest: bytes, source: random.Random) -> bytes:
    """One to three changes."""
    words = bytearray(honest)
    for _ in range(source.randrange(1, 4)):
        at = source.randrange(len(words) + 1)
        match source.randrange(8):
            case 0:
                words[at : at + 1] = bytes([source.randrange(256)])
            case 1:
                del words[at : at + source.randrange(1, 40)]
            case 2:
                words[at:at] = source.choice(_BYTES)
            case 3:
                words[at:at] = source.choice(_DEEP) * source.choice((1, 3, 2_000, 200_000))
            case 4:
                begin = source.randrange(len(words) + 1)
                words[at:at] = words[begin : begin + source.randrange(200)]
            case 5:
                words[at : at + source.randrange(9)] = source.randbytes(source.randrange(9))
            case _:
                _put_number(words, source)
    return bytes(words)


def _put_number(words: bytearray, source: random.Random) -> None:
    """Another number in the place of one that is there, as text."""
    places = [at for at, byte in enumerate(words) if 48 <= byte < 58]
    if not places:
        return
    begin = end = source.choice(places)
    while end < len(words) and 48 <= words[end] < 58:
        end += 1
    words[begin:end] = source.choice(_NUMBERS)
