import pytest
from drawer import Drawer, PowerCut, manifest_of, put

from holdfast.api.errors import Damaged, Fenced
from holdfast.checkpoint.commit import fence
from holdfast.checkpoint.commit import retention as needs
from holdfast.checkpoint.commit.discovery import Found, Unreadable, discover, lineage, read_manifest
from holdfast.checkpoint.commit.folder import FolderCommits
from holdfast.checkpoint.commit.retention import TOLD_WITHIN_S, Dates, Need, Retention, judge


def surplus(whole: list[Found], broken: list[Unreadable], retention: Retention, dates: Dates) -> list[str]:
    """What goes."""
    return list(judge(whole, broken, retention, dates).doomed)


def undated(name: str) -> None:
    """The storage cannot tell when anything was committed."""


def found(*descent: tuple[int, int, int | None]) -> list[Found]:
    """(step, round, parent)"""
    return [
        Found(f"step-{step:08d}", manifest_of(step, round=round, parent=parent)) for step, round, parent in descent
    ]


def steps(line: list[Found]) -> list[int]:
    return [each.manifest.step for each in line]


def test_the_line_of_one_round_is_its_steps_downwards() -> None:
    assert steps(lineage(found((4, 1, None), (12, 1, None), (8, 1, None)))) == [12, 8, 4]


def test_a_round_that_went_back_gives_up_the_later_steps_of_the_one_before() -> None:
    history = found((4, 1, None), (8, 1, None), (12, 1, None), (9, 2, 8), (10, 2, 8))
    assert steps(lineage(history)) == [10, 9, 8, 4]


def test_a_round_that_started_afresh_has_no_past() -> None:
    assert steps(lineage(found((8, 1, None), (2, 2, None)))) == [2]


def test_a_limit_below_the_newest_round_leads_to_the_round_before() -> None:
    history = found((4, 1, None), (8, 1, None), (9, 2, 8))
    assert steps(lineage(history, limit=8)) == [8, 4]
    assert steps(lineage(history, limit=3)) == []


def test_going_back_twice_follows_both_turns() -> None:
    history = found((5, 1, None), (9, 1, None), (10, 2, 9), (11, 2, 9), (6, 3, 5))
    assert steps(lineage(history)) == [6, 5]


@pytest.mark.parametrize(
    ("keep", "gone"),
    [(1, ["step-00000004", "step-00000008"]), (2, ["step-00000004"]), (3, []), (9, [])],
)
def test_the_newest_are_kept(keep: int, gone: list[str]) -> None:
    assert surplus(found((4, 1, None), (8, 1, None), (12, 1, None)), [], Retention(keep), undated) == gone


def test_what_was_given_up_goes_even_when_its_step_is_higher() -> None:
    assert surplus(found((8, 1, None), (12, 1, None), (9, 2, 8)), [], Retention(3), undated) == ["step-00000012"]


def test_an_unreadable_one_does_not_count_and_goes_only_behind_enough_readable_ones() -> None:
    broken = [Unreadable("step-00000006", "cut"), Unreadable("step-00000010", "cut")]
    history = found((4, 1, None), (8, 1, None), (12, 1, None))
    assert surplus(history, broken, Retention(2), undated) == ["step-00000004", "step-00000006"]
    assert surplus(history, broken, Retention(4), undated) == []
    assert surplus([], broken, Retention(1), undated) == []


@pytest.mark.parametrize(
    ("every", "compared_every"), [(20, 100), (10, 20), (50, 100), (5, 5), (100, 20), (7, 100)]
)
def test_one_that_is_old_enough_to_be_verified_stays_where_replicas_are_compared(
    every: int, compared_every: int
) -> None:
    there: list[int] = []
    for step in range(every, 100 * every, every):
        there.append(step)
        gone = surplus(found(*((each, 1, None) for each in there)), [], Retention(3, compared_every), undated)
        there = [each for each in there if f"step-{each:08d}" not in gone]
        assert there[-3:] == list(range(max(every, step - 2 * every), step + 1, every))
        assert len(there) <= 6
        if step > 4 * max(every, compared_every):
            assert min(there) <= step - 2 * compared_every


