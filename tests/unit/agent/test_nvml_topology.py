"""How GPUs are grouped by what their links lead to, and how a machine's GPUs are found without a driver."""

from pathlib import Path

from holdfast.agent.nvml.sensor import has_nvidia_gpus
from holdfast.agent.nvml.topology import Domains, grouped


def test_gpus_on_one_switch_are_one_domain() -> None:
    ends = [(f"GPU-{index}", frozenset({f"bus{index}", "switch"})) for index in range(8)]
    assert [len(group) for group in grouped(ends)] == [8]


def test_a_ring_is_one_domain_and_a_pair_beside_it_another() -> None:
    ring = [(f"GPU-{index}", frozenset({f"bus{index}", f"bus{(index + 1) % 4}"})) for index in range(4)]
    pair = [("GPU-8", frozenset({"bus8", "bus9"})), ("GPU-9", frozenset({"bus9", "bus8"}))]
    assert grouped([*pair, *ring]) == (("GPU-0", "GPU-1", "GPU-2", "GPU-3"), ("GPU-8", "GPU-9"))


def test_a_bridge_joins_what_was_found_apart() -> None:
    ends = [("GPU-0", frozenset({"bus0"})), ("GPU-1", frozenset({"bus1"})), ("GPU-2", frozenset({"bus0", "bus1"}))]
    assert [set(group) for group in grouped(ends)] == [{"GPU-0", "GPU-1", "GPU-2"}]


def test_gpus_without_links_are_alone_and_none_make_no_domain() -> None:
    assert grouped([("GPU-0", frozenset({"bus0"})), ("GPU-1", frozenset({"bus1"}))]) == (("GPU-0",), ("GPU-1",))
    assert (grouped([]), Domains(()).largest()) == ((), 0)


def test_only_the_gpus_asked_for_count() -> None:
    domains = Domains((("GPU-0", "GPU-1", "GPU-2"), ("GPU-3",)))
    assert (domains.largest(), domains.largest(["GPU-0", "GPU-3"])) == (3, 1)


def pci_device(root: Path, vendor: str, kind: str) -> None:
    folder = root / "sys/bus/pci/devices/0000:10:00.0"
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "class").write_text(f"{kind}\n")


def test_a_gpu_on_the_bus_is_known_without_its_driver(tmp_path: Path) -> None:
    pci_device(tmp_path, "0x10de", "0x030200")
    assert has_nvidia_gpus(str(tmp_path))


def test_other_vendors_and_other_devices_are_no_nvidia_gpu(tmp_path: Path) -> None:
    assert not has_nvidia_gpus(str(tmp_path))
    pci_device(tmp_path / "amd", "0x1002", "0x030000")
    pci_device(tmp_path / "switch", "0x10de", "0x068000")
    assert not has_nvidia_gpus(str(tmp_path / "amd"))
    assert not has_nvidia_gpus(str(tmp_path / "switch"))


def test_the_drivers_device_file_alone_is_enough(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    assert has_nvidia_gpus(str(tmp_path))
