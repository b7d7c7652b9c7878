"""What a round keeps of its state, and when: snapshots in the nodes' memory, checkpoints in the storage."""

from collections.abc import Collection

from holdfast.api.rankrecord import Phase
from holdfast.checkpoint.capture import Capture
from holdfast.checkpoint.memorytier import MemoryTier
from holdfast.checkpoint.rhythm import SETTLED_AFTER
from holdfast.checkpoint.runport import RunPort
from holdfast.checkpoint.saving import Saving


class Keeping:
    """Every method belongs to the training thread. `memory` None: no snapshots in memory; `saving` None: no
    storage. Saved are the steps that one of `every_steps` divides, the last one, and what the watchdog asks for.
    """

    def __init__(
        self,
        run: RunPort,
        capture: Capture,
        *,
        memory: MemoryTier | None,
        saving: Saving | None,
        every_steps: Collection[int],
    ) -> None:
        self._run = run
        self._capture = capture
        self._memory = memory
        self._saving = saving
        self._every_steps = every_steps
        self._steps = 0

    def completed(self, *, step: int, batches: int) -> None:
        """The loop has completed `step`: keep what is due. All ranks alike."""
        self._steps += 1
        if self._save(step, batches):
            return
        if self._steps in (1, SETTLED_AFTER):
            self._agree(step)
        self._remember(step, batches)

    def finish(self, *, step: int, batches: int) -> None:
        """The loop ends after `step`, which is saved, whatever is due."""
        if self._saving is not None:
            self._saving.finish(step=step, batches=batches)

    def wait(self) -> None:
        """Until no save is in flight."""
        if self._saving is not None:
            self._saving.wait()

    def linger(self, timeout_s: float) -> None:
        """Give the save in flight some time to end."""
        if self._saving is not None:
            self._saving.linger(timeout_s)

    def _agree(self, step: int) -> None:
        """On what each rank keeps in memory, as a save does. Nothing else is said among the ranks meanwhile."""
        if self._memory is None:
            return
        self._run.phase(Phase.CHECKPOINT)
        self.wait()
        self._capture.agree(step=step)

    def _save(self, step: int, batches: int) -> bool:
        """Whether one was due. What is captured for the storage is a snapshot in memory as well."""
        if self._saving is None:
            return False
        wanted = self._run.save_due(step)
        if wanted is None and all(step % each != 0 for each in self._every_steps):
            return False
        self._saving.save(step=step, batches=batches, wanted=wanted)
        return True

    def _remember(self, step: int, batches: int) -> None:
        if self._memory is None or not self._memory.rhythm.is_due(step):
            return
        self._run.phase(Phase.CHECKPOINT)
        self._capture.remember(step=step, batches=batches)
