"""What a view shows, kept as a file that reads as a document.

`UPDATE_GOLDENS=1 pytest --layer unit tests/unit/cli` writes them again; git then shows what users see change.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "goldens"


def assert_golden(name: str, shown: Mapping[str, str]) -> None:
    """Compare with `goldens/NAME.txt` what is shown in each case, which is named by a sentence."""
    text = "\n".join(f"== {case} ==\n{each}\n" for case, each in shown.items())
    file = FOLDER / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDENS"):
        file.write_text(text)
    assert text == file.read_text(), f"{file.name} differs; UPDATE_GOLDENS=1 writes it again"
