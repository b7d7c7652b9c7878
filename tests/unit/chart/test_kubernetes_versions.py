"""Every place that says which Kubernetes is supported says the same."""

import re
from pathlib import Path

import pytest
import yaml

from holdfast.api.kubernetes_versions import NEWEST, NEWEST_TRIED, OLDEST, OLDEST_TRIED, minor_of

ROOT = Path(__file__).parents[3]
SAID_OLDEST = re.compile(r"\b(1\.\d\d) (?:or|and) newer\b")


def test_the_chart_installs_on_what_is_supported() -> None:
    chart = yaml.safe_load((ROOT / "helm/holdfast/Chart.yaml").read_text())
    assert chart["kubeVersion"] == f">={OLDEST}.0-0"


def test_what_is_tried_is_of_the_oldest_and_of_the_newest() -> None:
    assert (minor_of(OLDEST_TRIED), minor_of(NEWEST_TRIED)) == (minor_of(OLDEST), minor_of(NEWEST))
    assert minor_of(OLDEST) < minor_of(NEWEST)


@pytest.mark.parametrize("page", ["docs/install.md", "helm/holdfast/README.md"])
def test_the_pages_for_who_installs_name_the_releases_it_is_tested_on(page: str) -> None:
    text = (ROOT / page).read_text()
    assert OLDEST_TRIED in text
    assert NEWEST_TRIED in text


@pytest.mark.parametrize(
    "page", ["docs/install.md", "docs/kubectl.md", "docs/tutorials/kubernetes.md", "helm/holdfast/README.md"]
)
def test_every_page_names_the_oldest_that_is_supported(page: str) -> None:
    said = [
        oldest
        for line in (ROOT / page).read_text().splitlines()
        if "kubectl 1." not in line  # of the client, not of the server
        for oldest in SAID_OLDEST.findall(line)
    ]
    assert said
    assert set(said) == {OLDEST}
