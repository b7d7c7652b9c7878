from pathlib import Path

from holdfast.agent.launch.command import last_words, leave_last_words, shortened
from holdfast.agent.launch.launcher import Outcome, WorkerFailure


def failure(exit_code: int, error: str) -> WorkerFailure:
    return WorkerFailure(0, 100, exit_code, Path("error.json"), error)


def test_the_reason_comes_first_and_the_newest_failure_after_it() -> None:
    failures = {3: failure(1, "old"), 5: failure(-9, "killed here")}
    outcome = Outcome(succeeded=False, reason="too many restarts", failures=failures)
    assert last_words(outcome) == "too many restarts\nrank 5 ended with signal 9\nkilled here"


def test_a_run_without_a_failed_worker_has_only_its_reason() -> None:
    assert last_words(Outcome(succeeded=False, reason="stopped by SIGTERM")) == "stopped by SIGTERM"


def test_what_is_short_is_left_as_it_is() -> None:
    assert shortened("short\nerror") == b"short\nerror"


def test_of_what_is_long_the_reason_and_the_end_are_kept() -> None:
    content = shortened("the reason\n" + "frame\n" * 2000 + "ValueError: the end")
    assert len(content) == 4096
    assert content.startswith(b"the reason\n...\n")
    assert content.endswith(b"ValueError: the end")


def test_a_long_reason_leaves_room_for_the_error_and_no_character_is_cut_through() -> None:
    content = shortened("\N{SNOWMAN}" * 5000 + "\n" + "\N{SNOWMAN}" * 5000 + "the end")
    assert len(content) <= 4096
    assert content.decode().endswith("the end")


def test_nothing_is_made_where_there_is_no_such_file(tmp_path: Path) -> None:
    leave_last_words(str(tmp_path / "termination-log"), "words")
    leave_last_words(str(tmp_path), "words")
    assert list(tmp_path.iterdir()) == []
