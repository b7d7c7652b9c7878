"""Writing a safetensors file, one tensor after the other."""

import os
from pathlib import Path

from holdfast.checkpoint.convert import safetensorsformat
from holdfast.checkpoint.convert.content import Source, bytes_of
from holdfast.checkpoint.convert.fresh import fresh
from holdfast.checkpoint.convert.safetensorsformat import NAMES
from holdfast.checkpoint.errors import Unfit


def write_safetensors(source: Source, target: Path) -> None:
    """Raises Unfit, with the names, when there is anything that such a file cannot hold; else as `source` does,
    and OSError.
    """
    contents = source.contents
    if contents.objects:
        raise Unfit(
            f"safetensors holds tensors only, and these are none: {_some(contents.objects)}; leave them out with "
            "--tensors-only, or choose a part with --select"
        )
    strange = [f"{name} ({shape})" for name, shape in contents.tensors.items() if shape.dtype not in NAMES]
    if strange:
        raise Unfit(f"safetensors has no such dtype: {_some(strange)}")
    with fresh(target) as path, open(path, "xb") as file:
        file.write(safetensorsformat.header(contents))
        for name in safetensorsformat.order(contents.tensors):
            file.write(bytes_of(source.tensor(name)))
        file.flush()
        os.fsync(file.fileno())


def _some(names: "list[str] | tuple[str, ...]") -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more