@pytest.mark.parametrize(
    ("every", "compared_every", "step_s"),
    [(5, 5, 0.05), (10, 20, 1.0), (50, 5, 0.3), (7, 100, 0.01), (1, 10, 10.0)],
)
def test_what_a_rewind_needs_stays_however_fast_the_steps_are(
    every: int, compared_every: int, step_s: float
) -> None:
    there: list[int] = []
    for step in range(every, 150 * every, every):
        there.append(step)
        history = found(*((each, 1, None) for each in there))
        gone = surplus(history, [], Retention(1, compared_every), lambda name: int(name[5:]) * step_s)
        there = [each for each in there if f"step-{each:08d}" not in gone]
        told = step - TOLD_WITHIN_S / step_s - compared_every  # What was compared since may be told yet.
        for agreed in range(compared_every, step, compared_every):
            wanted = agreed // every * every
            assert agreed < told or not wanted or wanted in there, f"step {step} found wrong, equal after {agreed}"
        assert len(there) <= 4 + (TOLD_WITHIN_S / step_s + every) / min(compared_every, every)


def test_the_newest_that_is_known_to_be_verified_stays_however_old_it_is() -> None:
    history = found(*((step, 1, None) for step in range(10, 101, 10)))

    def kept(verified: int | None) -> list[int]:
        gone = surplus(
            history, [], Retention(1, compared_every=10, verified=verified), lambda name: int(name[5:]) * 1e6
        )
        return [each.manifest.step for each in history if each.name not in gone]

    unaware = kept(None)
    assert kept(35) == sorted({30, *unaware})
    assert kept(30) == sorted({30, *unaware})
    assert kept(9) == unaware
    assert kept(100) == unaware
    assert 30 not in unaware


@pytest.mark.parametrize("own", [Need(), Need(20, 77), Need(50), Need(5, 15)], ids=repr)
@pytest.mark.parametrize("also", [Need(), Need(10, 35), Need(0, 9), Need(100, 100)], ids=repr)
def test_what_somebody_else_needs_stays_as_well(own: Need, also: Need) -> None:
    history = found(*((step, 1, None) for step in range(10, 201, 10)))

    def gone(needed: Need, besides: Need | None = None) -> set[str]:
        retention = Retention(1, needed.compared_every, needed.verified, besides)
        return set(surplus(history, [], retention, undated))

    assert gone(own, also) == gone(own) & gone(also)


def test_what_cannot_be_dated_now_may_be_needed_still() -> None:
    history = found(*((step, 1, None) for step in range(10, 101, 10)))
    dates = {f"step-{step:08d}": step * 100.0 for step in (10, 20, 30, 100)}
    gone = surplus(history, [], Retention(1, compared_every=10), dates.get)
    assert gone == []
    assert "step-00000010" in surplus(
        history, [], Retention(1, compared_every=10), {**dates, "step-00000040": 4e3}.get
    )


def test_a_newer_round_shuts_the_older_out() -> None:
    drawer = Drawer()
    FolderCommits(drawer).enter(owner="", round=7)
    FolderCommits(drawer).enter(owner="", round=7)
    FolderCommits(drawer).enter(owner="", round=8)
    with pytest.raises(Fenced, match="round 8 has entered"):
        FolderCommits(drawer).enter(owner="", round=7)
    put(drawer, "step-00000001.tmp-7-aa", manifest_of(1, round=7))
    with pytest.raises(Fenced):
        FolderCommits(drawer).publish("step-00000001.tmp-7-aa", step=1, round=7)
    with pytest.raises(Fenced):
        FolderCommits(drawer).retire(Retention(1), round=7, token="aa")
    assert "step-00000001" not in drawer.names()


@pytest.mark.parametrize("content", [b"", b"seven", b"-1", b"\xff", b"9" * 21])
def test_a_fence_without_a_number_lets_nobody_in(content: bytes) -> None:
    drawer = Drawer()
    drawer.content["fence"] = content
    with pytest.raises(Damaged, match="no round number"):
        fence.require(drawer, 10**30)


def test_leftovers_of_dead_rounds_are_cleared_and_those_of_live_ones_are_not() -> None:
    drawer = Drawer()
    for name in (
        "step-00000001.tmp-6-aa",
        "step-00000001.tmp-7-bb",
        "step-00000001.gone-cc",
        "step-00000002",
        "notes",
    ):
        put(drawer, name, manifest_of(1))
    FolderCommits(drawer).enter(owner="", round=7)
    assert drawer.names() == ["fence", "notes", "step-00000001.tmp-7-bb", "step-00000002"]


def test_without_holdfast_the_run_before_is_dead() -> None:
    drawer = Drawer()
    assert FolderCommits(drawer).enter(owner="aa", round=0) == 0
    put(drawer, "step-00000001.tmp-0-aa", manifest_of(1, round=0))
    assert FolderCommits(drawer).enter(owner="bb", round=0) == 1
    assert drawer.names() == ["fence"]


