"""How the ranks of one Checkpointer agree: bytes over a gloo group of their own.

The trainer's groups are never used: a collective of a background thread between two of the training loop's
would make both wait for each other for ever. All ranks open theirs at the same place of their program.
"""

from datetime import timedelta

import torch
import torch.distributed as dist

from holdfast.api.control import Assignment
from holdfast.api.errors import InvalidInput, Problem

# A collective waits for the slowest rank's write. A rank that died ends it at once; one that hangs is
# somebody else's to find, so this bound only has to be finite.
_PATIENCE = timedelta(minutes=30)


class SaveGroup:
    """Every method but `send` and `receive` is a collective; one thread at a time may use it."""

    def __init__(self, assignment: Assignment) -> None:
        self.rank = assignment.rank
        self.world_size = assignment.world_size
        self._process_group: dist.ProcessGroup | None = None
        if self.world_size > 1:
            if not dist.is_initialized() or dist.get_world_size() != self.world_size:
                fix = "initialise torch.distributed with that many ranks before the Checkpointer is made"
                raise InvalidInput(Problem(field="world_size", value=self.world_size, fix=fix))
            opened = dist.new_group(backend="gloo", timeout=_PATIENCE)
            assert isinstance(opened, dist.ProcessGroup)
            self._process_group = opened

    def exchange(self, words: bytes) -> list[bytes]:
        """What every rank says, in rank order."""
        if self._process_group is None:
            return [words]
        sizes = self._sizes(words)
        heard = [_blank(max(sizes)) for _ in sizes]
        dist.all_gather(heard, _padded(words, max(sizes)), group=self._process_group)
        return [_bytes(tensor, size) for tensor, size in zip(heard, sizes, strict=True)]

    def gather(self, words: bytes) -> list[bytes]:
        """On rank 0 what every rank says, in rank order; elsewhere an empty list."""
        if self._process_group is None:
            return [words]
        sizes = self._sizes(words)
        heard = [_blank(max(sizes)) for _ in sizes] if self.rank == 0 else None
        dist.gather(_padded(words, max(sizes)), heard, dst=0, group=self._process_group)
        return [_bytes(tensor, size) for tensor, size in zip(heard or (), sizes, strict=False)]

    def broadcast(self, words: bytes) -> bytes:
        """What rank 0 says; what the others give is not heard."""
        if self._process_group is None:
            return words
        size = torch.tensor([len(words)])
        dist.broadcast(size, src=0, group=self._process_group)
        said = _padded(words, int(size)) if self.rank == 0 else _blank(int(size))
        dist.broadcast(said, src=0, group=self._process_group)
        return _bytes(said, int(size))

    def any(self, mine: bool) -> bool:
        """Whether any rank says so."""
        if self._process_group is None:
            return mine
        said = torch.tensor([int(mine)])
        dist.all_reduce(said, dist.ReduceOp.MAX, group=self._process_group)
        return bool(said)

    def send(self, content: memoryview, *, to: int, tag: int) -> dist.Work:
        """Give `content`, which is not to change before the work is done, to a rank that receives it under the
        same tag. Between two ranks only; `receive` likewise.
        """
        tensor = torch.frombuffer(content, dtype=torch.uint8)
        work = dist.isend(tensor, dst=to, group=self._process_group, tag=tag)
        assert work is not None  # Only a rank outside of the group gets none.
        return work

    def receive(self, memory: memoryview, *, source: int, tag: int) -> dist.Work:
        """Fill `memory` with what `source` sends."""
        tensor = torch.frombuffer(memory, dtype=torch.uint8)
        work = dist.irecv(tensor, src=source, group=self._process_group, tag=tag)
        assert work is not None
        return work

    def close(self) -> None:
        """Give the group back. Not a collective; afterwards nobody may speak."""
        if self._process_group is not None and dist.is_initialized():
            dist.destroy_process_group(self._process_group)
        self._process_group = None

    def _sizes(self, words: bytes) -> list[int]:
        sizes = [torch.empty(1, dtype=torch.int64) for _ in range(self.world_size)]
        dist.all_gather(sizes, torch.tensor([len(words)]), group=self._process_group)
        return [int(size) for size in sizes]


def _blank(size: int) -> torch.Tensor:
    return torch.zeros(max(size, 1), dtype=torch.uint8)  # gloo refuses to send nothing at all


def _padded(words: bytes, size: int) -> torch.Tensor:
    return torch.frombuffer(bytearray(words.ljust(max(size, 1), b"\0")), dtype=torch.uint8)


def _bytes(tensor: torch.Tensor, size: int) -> bytes:
    return tensor[:size].numpy().tobytes()
