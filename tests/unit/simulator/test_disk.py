"""What the simulated storage keeps."""

from holdfast.simulator.world.disk import Disk


def stored(*steps: int, keep: int | None = 3) -> Disk:
    disk = Disk(keep)
    for step in steps:
        disk.commit(1, step)
    return disk


def test_what_a_round_went_back_to_stays_until_something_newer_is_verified() -> None:
    disk = stored(80, 90, 100, 110)
    disk.verified = 100
    disk.go_on(90, 90)
    for step in (95, 105, 115, 125):
        disk.commit(2, step)
    assert 90 in disk.there


def test_what_is_of_a_history_that_was_given_up_goes() -> None:
    disk = stored(80, 90, 100, 110)
    disk.go_on(90, None)
    assert sorted(disk.there) == [90]
    assert disk.newest(None) == 90


def test_without_keep_nothing_healthy_is_deleted() -> None:
    disk = stored(*range(10, 100, 10), keep=None)
    disk.go_on(50, 50)
    assert sorted(disk.there) == [*range(10, 100, 10)]