def test_another_life_of_the_job_takes_over_with_numbers_above_all_before() -> None:
    drawer = Drawer()
    assert FolderCommits(drawer).enter(owner="old", round=9) == 9
    assert FolderCommits(drawer).enter(owner="new", round=2) == 11
    assert FolderCommits(drawer).enter(owner="new", round=3) == 12
    with pytest.raises(Fenced, match="round 3 has entered"):
        FolderCommits(drawer).enter(owner="new", round=2)
    put(drawer, "step-00000001.tmp-9-aa", manifest_of(1, round=9))
    with pytest.raises(Fenced, match="another life of the job, new"):
        FolderCommits(drawer).publish("step-00000001.tmp-9-aa", step=1, round=9)


def test_a_straggler_of_a_life_that_was_displaced_does_not_take_the_directory_back() -> None:
    drawer = Drawer()
    FolderCommits(drawer).enter(owner="old", round=3)
    assert FolderCommits(drawer).enter(owner="new", round=1) == 4
    with pytest.raises(Fenced, match="new has taken"):
        FolderCommits(drawer).enter(owner="old", round=4)
    assert FolderCommits(drawer).enter(owner="newest", round=1) == 5
    for displaced in ("old", "new"):
        with pytest.raises(Fenced, match="newest has taken"):
            FolderCommits(drawer).enter(owner=displaced, round=9)


def test_a_replaced_checkpoint_is_put_back_when_its_successor_cannot_take_its_place() -> None:
    drawer = Drawer()
    put(drawer, "step-00000004", manifest_of(4, round=1), content=b"old")
    with pytest.raises(OSError, match="No such file"):
        FolderCommits(drawer).publish("step-00000004.tmp-2-aa", step=4, round=2)
    assert drawer.names() == ["step-00000004"]
    assert drawer.content["step-00000004/__0_0.distcp"] == b"old"


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_a_replaced_checkpoint_is_never_lost_wherever_the_process_dies(renames: int) -> None:
    drawer = Drawer()
    FolderCommits(drawer).enter(owner="", round=2)
    put(drawer, "step-00000004", manifest_of(4, round=1), content=b"old")
    put(drawer, "step-00000004.tmp-2-aa", manifest_of(4, round=2), content=b"new")
    drawer.renames_until_death = renames
    if renames < 2:
        with pytest.raises(PowerCut):
            FolderCommits(drawer).publish("step-00000004.tmp-2-aa", step=4, round=2)
    else:
        FolderCommits(drawer).publish("step-00000004.tmp-2-aa", step=4, round=2)
    drawer.renames_until_death = None
    FolderCommits(drawer).enter(owner="", round=3)
    assert drawer.names() == ["fence", "step-00000004"]
    assert drawer.content["step-00000004/__0_0.distcp"] == (b"new" if renames == 2 else b"old")


def test_a_commit_stands_though_what_it_replaced_cannot_be_deleted(caplog: pytest.LogCaptureFixture) -> None:
    drawer = Drawer()
    FolderCommits(drawer).enter(owner="", round=2)
    for content in (b"first", b"second", b"third"):
        drawer.removals_until_success = 1
        put(drawer, "step-00000004.tmp-2-aa", manifest_of(4, round=2), content=content)
        FolderCommits(drawer).publish("step-00000004.tmp-2-aa", step=4, round=2)
        assert drawer.content["step-00000004/__0_0.distcp"] == content
    assert len(caplog.records) == 2
    drawer.removals_until_success = 0
    FolderCommits(drawer).enter(owner="", round=3)
    assert drawer.names() == ["fence", "step-00000004"]
    assert drawer.content["step-00000004/__0_0.distcp"] == b"third"


def test_of_two_set_aside_from_one_name_one_is_put_back() -> None:
    drawer = Drawer()
    for token in ("aa", "bb"):
        put(drawer, f"step-00000004.old-{token}", manifest_of(4))
    FolderCommits(drawer).enter(owner="", round=1)
    assert drawer.names() == ["fence", "step-00000004"]


def test_retiring_dies_between_two_renames_and_is_finished_by_the_next_time() -> None:
    drawer = Drawer()
    for step in (1, 2, 3, 4):
        put(drawer, f"step-{step:08d}", manifest_of(step))
    drawer.renames_until_death = 1
    with pytest.raises(PowerCut):
        FolderCommits(drawer).retire(Retention(2), round=1, token="aa")
    drawer.renames_until_death = None
    FolderCommits(drawer).retire(Retention(2), round=1, token="bb")
    assert drawer.names() == ["step-00000003", "step-00000004"]


