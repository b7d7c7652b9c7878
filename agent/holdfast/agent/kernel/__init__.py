"""What the kernel's log says: read from its device or a file, understood, and judged."""
