"""The line to the watchdog and to Kubernetes."""
