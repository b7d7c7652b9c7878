"""The line to the watchdog and to Kubernetes, and the way in to whoever listens."""
