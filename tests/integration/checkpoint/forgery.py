"""Checkpoints that somebody has changed and sealed again: a generator of forgeries, each from a seed.

The forger knows the format: whatever is changed, sizes, hashes and the seal are made to match. Only what nobody
could tell from an honest checkpoint (another learning rate) is left out: for that there are signatures.
"""

import json
import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from holdfast.checkpoint.format import archive
from holdfast.checkpoint.format.manifest import hash_block, record_of

NAME = "step-00000004"
SPLIT = "model.weight"  # stored in two chunks
STATE = ("__0_0.distcp", "__1_0.distcp", "index.json")
WHOLE = "optimizer.state.weight.momentum_buffer"
HUGE = (-1, -(10**30), 2**31, 2**53 + 1, 2**63 - 1, 2**63, 10**12, 10**30)


@dataclass
class Folder:
    """A checkpoint's documents, decoded, and its folder."""

    path: Path
    body: dict[str, Any]
    index: dict[str, Any]

    @classmethod
    def of(cls, path: Path) -> "Folder":
        body = json.loads((path / "manifest.json").read_bytes())["body"]
        return cls(path, body, json.loads((path / "index.json").read_bytes()))

    def entry(self, name: str) -> Any:
        return self.index["entries"][name]

    def write(self, file: str, content: bytes) -> None:
        """The file, and its record."""
        (self.path / file).write_bytes(content)
        record = record_of([memoryview(content)])
        self.body["files"][file] = {"size_bytes": record.size_bytes, "blocks": list(record.blocks)}

    def seal_index(self) -> None:
        self.write("index.json", json.dumps(self.index).encode())

    def seal(self) -> None:
        body = json.dumps(self.body).encode()
        document = b'{"seal":"%s","body":%s}' % (hash_block(body).encode(), body)
        (self.path / "manifest.json").write_bytes(document)


def split(folder: Folder) -> None:
    """Store the weight in two chunks, as two ranks would have."""
    entry = folder.entry(SPLIT)
    chunk = entry["chunks"][0]
    file = (folder.path / chunk["file"]).read_bytes()
    payload = file[chunk["payload"] : chunk["payload"] + 16]
    frame = archive.frame(torch.float32, (1, 2))
    content, chunks = b"", []
    for half in range(2):
        start = len(content)
        content += frame.before + payload[8 * half : 8 * half + 8] + frame.after
        box = {"offsets": [0, 2 * half], "sizes": [1, 2]}
        place = {"file": "__1_0.distcp", "start": start, "length_bytes": frame.length_bytes}
        chunks.append({**place, "payload": start + len(frame.before), "box": box})
    entry["chunks"] = chunks
    folder.write("__1_0.distcp", content)
    folder.seal_index()
    folder.seal()


Forge = Callable[[Folder, random.Random], object]
Change = Callable[[dict[str, Any], random.Random], object]


def put(key: str, *values: Any) -> Change:
    return lambda target, source: target.update({key: source.choice(values)})


def of_whole(key: str, *values: Any) -> Change:
    return lambda index, source: put(key, *values)(index["entries"][WHOLE], source)


def of_manifest(field: str, *values: Any) -> Forge:
    def forge(folder: Folder, source: random.Random) -> None:
        folder.body[field] = source.choice(values)

    return forge


def of_record(change: Change) -> Forge:
    """Of one of the files, also with a file that is as long as it is said to be."""

    def forge(folder: Folder, source: random.Random) -> None:
        change(folder.body["files"][source.choice(STATE)], source)

    return forge


def of_file_name(folder: Folder, source: random.Random) -> None:
    files = folder.body["files"]
    names = ("../../other", "/etc/hostname", "", ".", "..", "a\x00b", "manifest.json/x", "x" * 300, "a/b", "a\n")
    files[source.choice(names)] = files[source.choice(sorted(files))]


def of_chunk(change: Change) -> Forge:
    def forge(folder: Folder, source: random.Random) -> None:
        change(source.choice(folder.entry(source.choice((SPLIT, WHOLE)))["chunks"]), source)
        folder.seal_index()

    return forge


