"""The chart as a test uses it: install, upgrade, uninstall, and what a release is made of.

Everything goes through Helm's own library and a kubeconfig; there is no helm binary. All calls block.
"""

from pathlib import Path
from typing import Any

import yaml
from helm_python import Chart, Config

CHART = Path(__file__).parents[2] / "helm" / "holdfast"
RELEASE = "holdfast"
Manifest = dict[str, Any]
Values = dict[str, Any]


class HelmChart:
    """One release of the chart in one namespace of one cluster."""

    def __init__(self, kubeconfig: Path, namespace: str, release: str = RELEASE, chart: Path = CHART):
        self._kubeconfig = kubeconfig
        self.namespace = namespace
        self._release = release
        self._chart = chart

    def install(self, values: Values | None = None, *, ready_within_s: int | None = None) -> list[Manifest]:
        """Install; the manifests as applied. Raises helm_python.HelmError with the server's words.

        `ready_within_s` waits as `helm install --wait` does; it needs nodes that run pods.
        """
        waiting = _waiting(ready_within_s)
        with self._config() as config, Chart.load(self._chart) as chart:
            return _manifests(config.install(chart, self._release, values or {}, create_namespace=True, **waiting))

    def upgrade(self, values: Values | None = None, *, ready_within_s: int | None = None) -> list[Manifest]:
        """As `install`."""
        waiting = _waiting(ready_within_s)
        with self._config() as config, Chart.load(self._chart) as chart:
            return _manifests(config.upgrade(chart, self._release, values or {}, **waiting))

    def dry_run(self, values: Values | None = None) -> list[Manifest]:
        """What an install would apply, checked and completed by the server, nothing kept."""
        with self._config() as config, Chart.load(self._chart) as chart:
            return _manifests(config.install(chart, self._release, values or {}, dry_run="server"))

    def test(self, within_s: int = 90) -> str:
        """Run `helm test`; what its pod printed. Raises helm_python.HelmError when it failed."""
        with self._config() as config:
            return str(config.test(self._release, timeout=within_s, logs=True)["logs"])

    def at(self, chart: Path) -> "HelmChart":
        """The same release from another folder: an older or newer chart."""
        return HelmChart(self._kubeconfig, self.namespace, self._release, chart)

    def uninstall(self) -> None:
        with self._config() as config:
            config.uninstall(self._release, ignore_not_found=True)

    def _config(self) -> Config:
        return Config(kubeconfig_path=self._kubeconfig, namespace=self.namespace)


def rendered(values: Values | None = None, *, namespace: str = "hf", release: str = RELEASE) -> list[Manifest]:
    """The chart's manifests for a recent server, without one: no lookup finds anything."""
    with Chart.load(CHART) as chart:
        texts = chart.render(values or {}, name=release, namespace=namespace)
    return [
        document for name in sorted(texts) if not name.endswith(".txt") for document in _documents(texts[name])
    ]


def notes(values: Values | None = None) -> str:
    """What an install prints."""
    with Chart.load(CHART) as chart:
        texts = chart.render(values or {}, name=RELEASE, namespace="hf")
    return next(text for name, text in texts.items() if name.endswith("NOTES.txt"))


def one(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    """The only object of that kind and name."""
    found = [each for each in manifests if each["kind"] == kind and each["metadata"]["name"] == name]
    assert len(found) == 1, f"{len(found)} of {kind} {name}; there are {named(manifests)}"
    return found[0]


def named(manifests: list[Manifest]) -> list[str]:
    return sorted(f"{each['kind']}/{each['metadata']['name']}" for each in manifests)


def _waiting(ready_within_s: int | None) -> dict[str, Any]:
    return {} if ready_within_s is None else {"wait": "watcher", "timeout": ready_within_s}


def _manifests(release: dict[str, Any]) -> list[Manifest]:
    return _documents(release["manifest"])


def _documents(text: str) -> list[Manifest]:
    # The definitions are long: libyaml reads them in a tenth of the time.
    return [document for document in yaml.load_all(text, Loader=yaml.CSafeLoader) if document]
