"""Rounds beside each other: what changed, whether the figures moved beyond their noise, and the way back."""

import random
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
import pytest
from msgspec.structs import replace
from situations import a_higher_learning_rate, another_world, healthy
from test_postmortem import case_after

from holdfast.api.errors import InvalidInput
from holdfast.api.runmanifest import FORMAT, Code, RunManifest, Section
from holdfast.cli.figures import Figures, read_figures, series_path
from holdfast.cli.rounds.changes import About, changes, edits
from holdfast.cli.rounds.chronicle import RoundTold, rounds_of
from holdfast.cli.rounds.effect import STRETCHES, Effect, Turn, effects, moved
from holdfast.cli.rounds.rollback import code_of, image_rollback, round_named
from holdfast.cli.rounds.view import round_shown, rounds_text, rounds_wide_text

_CONFIGURATION = Section.CONFIGURATION
COMMIT = "a" * 40
DIFF = """diff --git a/train.py b/train.py
index 1..2 100644
--- a/train.py
+++ b/train.py
@@ -1,2 +1,3 @@
 same
-old
+new
+more
"""


def a_manifest(commit: str = COMMIT, diff: str = "", **settings: dict[str, str]) -> RunManifest:
    return RunManifest(FORMAT, command=("train.py",), code=Code(commit=commit, diff=diff), settings=settings)


def a_round(number: int, manifest: RunManifest | None = None, **more: object) -> RoundTold:
    return RoundTold(number, float(number), manifest=manifest, **more)  # type: ignore[arg-type]


class TestChronicle:
    def test_each_round_has_its_steps_its_world_and_how_it_was_started(self) -> None:
        first, second = rounds_of(case_after(a_higher_learning_rate).journal)
        assert (first.world, first.first, first.last, first.went_on_from) == (8, 1, 100, None)
        assert (second.world, second.went_on_from, second.ended) == (8, 90, None)
        assert first.ended == second.began
        assert first.manifest is not None
        assert second.manifest is not None
        assert (first.manifest.of(_CONFIGURATION)["lr"], second.manifest.of(_CONFIGURATION)["lr"]) == (
            "0.0003",
            "0.003",
        )

    def test_a_manifest_holds_until_another_is_told(self) -> None:
        told = rounds_of(case_after(another_world).journal)
        assert len(told) > 1
        assert len({id(each.manifest) for each in told}) == 1

    def test_where_the_journal_begins_later_what_was_before_is_unknown(self) -> None:
        journal = case_after(a_higher_learning_rate).journal
        assert rounds_of(()) == ()
        (last,) = rounds_of([each for each in journal if each.at >= journal[0].at + 101])
        assert (last.world, last.manifest is not None) == (None, True)


class TestChanges:
    def test_each_is_named_by_what_it_is_about(self) -> None:
        before = a_manifest(
            configuration={"lr": "1", "data.path": "/a", "batch_size": "8"},
            versions={"image": "r/a:1", "torch": "2.9"},
            packages={"numpy": "1"},
            environment={"NCCL_ALGO": "Ring"},
            topology={"world_size": "8"},
        )
        after = a_manifest(
            "b" * 40,
            configuration={"lr": "2", "data.path": "/b", "batch_size": "16"},
            versions={"image": "r/a:2", "torch": "2.10"},
            packages={"numpy": "2", "more": "1"},
            environment={},
            topology={"world_size": "4"},
        )
        told = changes(a_round(1, before, last=50), a_round(2, after, went_on_from=40))
        assert [(each.about, each.name) for each in told] == [
            (About.CODE, "commit"),
            (About.CONFIGURATION, "lr"),
            (About.DATA, "batch_size"),
            (About.DATA, "data.path"),
            (About.IMAGE, "image"),
            (About.PACKAGES, "more"),
            (About.PACKAGES, "numpy"),
            (About.PACKAGES, "torch"),
            (About.ENVIRONMENT, "NCCL_ALGO"),
            (About.WORLD, "world_size"),
            (About.HISTORY, "step"),
        ]
        assert told[5].says == "more - -> 1"

    def test_nothing_is_no_change_and_untold_rounds_have_a_world(self) -> None:
        same = a_manifest(configuration={"lr": "1"})
        assert changes(a_round(1, same, world=8), a_round(2, same, world=8)) == ()
        (only,) = changes(a_round(1, world=8), a_round(2, world=6))
        assert (only.about, only.says) == (About.WORLD, "ranks 8 -> 6")

    def test_what_was_not_committed_is_told_by_file_and_size(self) -> None:
        (told,) = changes(a_round(1, a_manifest()), a_round(2, a_manifest(diff=DIFF)))
        assert told.says == "uncommitted train.py as committed -> +2 -1 lines"
        assert edits(DIFF)["train.py"][-3:] == ("-old", "+new", "+more")

    def test_a_file_without_git_is_told_by_its_hash(self) -> None:
        one, other = (RunManifest(FORMAT, code=Code(files={"a.py": each * 64})) for each in "ab")
        (told,) = changes(a_round(1, one), a_round(2, other))
        assert told.says == f"a.py {'a' * 12} -> {'b' * 12}"

    def test_a_file_whose_name_only_ends_as_that_of_another_is_told_as_well(self) -> None:
        one, other = (
            RunManifest(FORMAT, code=Code(commit="c", diff=diff, files={"train.py": each * 64}))
            for each, diff in (("a", ""), ("b", DIFF.replace("train.py", "my_train.py")))
        )
        told = changes(a_round(1, one), a_round(2, other))
        assert {each.name for each in told} == {"uncommitted my_train.py", "train.py"}


