"""Mistakes in a script that its start shows at once, and what mends each: nothing is gained by a second try.

Only what happens before any sign of training is looked at, and only what the same files and arguments bring about
on every node. A module that cannot be loaded on one node, while the ranks of others were past that, is that node's
affair: its disk, its mount or its image (`loads`).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.api.membership import WorkerExited

# Source: https://docs.python.org/3/library/argparse.html#argparse.ArgumentParser.error (status 2); click and
# shells end with it as well.
USAGE_CODE: Final = 2
_USAGE: Final = re.compile(r"^usage: |: error: |^Error: |^Usage: ", re.MULTILINE)
# What a script raises while it reads its own files and libraries. A broken disk or mount brings about each.
_LOADING: Final = re.compile(
    r"^(?:[\w.]+\.)?(?:ModuleNotFoundError|ImportError|SyntaxError|IndentationError|TabError|FileNotFoundError"
    r"|NotADirectoryError|PermissionError|ZipImportError|EOFError|UnicodeDecodeError)\b"
    r"|^ValueError: (?:source code string cannot contain null bytes|bad marshal data)"
    r"|^OSError: .*cannot open shared object file"
)


@dataclass(frozen=True, slots=True)
class Mistake:
    """One kind: how an exception tells of it, and what its author does about it."""

    told_by: re.Pattern[str]
    fix: str


NOT_COMPILED: Final = Mistake(
    re.compile(r"^(?:SyntaxError|IndentationError|TabError)\b"),
    "mend the line; python -m py_compile FILE finds such lines without a run",
)
NOT_THERE: Final = Mistake(
    re.compile(r"^ModuleNotFoundError\b|^ImportError: cannot import name\b"),
    "install the module, in the version the script wants, on every node or in the image, or put its folder on "
    "PYTHONPATH",
)
REFUSED: Final = Mistake(_USAGE, "mend the arguments in spec.entrypoint: the script refuses them")
_RAISED: Final[Sequence[Mistake]] = (NOT_COMPILED, NOT_THERE)


def mistake_of(exit: WorkerExited) -> Mistake | None:
    """The mistake that a worker ended with before any sign of training; None: it may be something else."""
    if exit.began or not exit.exit_code:
        return None
    if exit.raised:
        return next((each for each in _RAISED if each.told_by.search(exit.raised)), None)
    return REFUSED if exit.exit_code == USAGE_CODE and _USAGE.search(exit.error) else None


def loads(exit: WorkerExited) -> bool:
    """Whether the worker ended while it read its own files and libraries, before any sign of training."""
    return not exit.began and bool(exit.exit_code) and _LOADING.search(exit.raised) is not None
