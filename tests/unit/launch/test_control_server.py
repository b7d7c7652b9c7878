"""Where the workers' control socket is."""

from pathlib import Path

import pytest

from holdfast.agent.launch.control import ControlServer
from holdfast.api.errors import Unavailable


def server_in(run_dir: Path) -> ControlServer:
    return ControlServer(
        run_dir=run_dir,
        on_message=lambda worker, message: None,
        on_detached=lambda worker: None,
    )


async def test_it_is_in_the_run_directory_however_long_its_path_and_nobody_elses(tmp_path: Path) -> None:
    run_dir = tmp_path / ("r" * 120)
    run_dir.mkdir()
    server = server_in(run_dir)
    await server.open()
    assert server.path == run_dir / "launcher.sock"
    assert server.path.is_socket()
    assert server.path.stat().st_mode & 0o777 == 0o600
    await server.close()
    assert list(run_dir.iterdir()) == []


async def test_a_run_directory_that_will_not_do_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"missing/launcher\.sock.*name another --run-dir"):
        await server_in(tmp_path / "missing").open()