def noise(count: int, hangs_together: float, seed: int) -> Sequence[float]:
    random_ = random.Random(seed)
    value, values = 0.0, []
    for _ in range(count):
        value = hangs_together * value + random_.gauss(0.0, 0.05)
        values.append(value)
    return values


class TestEffects:
    @pytest.mark.parametrize("hangs_together", [0.0, 0.5, 0.9])
    def test_of_two_hundred_rounds_without_a_change_at_most_two_in_a_hundred_are_told_of(
        self, hangs_together: float
    ) -> None:
        told = 0
        for seed in range(200):
            loss = [
                2 + 6 * (200 + at + 10) ** -0.3 + each for at, each in enumerate(noise(260, hangs_together, seed))
            ]
            told += moved("loss", loss[:200], loss[200:]).turn not in (Turn.SAME, Turn.UNKNOWN)
        assert told <= 4

    def test_a_loss_that_rose_and_a_rate_that_fell_are_worse_and_the_other_way_round_better(self) -> None:
        loss = [3.0 + each for each in noise(260, 0.0, 1)]
        assert moved("loss", loss[:200], [each + 0.5 for each in loss[200:]]).turn is Turn.WORSE
        assert moved("loss", loss[:200], [each - 0.5 for each in loss[200:]]).turn is Turn.BETTER
        assert moved("mfu", loss[:200], [each - 0.5 for each in loss[200:]]).turn is Turn.WORSE
        assert moved("step_s", loss[:200], [each - 0.5 for each in loss[200:]]).turn is Turn.BETTER

    def test_a_loss_that_falls_as_it_fell_is_as_before(self) -> None:
        loss = [5.0 - 0.01 * at for at in range(260)]
        assert moved("loss", loss[:200], loss[200:]).turn is Turn.SAME
        assert moved("loss", loss[:200], [loss[199]] * 60).turn is Turn.WORSE, "it stands where it fell"

    def test_too_few_points_are_unknown(self) -> None:
        assert moved("loss", [1.0] * (5 * STRETCHES - 1), [9.0] * 60) == Effect("loss", Turn.UNKNOWN)
        assert moved("loss", [1.0] * 200, [9.0] * 4) == Effect("loss", Turn.UNKNOWN)

    def test_a_steady_figure_has_to_move_by_half_a_percent(self) -> None:
        assert moved("mfu", [1.0] * 80, [1.004] * 20).turn is Turn.SAME
        assert moved("mfu", [1.0] * 80, [1.006] * 20).turn is Turn.BETTER

    def test_of_a_round_that_went_back_the_loss_is_that_of_the_same_steps(self) -> None:
        """It is at step 50 what it was at step 50, though before it had come to step 99."""
        steps = [float(at) for at in (*range(100), *range(50, 100))]
        loss = tuple(5.0 - 0.01 * step for step in steps)
        rate = (1000.0,) * 150
        figures = Figures(tuple(float(at) for at in range(150)), tuple(steps), loss, rate, rate, rate)
        before, after = a_round(1, last=99), a_round(2, went_on_from=49)
        before, after = replace(before, began=0.0, ended=100.0), replace(after, began=100.0)
        told = {each.figure: each.turn for each in effects(before, after, figures)}
        assert told == dict.fromkeys(("loss", "mfu", "tokens_s", "step_s"), Turn.SAME)

    def test_without_figures_all_is_unknown(self) -> None:
        told = effects(a_round(1), a_round(2), Figures())
        assert {each.turn for each in told} == {Turn.UNKNOWN}


