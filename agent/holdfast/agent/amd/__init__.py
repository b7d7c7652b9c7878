"""The AMD driver's own word on this node's GPUs, through AMD SMI. The only place that imports amdsmi."""
