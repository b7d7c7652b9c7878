"""On the node: senses ranks and GPUs, reports, exports metrics."""
