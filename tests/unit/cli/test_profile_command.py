"""`holdfast profile`: what it prints, and how it ends."""

from pathlib import Path

import msgspec
from click.testing import CliRunner
from fakewatchdog import fake_watchdog

from holdfast.api.intervention import (
    InterventionAction,
    InterventionOutcome,
    InterventionRequest,
    InterventionState,
)
from holdfast.api.profile import ProfileStatus, ProfileTold
from holdfast.cli.commands.stacks import profile
from holdfast.cli.output import ExitCode

ASKED = InterventionOutcome("i", InterventionState.DONE, "ranks 0, 7 of round 3 were asked to record 5 steps")
ONE = ProfileTold(3, 1, 0, path="/a/trace.json.gz", size=2_400_000, summary=("5 steps in 10 ms",))


def ran(
    tmp_path: Path, found: ProfileStatus, *words: str, answered: InterventionOutcome = ASKED
) -> tuple[ExitCode, str]:
    with fake_watchdog(tmp_path) as fake:
        fake.answers["GET status"] = (200, [])
        fake.answers["POST interventions"] = (200, msgspec.to_builtins(answered))
        fake.answers["GET profile"] = (200, msgspec.to_builtins(found))
        given = ["--ranks", "0,7", "--state-dir", str(tmp_path), *words]
        ended = CliRunner().invoke(profile, given, standalone_mode=False)
        sent = msgspec.json.decode(fake.asked[0], type=InterventionRequest)
        assert (sent.action, sent.ranks, sent.steps) == (InterventionAction.PROFILE, (0, 7), 5)
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


def test_one_that_is_refused_says_why(tmp_path: Path) -> None:
    refused = InterventionOutcome("i", InterventionState.REFUSED, "no round runs, so there is nothing to profile")
    code, said = ran(tmp_path, ProfileStatus(1, 3, (0, 7), 5), answered=refused)
    assert code is ExitCode.FAILED
    assert said == "Refused: no round runs, so there is nothing to profile\n"


def test_ranks_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    with fake_watchdog(tmp_path) as fake:
        fake.answers["GET status"] = (200, [])
        ended = CliRunner().invoke(
            profile, ["--ranks", "0-7", "--state-dir", str(tmp_path)], standalone_mode=False
        )
    assert str(ended.exception) == "--ranks: '0-7' is not accepted; give ranks with commas between, such as 0,7"
