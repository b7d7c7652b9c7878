"""A /sys/class/infiniband made of files, for tests."""

from pathlib import Path


class IbTree:
    """Adapters with one port each, all healthy until told otherwise."""

    def __init__(
        self, root: Path, *, adapters: int = 4, model: str = "MT4129", rate: str = "400 Gb/sec (4X NDR)"
    ) -> None:
        self.root = root / "infiniband"
        for index in range(adapters):
            self.write(f"mlx5_{index}", "hca_type", model)
            for name, text in (
                ("state", "4: ACTIVE"),
                ("phys_state", "5: LinkUp"),
                ("rate", rate),
                ("link_layer", "InfiniBand"),
                ("counters/symbol_error", "0"),
                ("counters/link_downed", "0"),
                ("counters/port_rcv_errors", "0"),
                ("counters/port_xmit_data", "1000"),
                ("counters/port_rcv_data", "2000"),
                ("hw_counters/out_of_sequence", "0"),
            ):
                self.port(f"mlx5_{index}", name, text)

    def write(self, device: str, name: str, text: str) -> None:
        path = self.root / device / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")

    def port(self, device: str, name: str, text: str) -> None:
        self.write(device, f"ports/1/{name}", text)

    def down(self, device: str) -> None:
        self.port(device, "state", "1: DOWN")
        self.port(device, "phys_state", "3: Disabled")

    def up(self, device: str) -> None:
        self.port(device, "state", "4: ACTIVE")
        self.port(device, "phys_state", "5: LinkUp")
