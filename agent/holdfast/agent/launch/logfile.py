"""A worker's log: one file per rank and round it was started in, both output streams interleaved."""

import os
from pathlib import Path

_TAIL_BYTES = 16 << 10
_TAIL_LINES = 30


def log_path(log_dir: Path, rank: int, round_: int) -> Path:
    """Where the worker started as `rank` in `round_` writes. A worker that re-enters keeps its file."""
    return log_dir / f"rank-{rank:05d}.round-{round_:04d}.log"


def tail(path: Path) -> str:
    """The last lines a human wants to read, empty when there are none or the file cannot be read."""
    try:
        with path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - _TAIL_BYTES))
            text = log.read(_TAIL_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-_TAIL_LINES:])
