from pathlib import Path

import pytest
from checkpoint_ranks import Course, run_ranks

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    ("rank", "fatal", "resumes_at"),
    [
        (1, r"write step-00000004\.tmp-.*/__1_0", 3),
        (0, r"create step-00000004\.tmp-.*/\.metadata", 3),
        (0, r"rename step-00000004\.tmp-", 3),
        (0, r"unlink step-00000002\.gone-", 5),
    ],
)
def test_a_rank_killed_at_a_call_of_its_own_leaves_the_newest_good_one(
    rank: int, fatal: str, resumes_at: int, tmp_path: Path
) -> None:
    reports = run_ranks(Course(tmp_path, until=4, keep=1, fatal={rank: fatal}), 2)
    assert reports[rank] is None
    survivors = run_ranks(Course(tmp_path, until=5, keep=1), 2)
    assert survivors[0].losses[0][0] == resumes_at
    assert survivors[0].skipped == ()
    assert survivors[0].stock_digest == survivors[0].digest
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-00000005"]
