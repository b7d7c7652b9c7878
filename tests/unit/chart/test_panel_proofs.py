"""Which run proves which panel: nothing is named that is not there, and each run proves something."""

import pytest
from panels import DASHBOARDS, ELSEWHERE, Shower, panels


def test_every_panel_has_a_run_that_proves_it() -> None:
    there = list(panels())
    assert {each.dashboard for each in there} == set(DASHBOARDS)
    assert set(ELSEWHERE) <= {(each.dashboard, each.title) for each in there}


@pytest.mark.parametrize("shower", Shower)
def test_every_run_proves_a_panel(shower: Shower) -> None:
    assert list(panels(shower))
