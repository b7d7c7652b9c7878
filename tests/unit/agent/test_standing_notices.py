"""A job that lands on a machine that is about to go is told so."""

from holdfast.agent.sensing import StandingNotices
from holdfast.api.telemetry import PreemptionNoticed

NOTICE = PreemptionNoticed("aws", within_s=120.0, age_s=1.0, text="terminate")


def test_a_job_that_comes_later_is_told_once_how_old_the_notice_is() -> None:
    notices = StandingNotices()
    assert notices.for_newcomers(["team/a"], 100.0) == {}
    notices.observe([NOTICE], 100.0)
    told = notices.for_newcomers(["team/a", "team/b"], 130.0)
    assert list(told) == ["team/b"]
    (event,) = told["team/b"].events
    assert isinstance(event, PreemptionNoticed)
    assert (event.age_s, event.within_s) == (31.0, 120.0)
    assert notices.for_newcomers(["team/a", "team/b"], 131.0) == {}


def test_a_notice_whose_time_is_up_is_told_to_nobody() -> None:
    notices = StandingNotices()
    notices.observe([NOTICE], 100.0)
    notices.observe([], 220.0)
    assert notices.for_newcomers(["team/a"], 220.0) == {}


def test_a_job_that_went_and_came_back_is_told_again() -> None:
    notices = StandingNotices()
    notices.for_newcomers(["team/a"], 99.0)
    notices.observe([NOTICE], 100.0)
    notices.for_newcomers([], 110.0)
    assert list(notices.for_newcomers(["team/a"], 120.0)) == ["team/a"]