def test_what_could_not_be_deleted_is_deleted_the_next_time_and_is_in_nobodys_way() -> None:
    drawer = Drawer()
    for step in (0, 1, 2):
        put(drawer, f"step-{step:08d}", manifest_of(step))
    drawer.removals_until_success = 1
    with pytest.raises(OSError, match="busy"):
        FolderCommits(drawer).retire(Retention(1), round=1, token="aa")
    assert drawer.names() == ["step-00000000.gone-aa", "step-00000002"]
    FolderCommits(drawer).retire(Retention(1), round=1, token="aa")
    assert drawer.names() == ["step-00000002"]


def test_retiring_deletes_what_no_save_in_flight_can_need() -> None:
    drawer = Drawer()
    staged = [f"step-00000003.tmp-{by}" for by in ("6-bb", "7-aa", "7-bb", "8-aa")]
    for name in ("step-00000001", "step-00000002", *staged):
        put(drawer, name, manifest_of(int(name[5:13])))
    put(drawer, "step-00000002.old-cc", manifest_of(2))
    FolderCommits(drawer).retire(Retention(1), round=7, token="aa")
    assert drawer.names() == ["step-00000002", *staged[2:]]
    FolderCommits(drawer).enter(owner="", round=9)
    with pytest.raises(Fenced):
        FolderCommits(drawer).retire(Retention(1), round=7, token="aa")


def test_what_the_job_needs_is_left_beside_the_fence_and_is_written_when_it_changes() -> None:
    drawer = Drawer()
    FolderCommits(drawer).enter(owner="", round=7)
    commits = FolderCommits(drawer)
    FolderCommits(drawer).retire(Retention(1), round=7, token="aa", need=Need())
    assert drawer.names() == ["fence"], "nothing is needed, and nothing was"
    assert commits.entered().need == Need()
    FolderCommits(drawer).retire(Retention(1), round=7, token="aa", need=Need(100, 400))
    assert commits.entered().need == Need(100, 400)
    drawer.renames_until_death = 0
    FolderCommits(drawer).retire(Retention(1), round=7, token="aa", need=Need(100, 400))
    FolderCommits(drawer).retire(Retention(1, 50, 20), round=7, token="aa")
    with pytest.raises(PowerCut):
        FolderCommits(drawer).retire(Retention(1), round=7, token="aa", need=Need(100, 500))
    assert commits.entered().need == Need(100, 400), "the old one whole"
    drawer.renames_until_death = None
    FolderCommits(drawer).retire(Retention(1), round=7, token="aa", need=Need(100))
    assert commits.entered().need == Need(100)


def test_what_cannot_be_deleted_does_not_keep_the_need_from_being_left() -> None:
    drawer = Drawer()
    for step in (1, 2):
        put(drawer, f"step-{step:08d}", manifest_of(step))
    drawer.removals_until_success = 1
    with pytest.raises(OSError, match="busy"):
        FolderCommits(drawer).retire(Retention(1), round=7, token="aa", need=Need(100, 400))
    assert needs.read_need(drawer) == Need(100, 400)


@pytest.mark.parametrize("content", [b"", b"\xff", b"{", b"[]", b'{"verified": "2"}', b'{"compared_every": -1}'])
def test_a_need_that_cannot_be_read_is_told_and_replaced_by_the_next(content: bytes) -> None:
    drawer = Drawer()
    drawer.content["need.json"] = content
    with pytest.raises(Damaged, match=r"what a rewind needs cannot be read from drawer:/need\.json"):
        needs.read_need(drawer)
    needs.leave_need(drawer, Need(0, 2))
    assert needs.read_need(drawer) == Need(0, 2)


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        ({"step-00000004/__0_0.distcp": b"stat"}, "has 4 bytes instead of 5"),
        ({"step-00000004/__0_0.distcp": None}, "No such file"),
        ({"step-00000004/manifest.json": None}, "No such file"),
        ({"step-00000004/manifest.json": b"{}"}, "cannot be read"),
    ],
    ids=["cut", "missing", "no manifest", "no manifest at all"],
)
def test_a_half_written_checkpoint_is_told_from_a_whole_one(harm: dict[str, bytes | None], says: str) -> None:
    drawer = Drawer()
    put(drawer, "step-00000003", manifest_of(3))
    put(drawer, "step-00000004", manifest_of(4))
    for name, content in harm.items():
        drawer.content.pop(name)
        if content is not None:
            drawer.content[name] = content
    whole, broken = discover(drawer)
    assert [each.name for each in whole] == ["step-00000003"]
    assert [each.name for each in broken] == ["step-00000004"]
    assert says in broken[0].reason


def test_a_checkpoint_under_the_name_of_another_step_is_damaged() -> None:
    drawer = Drawer()
    put(drawer, "step-00000005", manifest_of(4))
    with pytest.raises(Damaged, match="of step 4"):
        read_manifest(drawer, "step-00000005")
