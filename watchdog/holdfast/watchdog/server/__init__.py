"""The watchdog's shell: connections in, effects out. It decides nothing."""
