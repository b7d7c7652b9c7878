"""Names of torch's that are private: any release may rename one, or take it away.

What uses some is one module for each purpose, which lists them with what becomes of Holdfast without each.
`make bench NAME=versions` prints the lists beside what a torch has; docs/versions.md tells more.
"""

import importlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TorchName:
    """`name` in `module`, with dots where it is an attribute of something there, and what happens `without` it."""

    module: str
    name: str
    without: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"

    def holder(self) -> tuple[object, str]:
        """What has it, and as which attribute. Raises ImportError and AttributeError where this torch lacks it."""
        found: object = importlib.import_module(self.module)
        *outer, last = self.name.split(".")
        for each in outer:
            found = getattr(found, each)
        getattr(found, last)
        return found, last

    @property
    def is_there(self) -> bool:
        """Whether the torch that is installed has it."""
        try:
            self.holder()
        except (ImportError, AttributeError):
            return False
        return True
