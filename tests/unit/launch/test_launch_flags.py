import math
from pathlib import Path

import click.testing
import pytest

from holdfast.agent.launch.command import launch
from holdfast.agent.launch.forking import EntrypointKind
from holdfast.agent.launch.host import cpu_count, gpu_count
from holdfast.agent.launch.settings import (
    Entrypoint,
    Flags,
    Tee,
    credential_of,
    job_of,
    local_size_of,
    settings_of,
    tee_of,
)
from holdfast.api.errors import InvalidInput
from holdfast.wire.access import Address


def flags(script: Path, **given: object) -> Flags:
    defaults: dict[str, object] = {
        "entrypoint": (str(script), "--lr", "1"),
        "nnodes": "1:4",
        "nproc_per_node": "2",
        "rdzv_endpoint": "127.0.0.1:7000",
        "rdzv_id": "research/gpt",
        "max_restarts": 0,
        "module": False,
        "no_python": False,
        "log_dir": None,
        "tee": None,
        "local_addr": None,
        "member": "a",
        "node": "n",
        "run_dir": str(script.parent),
        "memory_dir": None,
        "token_file": None,
        "heartbeat_interval": 1.0,
        "leave_grace": 25.0,
        "node_rank": None,
        "master_addr": None,
        "master_port": None,
    }
    return Flags(**{**defaults, **given})  # type: ignore[arg-type]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("")
    return path


def test_flags_become_settings(script: Path) -> None:
    settings = settings_of(flags(script), environment={"HOLDFAST_TOKEN": "secret", "A": "1"}, host="h")
    assert (settings.job, settings.member, settings.node) == ("research/gpt", "a", "n")
    assert settings.address == "127.0.0.1"
    assert (settings.local_size, settings.watchdog.credential.read()) == (2, "secret")
    assert settings.leave_grace_s == 25.0
    assert settings.memory_root == Path("/dev/shm")
    assert settings.entrypoint == Entrypoint(EntrypointKind.SCRIPT, (str(script), "--lr", "1"))
    assert settings.tee == Tee(everyone=True)
    assert settings.log_dir == script.parent / "logs"
    assert "secret" not in repr(settings)


@pytest.mark.parametrize(
    ("flag", "kind"), [("module", EntrypointKind.MODULE), ("no_python", EntrypointKind.PROGRAM)]
)
def test_an_entry_point_may_be_a_module_or_a_program(script: Path, flag: str, kind: EntrypointKind) -> None:
    given = flags(script, entrypoint=("package.train", "x"), **{flag: True})
    settings = settings_of(given, environment={"HOLDFAST_TOKEN": "t"}, host="h")
    assert settings.entrypoint == Entrypoint(kind, ("package.train", "x"))


