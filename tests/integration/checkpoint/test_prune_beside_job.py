"""Pruning by hand beside a job whose replicas are compared."""

from pathlib import Path

import pytest
from checkpoint_solo import Solo, committed
from msgspec import structs

from holdfast.api.checkpoint import Standing
from holdfast.checkpoint.commit.pruning import plan, prune
from holdfast.checkpoint.commit.retention import Need, Retention
from holdfast.checkpoint.storage.local import LocalStorage


class Compared(Solo):
    """A job whose replicas are compared every 100 steps."""

    verified: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.run.assignment = structs.replace(self.run.assignment, fingerprint_every=100)
        self.run.standing = lambda: Standing(self.verified)  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("verified", "kept"),
    [(2, ["step-00000002", "step-00000004"]), (1, ["step-00000001", "step-00000004"]), (None, ["step-00000004"])],
)
def test_what_the_job_may_go_back_to_stays(verified: int | None, kept: list[str], tmp_path: Path) -> None:
    job = Compared(tmp_path, round=1, keep=9)
    job.verified = verified
    job.train(until=4)
    storage = LocalStorage(tmp_path)
    assert storage.commits.entered().need == Need(100, verified, keep=9)
    planned = plan(storage, Retention(1))
    assert planned.spared == tuple(kept[:-1])
    assert prune(storage, Retention(1)) == list(planned.doomed)
    assert committed(tmp_path) == kept


def test_a_job_that_compares_nothing_needs_nothing(tmp_path: Path) -> None:
    Solo(tmp_path, round=1, keep=9).train(until=4)
    assert LocalStorage(tmp_path).commits.entered().need == Need(keep=9)
    assert prune(LocalStorage(tmp_path), Retention(1)) == [f"step-{step:08d}" for step in (1, 2, 3)]
