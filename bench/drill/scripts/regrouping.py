"""One rank that leaves and comes back, again and again: how long the ranks take until they train together.

    python regrouping.py RANK SIZE anew|kept ROUNDS PORT

The last rank leaves in each round, and the others go on without it; then it is back. `anew` is what the trainer
does: the group is aborted, destroyed and formed again, and what torch remembers is forgotten. `kept` reconfigures
the default group in place. PORT is where the ranks wait for each other, which is not in the times. Rank 0 prints
for each round the slowest rank's seconds, as JSON.
"""

import json
import socket
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist

from holdfast.api.control import Assignment
from holdfast.api.round import Endpoint, Restore
from holdfast.trainer.group import RoundGroup
from holdfast.trainer.torchcaches import CACHES

WITHIN = timedelta(seconds=60)


class Anew:
    """As the trainer does it between two rounds in one process."""

    def __init__(self, meeting: dist.TCPStore, rank: int) -> None:
        self._meeting, self._rank = meeting, rank
        self._group: RoundGroup | None = None

    def prepare(self, number: int) -> None:
        """Where rank 0 will be is in the round that the watchdog begins."""
        if self._rank == 0:
            with socket.create_server(("127.0.0.1", 0)) as free:
                self._meeting.set(f"port {number}", str(free.getsockname()[1]))
        self._port = int(self._meeting.get(f"port {number}"))

    def enter(self, number: int, size: int) -> None:
        part = Assignment(
            job="bench/regrouping",
            round=number,
            rank=self._rank,
            local_rank=self._rank,
            world_size=size,
            local_size=size,
            endpoint=Endpoint("127.0.0.1", self._port),
            restore=Restore(),
            reason="bench",
        )
        self._group = RoundGroup(part, backend="gloo", timeout_s=WITHIN.total_seconds())
        self._group.form(lambda: None)

    def regroup(self, number: int, size: int) -> None:
        before = self._group
        self.leave()
        self.enter(number, size)
        if before is not None:
            before.release()

    def leave(self) -> None:
        if self._group is not None:
            self._group.abort()
            self._group.close()
            self._group = None


class Kept:
    """The default group is reconfigured: survivors keep it, a newcomer makes one."""

    def __init__(self, meeting: dist.TCPStore, rank: int) -> None:
        self._meeting, self._rank = meeting, rank

    def prepare(self, number: int) -> None:
        """A newcomer's group is there before the others wait for it, as a warm process would have it."""
        if not dist.is_initialized():
            store = dist.PrefixStore("kept", self._meeting)
            dist.init_process_group(
                "gloo", store=store, rank=self._rank, world_size=64, timeout=WITHIN, enable_reconfigure=True
            )

    def enter(self, number: int, size: int) -> None:
        self._meeting.set(f"handle {number} {self._rank}", dist._get_reconfigure_handle())
        handles = [self._meeting.get(f"handle {number} {each}").decode() for each in range(size)]
        dist._reconfigure(number + 1, handles, timeout=WITHIN).wait()

    regroup = enter

    def leave(self) -> None:
        dist.destroy_process_group()
        CACHES.forget()  # a newcomer's group has the first name again


def wait_for(meeting: dist.TCPStore, what: str, ranks: int) -> None:
    """Until so many are here."""
    if meeting.add(what, 1) == ranks:
        meeting.set(f"{what}: all", "")
    meeting.get(f"{what}: all")


def together(meeting: dist.TCPStore, what: str, ranks: Sequence[int], mine: int, do: Callable[[], None]) -> float:
    """The slowest rank's seconds until a first sum over them was right."""
    wait_for(meeting, what, len(ranks))
    began = time.perf_counter()
    do()
    value = torch.ones(1)
    dist.all_reduce(value)
    took_s = time.perf_counter() - began
    assert value.item() == len(ranks), value
    meeting.set(f"{what} {mine}", str(took_s))
    return max(float(meeting.get(f"{what} {each}")) for each in ranks)


def main() -> None:
    rank, size, rounds, port = (int(sys.argv[each]) for each in (1, 2, 4, 5))
    meeting = dist.TCPStore("127.0.0.1", port, None, rank == 0, timeout=WITHIN, wait_for_workers=False)
    part: Anew | Kept = Kept(meeting, rank) if sys.argv[3] == "kept" else Anew(meeting, rank)
    everybody, is_last = range(size), rank == size - 1
    part.prepare(0)
    together(meeting, "begin", everybody, rank, lambda: part.enter(0, size))
    for number in range(1, 2 * rounds, 2):
        if is_last:
            part.leave()
        else:
            part.prepare(number)
        wait_for(meeting, f"left {number}", size)
        if not is_last:
            part_of = range(size - 1)
            left_s = together(meeting, f"less {number}", part_of, rank, partial(part.regroup, number, size - 1))
        part.prepare(number + 1)
        joined_s = together(meeting, f"more {number}", everybody, rank, partial(part.regroup, number + 1, size))
        if rank == 0:
            print(json.dumps({"left_s": left_s, "joined_s": joined_s}), flush=True)
    wait_for(meeting, "end", size)


if __name__ == "__main__":
    main()
