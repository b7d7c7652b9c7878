"""Which code runs: the commit, what differs from it, and hashes of the program's own files. For `api.runmanifest`.

git is asked in processes of its own that end after `PATIENCE_S`, whatever they wait for. Where it is not there, or
the script lies in no work tree, the hashes alone tell.
"""

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from holdfast.api import runmanifest
from holdfast.api.runmanifest import Code, bounded
from holdfast.api.secrecy import without_secrets

PATIENCE_S: Final = 5.0
"""For each question. A diff of a large work tree on a shared file system takes a second or two."""
_FILE_BYTES_MAX: Final = 4 << 20
_ENVIRONMENT: Final = {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
# No monitor, hook, pager, diff program or text conversion of the work tree's settings is run (a clean filter is,
# as of LFS), and nothing of the work tree is written.
_GIT: Final = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "--no-pager")


class Unanswered(Exception):
    """git did not say; why."""


def code_of(directory: Path, script: Path | None) -> Code:
    """The code of a program that was started in `directory`. Takes up to `PATIENCE_S` three times; never raises
    for what git or a file does.
    """
    files = own_files(directory, script)
    folder = script.parent if script is not None else directory
    shown = bounded(directory)
    try:
        root = _git(folder, "rev-parse", "--show-toplevel", limit=4096)[0].strip()
        commit = _git(folder, "rev-parse", "HEAD", limit=128)[0].strip()
    except Unanswered as why:
        return Code(directory=shown, files=files, unknown=bounded(why))
    try:
        diff, is_cut = _git(folder, *runmanifest.GIT_DIFF, limit=runmanifest.DIFF_BYTES_MAX)
    except Unanswered as why:
        return Code(directory=shown, root=root, commit=commit, files=files, left_out=bounded(why))
    kept = without_secrets(diff)[: runmanifest.DIFF_BYTES_MAX]
    reasons = [f"cut after {runmanifest.DIFF_BYTES_MAX} bytes"] if is_cut else []
    reasons += ["a file is no UTF-8"] if "\N{REPLACEMENT CHARACTER}" in diff else []
    reasons += ["what looks like a secret"] if kept != diff[: runmanifest.DIFF_BYTES_MAX] else []
    return Code(directory=shown, root=root, commit=commit, diff=kept, left_out=" and ".join(reasons), files=files)


def own_files(directory: Path, script: Path | None) -> dict[str, str]:
    """SHA-256 of the script and of what was imported from its folder, by path below `directory`."""
    if script is None:
        return {}
    folder = script.parent.resolve()
    paths = {script.resolve()}
    for module in tuple(sys.modules.values()):
        origin = getattr(module, "__file__", None)
        if not isinstance(origin, str) or not origin.endswith(".py"):
            continue
        path = Path(origin).resolve()
        if path.is_relative_to(folder) and not {"site-packages", "dist-packages"}.intersection(path.parts):
            paths.add(path)
    hashes = {}
    for path in sorted(paths)[: runmanifest.FILES_MAX]:
        try:
            if path.stat().st_size <= _FILE_BYTES_MAX:
                name = bounded(os.path.relpath(path, directory))
                hashes[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError:
            continue
    return hashes


def _git(folder: Path, *words: str, limit: int) -> tuple[str, bool]:
    """What git writes, `limit` bytes at the most, and whether there was more. Raises Unanswered."""
    program = shutil.which("git")
    if program is None:
        raise Unanswered("there is no git")
    command: Sequence[str] = (program, "-C", str(folder), *_GIT, *words)
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **_ENVIRONMENT},
            start_new_session=True,  # a wrapper's own processes end with it
        )
    except OSError as error:
        raise Unanswered(f"git does not start: {error.strerror}") from error
    overdue = threading.Event()

    def end() -> None:
        overdue.set()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(PATIENCE_S, end)
    timer.daemon = True
    timer.start()
    try:
        with process:
            assert process.stdout is not None
            written = process.stdout.read(limit + 1)
            if len(written) > limit:
                process.kill()
    finally:
        timer.cancel()
    if overdue.is_set():
        raise Unanswered(f"git did not answer within {PATIENCE_S:.0f} s ({words[0]})")
    if process.returncode and len(written) <= limit:
        raise Unanswered(f"git answers {words[0]} with exit code {process.returncode}; is this a work tree?")
    return written[:limit].decode(errors="replace"), len(written) > limit
