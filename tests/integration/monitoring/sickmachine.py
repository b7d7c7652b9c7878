"""A node's machine as a test breaks and mends it, a real agent on it: its driver, kernel, ports and disks."""

import json
import os
import pty
import sys
import time
import tty
from collections.abc import Mapping
from pathlib import Path

import pynvml
from fake_nvml import FakeNvml
from playedmachine import AHEAD
from prometheus_server import Target
from server_process import ServerProcess, free_port

NODE, JOB, NAMESPACE = "n-machine", "research/gpt", "machines"
GIB = 1 << 30
SYNCHRONISED, UNSYNCHRONISED = "0 8193", "5 64"  # adjtimex: TIME_OK with a PLL, TIME_ERROR with STA_UNSYNC
PORTS = ("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3")
DISKS = ("/ckpt", "/logs")
AT_A_TIME_S = 4.0  # as far apart as two looks at a GPU may be and still tell that something lasted
LOOK_S = 1.1  # the driver is looked at every second


class SickMachine:
    """`start` its agent, break it by its methods, and read what Prometheus makes of it."""

    def __init__(self, folder: Path, *, watchdog: str, token_file: Path) -> None:
        self.nvml = FakeNvml(folder, gpus=9)
        self._folder = folder
        self._port = free_port()
        self._passed_s = 0.0
        self._records = 0
        self._kernel, slave = pty.openpty()  # as with the kernel's device, one read gives one record
        tty.setraw(self._kernel)
        attributes = tty.tcgetattr(slave)
        attributes[tty.LFLAG] = tty.ICANON
        tty.tcsetattr(slave, tty.TCSANOW, attributes)
        self._slave = slave
        (folder / "passed").write_bytes(AHEAD.pack(0.0))
        (folder / "proc").mkdir()
        self._boots = 0
        self._boot()
        self.memory(available_gib=400)
        self.clock(SYNCHRONISED)
        self.disks()
        for port in PORTS:
            self.port(port)
        for gpu in self.nvml.gpus:
            gpu.set(utilization=95)
        command = [sys.executable, "-m", "playedmachine", folder, "--node", NODE, "--job", JOB]
        command += ["--run-dir", folder / "run", "--watchdog", watchdog, "--token-file", token_file]
        command += ["--listen", f"127.0.0.1:{self._port}", "--kernel-log", os.ttyname(slave)]
        command += ["--preemption", "none", *(word for disk in DISKS for word in ("--disk", disk))]
        path = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
        environment = {**self.nvml.environment(), "PYTHONPATH": path}
        self.agent = ServerProcess("agent", command, folder / "agent.log", environment)

    def target(self) -> Target:
        part = {"app_kubernetes_io_name": "holdfast", "app_kubernetes_io_component": "agent"}
        labels = {**part, "namespace": NAMESPACE, "node": NODE, "pod": f"agent-{NODE}"}
        return Target(f"127.0.0.1:{self._port}", labels)

    def stop(self) -> None:
        self.nvml.release()
        self.nvml.unload_driver()
        self.agent.stop()
        for end in (self._kernel, self._slave):
            os.close(end)

    def fail(self) -> None:
        """It loses its power: whatever ran there is gone."""
        self.agent.kill()

    def boot(self) -> None:
        """It comes back, with a kernel that knows nothing of the one before."""
        self._boot()
        self._records = 0
        self.agent.start()

    def pass_time(self, seconds: float) -> None:
        """Within the agent, in one leap."""
        self._passed_s += seconds
        with (self._folder / "passed").open("r+b") as file:
            file.write(AHEAD.pack(self._passed_s))

    def last(self, seconds: float) -> None:
        """Let what is so be so for that long, with a look at it every few seconds."""
        for _ in range(int(seconds / AT_A_TIME_S) + 1):
            self.pass_time(AT_A_TIME_S - LOOK_S)
            time.sleep(LOOK_S)

    def kernel_says(self, text: str, *, lost: int = 0) -> None:
        """One record; `lost` others before it were overwritten."""
        self._records += 1 + lost
        since_boot_us = int((time.monotonic() + self._passed_s) * 1e6)
        os.write(self._kernel, f"6,{self._records},{since_boot_us},-;{text}\n".encode())

    def memory(self, *, available_gib: int) -> None:
        sizes = {"MemTotal": 512 * GIB, "MemFree": available_gib * GIB, "MemAvailable": available_gib * GIB}
        sizes |= dict.fromkeys(("Buffers", "Cached", "Active", "Inactive", "Slab", "Shmem"), 0)
        text = "".join(f"{name + ':':<16}{size // 1024} kB\n" for name, size in sizes.items())
        self._put("proc/meminfo", text)

    def clock(self, state: str) -> None:
        self._put("adjtimex", state)

    def disks(self, *, free_ratio: float = 0.8, read_only: tuple[str, ...] = ()) -> None:
        """`free_ratio` is that of the first one."""
        blocks = 1_000_000
        told: Mapping[str, list[int]] = {
            disk: [
                *(4096, 4096, blocks, *(int(blocks * (free_ratio if disk == DISKS[0] else 0.8)),) * 2),
                *(10_000, 9_000, 9_000, os.ST_RDONLY if disk in read_only else 0, 255),
            ]
            for disk in DISKS
        }
        self._put("disks.json", json.dumps(told))

    def port(self, name: str, *, up: bool = True, gbps: int = 400, downs: int = 0, errors: int = 0) -> None:
        """One network adapter's port as its driver shows it."""
        folder = f"infiniband/{name}/ports/1"
        self._put(f"{folder}/state", "4: ACTIVE\n" if up else "1: DOWN\n")
        self._put(f"{folder}/phys_state", "5: LinkUp\n" if up else "3: Disabled\n")
        self._put(f"{folder}/link_layer", "InfiniBand\n")
        self._put(f"{folder}/rate", f"{gbps} Gb/sec (4X NDR)\n")
        self._put(f"{folder}/counters/link_downed", f"{downs}\n")
        self._put(f"{folder}/counters/symbol_error", f"{errors}\n")

    def remedy_gpus(self) -> None:
        """Reset them: the driver is loaded anew, and what was counted since it was loaded is gone."""
        for gpu in self.nvml.gpus:
            gpu.fail(0)
            gpu.set(throttle=0, ecc_uncorrected=0, remap_pending=0, remap_failed=0, pcie_width=16)
            gpu.field(pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, 0)
            gpu.link(4, active=True)

    def _boot(self) -> None:
        self._boots += 1
        self._put("boot_id", f"00000000-0000-4000-8000-{self._boots:012d}\n")

    def _put(self, name: str, text: str) -> None:
        """Whole or not at all, as a kernel's file is."""
        file = self._folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh = file.with_name(f"{file.name}.new")
        fresh.write_text(text)
        fresh.replace(file)
