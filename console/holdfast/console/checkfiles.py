"""Checks of an installation, read from a folder of files."""

from pathlib import Path
from typing import Final

from holdfast.api.errors import InvalidInput, Problem, Unavailable
from holdfast.console.runbook.check import Check
from holdfast.console.runbook.table import CHECKS
from holdfast.console.runbook.written import read_check, refuse_twins, runnable

FILES_MAX: Final = 500
_ENDINGS: Final = (".yaml", ".yml")


def checks_in(folder: Path) -> tuple[Check, ...]:
    """Every check in the folder's own .yaml files, by name; those that begin with a dot are passed over, as a
    mounted ConfigMap has them. Raises InvalidInput for the first that is none, Unavailable.
    """
    if not folder.is_dir():
        raise InvalidInput(Problem("--checks", str(folder), "name a folder of checks, a .yaml file each"))
    try:
        files = [
            each
            for each in sorted(folder.iterdir())
            if each.suffix in _ENDINGS and not each.name.startswith(".") and each.is_file()
        ]
        if len(files) > FILES_MAX:
            raise InvalidInput(Problem("--checks", f"{len(files)} files", f"keep at most {FILES_MAX} in a folder"))
        found = [read_check(each.read_bytes(), str(each)) for each in files]
    except OSError as error:
        raise Unavailable(f"the checks in {folder} cannot be read: {error}") from error
    refuse_twins(found, [each.id for each in CHECKS])
    return tuple(runnable(each) for each in found)
