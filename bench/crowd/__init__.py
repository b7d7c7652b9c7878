"""A crowd: thousands of launchers and agents, played by a few processes, that speak to a real watchdog."""
