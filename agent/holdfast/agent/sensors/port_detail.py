"""What the kernel tells of one port of a network adapter: for the node's metrics and for judging it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType


class PortState(StrEnum):
    """Whether data passes."""

    UP = "Up"
    DOWN = "Down"
    UNKNOWN = "Unknown"


class PortCounter(StrEnum):
    """Counters of errors, by their names in sysfs. Which of them a port has depends on its driver.

    Source: https://www.kernel.org/doc/Documentation/ABI/stable/sysfs-class-infiniband (`counters`) and
    https://enterprise-support.nvidia.com/s/article/understanding-mlx5-linux-counters-and-status-parameters
    (`hw_counters`)
    """

    LINK_DOWNED = "link_downed"
    LINK_ERROR_RECOVERY = "link_error_recovery"
    SYMBOL_ERROR = "symbol_error"
    RECEIVE_ERRORS = "port_rcv_errors"
    RECEIVE_REMOTE_PHYSICAL_ERRORS = "port_rcv_remote_physical_errors"
    LOCAL_LINK_INTEGRITY = "local_link_integrity_errors"
    BUFFER_OVERRUN = "excessive_buffer_overrun_errors"
    BAD_CRC = "rx_icrc_encapsulated"
    OUT_OF_SEQUENCE = "out_of_sequence"
    PACKET_SEQUENCE = "packet_seq_err"
    ACK_TIMEOUT = "local_ack_timeout_err"
    ADAPTIVE_RETRANSMISSION = "roce_adp_retrans"
    ADAPTIVE_RETRANSMISSION_TIMEOUT = "roce_adp_retrans_to"
    CARRIER_DOWN = "carrier_down_count"  # of the port's network interface, where it has one


@dataclass(frozen=True, slots=True, kw_only=True)
class PortDetail:
    """One port of an adapter (`device`), `model` of its kind, `interface` its network interface where it has one.

    `state_text` is the kernel's own word. `rate_gbps` is in gigabits a second; None is Unknown. `downs` counts how
    often the link was seen to go down since the agent started. `counters` are raw: they start again with the
    driver, and the classic ones stop at their limit. `sent_bytes` and `received_bytes` are since the driver was
    loaded.
    """

    device: str
    port: int
    state: PortState
    state_text: str = ""
    link_layer: str = ""
    model: str = ""
    interface: str = ""
    rate_gbps: float | None = None
    downs: int = 0
    sent_bytes: int | None = None
    received_bytes: int | None = None
    counters: Mapping[PortCounter, int] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def name(self) -> str:
        """ADAPTER/PORT, as conditions name it: "mlx5_0/1"."""
        return f"{self.device}/{self.port}"
