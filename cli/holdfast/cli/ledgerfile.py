"""A job's ledger as a file beside its checkpoints: there when the job and its watchdog are long gone."""

import os
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from holdfast.api.decoding import decode_json
from holdfast.api.errors import Damaged, InvalidInput, Malformed, Problem, Unavailable
from holdfast.api.ledger import FILE_NAME, VERSION, LedgerReport


def write_ledger(uri: str, report: LedgerReport) -> str:
    """Write the report to a place of checkpoints, or to a .json file; returns where. What was there is replaced,
    seen whole or not at all.

    Raises InvalidInput when the uri names no place, Unavailable when nothing can be written there.
    """
    root, name = _split(uri)
    content = msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n"
    try:
        if _is_local(root):
            _put(_folder(root), name, content)
        else:
            from holdfast.checkpoint.storage.address import bucket_at

            bucket_at(root).put(name, [memoryview(content)])
    except OSError as error:
        raise Unavailable(f"{uri} cannot be written: {error}") from error
    return f"{root.rstrip('/')}/{name}"


def read_ledger(uri: str) -> LedgerReport:
    """The report there: the file, or, at a place of checkpoints without one, what is in the newest checkpoint.

    Raises InvalidInput when there is none, Unavailable, Damaged.
    """
    root, name = _split(uri)
    try:
        if _is_local(root):
            content = (_folder(root) / name).read_bytes()
        else:
            from holdfast.checkpoint.storage.address import bucket_at

            bucket = bucket_at(root)
            content = bytes(bucket.part(name, 0, bucket.size_bytes(name)))
    except (FileNotFoundError, NotADirectoryError):
        content = _in_checkpoints(uri)
    except OSError as error:
        raise Unavailable(f"{uri} cannot be read: {error}") from error
    try:
        report = decode_json(content, LedgerReport)
    except Malformed as error:
        raise Damaged(f"{uri} is no ledger: {error}") from error
    if report.version > VERSION:
        raise Damaged(f"{uri} is a ledger of version {report.version}; this program reads up to {VERSION}")
    return report


def _in_checkpoints(uri: str) -> bytes:
    """Of a run on a cluster its checkpoints alone have it."""
    from holdfast.checkpoint.runs.recorded import open_run

    try:
        found = open_run(uri).cost
    except InvalidInput:
        found = None
    except OSError as error:
        raise Unavailable(f"{uri} cannot be read: {error}") from error
    if found is None:
        fix = f"name a place of checkpoints that holds {FILE_NAME}, or such a file"
        raise InvalidInput(Problem("--file", uri, fix))
    return found


def _split(uri: str) -> tuple[str, str]:
    """The folder or prefix, and the file in it."""
    if not uri.endswith(".json"):
        return uri, FILE_NAME
    root, slash, name = uri.rpartition("/")
    return (root or "/") if slash else ".", name


def _is_local(uri: str) -> bool:
    return "://" not in uri or uri.startswith("file:")


def _folder(uri: str) -> Path:
    return Path(urlsplit(uri).path) if uri.startswith("file:") else Path(uri)


def _put(folder: Path, name: str, content: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    descriptor, path = tempfile.mkstemp(prefix=f".{name}-", dir=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.chmod(path, 0o644)
        os.replace(path, folder / name)
    except BaseException:
        Path(path).unlink(missing_ok=True)
        raise
