"""A bill of materials names what is there, by names that others know, and is the same each time."""

import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import bom
import pytest
from distributions import Distributions

STATUS = """Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9+deb12u10
Description: GNU C Library
 of many lines

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1:1.0
"""


def image_root(folder: Path) -> Path:
    for place in ("opt/holdfast/lib", "usr/lib/python3/dist-packages"):
        info = folder / place / "msgspec-0.22.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.4\nName: msgspec\nVersion: 0.22.0\nLicense: BSD\n")
    (folder / "var/lib/dpkg").mkdir(parents=True)
    (folder / "var/lib/dpkg/status").write_text(STATUS)
    (folder / "etc").mkdir()
    (folder / "etc/os-release").write_text('VERSION_ID="12"\nID=debian\n')
    return folder


def test_of_an_image_python_and_debian_packages_are_named_once(tmp_path: Path) -> None:
    bill = bom.image_bill("holdfast/operator:0.1.0", image_root(tmp_path))
    assert [each["purl"] for each in bill["components"]] == [
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64&distro=debian-12",
        "pkg:pypi/msgspec@0.22.0",
    ]
    assert bill["components"][1]["licenses"] == [{"license": {"name": "BSD"}}]
    assert bill["metadata"]["component"] == {
        "type": "container",
        "name": "holdfast/operator",
        "version": "0.1.0",
        "bom-ref": "holdfast/operator@0.1.0",
    }


def test_an_image_without_a_package_database_has_its_python_packages(tmp_path: Path) -> None:
    root = image_root(tmp_path)
    (root / bom.DPKG_STATUS).unlink()
    assert [each.name for each in bom.image_components(root)] == ["msgspec"]


def test_of_the_wheel_required_and_optional_packages_have_the_versions_of_the_tests(built: Distributions) -> None:
    bill = bom.wheel_bill(built.wheel)
    by_name = {each["name"].lower(): each for each in bill["components"]}
    assert by_name["click"]["scope"] == "required"
    assert by_name["torch"]["scope"] == "optional"
    assert by_name["torch"]["version"] == version("torch")
    assert by_name["typing_extensions"]["scope"] == "required", "pydantic needs it, and Holdfast pydantic"
    refs = {bill["metadata"]["component"]["bom-ref"], *(each["bom-ref"] for each in bill["components"])}
    named = {ref for each in bill["dependencies"] for ref in (each["ref"], *each["dependsOn"])}
    assert named == refs, "a dependency that is no component, or a component that nothing needs"


def test_the_same_content_is_the_same_document_and_other_content_another(built: Distributions) -> None:
    bill = bom.wheel_bill(built.wheel)
    assert json.dumps(bill) == json.dumps(bom.wheel_bill(built.wheel))
    other = bom.document({"type": "library", "name": "x", "version": "1"}, [], 0)
    assert other["serialNumber"] != bill["serialNumber"]
    assert other["metadata"]["timestamp"] == "1970-01-01T00:00:00Z"
    assert [bill[name] for name in ("bomFormat", "specVersion", "version")] == ["CycloneDX", "1.6", 1]


def test_what_is_carried_for_the_browser_is_named(built: Distributions, tmp_path: Path) -> None:
    carried = [each for each in bom.wheel_bill(built.wheel)["components"] if each["purl"].startswith("pkg:npm/")]
    assert [each["name"] for each in carried] == ["uplot"]
    assert carried[0]["licenses"] == [{"license": {"name": "MIT"}}]
    readme = tmp_path / "holdfast" / "console" / "static" / "vendor" / "x" / "README.md"
    readme.parent.mkdir(parents=True)
    readme.write_text("# x\n")
    with pytest.raises(ValueError, match="write `Version N"):
        list(bom.vendored_components(tmp_path))


def test_what_is_no_wheel_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PackageNotFoundError):
        bom.wheel_bill(tmp_path / "none.whl")
