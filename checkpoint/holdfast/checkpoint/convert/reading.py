"""A checkpoint of any format that is known, opened."""

from pathlib import Path

from holdfast.api.errors import InvalidInput, Problem
from holdfast.checkpoint.address import is_local, read_address
from holdfast.checkpoint.catalogue import catalogue, choose
from holdfast.checkpoint.convert import dcpmetadata
from holdfast.checkpoint.convert.content import Source
from holdfast.checkpoint.convert.dcpsource import DcpSource
from holdfast.checkpoint.convert.holdfastsource import HoldfastSource
from holdfast.checkpoint.convert.safetensorssource import SafetensorsSource
from holdfast.checkpoint.convert.torchsource import TorchSource
from holdfast.checkpoint.local import parse_uri
from holdfast.checkpoint.naming import committed_step

_SUFFIX = ".safetensors"


def open_source(uri: str, step: int | None = None) -> Source:
    """A Holdfast directory or object store (its newest checkpoint, or that of `step`) or one `step-…` in it, a
    directory of torch.distributed.checkpoint, a safetensors file or a directory of them, or a file of torch.save.

    Raises InvalidInput when it is none of these, or has no steps to choose from.
    """
    if not is_local(uri) or _is_holdfast(parse_uri(uri)):
        address = read_address(uri)
        return HoldfastSource(
            address.storage, choose(catalogue(address.storage).entries, address.narrowed(step)).name
        )
    if step is not None:
        fix = f"{uri} is no directory of checkpoints: leave the step out"
        raise InvalidInput(Problem(field="--step", value=step, fix=fix))
    return _foreign(uri, parse_uri(uri))


def _is_holdfast(path: Path) -> bool:
    if not path.is_dir():
        return False
    return any(committed_step(name) is not None for name in (path.name, *(each.name for each in path.iterdir())))


def _foreign(uri: str, path: Path) -> Source:
    if path.is_file():
        return SafetensorsSource([path]) if path.suffix == _SUFFIX else TorchSource(path)
    if not path.is_dir():
        raise InvalidInput(Problem(field="source", value=uri, fix="name a file or directory that exists"))
    names = {each.name for each in path.iterdir()}
    if dcpmetadata.FILE_NAME in names:
        return DcpSource(path)
    parts = sorted(path / name for name in names if Path(name).suffix == _SUFFIX)
    if parts:
        return SafetensorsSource(parts)
    fix = "name a checkpoint of Holdfast or torch.distributed.checkpoint, safetensors, or a file of torch.save"
    raise InvalidInput(Problem(field="source", value=uri, fix=fix))
