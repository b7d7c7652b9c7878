"""What is told of a node whose agent was heard some time ago."""

import pytest

from holdfast.api.policy import Policy
from holdfast.api.status import Hearing, NodeStatus
from holdfast.api.telemetry import GpuHealth, GpuSample
from holdfast.watchdog.server.jobs import as_of_now

WELL = GpuSample("GPU-1", 0, GpuHealth.HEALTHY, temperature_c=60.0, utilization_ratio=1.0)


@pytest.mark.parametrize(("lost_after_s", "interval_s", "silent_after_s"), [(10.0, 1.0, 10.0), (3.0, 5.0, 15.0)])
def test_the_gpus_of_a_node_that_is_silent_are_unknown(
    lost_after_s: float, interval_s: float, silent_after_s: float
) -> None:
    policy = Policy(
        job="a/b", nodes_min=1, nodes_max=1, lost_after_s=lost_after_s, heartbeat_interval_s=interval_s
    )
    heard = NodeStatus("n1", silent_after_s, (WELL,), known="GPU lost in a/b")
    assert as_of_now(heard, policy) == heard
    silent = NodeStatus("n1", silent_after_s + 0.1, (WELL,), known="GPU lost in a/b")
    assert as_of_now(silent, policy) == NodeStatus(
        "n1",
        silent_after_s + 0.1,
        (GpuSample("GPU-1", 0, GpuHealth.UNKNOWN),),
        known="GPU lost in a/b",
        hearing=Hearing.SILENT,
    )
