"""Which storage a uri names, and what a person writes to name a checkpoint in it."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from urllib.parse import urlsplit

from holdfast.api.errors import InvalidInput, Problem
from holdfast.checkpoint.commit.discovery import committed_step
from holdfast.checkpoint.commit.storage import Storage
from holdfast.checkpoint.format.manifest import given_keys
from holdfast.checkpoint.storage.bucket import Bucket
from holdfast.checkpoint.storage.local import LocalStorage, parse_uri
from holdfast.checkpoint.storage.objectstorage import ObjectStorage

_LOCAL = ("", "file")
_CLOUD = ("s3", "gs", "az", "abfs", "abfss")


def storage_at(uri: str) -> Storage:
    """The storage that `uri` names: a path, file:///path, s3://, gs:// or az://bucket/prefix, or any other uri
    that an fsspec driver is installed for. Nothing is asked of it yet. Its manifests are signed with the keys that
    the environment names, if it does (`manifest.KEY_FILE_VARIABLE`).

    Raises InvalidInput when the uri names no place, what is needed to get there is not installed, or the keys
    cannot be used.
    """
    keys = given_keys(os.environ)
    if _scheme(uri) in _LOCAL:
        return LocalStorage(parse_uri(uri), keys)
    return ObjectStorage(bucket_at(uri), keys)


def _scheme(uri: str) -> str:
    return urlsplit(uri).scheme if "://" in uri else ""


def bucket_at(uri: str) -> Bucket:
    """The objects at s3://, gs:// or az://bucket/prefix, or at any uri that an fsspec driver is installed for.

    Raises InvalidInput when the uri names no place, or what is needed to get there is not installed.
    """
    scheme = _scheme(uri)
    module, kind = ("cloud", "CloudBucket") if scheme in _CLOUD else ("fsspecbucket", "FsspecBucket")
    try:
        open_bucket: Callable[[str], Bucket] = getattr(import_module(f"{__package__}.{module}"), kind)
        return open_bucket(uri)
    except ImportError as error:
        wanted = (
            "pip install holdfast[objects]" if scheme in _CLOUD else f"install the fsspec driver of {scheme}://"
        )
        raise InvalidInput(Problem(field="checkpoint.uri", value=uri, fix=f"{wanted} ({error})")) from error
    except ValueError as error:
        fix = f"write a path, file:///path, or s3://, gs:// or az://bucket/prefix ({error})"
        raise InvalidInput(Problem(field="checkpoint.uri", value=uri, fix=fix)) from error


@dataclass(frozen=True, slots=True)
class Address:
    """A directory, or a prefix of an object store, and the step of one checkpoint in it; None: all are meant."""

    storage: Storage
    step: int | None

    def narrowed(self, step: int | None) -> int | None:
        """The step that is meant where `step` is asked for besides; None as above. Raises InvalidInput when the
        address names another.
        """
        if self.step is not None and step not in (None, self.step):
            fix = f"the address names step {self.step} already"
            raise InvalidInput(Problem(field="--step", value=step, fix=fix))
        return self.step if step is None else step


def is_local(uri: str) -> bool:
    """Whether it names a file or folder of this machine's file systems."""
    return "://" not in uri or uri.startswith("file:")


def read_address(uri: str) -> Address:
    """`DIRECTORY` or `DIRECTORY/step-00000012`. Raises InvalidInput when it names no place, or no folder that is
    there.
    """
    whole = uri.rstrip("/")
    if is_local(uri):
        path = parse_uri(whole or "/")
        if not path.is_dir():
            fix = "name a directory of checkpoints, or one step-… in it"
            raise InvalidInput(Problem(field="uri", value=uri, fix=fix))
        whole = str(path)
    root, _, last = whole.rpartition("/")
    step = committed_step(last)
    return Address(storage_at(whole if step is None else root or "/"), step)
