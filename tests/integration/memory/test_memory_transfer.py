"""Transfer servers as real processes: copies arrive whole, whoever dies or hangs meanwhile."""

import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from memory_rig import KEY, MIB, Node, Worker, nodes, noise, wait_until
from patience import patient
from silent_strangers import FILES, silent_strangers

from holdfast.checkpoint.format.manifest import record_of
from holdfast.checkpoint.memory import protocol
from holdfast.checkpoint.memory.peers import Peer
from holdfast.checkpoint.memory.protocol import ProtocolError, Which

SLOWLY = ("--mb-s", "8", "--patience-s", "3")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[list[Node]]:
    with nodes(tmp_path, 2) as made:
        yield made


def test_a_copy_is_equal_to_the_last_byte_and_what_a_peer_serves_of_it_as_well(pair: list[Node]) -> None:
    ours, keeper = pair
    content = noise(9 * MIB + 12345)
    buffer = Worker(ours).snapshot(5, content, keeper)
    wait_until(lambda: keeper.held(5))
    wait_until(lambda: (held := buffer.read()) is not None and held.copies == 1)
    held, copy = buffer.read(), keeper.held(5)
    assert held is not None
    assert copy is not None
    assert copy.blocks == held.blocks == record_of([memoryview(content)]).blocks
    assert copy.record == held.record
    which = Which(rank=0, round=1, step=5)
    peer = Peer(keeper.address, KEY)
    for offset, length in ((0, 1), (4 * MIB - 1, 2), (9 * MIB, MIB), (len(content), 5), (0, len(content))):
        found = bytearray(length)
        count = peer.read(which, offset, memoryview(found))
        assert bytes(found[:count]) == content[offset : offset + length]
    assert held.blocks is not None
    assert peer.block(held.blocks[1]) == content[4 * MIB : 8 * MIB]
    with pytest.raises(ProtocolError, match="no such snapshot"):
        peer.read(Which(rank=0, round=1, step=6), 0, memoryview(bytearray(1)))
    peer.close()


def test_two_copies_of_a_rank_take_turns_and_older_ones_are_not_taken(pair: list[Node]) -> None:
    ours, keeper = pair
    worker = Worker(ours)
    for step in range(1, 5):
        worker.snapshot(step, noise(MIB, step), keeper)
        wait_until(lambda step=step: keeper.held(step))
    assert len(list(keeper.folder.glob("*.copy"))) == 2
    assert keeper.held(3) is not None


def test_an_empty_image_is_copied_too(pair: list[Node]) -> None:
    ours, keeper = pair
    Worker(ours).snapshot(1, b"", keeper)
    wait_until(lambda: keeper.held(1))


def test_without_keepers_a_snapshot_still_gets_its_hashes(pair: list[Node]) -> None:
    buffer = Worker(pair[0]).snapshot(1, noise(5 * MIB))
    wait_until(lambda: (held := buffer.read()) is not None and held.blocks is not None)


def test_who_does_not_know_the_key_is_turned_away(pair: list[Node]) -> None:
    Worker(pair[0]).snapshot(1, noise(MIB))
    with pytest.raises(ProtocolError, match="key of the job"):
        Peer(pair[0].address, "another life")


def is_open(connection: socket.socket) -> bool:
    """Whether the other side has not closed it, whatever it has said."""
    connection.settimeout(0.0)
    try:
        while connection.recv(1 << 10):
            pass
    except BlockingIOError:
        return True
    except ConnectionError:
        pass
    return False


def test_strangers_that_say_nothing_keep_nobody_who_knows_the_key_from_a_server(tmp_path: Path) -> None:
    with nodes(tmp_path, 1) as (node,):
        resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE, (FILES, FILES))
        Worker(node).snapshot(1, noise(MIB))
        with silent_strangers(node.port) as strangers:
            known = Peer(node.address, KEY)
            wait_until(lambda: node.held(1))
            which, byte = Which(rank=0, round=1, step=1), memoryview(bytearray(1))
            assert known.read(which, 0, byte) == 1
            # They do not find their time out by saying a little now and then: who comes later, stays longer.
            last = strangers[-1]
            length = last.recv(4)
            last.sendall(length[:1])
            time.sleep(8.0)
            with socket.create_connection(("127.0.0.1", node.port), timeout=patient(20.0)) as later:
                last.sendall(length[1:2])
                last.settimeout(patient(20.0))
                while last.recv(1 << 10):
                    pass
                assert is_open(later)
            assert known.read(which, 0, byte) == 1
        known.close()
        assert "no caller could be taken" not in node.log()


def test_a_dead_keeper_holds_nobody_up_and_gets_its_copy_when_it_is_back(tmp_path: Path) -> None:
    with nodes(tmp_path, 3, "--patience-s", "3") as (ours, dead, alive):
        dead.kill()
        buffer = Worker(ours).snapshot(1, noise(MIB), dead, alive)
        wait_until(lambda: alive.held(1))
        wait_until(lambda: (held := buffer.read()) is not None and held.copies == 1)
        dead.start()
        wait_until(lambda: dead.held(1))
        wait_until(lambda: (held := buffer.read()) is not None and held.copies == 2)


