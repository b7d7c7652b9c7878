import pytest
from nvidia_runs import RUNS
from published_runs import HELD, LLAMA3, Held, Published

from holdfast.planner.layout import misfits
from holdfast.planner.memory import RESERVED, memory_of


@pytest.mark.parametrize("run", [pytest.param(each, id=each.name) for each in RUNS])
def test_a_published_run_is_reproduced_within_its_tolerance(run: Published) -> None:
    assert run.ours == pytest.approx(run.figure, rel=run.within)


@pytest.mark.parametrize("run", [pytest.param(each, id=each.name) for each in RUNS])
def test_a_run_that_was_made_is_one_that_can_be(run: Published) -> None:
    assert list(misfits(run.run.layout, run.run.model, run.run.cluster, run.run.training)) == []


def test_what_was_fitted_is_fitted_on_a_run_that_is_there_and_is_hit_there() -> None:
    by_name = {each.name: each for each in RUNS}
    for each in RUNS:
        fitted = by_name[each.fitted_on]
        assert fitted.matmul == each.matmul
        assert fitted.ours == pytest.approx(fitted.figure, rel=0.03)
    assert len({each.fitted_on for each in RUNS}) <= 10 < 50 <= len(RUNS)


@pytest.mark.parametrize("run", [pytest.param(each, id=each.name) for each in RUNS])
def test_a_run_that_was_made_fits_its_gpus(run: Published) -> None:
    needed = memory_of(run.run.model, run.run.layout, run.run.training).value
    room = run.run.cluster.gpu.memory
    assert needed < room
    if run.source == LLAMA3:
        assert needed < room * (1.0 - RESERVED), "with what kernels and the allocator need"


@pytest.mark.parametrize("run", [pytest.param(each, id=each.name) for each in HELD])
def test_memory_that_was_measured_is_reproduced_within_its_tolerance(run: Held) -> None:
    assert run.ours == pytest.approx(run.gib, rel=run.within)
