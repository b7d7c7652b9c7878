"""What keeps a process from going on to another round, seen among the modules that it has imported."""

import sys
from types import ModuleType

import pytest
from trainer_builders import assignment

from holdfast.api.round import Reentry
from holdfast.trainer.frameworks import ANY_ROUND, KEEPS_GROUPS, forget_round, reenters


@pytest.mark.parametrize("name", KEEPS_GROUPS)
def test_a_framework_that_has_made_process_groups_keeps_its_process_from_every_other_round(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, variable = KEEPS_GROUPS[name]
    stand_in = ModuleType(module)
    monkeypatch.setitem(sys.modules, module, stand_in)
    assert reenters() == ANY_ROUND
    setattr(stand_in, variable, None)
    assert reenters() == ANY_ROUND  # imported, not used
    setattr(stand_in, variable, object())
    said = reenters()
    assert said.reentry is Reentry.NEVER
    assert said.because == f"{name} keeps the process groups of its first round"


def test_frameworks_that_were_not_imported_are_left_alone() -> None:
    before = set(sys.modules)
    forget_round(assignment())
    assert set(sys.modules) == before
