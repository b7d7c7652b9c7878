"""Bills of materials: what a wheel or an image is made of, as CycloneDX JSON.

    python release/bom.py wheel dist/holdfast-0.1.0-py3-none-any.whl
    python release/bom.py image holdfast/operator:0.1.0 ROOT_FOLDER

Of the wheel: what it carries of others, and what its dependencies and extras are where this runs: the versions
that the tests run with. Of an image: every Python distribution and every Debian package that is installed in its
file system. Equal content gives the same document: its number is made of it, and its time is the commit's.
Source: https://cyclonedx.org/docs/1.6/json/ and https://github.com/package-url/purl-spec
"""

import argparse
import json
import re
import tempfile
import uuid
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from pathlib import Path
from typing import Any

from distributions import commit_time, version
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

NAMESPACE = uuid.UUID("0b7d1f0e-5b0e-5b52-9f0a-0f2f2f6f2a11")  # of our documents' numbers
VENDORED = "**/static/vendor/*/README.md"  # says what of npm is carried, and which version
DPKG_STATUS = "var/lib/dpkg/status"
OS_RELEASE = ("etc/os-release", "usr/lib/os-release")
CARRIED = r"^Version ([\w.]+) of .*npm package\s`([\w@/-]+)`.*licence \(([\w.-]+),"
LICENSE_CHARACTERS_MAX = 200  # older packages put the whole text where its name belongs


@dataclass(frozen=True, slots=True, order=True)
class Component:
    """One thing that something is made of. `purl` names it everywhere alike, and once in a document."""

    purl: str
    name: str
    version: str
    license: str = ""
    is_required: bool = True
    needs: tuple[str, ...] = field(default=(), compare=False)  # purls

    def as_json(self) -> dict[str, Any]:
        said = {
            "type": "library",
            "bom-ref": self.purl,
            "name": self.name,
            "version": self.version,
            "purl": self.purl,
        }
        said["scope"] = "required" if self.is_required else "optional"
        return said | ({"licenses": [{"license": {"name": self.license}}]} if self.license else {})


def python_purl(name: str, stated: str) -> str:
    return f"pkg:pypi/{canonicalize_name(name)}@{stated}"


def of_distribution(found: Distribution, *, is_required: bool = True, needs: Iterable[str] = ()) -> Component:
    name, stated = found.metadata["Name"], found.version
    return Component(
        python_purl(name, stated), name, stated, _license(found), is_required, tuple(sorted(set(needs)))
    )


def _license(found: Distribution) -> str:
    """The expression, else the classifiers, else the field of old, in one line; "" where none is said."""
    said = found.metadata.get("License-Expression")
    if said:
        return str(said)
    named = [
        each.rpartition(" :: ")[2] for each in found.metadata.get_all("Classifier", []) if "License ::" in each
    ]
    old = " ".join((found.metadata.get("License") or "").split())
    return " OR ".join(named) or (old if len(old) <= LICENSE_CHARACTERS_MAX else "")


def wheel_components(requirements: Iterable[str]) -> list[Component]:
    """What a wheel with these requirements ends up with where this runs. An extra's are optional.

    What is not installed here (an extra that the tests do without) is left out: no version of it was tested.
    """
    wanted = [Requirement(each) for each in requirements]
    plain = [each for each in wanted if each.marker is None or each.marker.evaluate({"extra": ""})]
    required = _closure(plain)
    everything = _closure(wanted) | required
    return sorted(
        of_distribution(found, is_required=name in required, needs=_needed_purls(found, everything))
        for name, found in everything.items()
    )


def _closure(wanted: Iterable[Requirement]) -> dict[str, Distribution]:
    found: dict[str, Distribution] = {}
    left = list(wanted)
    while left:
        asked = left.pop()
        name = canonicalize_name(asked.name)
        if name in found or name == "holdfast":
            continue
        try:
            found[name] = distribution(asked.name)
        except PackageNotFoundError:
            continue
        left.extend(_requirements(found[name], asked.extras))
    return found


def _requirements(found: Distribution, extras: Iterable[str] = ()) -> Iterator[Requirement]:
    for each in found.requires or ():
        need = Requirement(each)
        if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield need


def _needed_purls(found: Distribution, everything: Mapping[str, Distribution]) -> Iterator[str]:
    for need in _requirements(found):
        other = everything.get(canonicalize_name(need.name))
        if other is not None:
            yield python_purl(other.metadata["Name"], other.version)


