"""A self-test, as text."""

from holdfast.api.selftest import Tested
from holdfast.cli.view.table import seconds, table


def selftest_text(tested: Tested) -> str:
    """One line per check, and the whole in a sentence below them."""
    rows = [
        (each.verdict.value, each.check, each.device, seconds(each.took_s), each.says) for each in tested.checks
    ]
    lines = table(("VERDICT", "CHECK", "DEVICE", "TOOK", "SAYS"), rows)
    return f"{lines}\n\n{tested.verdict.value} in {seconds(tested.took_s)}: {tested.says}"