def of_box(part: str) -> Forge:
    def change(chunk: dict[str, Any], source: random.Random) -> None:
        sizes = chunk["box"][part]
        place = source.randrange(len(sizes))
        sizes[place] = source.choice([each for each in (0, 1, 2, 3, 5, *HUGE) if each != sizes[place]])

    return of_chunk(change)


def of_index(change: Change) -> Forge:
    def forge(folder: Folder, source: random.Random) -> None:
        change(folder.index, source)
        folder.seal_index()

    return forge


def drop_chunk(index: dict[str, Any], source: random.Random) -> None:
    del index["entries"][SPLIT]["chunks"][source.randrange(2)]


def repeat_chunk(index: dict[str, Any], source: random.Random) -> None:
    chunks = index["entries"][SPLIT]["chunks"]
    chunks[0 if source.random() < 0.5 else 1 :] = [source.choice(chunks)] * source.randrange(1, 4)
    if len(chunks) == 2 and chunks[0] != chunks[1]:
        chunks.append(chunks[0])


def overlap(index: dict[str, Any], source: random.Random) -> None:
    """Two chunks whose volumes add up, and which share an element while another is in neither."""
    one, other = index["entries"][SPLIT]["chunks"]
    (one if source.random() < 0.5 else other)["box"]["offsets"][1] = 1


def share_bytes(index: dict[str, Any], source: random.Random) -> None:
    one, other = index["entries"][SPLIT]["chunks"]
    for key in ("start", "payload"):
        other[key] = one[key] + source.choice((0, 0, 8))


def deepen(folder: Folder, source: random.Random) -> None:
    """JSON nested deeper than any reader goes."""
    folder.seal()
    depth = source.choice((2_000, 100_000))
    text = (folder.path / "manifest.json").read_text()
    body = text[text.index('"body":') + 7 : -1]
    body = f'{body[:-1]}, "more": {"[" * depth}{"]" * depth}}}'
    seal = hash_block(body.encode())
    (folder.path / "manifest.json").write_text(f'{{"seal": "{seal}", "body": {body}}}')


def sealed_bytes(folder: Folder, source: random.Random) -> None:
    """A body that is no text, or no object, with the right seal."""
    body = source.choice((b'{"step": "\xff\xfe"}', b"[]", b"null", b"1e999", b'"x"', b"{}", b"{" * 5_000))
    (folder.path / "manifest.json").write_bytes(b'{"seal":"%s","body":%s}' % (hash_block(body).encode(), body))


def index_bytes(folder: Folder, source: random.Random) -> None:
    deep = b'{"entries": {}, "paths": {"a": ' + b"[" * 50_000 + b"]" * 50_000 + b"}}"
    folder.write("index.json", source.choice((b"", b"\xff", b"[]", b"{}", deep, b'{"entries": 1, "paths": 2}')))


def an_object(folder: Folder) -> dict[str, Any]:
    name = sorted(name for name, each in folder.index["entries"].items() if each["type"] == "object")[0]
    found: dict[str, Any] = folder.entry(name)
    return found


def of_object(folder: Folder, source: random.Random) -> None:
    """A place that is not an archive, or not in the file."""
    stored = an_object(folder)
    cut = source.randrange(1, stored["length_bytes"] - 1)
    key, value = source.choice((("length_bytes", 0), ("length_bytes", cut), ("start", 10**12), ("start", -1)))
    stored[key] = value
    folder.seal_index()


def of_archive(folder: Folder, source: random.Random) -> None:
    """An object's bytes are others: nothing that can be unpacked."""
    stored = an_object(folder)
    content = bytearray((folder.path / stored["file"]).read_bytes())
    begin, end = stored["start"], stored["start"] + stored["length_bytes"]
    content[begin:end] = source.choice((bytes(end - begin), source.randbytes(end - begin)))
    folder.write(stored["file"], bytes(content))


