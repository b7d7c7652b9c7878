"""Prints what a part of Holdfast needs, as pip reads it: `requirements.py EXTRA...`, beside pyproject.toml.

Installed before Holdfast itself, it makes a layer that changes only with pyproject.toml.
"""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
extras = project["optional-dependencies"]
needs = [*project["dependencies"], *(need for extra in sys.argv[1:] for need in extras[extra])]
sys.stdout.write("\n".join(needs) + "\n")
