"""Prints what one part of Holdfast needs, as pip reads it: `requirements.py EXTRA`, beside pyproject.toml.

Installed before Holdfast itself, it makes a layer that changes only with pyproject.toml.
"""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
needs = [*project["dependencies"], *project["optional-dependencies"][sys.argv[1]]]
sys.stdout.write("\n".join(needs) + "\n")