def of_kind(folder: Folder, source: random.Random) -> None:
    """A tensor that is said to be an object, or the other way round."""
    stored, other = an_object(folder), folder.entry(WHOLE)["chunks"][0]
    name = next(name for name, each in folder.index["entries"].items() if each is stored)
    if source.random() < 0.5:
        chunk = {**stored, "payload": stored["start"], "box": {"offsets": [0], "sizes": [1]}}
        chunk.pop("type")
        folder.index["entries"][name] = {"type": "tensor", "dtype": "uint8", "shape": [1], "chunks": [chunk]}
    else:
        place = {key: other[key] for key in ("file", "start", "length_bytes")}
        folder.index["entries"][WHOLE] = {"type": "object", **place}
    folder.seal_index()


FORGERIES: Mapping[str, Forge] = {
    "a step that is no number": of_manifest("step", None, "4", 4.5, [4], ["yes"], *HUGE),
    "a round that is no number": of_manifest("round", None, "4", 4.5, [4], ["yes"], -1, 2**53 + 1, 2**63, 10**30),
    "another step": of_manifest("step", 0, 3, 5),
    "a parent that comes after": of_manifest("parent", 5, 2**40, *HUGE),
    "no such world": of_manifest("world_size", 0, *HUGE),
    "no such batches": of_manifest("batches", None, "many", 0.5, -1, 2**53 + 1, 2**63, 10**30),
    "no such health": of_manifest("healthy", 1, "yes", []),
    "another format": of_manifest("format", 0, 2, *HUGE),
    "no files": of_manifest("files", {}, [], None, {"index.json": {}}),
    "no blocks": of_record(put("blocks", [])),
    "too few blocks": of_record(lambda record, source: record["blocks"].pop()),
    "too many blocks": of_record(lambda record, source: record["blocks"].extend(record["blocks"])),
    "a hash that is none": of_record(put("blocks", [""], ["x"], ["0" * 99], [1], None)),
    "another hash": of_record(lambda record, source: record.update(blocks=[f"{source.randrange(16**32):032x}"])),
    "another size": of_record(put("size_bytes", 0, 1, *HUGE)),
    "a file elsewhere": of_file_name,
    "a file less": lambda folder, source: folder.body["files"].pop(source.choice(STATE)),
    "a box elsewhere": of_box("offsets"),
    "a box of another size": of_box("sizes"),
    "a box of other dimensions": of_chunk(
        put("box", *({"offsets": [0], "sizes": [4] * n} for n in (0, 1, 3, 90)))
    ),
    "a chunk less": of_index(drop_chunk),
    "a chunk more": of_index(repeat_chunk),
    "chunks that overlap": of_index(overlap),
    "chunks in the same bytes": of_index(share_bytes),
    "a payload elsewhere": of_chunk(put("payload", None, 10**9, *HUGE)),
    "a payload of none": of_chunk(lambda chunk, source: chunk.pop("payload")),
    "a start elsewhere": of_chunk(put("start", None, *HUGE)),
    "an archive of another length": of_chunk(put("length_bytes", 0, 1, *HUGE)),
    "a chunk in no file": of_chunk(put("file", "index.json", "none", "../x", "", "\x00", None)),
    "another shape": of_index(of_whole("shape", [], [0], [4], [1, 5], [10**9, 10**9], [1] * 70)),
    "no such dtype": of_index(of_whole("dtype", "float65", "nn", "", "load", "complex128" * 9, None)),
    "paths that are none": of_index(
        lambda index, source: put(WHOLE, [], [-1], ["a"] * 99, [10**30])(index["paths"], source)
    ),
    "an object that is none": of_object,
    "an archive that is none": of_archive,
    "another kind": of_kind,
    "an index that is none": index_bytes,
    "a body that is none": sealed_bytes,
    "too deep": deepen,
}
AFTER_THE_SEAL = ("a body that is none", "too deep")


def forge(honest: Path, directory: Path, kind: str, seed: int) -> None:
    """A copy of the checkpoint directory `honest` with a forgery of that kind in it."""
    shutil.copytree(honest, directory)
    folder = Folder.of(directory / NAME)
    FORGERIES[kind](folder, random.Random(f"{kind} {seed}"))
    if kind not in AFTER_THE_SEAL:
        folder.seal()
