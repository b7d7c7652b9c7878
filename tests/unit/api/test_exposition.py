"""The text that Prometheus reads, by hand."""

import math

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as strictly_parsed
from prometheus_client.parser import text_string_to_metric_families

from holdfast.api.exposition import Page, Style, accepted
from holdfast.api.metric import Metric, MetricKind

DEPTH = Metric("depth_meters", MetricKind.GAUGE, "How deep.", ("sea",))
DIVES = Metric("dives_total", MetricKind.COUNTER, "How often.")


def a_page() -> Page:
    page = Page((DEPTH, DIVES))
    page.put("depth_meters", 1.5, "north")
    page.put("dives_total", 3)
    return page


def test_the_older_format_names_a_counter_as_it_is_asked_for() -> None:
    assert a_page().text(Style.CLASSIC) == (
        "# HELP depth_meters How deep.\n"
        "# TYPE depth_meters gauge\n"
        'depth_meters{sea="north"} 1.5\n'
        "# HELP dives_total How often.\n"
        "# TYPE dives_total counter\n"
        "dives_total 3\n"
    )


def test_openmetrics_names_a_counters_family_without_total_and_says_where_it_ends() -> None:
    text = a_page().text(Style.OPENMETRICS)
    assert "# TYPE dives counter\ndives_total 3\n# EOF\n" in text
    assert [family.name for family in strictly_parsed(text)] == ["depth_meters", "dives"]


@pytest.mark.parametrize("style", list(Style))
@pytest.mark.parametrize(
    "value", [0, 1_234_567_890_123, 0.1, 1e-9, 1.2345678901e22, math.inf, -math.inf, math.nan, True]
)
def test_every_number_comes_back_as_it_was(style: Style, value: float) -> None:
    page = Page((DIVES,)) if value is True else Page((DEPTH,))
    page.put(*(("dives_total", value) if value is True else ("depth_meters", value, "north")))
    parse = strictly_parsed if style is Style.OPENMETRICS else text_string_to_metric_families
    (family,) = parse(page.text(style))
    (sample,) = family.samples
    assert sample.value == value or (math.isnan(value) and math.isnan(sample.value))


@pytest.mark.parametrize("style", list(Style))
def test_a_label_may_hold_anything(style: Style) -> None:
    page = Page((DEPTH,))
    wild = 'back\\slash "quoted"\nsecond line, {braces}'
    page.put("depth_meters", 1, wild)
    parse = strictly_parsed if style is Style.OPENMETRICS else text_string_to_metric_families
    (family,) = parse(page.text(style))
    assert family.samples[0].labels == {"sea": wild}


def test_a_summary_is_how_many_and_their_sum() -> None:
    page = Page((Metric("looks_seconds", MetricKind.SUMMARY, "How long.", ("at",)),))
    page.put_summary("looks_seconds", "sea", count=2, total=0.5)
    assert 'looks_seconds_count{at="sea"} 2\nlooks_seconds_sum{at="sea"} 0.5\n' in page.text(Style.CLASSIC)
    (family,) = strictly_parsed(page.text(Style.OPENMETRICS))
    assert [(each.name, each.value) for each in family.samples] == [
        ("looks_seconds_count", 2),
        ("looks_seconds_sum", 0.5),
    ]


def test_a_histogram_is_how_many_were_at_most_so_much() -> None:
    page = Page((Metric("looks_seconds", MetricKind.HISTOGRAM, "How long.", ("at",)),))
    page.put_histogram("looks_seconds", "sea", buckets={1.0: 2, 900.0: 2, math.inf: 3}, total=1000.5)
    (family,) = strictly_parsed(page.text(Style.OPENMETRICS))
    assert [(each.name, each.labels.get("le"), each.value) for each in family.samples] == [
        ("looks_seconds_bucket", "1.0", 2),
        ("looks_seconds_bucket", "900.0", 2),
        ("looks_seconds_bucket", "+Inf", 3),
        ("looks_seconds_count", None, 3),
        ("looks_seconds_sum", None, 1000.5),
    ]


def test_what_may_count_or_not_is_of_no_type() -> None:
    page = Page((Metric("DCGM_X", MetricKind.UNKNOWN, "Of another program."),))
    assert "# TYPE DCGM_X untyped" in page.text(Style.CLASSIC)
    assert "# TYPE DCGM_X unknown" in page.text(Style.OPENMETRICS)


def test_what_is_unknown_is_absent() -> None:
    page = Page((DEPTH,))
    page.put("depth_meters", None, "north")
    assert "sea" not in page.text(Style.CLASSIC)


def test_labels_that_the_row_does_not_have_are_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        Page((DEPTH,)).put("depth_meters", 1, "north", "deep")
    with pytest.raises(KeyError):
        Page((DEPTH,)).put("height_meters", 1)


@pytest.mark.parametrize(
    ("accept", "style"),
    [
        ("", Style.CLASSIC),
        ("*/*", Style.CLASSIC),
        ("text/plain;version=0.0.4", Style.CLASSIC),
        ("application/openmetrics-text;version=1.0.0,text/plain;q=0.5", Style.OPENMETRICS),
        ("text/plain;q=0.5, application/openmetrics-text", Style.OPENMETRICS),
    ],
)
def test_who_names_openmetrics_gets_it(accept: str, style: Style) -> None:
    assert accepted(accept) is style
