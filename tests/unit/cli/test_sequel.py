"""What follows when a job that has succeeded is run again."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.api.trainingjob import read_trainingjob
from holdfast.cli.sequel import Follows, Trained, question, sequel, trained_by

BEFORE = Trained(("/w/train.py", "--steps", "100"), "ab", (1, 2), 1, 1)


@pytest.mark.parametrize(
    ("changes", "follows", "says"),
    [
        ({}, Follows.NOTHING, ()),
        ({"entrypoint": ("/w/train.py", "--steps", "200")}, Follows.MORE,
         ("arguments were --steps 100, are --steps 200",)),
        ({"entrypoint": ("/w/train.py",)}, Follows.MORE, ("arguments were --steps 100, are none",)),
        ({"source": "cd"}, Follows.MORE, ("/w/train.py was edited",)),
        ({"entrypoint": ("/w/tune.py", "--steps", "100"), "source": "cd"}, Follows.QUESTION,
         ("entry point was /w/train.py, is /w/tune.py",)),
        ({"entrypoint": ("-m", "tune", "--steps", "100"), "source": ""}, Follows.QUESTION,
         ("entry point was /w/train.py, is -m tune",)),
        ({"nodes": (2, 4)}, Follows.QUESTION, ("spec.nodes was 1 to 2, is 2 to 4",)),
        ({"processes": 8}, Follows.QUESTION, ("processes per node was 1, is 8",)),
        ({"model_ranks": 2}, Follows.QUESTION, ("ranks that share a model was 1, is 2",)),
    ],
)  # fmt: skip
def test_more_of_the_same_goes_on_and_another_program_or_world_is_asked_about(
    changes: dict[str, object], follows: Follows, says: tuple[str, ...]
) -> None:
    now = replace(BEFORE, **changes)
    found = sequel(BEFORE, now)
    assert (found.follows, found.differences) == (follows, says)
    assert sequel(BEFORE, now, told_to_continue=True).follows is Follows.MORE


def test_what_is_not_known_any_more_differs_in_nothing() -> None:
    assert sequel(None, BEFORE).follows is Follows.NOTHING
    assert sequel(None, BEFORE, told_to_continue=True).follows is Follows.MORE


def test_the_question_names_what_differs_and_every_way_out() -> None:
    says = str(question("default/j", ("spec.nodes was 1 to 2, is 2 to 4",)))
    for part in ("default/j", "spec.nodes was 1 to 2, is 2 to 4", "--continue", "--fresh", "metadata.name"):
        assert part in says


def test_what_a_job_trains_is_its_words_its_script_and_its_world(tmp_path: Path) -> None:
    spec = read_trainingjob(
        {
            "apiVersion": "holdfast.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": "j"},
            "spec": {"entrypoint": ["train.py"], "nodes": {"min": 1, "max": 2}},
        }
    ).spec
    script = tmp_path / "train.py"
    script.write_text("STEPS = 100\n")
    before = trained_by((str(script), "--lr", "1"), spec)
    assert (before.program, before.arguments, before.nodes) == ((str(script),), ("--lr", "1"), (1, 2))
    script.write_text("STEPS = 200\n")
    after = trained_by((str(script), "--lr", "1"), spec)
    assert sequel(before, after).differences == (f"{script} was edited",)
    module = trained_by(("-m", "tune", "--lr", "1"), spec)
    assert (module.program, module.arguments, module.source) == (("-m", "tune"), ("--lr", "1"), "")
