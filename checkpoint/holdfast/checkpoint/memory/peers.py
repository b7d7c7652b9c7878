"""Every transfer server a worker may ask, each connection used again, and nobody waited for twice."""

import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from holdfast.checkpoint.manifest import hash_block
from holdfast.checkpoint.memory.channel import Misspoken
from holdfast.checkpoint.memory.client import Peer

T = TypeVar("T")

PATIENCE_S = 5.0
_SHUNNED_S = 30.0
_ASKED_MAX = 16  # A block is with its rank's node and keepers, or nowhere: a large job is not searched through.


class Peers:
    """Connections by address, for any number of threads. `close` when the restore is over."""

    def __init__(self, key: str, *, patience_s: float = PATIENCE_S) -> None:
        self._key = key
        self._patience_s = patience_s
        self._idle: dict[str, list[Peer]] = {}
        self._shunned_until_s: dict[str, float] = {}
        self._lock = threading.Lock()

    def ask(self, address: str, question: Callable[[Peer], T]) -> T:
        """The answer. Raises OSError; after that nobody at this address is asked for a while."""
        peer = self._take(address)
        try:
            answer = question(peer)
        except Misspoken:  # It is there and well, but has not what was asked for.
            peer.close()
            raise
        except OSError:
            peer.close()
            self._shun(address)
            raise
        except BaseException:
            peer.close()
            raise
        with self._lock:
            self._idle.setdefault(address, []).append(peer)
        return answer

    def block(self, wanted: str, addresses: Iterable[str]) -> bytes | None:
        """The block with this hash from the first that has it, verified; None when nobody does."""
        ends_s = time.monotonic() + self._patience_s
        for address in list(addresses)[:_ASKED_MAX]:
            if time.monotonic() > ends_s:
                break
            try:
                found = self.ask(address, lambda peer: peer.block(wanted))
            except OSError:
                continue
            if hash_block(found) == wanted:
                return found
        return None

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, {}
        for peers in idle.values():
            for peer in peers:
                peer.close()

    def _take(self, address: str) -> Peer:
        with self._lock:
            if self._shunned_until_s.get(address, 0.0) > time.monotonic():
                raise ConnectionError(f"{address} did not answer a moment ago")
            if self._idle.get(address):
                return self._idle[address].pop()
        try:
            return Peer(address, self._key, patience_s=self._patience_s)
        except OSError:
            self._shun(address)
            raise

    def _shun(self, address: str) -> None:
        with self._lock:
            self._shunned_until_s[address] = time.monotonic() + _SHUNNED_S