def image_components(root: Path) -> list[Component]:
    """Of an unpacked file system: its Python distributions, wherever they lie, and its Debian packages."""
    folders = sorted({path.parent for path in root.rglob("*.dist-info")})
    found = {of_distribution(each) for folder in folders for each in distributions(path=[str(folder)])}
    carried = {each for folder in folders for each in vendored_components(folder)}
    return sorted(found | set(debian_components(root)) | carried)


def vendored_components(folder: Path) -> Iterator[Component]:
    """Scripts for the browser that a part carries as files: what their README names. Raises ValueError."""
    for readme in sorted(folder.glob(VENDORED)):
        said = re.search(CARRIED, readme.read_text(), re.MULTILINE | re.DOTALL)
        if said is None:
            raise ValueError(f"{readme}: write `Version N of ... the npm package NAME ... licence (NAME, FILE)`")
        stated, name, licence = said.groups()
        yield Component(f"pkg:npm/{name}@{stated}", name, stated, licence)


def debian_components(root: Path) -> Iterator[Component]:
    """From the package database; none where the image has none, as one that is no Debian."""
    status = root / DPKG_STATUS
    if not status.is_file():
        return
    places = (root / place for place in OS_RELEASE)
    release = next((place.read_text() for place in places if place.is_file()), "")
    stated = dict(re.findall(r'^(\w+)="?([^"\n]*)', release, re.MULTILINE))
    distro = f"{stated.get('ID', 'debian')}-{stated.get('VERSION_ID', '')}"
    for entry in status.read_text(errors="replace").split("\n\n"):
        fields = dict(re.findall(r"^([A-Z][\w-]*): (.*)$", entry, re.MULTILINE))
        if not fields.get("Status", "").endswith(" installed"):
            continue
        name, stated, machine = fields["Package"], fields["Version"], fields["Architecture"]
        quoted = stated.replace("+", "%2B").replace(":", "%3A")
        yield Component(f"pkg:deb/debian/{name}@{quoted}?arch={machine}&distro={distro}", name, stated)


def document(subject: Mapping[str, str], components: Iterable[Component], epoch: int) -> dict[str, Any]:
    """One bill. `subject` is what it is of: its type, name, version and, where it has one, purl."""
    ordered = sorted(components)
    ref = subject.get("purl") or f"{subject['name']}@{subject['version']}"
    body = [each.as_json() for each in ordered]
    content = json.dumps([dict(subject), body], sort_keys=True)
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(NAMESPACE, content)}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "tools": {"components": [{"type": "application", "name": "holdfast-release", "version": version()}]},
            "component": {**subject, "bom-ref": ref},
        },
        "components": body,
        "dependencies": [
            {"ref": ref, "dependsOn": [each.purl for each in ordered]},
            *({"ref": each.purl, "dependsOn": list(each.needs)} for each in ordered if each.needs),
        ],
    }


def wheel_bill(wheel: Path) -> dict[str, Any]:
    """Raises PackageNotFoundError of importlib when `wheel` holds no distribution."""
    found = next(iter(distributions(path=[str(wheel)])), None)
    if found is None:
        raise PackageNotFoundError(str(wheel))
    name, stated = found.metadata["Name"], found.version
    subject = {"type": "library", "name": name, "version": stated, "purl": python_purl(name, stated)}
    with tempfile.TemporaryDirectory(prefix="holdfast-wheel-") as folder:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        carried = list(vendored_components(Path(folder)))
    return document(subject, [*wheel_components(found.requires or ()), *carried], commit_time())


def image_bill(image: str, root: Path) -> dict[str, Any]:
    """Of the image `name:tag`, unpacked in `root`."""
    name, _, tag = image.rpartition(":")
    return document({"type": "container", "name": name, "version": tag}, image_components(root), commit_time())


def main() -> None:
    parser = argparse.ArgumentParser(description="Print a bill of materials as CycloneDX JSON.")
    kinds = parser.add_subparsers(dest="kind", required=True)
    kinds.add_parser("wheel").add_argument("wheel", type=Path)
    image = kinds.add_parser("image")
    image.add_argument("image", help="name:tag")
    image.add_argument("root", type=Path, help="its file system, unpacked or mounted")
    asked = parser.parse_args()
    bill = wheel_bill(asked.wheel) if asked.kind == "wheel" else image_bill(asked.image, asked.root)
    print(json.dumps(bill, indent=2))


if __name__ == "__main__":
    main()