class TestRollback:
    TEMPLATE: ClassVar[Any] = {
        "spec": {"containers": [{"name": "side", "image": "s"}, {"name": "trainer", "image": "r/a:2"}]}
    }

    def told(self, image: str = "r/a:1") -> RoundTold:
        return a_round(3, a_manifest(versions={"image": image}))

    def test_the_image_of_the_round_is_put_in_place_of_the_one_that_is_there(self) -> None:
        change = image_rollback(self.told(), self.TEMPLATE, "trainer")
        assert change is not None
        assert change.patch == [
            {"op": "test", "path": "/spec/template/spec/containers/1/name", "value": "trainer"},
            {"op": "test", "path": "/spec/template/spec/containers/1/image", "value": "r/a:2"},
            {"op": "replace", "path": "/spec/template/spec/containers/1/image", "value": "r/a:1"},
        ]
        assert image_rollback(self.told("r/a:2"), self.TEMPLATE, "trainer") is None

    def test_what_is_not_known_is_refused(self) -> None:
        for image in ("", "?"):
            with pytest.raises(InvalidInput, match="did not tell its image"):
                image_rollback(self.told(image), self.TEMPLATE, "trainer")
        with pytest.raises(InvalidInput, match="no container that trains"):
            image_rollback(self.told(), {"spec": {}}, "trainer")
        with pytest.raises(InvalidInput, match="how they were started: 3"):
            round_named([a_round(2), self.told()], 2)

    def test_code_that_cannot_be_laid_out_says_why(self) -> None:
        for code, why in (
            (Code(unknown="there is no git"), "there is no git"),
            (Code(commit=COMMIT, left_out="it did not fit"), "it did not fit"),
        ):
            with pytest.raises(InvalidInput, match=why):
                code_of(a_round(1, RunManifest(FORMAT, code=code)))
        assert code_of(a_round(1, a_manifest())).commit == COMMIT


def test_rounds_are_shown_with_what_changed() -> None:
    case = case_after(a_higher_learning_rate)
    text = rounds_text(case.rounds)
    assert "configuration  lr: 0.0003 -> 0.003" in text
    assert "history        step: 100 -> 90" in text
    assert rounds_text(()) == rounds_wide_text(()) == "no round was entered, or the journal begins behind it"
    shown = round_shown(case.rounds[-1])
    assert (shown["round"], shown["isTold"], shown["changes"][0]["name"]) == (3, True, "lr")
    assert len(rounds_text(case_after(healthy).rounds).splitlines()) == 2


def test_a_long_list_of_changes_is_cut_and_whole_in_the_wide_one() -> None:
    case = case_after(a_higher_learning_rate)
    last = case.rounds[-1]
    many = replace(last, changes=tuple(replace(last.changes[0], name=f"s{place}") for place in range(20)))
    assert "and 12 more: -o wide" in rounds_text([many])
    assert "s19" in rounds_wide_text([many])


def test_a_consoles_answer_is_read_and_what_is_none_is_refused() -> None:
    columns = {
        "at": [1.0, 2.0],
        "step": [1, None],
        "tokens_s": [5.0, None],
        "step_s": [0.1, 0.2],
        "mfu": [None, None],
    }
    answer = msgspec.json.encode({**columns, "loss_median": [2.0, 1.9], "marks": []})
    figures = read_figures(answer)
    assert (figures.known("loss"), figures.known("step")) == ([(1.0, 2.0), (2.0, 1.9)], [(1.0, 1.0)])
    assert figures.between(2.0, 3.0).at == (2.0,)
    for wrong in (b"{}", b"[", msgspec.json.encode({**columns, "loss_median": [1.0]})):
        with pytest.raises(Exception, match="not understood"):
            read_figures(wrong)
    assert series_path("a b/c") == "/api/v1/jobs/a%20b/c/series?points=4096"


def test_no_figure_is_expected_below_nothing_that_never_was() -> None:
    falling = [max(0.05, 4.0 - 0.025 * each) for each in range(200)]
    assert (moved("loss", falling, falling[-25:]).expected or 0.0) >= 0.0
    below = [each - 3.0 for each in falling]
    assert (moved("loss", below, below[-25:]).expected or 0.0) < 0.0
