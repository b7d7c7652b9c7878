"""What two runs recorded of themselves, compared."""

import math

import pytest

from holdfast.api.runhistory import RunHistory, StoredHistory, decode
from holdfast.api.runmanifest import Code, RunManifest
from holdfast.checkpoint.runs.comparison import Apart, Prints, parted, settings_apart


def history(*losses: float, prints: dict[int, dict[str, int]] | None = None) -> StoredHistory:
    """Losses from step 1 on."""
    kept = RunHistory()
    for step, loss in enumerate(losses, 1):
        kept.losses.add(step, loss)
    for step, groups in (prints or {}).items():
        for group, value in groups.items():
            kept.fingerprint(step, group, value)
    return decode(kept.encode(1000))


def test_the_first_bit_and_the_first_thousandth_are_told_apart() -> None:
    found = parted(history(3.0, 2.0, 1.0), history(3.0, 2.0 + 1e-9, 1.1))
    assert (found.loss_bits, found.loss) == (Apart(2, 2.0, 2.0 + 1e-9), Apart(3, 1.0, 1.1))
    assert found.first_step == 2
    assert found.losses == (1, 3)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number_differs_from_one_that_is(value: float) -> None:
    found = parted(history(3.0, value), history(3.0, 1.0))
    assert found.loss is not None
    assert found.loss.step == 2
    assert parted(history(value), history(value)).loss is None


def test_the_groups_of_parameters_whose_fingerprints_differ_are_named() -> None:
    ours = history(prints={2: {"a": 1, "b": 2}, 4: {"a": 3, "b": 4}})
    theirs = history(prints={2: {"a": 1, "b": 2}, 4: {"a": 3, "b": 5}})
    found = parted(ours, theirs)
    assert found.prints == Prints(4, ("b",), 2)
    assert found.first_step == 4
    assert found.fingerprints == (2, 4)


def test_what_no_two_have_in_common_is_unknown() -> None:
    found = parted(history(1.0), history())
    assert (found.loss_bits, found.losses, found.fingerprints, found.first_step) == (None, None, None, None)


def test_settings_that_differ_come_with_both_values_and_the_interpreter_does_not_count() -> None:
    ours = RunManifest(
        1,
        command=("/usr/bin/python", "train.py", "--seed", "1"),
        code=Code(commit="abc", diff="one\n", files={"train.py": "f1", "model.py": "f2"}),
        settings={"seeds": {"torch": "1"}, "packages": {"torch": "2.9", "numpy": "2.0"}},
    )
    theirs = RunManifest(
        1,
        command=("/opt/python", "train.py", "--seed", "2"),
        code=Code(commit="abc", diff="one\ntwo\n", files={"train.py": "f1", "model.py": "f3"}),
        settings={"seeds": {"torch": "2"}, "packages": {"torch": "2.9"}},
    )
    told = [(each.section, each.name, each.a, each.b) for each in settings_apart(ours, theirs)]
    assert told == [
        ("command", "argument 2", "1", "2"),
        ("code", "diff", "1 lines", "2 lines"),
        ("code", "model.py", "f2", "f3"),
        ("seeds", "torch", "1", "2"),
        ("packages", "numpy", "2.0", None),
    ]
    assert settings_apart(ours, ours) == ()
