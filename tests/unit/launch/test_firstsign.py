"""The first sign of training of a script that publishes nothing."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from holdfast.agent.launch.firstsign import OUTPUT_LOOKS, FirstSigns


def test_a_connection_to_the_rounds_store_is_a_sign_told_once(tmp_path: Path) -> None:
    seen: list[int] = []
    signs = FirstSigns(seen.append)
    with socket.create_server(("127.0.0.1", 0)) as store:
        port = store.getsockname()[1]
        # A program that starts Python, as a shell script does.
        connect = f"s=socket.create_connection(('127.0.0.1',{port}))"
        meet = f"import socket,time; {connect}; print(1,flush=True); time.sleep(60)"
        command = ["/bin/sh", "-c", 'while read line; do "$0" -c "$line"; done', sys.executable]
        worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        try:
            assert worker.stdin is not None
            assert worker.stdout is not None
            signs.watch(worker.pid, port=port, log=tmp_path / "none", offset=0)
            signs.look()
            assert seen == [], "it imports"
            worker.stdin.write(f"{meet}\n".encode())
            worker.stdin.flush()
            assert worker.stdout.readline() == b"1\n"
            signs.look()
            signs.look()
            assert seen == [worker.pid]
        finally:
            os.killpg(worker.pid, 9)
            worker.communicate()


def test_steady_output_is_a_sign_and_a_burst_of_warnings_is_none(tmp_path: Path) -> None:
    seen: list[int] = []
    signs = FirstSigns(seen.append, proc=tmp_path / "no-proc")
    log = tmp_path / "log"
    log.write_text("of an earlier worker\n")
    signs.watch(7, port=29500, log=log, offset=log.stat().st_size)
    signs.watch(8, port=29500, log=log, offset=0)
    signs.forget(8)
    for _ in range(OUTPUT_LOOKS - 1):
        log.write_text(log.read_text() + "warning\n")
        signs.look()
    signs.look()
    assert seen == [], "it fell silent"
    for _ in range(OUTPUT_LOOKS):
        log.write_text(log.read_text() + "step\n")
        signs.look()
    assert seen == [7]


def test_a_process_that_is_gone_shows_nothing(tmp_path: Path) -> None:
    seen: list[int] = []
    signs = FirstSigns(seen.append)
    signs.watch(2**22 + 1, port=1, log=tmp_path / "none", offset=0)
    signs.look()
    assert seen == []
