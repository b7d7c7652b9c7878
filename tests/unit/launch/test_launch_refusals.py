from holdfast.agent.launch.credential import Refusals


def test_a_launcher_that_was_never_welcome_gives_up_at_once() -> None:
    assert Refusals().is_final("bad", "bad", 0.0)


def test_a_token_that_has_changed_since_is_tried() -> None:
    assert not Refusals().is_final("old", "new", 0.0)


def test_a_launcher_that_was_welcome_goes_on_for_a_while() -> None:
    refusals = Refusals(patience_s=60.0)
    refusals.welcomed()
    assert not refusals.is_final("t", "t", 100.0)
    assert not refusals.is_final("t", "t", 159.0)
    assert refusals.is_final("t", "t", 160.0)


def test_the_while_begins_anew_after_a_welcome() -> None:
    refusals = Refusals(patience_s=60.0)
    refusals.welcomed()
    refusals.is_final("t", "t", 100.0)
    refusals.welcomed()
    assert not refusals.is_final("t", "t", 1000.0)
