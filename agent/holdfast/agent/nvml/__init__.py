"""The NVIDIA driver's own word on this node's GPUs, through NVML. The only place that imports pynvml."""
