"""The fake console keeps the contract that the page relies on. The real one is checked in tests/browser."""

from console_contract import check
from fake_console import OPERATOR, serving
from scripted_job import ScriptedJob


def test_the_fake_answers_as_a_console_does() -> None:
    job = ScriptedJob.of(nodes=3, racks=2, points=120)
    job.break_node(1)
    with serving(job) as console:
        check(console.url, OPERATOR, job.name)
