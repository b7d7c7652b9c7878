"""Mistakes that a script's start shows at once: whose they are, and what mends them."""

import pytest
from signals import exited, policy, started

from holdfast.api.finding import Confidence, Finding, FindingKind
from holdfast.api.membership import WorkerExited
from holdfast.watchdog.detectors.mistakes import NOT_COMPILED, NOT_THERE, REFUSED, Mistake, mistake_of
from holdfast.watchdog.detectors.process_exit import ALIKE_S_MIN, LOADS_NOT, ProcessExitDetector

MISSING = "ModuleNotFoundError: No module named 'flash_attn'"
USAGE = "usage: train.py [-h] [--lr LR]\ntrain.py: error: unrecognized arguments: --lrr 3"


def made(*exits: dict[str, object], at: float = 10.0, wait_s: float = 20.0) -> list[Finding]:
    """What is found of a round of two nodes of two ranks, of which these end before any sign of training."""
    detector = ProcessExitDetector(policy())
    detector.observe(started(), 0.0)
    found = [each for given in exits for each in detector.observe(exited(**{"began": False, **given}), at)]  # type: ignore[arg-type]
    return found + list(detector.elapse(at + wait_s))


def alike(**given: object) -> list[dict[str, object]]:
    return [{"rank": rank, **given} for rank in range(4)]


@pytest.mark.parametrize(
    ("given", "mistake"),
    [
        ({"exit_code": 1, "raised": "SyntaxError: invalid syntax"}, NOT_COMPILED),
        ({"exit_code": 1, "raised": "IndentationError: unexpected indent"}, NOT_COMPILED),
        ({"exit_code": 1, "raised": MISSING}, NOT_THERE),
        ({"exit_code": 1, "raised": "ImportError: cannot import name 'x' from 'y'"}, NOT_THERE),
        ({"exit_code": 2, "error": USAGE}, REFUSED),
        ({"exit_code": 2, "error": "Error: No such option: --lrr"}, REFUSED),
        ({"exit_code": 2, "error": "loss 3.1\nloss 3.0"}, None),
        ({"exit_code": 1, "error": USAGE}, None),
        ({"exit_code": 1, "raised": "KeyError: 'lr'"}, None),
        ({"exit_code": 1, "raised": "ImportError: libcudart.so.12: cannot open shared object file"}, None),
        ({"exit_code": 1, "raised": MISSING, "began": True}, None),
        ({"exit_code": 0}, None),
        ({"signal": 9}, None),
    ],
)
def test_what_is_a_mistake_that_no_further_try_mends(given: dict[str, object], mistake: Mistake | None) -> None:
    assert mistake_of(WorkerExited(1, 0, 0.0, **given)) is mistake  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "fix"),
    [
        ({"code": 1, "raised": MISSING, "error": f"Traceback\n{MISSING}"}, "install the module"),
        ({"code": 1, "raised": "SyntaxError: '(' was never closed", "place": "train.py:3"}, "mend the line"),
        ({"code": 2, "error": USAGE}, "mend the arguments in spec.entrypoint"),
    ],
)
def test_a_mistake_of_every_rank_is_the_scripts_and_says_what_mends_it(given: dict[str, object], fix: str) -> None:
    (finding,) = made(*alike(**given))
    assert finding.kind is FindingKind.USER_CODE
    assert finding.subject.node is None
    assert finding.fix.startswith(fix)


def test_a_mistake_that_shows_in_training_is_tried_again() -> None:
    (finding,) = made(*alike(code=1, raised=MISSING, began=True))
    assert (finding.kind, finding.fix, finding.trace) == (FindingKind.USER_CODE, "", "")


@pytest.mark.parametrize(
    "raised",
    [
        MISSING,
        "SyntaxError: invalid syntax",
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/train.bin'",
        "PermissionError: [Errno 13] Permission denied: '/data'",
        "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
        "ValueError: source code string cannot contain null bytes",
    ],
)
def test_what_the_ranks_of_one_node_alone_cannot_load_is_that_nodes_fault(raised: str) -> None:
    (finding,) = made(*({"rank": rank, "code": 1, "raised": raised} for rank in (2, 3)))
    assert (finding.kind, finding.subject.node, finding.cause) == (FindingKind.PROCESS_EXIT, "n1", LOADS_NOT)
    assert finding.confidence is Confidence.PROBABLE
    assert raised in finding.evidence[1].says
    assert finding.fix == finding.alike == ""


def test_what_one_of_a_nodes_ranks_loads_in_vain_is_the_scripts() -> None:
    (finding,) = made({"rank": 0, "code": 1, "raised": MISSING})
    assert (finding.kind, finding.subject.node, finding.fix) == (FindingKind.USER_CODE, None, "")


def test_an_exception_of_one_node_that_loads_nothing_is_the_scripts() -> None:
    (finding,) = made(*({"rank": rank, "code": 1, "raised": "KeyError: 'lr'"} for rank in (0, 1)))
    assert (finding.kind, finding.subject.node) == (FindingKind.USER_CODE, None)


def test_a_node_with_a_slow_disk_has_as_long_again_before_another_one_is_named_alone() -> None:
    detector = ProcessExitDetector(policy())
    detector.observe(started(), 0.0)
    given = {"code": 1, "raised": MISSING, "began": False}
    for rank, at in ((0, 20.0), (1, 20.5), (2, 38.0)):
        assert detector.observe(exited(rank, **given), at) == ()  # type: ignore[arg-type]
        assert detector.elapse(at) == ()
    (finding,) = detector.observe(exited(3, **given), 39.0)  # type: ignore[arg-type]
    assert (finding.kind, finding.subject.node, bool(finding.fix)) == (FindingKind.USER_CODE, None, True)


def test_what_one_rank_raises_before_it_trains_is_known_again_by_its_lines() -> None:
    given = {"rank": 0, "code": 1, "raised": "KeyError: 'rank 0'", "trace": "ab12"}
    assert made(given)[0].trace == "ab12"
    trained = made({**given, "began": True}, wait_s=ALIKE_S_MIN)[0]
    assert (trained.trace, trained.began) == ("ab12", True)
