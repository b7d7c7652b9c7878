"""`holdfast profile`: what it prints, and how it ends."""

from pathlib import Path

import msgspec
from click.testing import CliRunner
from fakewatchdog import fake_watchdog

from holdfast.api.profile import ProfileStatus, ProfileTold
from holdfast.cli.commands.stacks import profile
from holdfast.cli.output import ExitCode

ONE = ProfileTold(3, 1, 0, path="/a/trace.json.gz", size=2_400_000, summary=("5 steps in 10 ms",))


def ran(tmp_path: Path, found: ProfileStatus, *words: str) -> tuple[ExitCode, str]:
    with fake_watchdog(tmp_path) as fake:
        fake.answers["GET status"] = (200, [])
        for asked in ("POST profile", "GET profile"):
            fake.answers[asked] = (200 if asked.startswith("GET") else 202, msgspec.to_builtins(found))
        given = ["--ranks", "0,7", "--state-dir", str(tmp_path), *words]
        ended = CliRunner().invoke(profile, given, standalone_mode=False)
        return ended.return_value, ended.output


def test_each_rank_has_its_trace_and_its_lines(tmp_path: Path) -> None:
    told = (ProfileTold(3, 1, 7, problem="its script does not use holdfast.trainer"), ONE)
    code, said = ran(tmp_path, ProfileStatus(1, 3, (0, 7), 5, told, "every rank has answered"))
    assert code is ExitCode.FAILED
    assert said.splitlines() == [
        "rank 0: /a/trace.json.gz (2.4 MB)",
        "  5 steps in 10 ms",
        "rank 7: its script does not use holdfast.trainer",
    ]


def test_who_does_not_answer_in_time_is_named(tmp_path: Path) -> None:
    code, said = ran(tmp_path, ProfileStatus(1, 3, (0, 7), 5, (ONE,)), "--within", "1")
    assert code is ExitCode.FAILED
    assert said.splitlines()[-1] == "no answer of ranks 7: not yet; ask again later with `holdfast profile`"


def test_a_round_that_ended_says_so_at_once(tmp_path: Path) -> None:
    _, said = ran(tmp_path, ProfileStatus(1, 3, (0, 7), 5, (ONE,), "round 3 ended before"))
    assert said.splitlines()[-1] == "no answer of ranks 7: round 3 ended before"