def test_a_log_directory_turns_the_copy_on_the_terminal_off(script: Path) -> None:
    given = flags(script, log_dir=str(script.parent))
    assert settings_of(given, environment={"HOLDFAST_TOKEN": "t"}, host="h").tee == Tee()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"node_rank": "1"}, "--node-rank: '1' is not accepted; leave it out"),
        ({"master_addr": "h"}, "--master-addr: 'h' is not accepted; leave it out"),
        ({"nnodes": "4:1"}, "--nnodes: '4:1' is not accepted; give a number or a range"),
        ({"rdzv_endpoint": "host"}, "--rdzv-endpoint: 'host' is not accepted"),
        ({"rdzv_endpoint": "host:70000"}, "--rdzv-endpoint: 'host:70000' is not accepted"),
        ({"rdzv_id": "a/b/c"}, "--rdzv-id: 'a/b/c' is not accepted"),
        ({"nproc_per_node": "0"}, "--nproc-per-node: '0' is not accepted"),
        ({"tee": "x"}, "--tee: 'x' is not accepted"),
        ({"module": True, "no_python": True}, "--no-python: '--module' is not accepted"),
        ({"leave_grace": math.inf}, "--leave-grace: inf is not accepted; give at most 2592000 seconds"),
        ({"leave_grace": math.nan}, "--leave-grace: nan is not accepted"),
        ({"heartbeat_interval": math.inf}, "--heartbeat-interval: inf is not accepted; give at most 3600 seconds"),
        ({"entrypoint": ("missing.py",)}, "ENTRYPOINT: 'missing.py' is not accepted; there is no such script"),
    ],
)
def test_what_is_wrong_is_named_with_its_fix(script: Path, given: dict[str, object], sentence: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        settings_of(flags(script, **given), environment={"HOLDFAST_TOKEN": "t"}, host="h")
    assert sentence in str(raised.value)


def test_the_token_comes_from_the_flag_then_the_variable_then_the_named_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("from-file\n")
    variable = {"HOLDFAST_TOKEN": "from variable"}
    assert credential_of(str(file), variable).read() == "from-file"
    assert credential_of(None, {**variable, "HOLDFAST_TOKEN_FILE": str(file)}).read() == "from variable"
    assert credential_of(None, {"HOLDFAST_TOKEN_FILE": str(file)}).read() == "from-file"


def test_a_tokens_file_is_read_again_for_every_use(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first")
    credential = credential_of(str(file), {})
    file.write_text("second")
    assert credential.read() == "second"


def test_a_token_that_is_missing_unreadable_or_empty_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="name the token's file"):
        credential_of(None, {})
    with pytest.raises(InvalidInput, match="cannot be read"):
        credential_of(str(tmp_path / "missing"), {})
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(InvalidInput, match="is empty"):
        credential_of(str(tmp_path / "empty"), {})


def test_a_job_without_a_namespace_is_in_the_default_one() -> None:
    assert job_of("gpt") == "default/gpt"
    assert job_of("research/gpt") == "research/gpt"


@pytest.mark.parametrize(
    ("endpoint", "address"), [("localhost:7000", Address("localhost", 7000)), ("[::1]:7000", Address("::1", 7000))]
)
def test_endpoints_of_either_internet_version_are_understood(
    script: Path, endpoint: str, address: Address
) -> None:
    given = flags(script, rdzv_endpoint=endpoint, local_addr="127.0.0.1")
    assert settings_of(given, environment={"HOLDFAST_TOKEN": "t"}, host="h").watchdog.address == address


@pytest.mark.parametrize(
    ("text", "tee"),
    [
        ("none", Tee()),
        ("0", Tee()),
        ("all", Tee(everyone=True)),
        ("3", Tee(everyone=True)),
        ("0:3,1:0,2:1", Tee(local_ranks=frozenset({0, 2}))),
    ],
)
def test_tee_takes_words_and_torchruns_numbers(text: str, tee: Tee) -> None:
    assert tee_of(text) == tee


def test_gpus_are_counted_by_what_is_visible_or_by_device_nodes(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert gpu_count({}, devices=tmp_path) == 2
    assert gpu_count({"CUDA_VISIBLE_DEVICES": "3"}, devices=tmp_path) == 1
    assert gpu_count({"CUDA_VISIBLE_DEVICES": ""}, devices=tmp_path) == 0
    assert gpu_count({"CUDA_VISIBLE_DEVICES": "0,-1,1"}, devices=tmp_path) == 1


def test_the_number_of_workers_may_be_left_to_the_node() -> None:
    assert local_size_of("cpu", {}) == cpu_count()
    assert local_size_of("gpu", {"CUDA_VISIBLE_DEVICES": "0,1"}) == 2
    assert local_size_of("auto", {"CUDA_VISIBLE_DEVICES": "0,1,2"}) == 3
    assert local_size_of("auto", {"CUDA_VISIBLE_DEVICES": ""}) == cpu_count()
    with pytest.raises(InvalidInput, match="no GPU"):
        local_size_of("gpu", {"CUDA_VISIBLE_DEVICES": ""})


def test_a_wrong_flag_ends_the_command_with_one_sentence_and_status_two(script: Path) -> None:
    arguments = [
        "--rdzv_endpoint=127.0.0.1:1",
        "--rdzv-id=j",
        "--nproc_per_node=0",
        str(script),
        "--unknown-to-us",
    ]
    result = click.testing.CliRunner(env={"HOLDFAST_TOKEN": "t"}).invoke(launch, arguments)
    assert result.exit_code == 2
    assert result.stderr == (
        "holdfast launch: --nproc-per-node: '0' is not accepted; give a number, gpu, cpu or auto\n"
    )
