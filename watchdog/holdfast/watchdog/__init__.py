"""The brain: turns signals into findings, findings into incidents, incidents into rounds and plans."""