def test_a_keeper_that_hangs_holds_nobody_up_for_ever(tmp_path: Path) -> None:
    with nodes(tmp_path, 3, "--patience-s", "2") as (ours, hanging, alive):
        os.kill(hanging.process.pid, signal.SIGSTOP)
        worker = Worker(ours)
        worker.snapshot(1, noise(MIB), hanging, alive)
        wait_until(lambda: alive.held(1))
        worker.snapshot(2, noise(MIB), hanging, alive)
        worker.snapshot(3, noise(MIB), hanging, alive)
        wait_until(lambda: alive.held(3))


def test_a_server_killed_while_it_copies_starts_anew_and_finishes(tmp_path: Path) -> None:
    with nodes(tmp_path, 2, *SLOWLY) as (ours, keeper):
        content = noise(24 * MIB)
        buffer = Worker(ours).snapshot(1, content, keeper)
        wait_until(lambda: list(keeper.folder.glob("*.copy")))
        ours.kill()
        assert keeper.held(1) is None
        ours.options = ()
        ours.start()
        wait_until(lambda: keeper.held(1))
        wait_until(lambda: (held := buffer.read()) is not None and held.copies == 1)
        assert keeper.content(Which(0, 1, 1), len(content)) == content


def test_a_keeper_killed_while_it_receives_still_has_the_copy_before(tmp_path: Path) -> None:
    with nodes(tmp_path, 2) as (ours, keeper):
        worker = Worker(ours)
        old = noise(12 * MIB, 1)
        worker.snapshot(1, old, keeper)
        wait_until(lambda: keeper.held(1))
        ours.stop()
        ours.options = SLOWLY
        ours.start()
        worker.snapshot(2, noise(12 * MIB, 2), keeper)
        wait_until(lambda: len(list(keeper.folder.glob("*.copy"))) == 2)
        keeper.kill()
        keeper.start()
        assert keeper.content(Which(0, 1, 1), len(old)) == old
        wait_until(lambda: keeper.held(2))


def test_a_snapshot_that_the_rank_overwrites_while_it_is_sent_never_counts(tmp_path: Path) -> None:
    with nodes(tmp_path, 2, *SLOWLY) as (ours, keeper):
        worker = Worker(ours)
        buffer = worker.snapshot(1, noise(12 * MIB, 1), keeper)
        wait_until(lambda: list(keeper.folder.glob("*.copy")))
        buffer.begin()  # As a worker may that took the buffer a moment before it was held.
        buffer.image[: 12 * MIB] = noise(12 * MIB, 2)
        buffer.complete(worker.record(2, 12 * MIB, keeper))
        wait_until(lambda: keeper.held(2))
        assert keeper.held(1) is None
        assert keeper.content(Which(0, 1, 2), 12 * MIB) == noise(12 * MIB, 2)


def test_a_snapshot_that_does_not_match_its_hashes_goes_to_nobody(pair: list[Node]) -> None:
    ours, keeper = pair
    worker = Worker(ours)
    ours.kill()
    buffer = worker.snapshot(1, noise(9 * MIB), keeper)
    buffer.seal(buffer.generation, record_of([buffer.image[: 9 * MIB]]).blocks)
    buffer.image[5 * MIB] ^= 1
    ours.start()
    wait_until(lambda: "differs from its hashes" in ours.log())
    assert keeper.held(1) is None
    worker.snapshot(2, noise(MIB), keeper)
    wait_until(lambda: keeper.held(2))


def test_arenas_deleted_under_the_server_are_no_more_and_new_ones_are_found(pair: list[Node]) -> None:
    ours, keeper = pair
    worker = Worker(ours)
    worker.snapshot(1, noise(MIB), keeper)
    wait_until(lambda: keeper.held(1))
    for node in pair:
        for path in [*node.folder.glob("*.own"), *node.folder.glob("*.copy")]:
            path.unlink()
    worker.snapshot(2, noise(MIB), keeper)
    wait_until(lambda: keeper.held(2))


def test_copies_of_a_round_that_is_over_are_dropped_once_the_next_has_taken_two_steps(pair: list[Node]) -> None:
    ours, keeper = pair
    Worker(ours, rank=3, world_size=4).snapshot(7, noise(MIB), keeper)
    wait_until(lambda: keeper.held(7, rank=3))
    shrunk = Worker(ours, rank=1, world_size=2, round=2)
    shrunk.snapshot(8, noise(MIB), keeper)
    wait_until(lambda: keeper.held(8, rank=1))
    assert keeper.held(7, rank=3) is not None
    shrunk.snapshot(9, noise(MIB), keeper)
    wait_until(lambda: keeper.held(7, rank=3) is None)


