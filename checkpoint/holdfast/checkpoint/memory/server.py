"""A node's transfer server: shows peers what lies in the node's memory, keeps copies for them, sends its own."""

import asyncio
import logging
import socket
import time
from functools import partial

from holdfast.checkpoint.memory import protocol
from holdfast.checkpoint.memory.copies import CopyReceiver, CopySender
from holdfast.checkpoint.memory.nodesnapshots import NodeSnapshots, outdated
from holdfast.checkpoint.memory.protocol import (
    PATIENCE_S,
    Block,
    Channel,
    Content,
    ProtocolError,
    Put,
    Question,
    Read,
    Refused,
    welcome,
)
from holdfast.wire.door import ACCEPT_AGAIN_S, HELLO_S, Strangers

_LOG = logging.getLogger(__name__)

POLL_EVERY_S = 0.05
"""A poll costs some tens of microseconds; a snapshot waits for its copy this much longer at the most."""

_CALLERS_MAX = 1024  # Who know the key.
_STRANGERS_MAX = 256
_IDLE_S = 600.0  # A rank that restores may have much to do between two questions.


class TransferServer:
    """Serves `snapshots` on a listening socket until the folder is gone or `serve` is cancelled."""

    def __init__(
        self, snapshots: NodeSnapshots, *, ceiling_bytes_s: float, patience_s: float = PATIENCE_S
    ) -> None:
        self._snapshots = snapshots
        self._receiver = CopyReceiver(snapshots)
        self._sender = CopySender(snapshots, ceiling_bytes_s=ceiling_bytes_s, patience_s=patience_s)
        self._patience_s = patience_s
        self._callers: set[asyncio.Task[None]] = set()
        self._strangers: Strangers[asyncio.Task[None]] = Strangers(_STRANGERS_MAX, _STRANGERS_MAX // 4)
        self._has_tidied = False
        self._unreadable: str | None = None  # why the folder could not be looked at last time

    async def serve(self, listener: socket.socket) -> None:
        """Returns when the folder has been removed: there is nothing to serve any more."""
        accepting = asyncio.create_task(self._accept(listener))
        try:
            while self._poll():  # noqa: ASYNC110 - shared memory tells nobody that it has changed
                await asyncio.sleep(POLL_EVERY_S)
        finally:
            tasks = [accepting, *self._callers]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._sender.stop()

    def _poll(self) -> bool:
        """False when the folder is gone. One that cannot be read now (out of descriptors) may be the next time."""
        try:
            self._snapshots.refresh()
        except FileNotFoundError:
            return False
        except OSError as error:
            if str(error) != self._unreadable:
                _LOG.warning("the memory folder could not be read reason=%s", error)
            self._unreadable = str(error)
            return True
        self._unreadable = None
        if not self._has_tidied:
            self._snapshots.drop(self._snapshots.strays())
            self._has_tidied = True
        self._snapshots.drop(outdated(self._snapshots.all()))
        self._sender.poll(time.monotonic())
        return True

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        listener.settimeout(0)
        while True:
            try:
                connection, source = await loop.sock_accept(listener)
            except OSError as error:  # Out of descriptors, for example.
                _LOG.warning("no caller could be taken reason=%s", error)
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            task = asyncio.create_task(self._attend(connection))
            self._callers.add(task)
            task.add_done_callback(partial(self._left, connection))
            gives_way = self._strangers.come(task, source[0], time.monotonic())
            if gives_way is not None:
                gives_way.cancel()
                await asyncio.wait([gives_way])  # Else many would be taken in before the first of them is closed.

    def _left(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        connection.close()
        self._callers.discard(task)
        self._strangers.forget(task)

    async def _attend(self, connection: socket.socket) -> None:
        peer = Channel(connection, patience_s=self._patience_s)
        try:
            async with asyncio.timeout(HELLO_S):
                await welcome(peer, self._snapshots.owner)
            if len(self._callers) - len(self._strangers) >= _CALLERS_MAX:
                return
            me = asyncio.current_task()
            assert me is not None
            self._strangers.forget(me)
            while True:
                question = await peer.hear(protocol.QUESTIONS, limit=protocol.REQUEST_BYTES_MAX, idle_s=_IDLE_S)
                await self._answer(peer, question)
        except ProtocolError as error:
            _LOG.warning("a caller was turned away reason=%s", error)
        except OSError as error:  # Gone, or it hangs: it will call again.
            _LOG.debug("a caller has left reason=%s", error)
        except Exception:
            _LOG.exception("a caller could not be served")
        finally:
            peer.close()

    async def _answer(self, peer: Channel, question: Question) -> None:
        match question:
            case Read(which, offset, length_bytes):
                found = self._snapshots.find(which)
                if found is None:
                    self._snapshots.refresh()
                    found = self._snapshots.find(which)
                content = None
                if found is not None and offset >= 0 and 0 <= length_bytes <= protocol.READ_BYTES_MAX:
                    file, held = found
                    content = file.buffer.image[: held.record.image_bytes][offset : offset + length_bytes]
                await _show(peer, content)
            case Block(wanted):
                await _show(peer, self._snapshots.find_block(wanted))
            case Put():
                await peer.say(await self._receiver.keep(peer, question))


async def _show(peer: Channel, content: memoryview | None) -> None:
    """What is overwritten meanwhile arrives mixed: who reads has the hashes, and finds out."""
    if content is None:
        await peer.say(Refused("no such snapshot is here"))
        return
    await peer.say(Content(content.nbytes))
    await peer.send(content)
