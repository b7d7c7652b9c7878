"""The parts of Holdfast, as the package is made of them: the one list is in pyproject.toml."""

import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PARTS: Final[tuple[str, ...]] = tuple(
    tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["dev-mode-dirs"]
)
