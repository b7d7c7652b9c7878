"""What a Grafana dashboard is made of, as far as Holdfast's need it: plain data in, Grafana's JSON out.

Panels flow from left to right in rows of 24 columns; nobody counts coordinates. Every query names the data source
by variable, and every panel has a description and a unit.
Source: https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

COLUMNS = 24
SCHEMA_VERSION = 39  # Grafana 10.4 and newer read it; newer ones migrate it
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
RUNBOOKS = "https://holdfast.dev/docs/runbooks"  # the chart puts its own value in its place
GREEN, YELLOW, RED, GREY, BLUE = "green", "yellow", "red", "#808080", "blue"


@dataclass(frozen=True, kw_only=True)
class Query:
    """One PromQL expression. `legend` is Grafana's template for the name of each of its series."""

    expr: str
    legend: str = "__auto"


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One panel: its queries, and how Grafana shows them. `runbooks` are alerts whose pages help to read it."""

    title: str
    description: str
    kind: str
    queries: tuple[Query, ...]
    unit: str
    width: int
    height: int
    options: Json
    custom: Json
    mappings: tuple[Json, ...] = ()
    steps: tuple[tuple[float | None, str], ...] = ((None, GREEN),)
    runbooks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """A titled group of panels."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, kw_only=True)
class Variable:
    """A drop-down filled by a query. `every` offers all values at once."""

    name: str
    label: str
    query: str
    every: bool = False


@dataclass(frozen=True, kw_only=True)
class Annotation:
    """Marks on every graph where the expression has a value."""

    name: str
    expr: str
    title: str
    colour: str


@dataclass(frozen=True, kw_only=True)
class Dashboard:
    """One dashboard. `uid` is a promise: links and bookmarks use it."""

    uid: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]
    annotations: tuple[Annotation, ...] = ()

    def json(self) -> Json:
        """As Grafana imports it."""
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": ["holdfast"],
            "editable": True,
            "graphTooltip": 1,
            "schemaVersion": SCHEMA_VERSION,
            "refresh": "30s",
            "time": {"from": "now-3h", "to": "now"},
            "timezone": "browser",
            "links": [_others()],
            "annotations": {"list": [_annotation(each) for each in self.annotations]},
            "templating": {"list": [_datasource(), *(_variable(each) for each in self.variables)]},
            "panels": _laid_out(self.rows),
        }


def graph(
    title: str,
    description: str,
    *queries: Query,
    unit: str,
    width: int = 12,
    runbooks: Sequence[str] = (),
) -> Panel:
    """Lines over time. What is Unknown is a gap, never a line through it."""
    return Panel(
        title=title,
        description=description,
        kind="timeseries",
        queries=queries,
        unit=unit,
        width=width,
        height=8,
        options={
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        custom={"drawStyle": "line", "lineWidth": 1, "fillOpacity": 8, "spanNulls": False, "showPoints": "never"},
        runbooks=tuple(runbooks),
    )


def number(
    title: str,
    description: str,
    query: Query,
    *,
    unit: str,
    width: int = 4,
    steps: Sequence[tuple[float | None, str]] = ((None, GREEN),),
    runbooks: Sequence[str] = (),
) -> Panel:
    """The newest value, coloured by `steps`: (from this value on, this colour)."""
    return Panel(
        title=title,
        description=description,
        kind="stat",
        queries=(query,),
        unit=unit,
        width=width,
        height=4,
        options={
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "colorMode": "value",
            "graphMode": "area",
            "textMode": "auto",
        },
        custom={},
        steps=tuple(steps),
        runbooks=tuple(runbooks),
    )


def states(
    title: str,
    description: str,
    query: Query,
    *,
    words: Mapping[int, tuple[str, str]],
    width: int = 24,
    runbooks: Sequence[str] = (),
) -> Panel:
    """Bars over time, one line per series; `words` are (text, colour) by value."""
    options = {str(value): {"text": text, "color": colour} for value, (text, colour) in words.items()}
    return Panel(
        title=title,
        description=description,
        kind="state-timeline",
        queries=(query,),
        unit="none",
        width=width,
        height=7,
        options={
            "mergeValues": True,
            "showValue": "never",
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        },
        custom={"fillOpacity": 75, "lineWidth": 0},
        mappings=({"type": "value", "options": options},),
        runbooks=tuple(runbooks),
    )


def table(
    title: str, description: str, query: Query, *, unit: str, width: int = 12, runbooks: Sequence[str] = ()
) -> Panel:
    """The newest value of every series, with its labels as columns."""
    return Panel(
        title=title,
        description=description,
        kind="table",
        queries=(query,),
        unit=unit,
        width=width,
        height=8,
        options={"showHeader": True, "cellHeight": "sm"},
        custom={"align": "auto"},
        runbooks=tuple(runbooks),
    )


def _laid_out(rows: Sequence[Row]) -> list[Json]:
    """Every row's title and its panels, with ids and places."""
    panels: list[Json] = []
    y = 0
    for row in rows:
        place = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
        panels.append(
            {"id": len(panels) + 1, "type": "row", "title": row.title, "collapsed": False, "gridPos": place}
        )
        y, x, height = y + 1, 0, 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                y, x, height = y + height, 0, 0
            place = {"x": x, "y": y, "w": panel.width, "h": panel.height}
            panels.append(_panel(panel, len(panels) + 1, place))
            x, height = x + panel.width, max(height, panel.height)
        y += height
    return panels


def _panel(panel: Panel, number: int, place: Json) -> Json:
    made: Json = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": place,
        "targets": [_target(each, panel, chr(ord("A") + at)) for at, each in enumerate(panel.queries)],
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "custom": panel.custom,
                "mappings": list(panel.mappings),
                "thresholds": {
                    "mode": "absolute",
                    "steps": [{"value": value, "color": colour} for value, colour in panel.steps],
                },
            },
            "overrides": [],
        },
        "options": panel.options,
    }
    if panel.kind == "table":
        hidden = {"Time": True, "__name__": True}
        made["transformations"] = [{"id": "organize", "options": {"excludeByName": hidden}}]
    if panel.runbooks:
        made["links"] = [
            {"title": f"Runbook: {name}", "url": f"{RUNBOOKS}/{name}.md", "targetBlank": True}
            for name in panel.runbooks
        ]
    return made


def _target(query: Query, panel: Panel, letter: str) -> Json:
    target: Json = {"refId": letter, "datasource": SOURCE, "expr": query.expr, "legendFormat": query.legend}
    if panel.kind == "table":
        return target | {"instant": True, "range": False, "format": "table"}
    return target | {"instant": False, "range": True}


def _annotation(annotation: Annotation) -> Json:
    return {
        "name": annotation.name,
        "datasource": SOURCE,
        "enable": True,
        "iconColor": annotation.colour,
        "expr": annotation.expr,
        "titleFormat": annotation.title,
        "step": "15s",
    }


def _datasource() -> Json:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0}


def _variable(variable: Variable) -> Json:
    """Refreshed when the time range changes: jobs and nodes come and go."""
    made: Json = {
        "name": variable.name,
        "label": variable.label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": variable.query, "refId": variable.name},
        "refresh": 2,
        "sort": 1,
        "multi": variable.every,
        "includeAll": variable.every,
        "hide": 0,
    }
    return made | ({"allValue": ".*", "current": {"text": "All", "value": "$__all"}} if variable.every else {})


def _others() -> Json:
    """A menu of Holdfast's other dashboards, which keeps what was chosen."""
    return {
        "type": "dashboards",
        "tags": ["holdfast"],
        "title": "Holdfast",
        "asDropdown": True,
        "includeVars": True,
        "keepTime": True,
    }
