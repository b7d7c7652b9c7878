"""What one watchdog keeps of the workers of all jobs, in memory alone: nothing is decided by it."""

from dataclasses import dataclass, field

from holdfast.watchdog.server.scalarshelf import ScalarShelf
from holdfast.watchdog.server.workeroutput import OutputShelf


@dataclass(frozen=True, slots=True)
class Shelves:
    """The end of what workers wrote, and what their scripts logged."""

    outputs: OutputShelf = field(default_factory=OutputShelf)
    scalars: ScalarShelf = field(default_factory=ScalarShelf)

    def forget(self, job: str) -> None:
        """The job is gone for good."""
        self.outputs.forget(job)
        self.scalars.forget(job)