def test_what_another_life_of_the_job_left_is_swept_at_the_start(pair: list[Node]) -> None:
    ours, keeper = pair
    Worker(ours).snapshot(1, noise(MIB), keeper)
    wait_until(lambda: keeper.held(1))
    for node in pair:
        node.stop()
        (node.home / "key").write_text("the next life")
        node.start()
        wait_until(lambda node=node: not [*node.folder.glob("*.own"), *node.folder.glob("*.copy")])


def test_a_server_ends_with_its_folder(pair: list[Node]) -> None:
    shutil.rmtree(pair[0].folder)
    assert pair[0].process.wait(timeout=patient(30)) == 0


def test_a_server_ends_when_the_launcher_that_started_it_is_killed(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(KEY)
    script = (
        "import subprocess, sys, time\n"
        "server = subprocess.Popen([sys.executable, '-m', 'holdfast.checkpoint.memory', '--folder', 'memory',"
        " '--key-file', 'key', '--port-file', 'port'])\n"
        "print(server.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    launcher = subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path, stdout=subprocess.PIPE)
    assert launcher.stdout is not None
    number = int(launcher.stdout.readline())
    wait_until((tmp_path / "port").exists)
    launcher.kill()
    launcher.wait(timeout=patient(30))
    launcher.stdout.close()
    wait_until(lambda: not Path(f"/proc/{number}/cmdline").exists() or not _words(number))


def test_a_second_server_of_a_folder_waits_for_the_first(pair: list[Node]) -> None:
    first = pair[0].process
    pair[0].options = ()
    second_told = pair[0].home / "second"
    second = subprocess.Popen(
        [
            *(sys.executable, "-m", "holdfast.checkpoint.memory", "--folder", str(pair[0].folder)),
            *("--port-file", str(second_told), "--key-file", str(pair[0].home / "key")),
        ]
    )
    try:
        wait_until(lambda: _waits_for_lock(second.pid))
        assert not second_told.exists()
        first.kill()
        first.wait(timeout=patient(30))
        wait_until(second_told.exists)
    finally:
        second.terminate()
        assert second.wait(timeout=patient(30)) == 0


def test_the_server_needs_no_torch() -> None:
    script = "import sys, holdfast.checkpoint.memory.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_an_empty_key_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "holdfast.checkpoint.memory", "--folder", str(tmp_path)]
    refused = subprocess.run(command, input=b" \n", capture_output=True, check=False, timeout=patient(60))
    assert refused.returncode == 1
    assert b"the key is empty" in refused.stderr


def test_no_bytes_from_the_network_bring_the_server_down(pair: list[Node]) -> None:
    node = pair[0]
    Worker(node).snapshot(1, noise(MIB))
    wait_until(lambda: node.held(1))
    for seed in range(200):
        _disturb(node, random.Random(seed))
    peer = Peer(node.address, KEY)
    assert peer.read(Which(rank=0, round=1, step=1), 0, memoryview(bytearray(1))) == 1
    peer.close()
    assert node.process.poll() is None
    assert "Traceback" not in node.log()


def _disturb(node: Node, chance: random.Random) -> None:
    """Say nonsense: before the greeting, or after it, or instead of the end of a question."""
    if chance.random() < 0.3:
        connection = socket.create_connection(("127.0.0.1", node.port), timeout=patient(30))
        content = chance.randbytes(chance.choice((1, 3, 4, 5, 50, 5000)))
    else:
        connection = Peer(node.address, KEY)._socket
        content = _broken_question(chance)
    with connection:
        try:
            connection.sendall(content)
            if chance.random() < 0.5:
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 16):
                    pass
        except OSError:
            return  # Hung up on, as is right.


def _broken_question(chance: random.Random) -> bytes:
    which = Which(chance.randrange(-1, 2), chance.randrange(2), chance.randrange(3))
    far = chance.choice((-1, 0, 1, 1 << 40, (1 << 63) - 1))
    question = chance.choice(
        (
            protocol.Read(which, far, chance.choice((-1, 0, 5, 1 << 62))),
            protocol.Block(chance.choice(("", "00", "é" * 9))),
            protocol.Put(Worker.record(_nobody(chance), 1, chance.choice((-5, 0, 10, 1 << 45)))),
        )
    )
    framed = bytearray(protocol.frame(question))
    for _ in range(chance.randrange(3)):
        framed[chance.randrange(len(framed))] ^= 1 << chance.randrange(8)
    return bytes(framed[: chance.randrange(len(framed) + 1)] if chance.random() < 0.3 else framed)


def _nobody(chance: random.Random) -> Worker:
    worker = Worker.__new__(Worker)
    worker.rank, worker.world_size, worker.round = chance.choice((-1, 0, 1, 10**12)), chance.choice((0, 1, 2)), 1
    return worker


def _words(number: int) -> bytes:
    """The command line of a process: empty when it has ended and nobody has asked how."""
    try:
        return Path(f"/proc/{number}/cmdline").read_bytes()
    except OSError:
        return b""


def _waits_for_lock(number: int) -> bool:
    return "->" in Path("/proc/locks").read_text() and f" {number} " in Path("/proc/locks").read_text()
