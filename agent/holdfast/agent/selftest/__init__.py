"""Self-tests of a node's devices: exact arithmetic, memory, bandwidth, collectives, topology."""
