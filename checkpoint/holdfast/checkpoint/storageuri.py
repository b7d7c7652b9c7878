"""Which kind of storage a uri names."""

import os
from collections.abc import Callable
from importlib import import_module
from urllib.parse import urlsplit

from holdfast.api.errors import InvalidInput, Problem
from holdfast.checkpoint.local import LocalStorage, parse_uri
from holdfast.checkpoint.objects.bucket import Bucket
from holdfast.checkpoint.objects.objectstorage import ObjectStorage
from holdfast.checkpoint.signing import given_keys
from holdfast.checkpoint.storage import Storage

_LOCAL = ("", "file")
_CLOUD = ("s3", "gs", "az", "abfs", "abfss")


def storage_at(uri: str) -> Storage:
    """The storage that `uri` names: a path, file:///path, s3://, gs:// or az://bucket/prefix, or any other uri
    that an fsspec driver is installed for. Nothing is asked of it yet. Its manifests are signed with the keys that
    the environment names, if it does (`signing.KEY_FILE_VARIABLE`).

    Raises InvalidInput when the uri names no place, what is needed to get there is not installed, or the keys
    cannot be used.
    """
    keys = given_keys(os.environ)
    scheme = urlsplit(uri).scheme if "://" in uri else ""
    if scheme in _LOCAL:
        return LocalStorage(parse_uri(uri), keys)
    module, kind = ("cloud", "CloudBucket") if scheme in _CLOUD else ("fsspecbucket", "FsspecBucket")
    try:
        open_bucket: Callable[[str], Bucket] = getattr(import_module(f"{__package__}.objects.{module}"), kind)
        return ObjectStorage(open_bucket(uri), keys)
    except ImportError as error:
        wanted = (
            "pip install holdfast[objects]" if scheme in _CLOUD else f"install the fsspec driver of {scheme}://"
        )
        raise InvalidInput(Problem(field="checkpoint.uri", value=uri, fix=f"{wanted} ({error})")) from error
    except ValueError as error:
        fix = f"write a path, file:///path, or s3://, gs:// or az://bucket/prefix ({error})"
        raise InvalidInput(Problem(field="checkpoint.uri", value=uri, fix=fix)) from error
