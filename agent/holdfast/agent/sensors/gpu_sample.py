"""What of a GPU's details goes to the watchdog. Pure."""

from holdfast.agent.sensors.gpu_detail import GpuDetail
from holdfast.api.telemetry import GpuHealth, GpuSample


def sample_of(detail: GpuDetail) -> GpuSample:
    """The sample of a GPU that answers: healthy where it says how it does, else unknown."""
    vital = (detail.temperature_c, detail.power_w, detail.utilization_ratio)
    return GpuSample(
        uuid=detail.uuid,
        index=detail.index,
        health=GpuHealth.UNKNOWN if vital == (None, None, None) else GpuHealth.HEALTHY,
        temperature_c=detail.temperature_c,
        memory_temperature_c=detail.memory_temperature_c,
        power_w=detail.power_w,
        utilization_ratio=detail.utilization_ratio,
        margin_c=detail.margin_c,
        throttled_s=detail.thermal_throttled_s,
        throttle=detail.throttle,
    )
