"""Packs the chart as `helm package` does, but the same bytes each time.

    python release/chart.py [--into dist]

A chart is a gzipped tar of one folder with its name, without what .helmignore leaves out.
Source: https://helm.sh/docs/topics/charts/ and https://helm.sh/docs/chart_template_guide/helm_ignore_file/
"""

import argparse
import gzip
import io
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

import yaml
from distributions import INTO, ROOT, commit_time, version

CHART = ROOT / "helm" / "holdfast"


class VersionsDiffer(ValueError):
    """Two places that state the version of Holdfast do not agree. The text names both."""


def check_versions(chart: Path = CHART, stated: str | None = None) -> str:
    """The one version of chart, application and pyproject.toml. Raises VersionsDiffer."""
    stated = stated or version()
    said = yaml.safe_load((chart / "Chart.yaml").read_text())
    for field in ("version", "appVersion"):
        if str(said[field]) != stated:
            raise VersionsDiffer(
                f"{field} of {chart / 'Chart.yaml'} is {said[field]}, pyproject.toml says {stated}"
            )
    return stated


def package(into: Path, chart: Path = CHART) -> Path:
    """NAME-VERSION.tgz in `into`, which is made. Raises VersionsDiffer before anything is written."""
    stated = check_versions(chart)
    into.mkdir(parents=True, exist_ok=True)
    target = into / f"{chart.name}-{stated}.tgz"
    unfinished = target.with_name(f".{target.name}.new")
    epoch = commit_time()
    with (
        unfinished.open("wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in files(chart):
            _add(archive, f"{chart.name}/{path.relative_to(chart).as_posix()}", path.read_bytes(), epoch)
    return unfinished.rename(target)


def files(chart: Path) -> Iterator[Path]:
    """Chart.yaml first, as Helm has it; then the others by name."""
    ignored = _patterns(chart)
    first = chart / "Chart.yaml"
    yield first
    for path in sorted(chart.rglob("*")):
        inside = PurePosixPath(path.relative_to(chart).as_posix())
        if path.is_file() and path != first and not any(inside.match(each) for each in ignored):
            yield path


def _patterns(chart: Path) -> Sequence[str]:
    listed = chart / ".helmignore"
    lines = listed.read_text().splitlines() if listed.is_file() else []
    return [".helmignore", *(line.strip() for line in lines if line.strip() and not line.startswith("#"))]


def _add(archive: tarfile.TarFile, name: str, content: bytes, epoch: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = len(content), epoch, 0o644
    archive.addfile(entry, io.BytesIO(content))


def main() -> None:
    parser = argparse.ArgumentParser(description="Pack the chart.")
    parser.add_argument("--into", type=Path, default=INTO, help="folder (default: dist)")
    print(package(parser.parse_args().into))


if __name__ == "__main__":
    main()
