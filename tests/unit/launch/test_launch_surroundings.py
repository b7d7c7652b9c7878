"""What a worker finds around it: environment, ports, logs, the store it waits for, the record it leaves."""

import io
import socket
import threading
from pathlib import Path

import pytest

from holdfast.agent.launch import host
from holdfast.agent.launch.child import wait_for_listener
from holdfast.agent.launch.ending import last_completed
from holdfast.agent.launch.host import (
    ReservedPorts,
    _is_free_on_all,
    address_towards,
    gloo_environment,
    interface_of,
    is_loopback,
)
from holdfast.agent.launch.launcher import Outcome
from holdfast.agent.launch.localset import Start
from holdfast.agent.launch.logs import LogFollower, ending, log_path, tail
from holdfast.agent.launch.processes import worker_environment
from holdfast.api.errors import Unavailable
from holdfast.api.rankrecord import (
    SEQUENCE,
    SIZE,
    STEP_OFFSET,
    STEP_SEQUENCE_OFFSET,
    Phase,
    StepZone,
    pack_header,
    pack_step,
)
from holdfast.api.round import Endpoint, Entry, MemberRanks, Restore, Round


def environment_of(host: str, inherited: dict[str, str]) -> dict[str, str]:
    shares = (MemberRanks("a", "n1", 0, 2), MemberRanks("b", "n2", 2, 2))
    round_ = Round("ns/j", 9, shares, Endpoint(host, 1234), Restore(), Entry.RESPAWN, "r")
    seat = round_.seat_of("b")
    assert seat is not None
    return worker_environment(
        Start(1, 1, 3, seat, restarts=2),
        inherited=inherited,
        member="b",
        control=Path("/run/c.sock"),
        run_dir=Path("/run"),
        max_restarts=5,
    )


@pytest.mark.parametrize(
    "name",
    [
        "127.0.1.1",  # as Debian has a host's own name in /etc/hosts
        "203.0.113.9",  # an address of another host
        "a" * 80,  # a label that is too long resolves to nothing, and is asked of nobody
    ],
)
def test_gloo_is_told_the_interface_where_the_hosts_name_does_not_lead_to_it(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(host, "interface_of", {"10.0.0.7": "eth7"}.get)
    assert gloo_environment("10.0.0.7", name=name) == {"GLOO_SOCKET_IFNAME": "eth7"}
    assert gloo_environment("10.0.0.8", name=name) == {}, "behind address translation nobody knows which it is"
    assert gloo_environment("127.0.0.1", name=name) == {}, "a job on one machine"


def test_gloo_is_left_to_a_name_that_leads_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "interface_of", {"10.0.0.7": "eth7"}.get)
    assert gloo_environment("10.0.0.7", name="0.0.0.0") == {}


def test_an_interface_is_known_by_its_address() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("::1") in ("lo", None)  # a host may have no IPv6
    assert interface_of("203.0.113.9") is None
    assert interface_of("2001:db8::9") is None


def test_the_environment_is_torchruns_plus_ours() -> None:
    assert environment_of("10.0.0.1", {"PATH": "/bin", "RANK": "77"}) == {
        "PATH": "/bin",
        "OMP_NUM_THREADS": "1",
        "TORCH_FR_BUFFER_SIZE": "64",
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_NAME": "default",
        "ROLE_RANK": "3",
        "ROLE_WORLD_SIZE": "4",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "1234",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_MAX_RESTARTS": "5",
        "TORCHELASTIC_RUN_ID": "ns/j",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_ERROR_FILE": "/run/error-rank-00003.round-0009.json",
        "HOLDFAST_CONTROL": "/run/c.sock",
        "HOLDFAST_RUN_DIR": "/run",
        "HOLDFAST_JOB": "ns/j",
        "HOLDFAST_MEMBER": "b",
        "HOLDFAST_ROUND": "9",
        "HOLDFAST_RANK": "3",
    }


def test_workers_do_not_get_the_token() -> None:
    given = environment_of("h", {"HOLDFAST_TOKEN": "t", "HOLDFAST_TOKEN_FILE": "f"})
    assert not {"HOLDFAST_TOKEN", "HOLDFAST_TOKEN_FILE"} & given.keys()


def test_gloo_is_kept_on_the_loopback_interface_unless_told_otherwise() -> None:
    assert environment_of("127.0.0.1", {})["GLOO_SOCKET_IFNAME"] == "lo"
    assert environment_of("127.0.0.1", {"GLOO_SOCKET_IFNAME": "eth7"})["GLOO_SOCKET_IFNAME"] == "eth7"
    assert environment_of("127.0.0.1", {"OMP_NUM_THREADS": "8"})["OMP_NUM_THREADS"] == "8"
    assert is_loopback("localhost")
    assert not is_loopback("node-7")


def test_a_port_that_is_in_use_on_another_address_of_the_host_is_not_reserved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_at: list[int] = []

    def is_free(port: int) -> bool:
        looked_at.append(port)
        return len(looked_at) > 2

    monkeypatch.setattr("holdfast.agent.launch.host._is_free_on_all", is_free)
    with ReservedPorts("127.0.0.1", 1) as ports:
        assert list(ports.numbers) == looked_at[2:]
    monkeypatch.setattr("holdfast.agent.launch.host._is_free_on_all", lambda _: False)
    with pytest.raises(Unavailable, match="64 ports in a row are in use on another address"):
        ReservedPorts("127.0.0.1", 1)


