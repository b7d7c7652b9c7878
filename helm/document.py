"""Writes what is said twice about the chart's values: README.md's table and values.schema.json.

    python helm/document.py          writes both
    python helm/document.py --check  exit code 1 when one is out of step

Both come from values.yaml: its `# --` comments, its defaults and their types. What a default cannot tell is in
`NARROWED`. A key that values.yaml does not have is refused by the schema: no misspelt value passes in silence.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parent / "holdfast"
BEGIN, END = "<!-- values: begin -->", "<!-- values: end -->"
Schema = dict[str, Any]

DIGEST = {"pattern": "^(sha256:[0-9a-f]{64})?$"}
PORT = {"minimum": 1, "maximum": 65535}
ROLES = {"additionalProperties": {"type": "array", "items": {"enum": ["ingest", "view", "operate"]}}}
XIDS = {
    "propertyNames": {"pattern": "^([1-9][0-9]{0,2}|10[01][0-9]|102[0-3])$"},
    "additionalProperties": {"enum": ["Ignore", "Watch", "Restart", "Evict"]},
}
NAMES = {"items": {"type": "string", "minLength": 1}}
CONDITIONS: Schema = {
    "items": {
        "type": "object",
        "required": ["type", "means"],
        "additionalProperties": False,
        "properties": {
            "type": {"type": "string", "minLength": 1},
            "reason": {"type": "string", "minLength": 1},
            "status": {"enum": ["True", "False", "Unknown"]},
            "means": {"enum": ["ignore", "evidence", "suspect", "evict"]},
            "part": {"enum": ["gpu", "link", "memory", "disk", "kernel", "runtime", "maintenance"]},
            "source": {"type": "string"},
        },
    }
}
NARROWED: Mapping[str, Schema] = {
    "imageRegistry": {"pattern": "^([^/].*[^/])?$"},
    "watchNamespaces": {**NAMES, "uniqueItems": True},
    "operator.replicas": {"minimum": 1},
    "operator.mode": {"enum": ["act", "observe"]},
    "operator.cordoning": {"enum": ["own", "consume"]},
    "operator.maintenanceTaints": NAMES,
    "operator.capacity": {"enum": ["pods", "provisioning-request"]},
    "operator.provisioningClass": {"minLength": 1},
    "operator.handOn": {"enum": ["nothing", "condition", "remediation"]},
    "operator.remediationTTL": {"minimum": 0},
    "operator.policyChecks.timeout": {"minimum": 1},
    "operator.nodeConditions": CONDITIONS,
    "operator.placeLabels": {"items": {"type": "string", "pattern": "^[^,=]+=[A-Za-z0-9-]+$"}},
    "operator.extraArgs": NAMES,
    "watchdog.replicas": {"minimum": 1},
    "watchdog.leaseSeconds": {"type": "number", "minimum": 1},
    "watchdog.xidActions": XIDS,
    "watchdog.grants.users": ROLES,
    "watchdog.grants.groups": ROLES,
    "watchdog.extraArgs": NAMES,
    "watchdog.service.port": PORT,
    "redis.replicas": {"enum": [1, 3, 5]},  # of two, neither is the greater part
    "redis.appendfsync": {"enum": ["always", "everysec"]},
    "redis.external.url": {"pattern": "^(rediss?([+]sentinel)?://.+)?$"},
    "agent.extraArgs": NAMES,
    "agent.metricsPort": PORT,
    "agent.kubeletPodsDir": {"pattern": "^/"},
    "agent.kubeletPodLogsDir": {"pattern": "^/"},
    "console.replicas": {"minimum": 1},
    "trackers.allowedHosts": {"items": {"type": "string", "pattern": r"^(\*|[A-Za-z0-9.-]+(:[0-9]{1,5})?)$"}},
    "trackers.secrets": NAMES,
    "trackers.extraArgs": NAMES,
    "trackers.spoolMib": {"minimum": 1, "maximum": 1048576},
    "console.service.port": PORT,
    "console.extraArgs": NAMES,
    "watchdog.cordonOn": {"enum": ["sensors", "anything"]},
    "agent.kernelLog": {"pattern": "^(/[^/]+.*/[^/]+)?$"},
    "agent.maxUnavailable": {"type": ["string", "integer"]},
}
NARROWED_EVERYWHERE: Mapping[str, Schema] = {
    "digest": DIGEST,
    "spread": {"enum": ["required", "preferred"]},
    "pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
}
TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


@dataclass(frozen=True)
class Value:
    """One value: its path, its default, and the sentence that is said of it."""

    path: str
    default: Any
    about: str


def documented(text: str) -> Iterator[Value]:
    """The values of values.yaml that have a `# --` comment, in its order."""
    defaults = yaml.safe_load(text)
    above: list[tuple[int, str]] = []  # the mappings we are in, by indentation
    about: list[str] = []
    for line in text.splitlines():
        indentation, content = len(line) - len(line.lstrip()), line.strip()
        if content.startswith("# -- "):
            about = [content.removeprefix("# -- ")]
        elif content.startswith("#") and about:
            about.append(content.lstrip("# "))
        elif content and not content.startswith(("#", "-")):
            above = [(at, key) for at, key in above if at < indentation]
            above.append((indentation, content.partition(":")[0]))
            if about:
                path = [key for _, key in above]
                yield Value(".".join(path), _at(defaults, path), " ".join(about))
            about = []


def _at(values: Any, path: list[str]) -> Any:
    for key in path:
        values = values[key]
    return values


def schema_of(values: Mapping[str, Any], about: Mapping[str, str], path: str = "") -> Schema:
    """A mapping that has documented values below it is closed; any other is the user's own."""
    properties = {key: _property(value, about, f"{path}.{key}".lstrip(".")) for key, value in values.items()}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _property(value: Any, about: Mapping[str, str], path: str) -> Schema:
    if isinstance(value, dict) and path not in about:
        return schema_of(value, about, path)
    narrowed = {**NARROWED_EVERYWHERE.get(path.rpartition(".")[2], {}), **NARROWED.get(path, {})}
    return {"type": TYPES[type(value)], "description": about[path], **narrowed}


def schema_text(values: str) -> str:
    about = {value.path: value.about for value in documented(values)}
    schema = schema_of(yaml.safe_load(values), about)
    # Helm hands these to every chart.
    schema["properties"]["global"] = {"type": "object"}
    return json.dumps({"$schema": "http://json-schema.org/draft-07/schema#", **schema}, indent=2) + "\n"


def readme_text(readme: str, values: str) -> str:
    """The README with its table made anew."""
    rows = [
        f"| `{each.path}` | `{json.dumps(each.default)}` | {_cell(each.about)} |" for each in documented(values)
    ]
    table = "\n".join(("| value | default | |", "|---|---|---|", *rows))
    head, _, rest = readme.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{table}\n{END}{tail}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def written() -> dict[Path, str]:
    """What each file should hold."""
    values = (CHART / "values.yaml").read_text()
    readme = CHART / "README.md"
    return {
        readme: readme_text(readme.read_text(), values),
        CHART / "values.schema.json": schema_text(values),
    }


def main() -> int:
    stale = [path for path, text in written().items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv[1:]:
        for path in stale:
            sys.stderr.write(f"{path} is out of step with values.yaml; run python helm/document.py\n")
        return bool(stale)
    for path, text in written().items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
