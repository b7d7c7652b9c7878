"""One version everywhere, a chart that Helm takes, checksums that hold, and images that say what they are."""

import json
import re
import shutil
import stat
import subprocess
import tarfile
from pathlib import Path

import bom
import chart
import distributions
import images
import pytest
import release
import yaml

ROOT = Path(__file__).parents[3]
VERSION = distributions.version()


def test_every_place_that_states_a_version_states_the_same() -> None:
    assert chart.check_versions() == VERSION
    example = (ROOT / "examples" / "bytes" / "cluster.yaml").read_text()
    assert re.findall(r"image: holdfast/[\w-]+:(\S+)", example) == [VERSION]
    install = (ROOT / "docs" / "install.md").read_text()
    assert set(re.findall(r"holdfast/operator:([\d.]+\d)", install)) == {VERSION}


def test_a_chart_of_another_version_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    copy = tmp_path / "holdfast"
    copy.mkdir()
    said = yaml.safe_load((chart.CHART / "Chart.yaml").read_text())
    (copy / "Chart.yaml").write_text(yaml.safe_dump(said | {"appVersion": "0.0.9"}))
    with pytest.raises(chart.VersionsDiffer, match=r"appVersion of .*Chart.yaml is 0.0.9, pyproject.toml says"):
        chart.package(tmp_path / "out", copy)
    assert not (tmp_path / "out").exists()


def test_the_packed_chart_is_one_folder_that_renders_as_the_chart_does(tmp_path: Path) -> None:
    from helm_python import Chart

    packed = chart.package(tmp_path)
    assert packed.name == f"holdfast-{VERSION}.tgz"
    assert packed.read_bytes() == chart.package(tmp_path / "again").read_bytes()
    with tarfile.open(packed) as archive:
        names = archive.getnames()
        archive.extractall(tmp_path / "unpacked", filter="data")
    assert names[0] == "holdfast/Chart.yaml"
    assert "holdfast/.helmignore" not in names
    assert {name for name in names if "dashboards/" in name}, "the dashboards are files that templates read"
    rendered = []
    for folder in (chart.CHART, chart.CHART, tmp_path / "unpacked" / "holdfast"):
        with Chart.load(folder) as loaded:
            rendered.append(
                loaded.render({"metrics": {"dashboards": {"enabled": True}}}, name="holdfast", namespace="hf")
            )
    once, again, from_package = rendered
    assert from_package.keys() == once.keys()
    drawn = {name for name in once if once[name] != again[name]}  # passwords, where no cluster keeps any
    assert {name for name in once if once[name] != from_package[name]} <= drawn
    assert len(drawn) <= 2 < len(once)


def test_a_release_without_images_is_whole_and_its_checksums_hold(tmp_path: Path) -> None:
    (tmp_path / "holdfast-0.0.1.tgz").write_text("of an earlier release")
    (tmp_path / "mine.txt").write_text("not ours")
    made = release.release(tmp_path, (), ())
    assert {path.name for path in made} == {path.name for path in tmp_path.iterdir()} - {"mine.txt"}
    assert [path.suffix for path in made] == [".gz", ".whl", ".tgz", ".json", ""]
    checked = subprocess.run(["sha256sum", "--check", "--strict", release.SUMS], cwd=tmp_path, capture_output=True)
    assert checked.returncode == 0, checked.stderr
    assert len((tmp_path / release.SUMS).read_text().splitlines()) == len(made) - 1


def test_the_targets_are_those_of_the_dockerfile_and_of_the_script() -> None:
    stages = re.findall(r"^FROM \S+ AS (\S+)$", (ROOT / "images" / "Dockerfile").read_text(), re.MULTILINE)
    script = (ROOT / "images" / "build.sh").read_text()
    (unasked,) = re.findall(r"targets=\(([a-z -]{9,})\)", script)
    assert tuple(unasked.split()) == images.TARGETS
    assert set(images.TARGETS) <= set(stages)


@pytest.fixture
def recorded_builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A buildah that writes down what it is asked, and answers an inspection."""
    program = tmp_path / "bin" / "buildah"
    program.parent.mkdir()
    config = json.dumps({"FromImageID": "abc", "Docker": {"config": {"Labels": {"a": "b"}}}})
    program.write_text(f"#!/bin/sh\necho \"$@\" >> {tmp_path}/asked\n[ $1 != inspect ] || echo '{config}'\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return tmp_path / "asked"


def test_every_image_is_labelled_with_the_version_and_its_name(recorded_builder: Path) -> None:
    assert images.builder() == "buildah"
    options = ["--prefix", "registry.example/", "--", "--build-arg=X=1"]
    names = images.build(["operator", "launcher"], ["--builder", "buildah", *options])
    assert names == [f"registry.example/{each}:{VERSION}" for each in ("operator", "launcher")]
    first, second = recorded_builder.read_text().splitlines()
    for line, name in ((first, "operator"), (second, "launcher")):
        assert f"--label=org.opencontainers.image.version={VERSION}" in line
        assert f"--label=org.opencontainers.image.title=holdfast-{name}" in line
        assert line.endswith(f"--build-arg=X=1 --target {name} --tag registry.example/{name}:{VERSION} .")
    assert images.described(names[0], "buildah") == {"id": "abc", "labels": {"a": "b"}}


def test_docker_gives_the_bill_that_buildah_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both programs are stand-ins: one mounts the image's file system, the other writes it as an archive."""
    root, bin_folder = tmp_path / "root", tmp_path / "bin"
    packages = root / "usr" / "local" / "lib" / "python3.11" / "site-packages"
    plot = "Version 1.6.32 of uPlot, the npm package\n`uplot`, licence (MIT, LICENSE).\n"
    for place, text in {
        packages / "click-8.1.dist-info" / "METADATA": "Metadata-Version: 2.1\nName: click\nVersion: 8.1\n",
        packages / "holdfast" / "console" / "static" / "vendor" / "uplot" / "README.md": plot,
        root / "usr" / "lib" / "os-release": "ID=debian\nVERSION_ID=12\n",
        root / "var" / "lib" / "dpkg" / "status": "Package: bash\nStatus: install ok installed\n"
        "Architecture: amd64\nVersion: 5.2\n",
        root / "opt" / "large.bin": "not read",
    }.items():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    (root / "etc").mkdir()
    (root / "etc" / "os-release").symlink_to("../usr/lib/os-release")
    bin_folder.mkdir()
    answers = {
        "buildah": f"from) echo c1;; mount) echo {root}",
        "docker": f"create) echo c2;; export) tar -C {root} -cf - usr var etc opt",
    }
    for name, cases in answers.items():
        removes = f"rm) echo $2 >> {tmp_path}/removed"
        (bin_folder / name).write_text(f"#!/bin/sh\ncase $1 in {cases};; {removes};; esac\n")
        (bin_folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_folder}:/usr/bin:/bin")
    bills = []
    for name in answers:
        with images.file_system("holdfast/console:1", name) as seen:
            bills.append(bom.image_bill("holdfast/console:1", seen))
    assert bills[0] == bills[1]
    assert [each["name"] for each in bills[1]["components"]] == ["bash", "uplot", "click"]
    assert (tmp_path / "removed").read_text().split() == ["c1", "c2"]


def test_without_a_builder_it_is_said_which_would_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(images.BuilderMissing, match="install one"):
        images.builder()