def test_a_connection_from_a_port_keeps_a_store_from_having_it() -> None:
    with (
        socket.create_server(("127.0.0.2", 0)) as server,
        socket.create_connection(server.getsockname(), source_address=("127.0.0.3", 0)) as connection,
    ):
        assert not _is_free_on_all(connection.getsockname()[1])


def test_a_reserved_port_is_given_to_nobody_else_and_can_be_listened_on() -> None:
    with ReservedPorts("127.0.0.1", 3) as ports:
        assert len(set(ports.numbers)) == 3
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", ports.numbers[0]))
        with socket.socket(socket.AF_INET6) as store:
            store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            store.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            store.bind(("::", ports.numbers[0]))
            store.listen()
            socket.create_connection(("127.0.0.1", ports.numbers[0])).close()


def test_an_address_that_is_not_this_hosts_own_still_gets_ports() -> None:
    with ReservedPorts("192.0.2.1", 1) as ports:
        assert ports.numbers[0] > 0


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(Unavailable, match="no port can be reserved"):
        ReservedPorts("not an address", 1)


def test_this_hosts_address_is_the_one_towards_the_watchdog() -> None:
    assert address_towards("127.0.0.1", 7000) == "127.0.0.1"
    with pytest.raises(Unavailable, match="cannot be reached"):
        address_towards("no-such-host.invalid", 7000)


def test_a_store_that_listens_late_is_found_within_its_lateness() -> None:
    with ReservedPorts("127.0.0.1", 1) as ports, socket.socket() as store:
        store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        store.bind(("127.0.0.1", ports.numbers[0]))
        late = threading.Timer(0.05, store.listen)
        late.start()
        wait_for_listener("127.0.0.1", ports.numbers[0], timeout_s=30.0)
        late.join()
        socket.create_connection(("127.0.0.1", ports.numbers[0])).close()


def test_waiting_for_a_store_ends_when_it_is_of_no_use() -> None:
    with ReservedPorts("127.0.0.1", 1) as ports:
        wait_for_listener("127.0.0.1", ports.numbers[0], timeout_s=0.01)
    wait_for_listener("no-such-host.invalid", 1, timeout_s=30.0)


def test_the_tail_is_what_a_human_reads_first(tmp_path: Path) -> None:
    path = log_path(tmp_path, 3, 7)
    assert path.name == "rank-00003.round-0007.log"
    assert ending(path, since=0) == ""
    path.write_bytes(b"\xff\n" + b"".join(b"line %d\n" % number for number in range(100_000)))
    assert tail(ending(path, since=0)).splitlines() == [f"line {number}" for number in range(99_970, 100_000)]
    assert ending(path, since=path.stat().st_size - 7) == " 99999\n", (
        "what an earlier process wrote is not its own"
    )


def test_followed_lines_carry_their_rank_and_unfinished_ones_wait(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("of an earlier run\n")
    output = io.StringIO()
    follower = LogFollower(output)
    follower.follow(100, path, rank=3, round_=7, offset=path.stat().st_size)
    with path.open("a") as log:
        log.write("one\ntw")
    follower.rename(100, 3)
    follower.rename(100, 2)
    follower.rename(101, 2)
    follower.finish(100)
    follower.finish(100)
    assert output.getvalue().splitlines() == [
        "[rank3]: holdfast: a worker process begins, pid 100, round 7",
        "[rank3]: one",
        "[rank2]: tw",
    ]


def test_a_line_that_never_ends_is_copied_in_pieces_and_not_kept(tmp_path: Path) -> None:
    """A progress bar goes back to the start of its line for hours; the launcher keeps little of it."""
    path, output = tmp_path / "log", io.StringIO()
    path.touch()
    follower = LogFollower(output)
    follower.follow(100, path, rank=3, round_=7, offset=0)
    with path.open("a") as log:
        log.write("50%\r" * (3 << 20))
    follower.rename(100, 2)
    assert len(output.getvalue()) > (10 << 20)
    follower.finish(100)
    assert output.getvalue().count("50%") >= (3 << 20) - 12


def record(step: int, *, sequence: int = 2) -> bytes:
    zone = StepZone(7, 3, 1, 4, 100, step, Phase.IDLE, 0, 0, 0, 0.0, 0.0, 0, -1)
    raw = bytearray(SIZE)
    raw[: len(pack_header())] = pack_header()
    SEQUENCE.pack_into(raw, STEP_SEQUENCE_OFFSET, sequence)
    packed = pack_step(zone)
    raw[STEP_OFFSET : STEP_OFFSET + len(packed)] = packed
    return bytes(raw)


@pytest.mark.parametrize(
    ("content", "known"),
    [
        (record(41), (7, 41)),
        (record(-1), None),
        (record(41, sequence=3), None),
        (b"", None),
        (b"x" * SIZE, None),
    ],
    ids=["whole", "no step yet", "killed while writing", "empty", "garbage"],
)
def test_the_last_step_is_read_from_the_record_or_unknown(
    tmp_path: Path, content: bytes, known: tuple[int, int] | None
) -> None:
    path = tmp_path / "record"
    path.write_bytes(content)
    assert last_completed(path) == known


def test_a_missing_record_is_unknown(tmp_path: Path) -> None:
    assert last_completed(tmp_path / "missing") is None


def test_the_exit_status_says_how_it_ended() -> None:
    assert Outcome(succeeded=True, reason="").exit_status == 0
    assert Outcome(succeeded=False, reason="").exit_status == 1
    assert Outcome(succeeded=False, reason="", signal=15).exit_status == 143
