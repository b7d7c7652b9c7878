"""One process, a tiny model and a directory: enough for everything that happens to files."""

import errno
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from msgspec import structs

from holdfast.api.round import Follows, Restore, Tier
from holdfast.checkpoint import Checkpointer, Standalone
from holdfast.checkpoint.commit.storage import Storage
from holdfast.checkpoint.format.manifest import FileRecord
from holdfast.checkpoint.storage.local import LocalFile, LocalStorage

NEWEST = Restore(tier=Tier.CHECKPOINT)


class Witness(Standalone):
    """A run of one rank that writes down what it is told."""

    def __init__(self, *, round: int = 0, restore: Restore | None = None) -> None:
        # Rounds that are numbered are numbered by somebody: they belong to one life of a job.
        owner = "solo" if round else ""
        super().__init__(round=round, restore=structs.replace(restore or NEWEST, owner=owner))
        self.commits: list[tuple[int, str, int]] = []
        self.restores: list[tuple[int | None, tuple[str, ...]]] = []

    def committed(
        self, step: int, uri: str, /, *, round: int, wanted: int | None, stall_s: float, took_s: float
    ) -> None:
        self.commits.append((step, uri, round))

    def restored(
        self,
        step: int | None,
        skipped: tuple[str, ...],
        /,
        *,
        tier: Tier,
        healed: tuple[str, ...],
        follows: tuple[Follows, ...],
        until: int | None,
    ) -> None:
        self.restores.append((step, skipped))


@dataclass
class Solo:
    """A training loop on one rank; its whole state is one weight vector, so that it is easy to look at."""

    directory: Path
    round: int = 0
    restore: Restore = NEWEST
    every_steps: int | None = 1
    keep: int = 3
    storage: Storage | None = None
    steps: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.run = Witness(round=self.round, restore=self.restore)
        self.model = torch.nn.Linear(4, 1, bias=False)
        torch.nn.init.constant_(self.model.weight, 0.5)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.checkpointer = Checkpointer(
            self.run,
            model=self.model,
            optimizer=self.optimizer,
            uri=self.directory.as_uri(),
            every_steps=self.every_steps,
            keep=self.keep,
            storage=self.storage,
        )

    def train(self, until: int) -> "Solo":
        batches = [torch.full((1, 4), float(number)) for number in range(100)]
        assert self.checkpointer.epoch >= 0, "asked for, so that the first call goes on with it"
        for step, batch in self.checkpointer.steps(batches, until=until):
            self.model(batch * 1e-3).sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.steps.append(step)
        return self

    @property
    def weights(self) -> list[float]:
        return [float(weight) for weight in self.model.weight.detach().flatten()]


class FullDisk(LocalStorage):
    """Has no space left for the next `failures` files that hold tensors."""

    failures = 0

    def write(self, name: str, parts: Sequence[memoryview]) -> FileRecord:
        if self.failures and name.endswith(".distcp"):
            self.failures -= 1
            raise OSError(errno.ENOSPC, "No space left on device", name)
        return super().write(name, parts)


class StaleHandle(LocalStorage):
    """Cannot read the files named `ending` while it is stale."""

    is_stale = True

    def __init__(self, root: Path, ending: str) -> None:
        super().__init__(root)
        self._ending = ending

    def read(self, name: str, offset: int, length_bytes: int) -> bytes:
        if self.is_stale and name.endswith(self._ending):
            raise OSError(errno.ESTALE, "Stale file handle", name)
        return super().read(name, offset, length_bytes)

    def open(self, name: str) -> LocalFile:
        if self.is_stale and name.endswith(self._ending):
            raise OSError(errno.ESTALE, "Stale file handle", name)
        return super().open(name)


def committed(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("step-*"))
