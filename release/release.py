"""One command for a release: sdist, wheel, chart and images, each with a bill of materials, and checksums.

    python release/release.py [--into dist] [--image NAME ...] [--no-images] [-- OPTION OF images/build.sh ...]

In the folder lie afterwards

    holdfast-0.1.0.tar.gz, holdfast-0.1.0-py3-none-any.whl     what pip installs
    holdfast-0.1.0.tgz                                         the chart
    holdfast-0.1.0-py3-none-any.whl.cdx.json                   what the wheel needs, as tested
    operator-0.1.0.cdx.json, ...                               what each image is made of
    images.json                                                each image's id and labels, in the builder's store
    SHA256SUMS                                                 of all of these

Nothing is uploaded. What an earlier release left in the folder is removed first.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bom
import chart
import distributions
import images

SUMS = "SHA256SUMS"
OURS = ("holdfast-*", "*.cdx.json", "images.json", SUMS)


def release(into: Path, targets: Sequence[str], options: Sequence[str]) -> list[Path]:
    """Every file that was made, checksums last. Versions are compared before anything is built."""
    stated = chart.check_versions()
    into.mkdir(parents=True, exist_ok=True)
    for pattern in OURS:
        for path in into.glob(pattern):
            path.unlink()
    built = distributions.build(into)
    made = [built.sdist, built.wheel, chart.package(into)]
    made.append(_written(into / f"{built.wheel.name}.cdx.json", bom.wheel_bill(built.wheel)))
    if targets:
        made.extend(_images(into, targets, options, stated))
    return [*made, checksums(into, made)]


def _images(into: Path, targets: Sequence[str], options: Sequence[str], stated: str) -> list[Path]:
    by = images.builder()
    made, told = [], {}
    for name in images.build(targets, ["--builder", by, *options]):
        told[name] = images.described(name, by)
        with images.file_system(name, by) as root:
            short = name.rpartition("/")[2].partition(":")[0]
            made.append(_written(into / f"{short}-{stated}.cdx.json", bom.image_bill(name, root)))
    return [*made, _written(into / "images.json", told)]


def checksums(into: Path, made: Sequence[Path]) -> Path:
    """As `sha256sum --check SHA256SUMS` reads them, in that folder."""
    lines = (f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(made))
    target = into / SUMS
    target.write_text("".join(lines))
    return target


def _written(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content, indent=2) + "\n")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description="Build everything of a release.")
    parser.add_argument("--into", type=Path, default=distributions.INTO, help="folder (default: dist)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--image", action="append", choices=images.TARGETS, help="only this image, or these")
    which.add_argument("--no-images", action="store_true", help="what needs no builder of images")
    parser.add_argument("options", nargs="*", help="after --: for images/build.sh")
    asked = parser.parse_args()
    targets = () if asked.no_images else tuple(asked.image or images.TARGETS)
    try:
        made = release(asked.into, targets, asked.options)
    except (chart.VersionsDiffer, distributions.BuildFailed, images.BuilderMissing) as error:
        sys.exit(f"release: {error}")
    for path in made:
        print(path)


if __name__ == "__main__":
    main()
