"""How a folder of files becomes a checkpoint, which ones count, and which stay."""
