"""Alerts about what a job computes and saves fire by a fault that befalls it, and are over when it is healed.

One run: a node computes wrong from the start, then nothing can be saved for a while, then a batch comes again,
then a bit flips, then one rank's loss goes apart from the others'.
"""

from collections.abc import Iterator

import pytest
from alert_rig import START_S_MAX, Expected, Rig, alert_rig, expected
from monitoredrun import JOB, NAMESPACE, MonitoredRun
from panels import Shower
from proofs import OF_DAMAGE
from troubledrun import damaged_run

pytestmark = [pytest.mark.long, pytest.mark.needs("prometheus"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with alert_rig(tmp_path_factory.mktemp("prometheus"), "the-token-of-this-test") as rig:
        yield rig


@pytest.fixture(scope="module")
def run(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MonitoredRun]:
    with damaged_run(tmp_path_factory.mktemp("run"), rig.token_file.read_text()) as run:
        rig.scraped.append(run.targets)
        yield run


def of_job(alert: str) -> Expected:
    return expected(alert, namespace=NAMESPACE, training_job=JOB)


def test_a_node_that_computes_wrong_fails_its_self_test(rig: Rig, run: MonitoredRun) -> None:
    failed = of_job("HoldfastSelfTestFailed")
    rig.until_fired(failed, within_s=START_S_MAX)
    rig.until_over(failed, within_s=START_S_MAX)


def test_checkpoints_that_cannot_be_written_get_stale(rig: Rig, run: MonitoredRun) -> None:
    stale = of_job("HoldfastCheckpointStale")
    rig.until_fired(stale, within_s=START_S_MAX)
    rig.until_over(stale, within_s=START_S_MAX)


def test_a_batch_that_comes_again_is_wrong_data(rig: Rig, run: MonitoredRun) -> None:
    found = of_job("HoldfastDataWrong")
    rig.until_fired(found, within_s=START_S_MAX)
    rig.until_over(found, within_s=START_S_MAX)


def test_a_bit_that_flips_is_corruption(rig: Rig, run: MonitoredRun) -> None:
    found = of_job("HoldfastCorruptionFound")
    rig.until_fired(found, within_s=START_S_MAX)
    rig.until_over(found, within_s=START_S_MAX)


def test_a_loss_that_goes_apart_is_a_divergence(rig: Rig, run: MonitoredRun) -> None:
    found = of_job("HoldfastDivergence")
    rig.until_fired(found, within_s=START_S_MAX)
    rig.until_over(found, within_s=START_S_MAX)


def test_every_panel_about_what_is_saved_and_compared_showed_something(rig: Rig) -> None:
    rig.assert_shown(Shower.DAMAGED_JOB, namespace=NAMESPACE, job=JOB)


def test_what_is_said_to_be_proved_here_was(rig: Rig) -> None:
    """The last test of this file: what the others saw."""
    assert rig.fired == rig.cleared == set(OF_DAMAGE)
