"""docs/metrics.md lists every metric, and says nothing that the programs do not.

Run this file to write the lists anew: `python tests/unit/repository/test_metrics_document.py`.
"""

from pathlib import Path

from prometheus_client.core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families

from holdfast.agent.metrics.table import DCGM_METRICS, OWN_METRICS
from holdfast.api.metric import Metric
from holdfast.operator.metrics import JobConditions, Metrics
from holdfast.watchdog.metrics.table import WATCHDOG_METRICS

DOCUMENT = Path(__file__).parents[3] / "docs" / "metrics.md"
HEAD = "| Name | Type | Labels | Meaning |\n|---|---|---|---|\n"
OPERATOR_HEAD = "| Name | Type | Meaning |\n|---|---|---|\n"
LISTS = {"agent": OWN_METRICS, "dcgm": DCGM_METRICS, "watchdog": WATCHDOG_METRICS}


def lists() -> dict[str, str]:
    """Each list by the name that its markers in the document have."""
    tables = {name: HEAD + "".join(map(_line, rows)) for name, rows in LISTS.items()}
    return {**tables, "operator": OPERATOR_HEAD + "".join(map(_family_line, operator_families()))}


def operator_families() -> list[Family]:
    metrics = Metrics()
    metrics.add(JobConditions(lambda: ()))
    return list(text_string_to_metric_families(metrics.text().decode()))


def filled(text: str) -> str:
    """The document with the lists as they must be."""
    for name, table in lists().items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        text = f"{before}{begin}\n{table}{end}{after}"
    return text


def _line(row: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in row.labels)
    return f"| `{row.name}` | {row.kind.value} | {labels} | {row.help} |\n"


def _family_line(family: Family) -> str:
    name = f"{family.name}_total" if family.type == "counter" else family.name
    return f"| `{name}` | {family.type} | {family.documentation} |\n"


def test_the_document_is_in_step() -> None:
    text = DOCUMENT.read_text()
    assert text == filled(text), "run this file"


def test_no_two_metrics_are_one_family_in_openmetrics() -> None:
    """There a counter's family is called as the counter is, without _total."""
    names = [row.name.removesuffix("_total") for rows in LISTS.values() for row in rows]
    assert [name for name in set(names) if names.count(name) > 1] == []


if __name__ == "__main__":
    DOCUMENT.write_text(filled(DOCUMENT.read_text()))
